"""Additive noise: its scale, its leaves, its dtypes, its keys, its transformations."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax.mechanisms import arsinh_normal, gaussian, laplace, laplace_log_normal
from dpjax.mechanisms._shared import gaussian_of_padded, padded

FALSE_ALARM = 1e-6
# name: (mechanism with its scale, law of the noise at that scale)
MECHANISMS = {
    "gaussian": (
        lambda key, value, scale: gaussian(key, value, stddev=scale),
        scipy.stats.norm,
    ),
    "laplace": (
        lambda key, value, scale: laplace(key, value, scale=scale),
        scipy.stats.laplace,
    ),
}
each = pytest.mark.parametrize("name", MECHANISMS)
# With noise for smooth sensitivities, whose laws are in `test_smooth_noise.py`.
ALL = {name: mechanism for name, (mechanism, _) in MECHANISMS.items()} | {
    made.__name__: lambda key, value, scale, made=made: made(
        key, value, scale=scale, sigma=0.5
    )
    for made in (arsinh_normal, laplace_log_normal)
}
each_of_all = pytest.mark.parametrize("name", ALL)


def ks_distance(draws, law, scale):
    draws = np.asarray(draws, np.float64)
    return scipy.stats.kstest(draws, law(scale=scale).cdf).statistic


@pytest.mark.quick(1)
@each
@pytest.mark.parametrize("scale", [1e-3, 2.5, 1e4])
def test_scale(name, scale, key):
    mechanism, law = MECHANISMS[name]
    num_draws = 50_000
    # Massart: Pr[distance > t] <= 2 exp(-2 n t^2).
    bound = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * num_draws))
    noise = mechanism(key, jnp.zeros(num_draws), scale)
    assert ks_distance(noise, law, scale) <= bound
    for wrong in (2 / 3, 3 / 2):
        assert ks_distance(noise, law, scale * wrong) > 4 * bound


@pytest.mark.quick(1)
@each
def test_leaves_get_different_noise(name, key):
    mechanism, _ = MECHANISMS[name]
    value = {"a": jnp.zeros(1000), "b": (jnp.zeros(1000), jnp.zeros((10, 100)))}
    noise = [np.ravel(x) for x in jax.tree.leaves(mechanism(key, value, 1.0))]
    for i in range(3):
        assert len(np.unique(noise[i])) > 990  # no entry repeats another
        for j in range(i):
            # Correlation of independent columns is normal(0, 1 / 1000).
            assert abs(np.corrcoef(noise[i], noise[j])[0, 1]) < 5 / math.sqrt(1000)


@each_of_all
def test_adds_to_the_value_and_repeats_with_its_key(name, key):
    mechanism = ALL[name]
    value = {"a": jnp.arange(4.0), "b": jnp.ones(())}
    noisy = mechanism(jax.random.clone(key), value, 0.5)
    noise = mechanism(jax.random.clone(key), jax.tree.map(jnp.zeros_like, value), 0.5)
    for x, y, z in zip(*map(jax.tree.leaves, (value, noisy, noise)), strict=True):
        np.testing.assert_allclose(y, x + z, rtol=1e-6)  # a fused product rounds less
    first, second = jax.random.split(key)
    assert (
        mechanism(first, value, 0.5)["a"] != mechanism(second, value, 0.5)["a"]
    ).all()


@pytest.mark.quick(1)
@each_of_all
def test_no_scale_no_noise(name, key):
    value = jnp.arange(4.0)
    np.testing.assert_array_equal(ALL[name](key, value, 0.0), value)


@pytest.mark.quick(1)
@each_of_all
def test_differentiable_in_value_and_scale(name, key):
    mechanism = ALL[name]
    noise = mechanism(jax.random.clone(key), jnp.zeros(3), 1.0)
    by_value = jax.jacobian(lambda x: mechanism(jax.random.clone(key), x, 1.0))
    np.testing.assert_array_equal(by_value(jnp.ones(3)), jnp.eye(3))
    by_scale = jax.jacobian(lambda s: mechanism(key, jnp.zeros(3), s))
    np.testing.assert_allclose(by_scale(2.0), noise, rtol=1e-6)


@each_of_all
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.bool_, jnp.complex64])
def test_bad_value(name, dtype, key):
    with pytest.raises(ValueError, match="value must be of floating point"):
        ALL[name](key, {"a": jnp.zeros(2), "b": jnp.zeros(2, dtype)}, 1.0)


@pytest.mark.quick(1)
@each_of_all
def test_a_rounded_scale_never_means_less_noise(name, key):
    # A scale in float32 may lie three roundings below what was calibrated.
    mechanism, zeros = ALL[name], jnp.zeros(1000)
    one = np.float32(1 / (1 + 2.0**-21))  # takes the margin off again
    unit = mechanism(jax.random.clone(key), zeros, one)
    for scale in (1 / 3, 0.1, 7.7):
        low = np.float32(scale * (1 - 3 * 2**-24))
        noise = np.asarray(mechanism(jax.random.clone(key), zeros, low), np.float64)
        ratio = noise / np.asarray(unit, np.float64)
        assert (ratio >= scale).all()
        assert (ratio <= scale * (1 + 2**-20)).all()


@pytest.mark.parametrize("d", [1, 2, 30])
def test_laplace_in_the_l2_norm_has_a_gamma_length_and_any_direction(d):
    keys = jax.random.split(jax.random.key(3), 20_000)
    noise = jax.vmap(lambda key: laplace(key, jnp.zeros(d), scale=2.0, norm="l2"))(keys)
    lengths = np.linalg.norm(noise, axis=1)
    assert scipy.stats.kstest(lengths / 2, scipy.stats.gamma(d).cdf).pvalue > 1e-3
    signs = np.asarray(noise)[:, 0] > 0
    assert abs(signs.mean() - 0.5) < 0.02
    if d > 1:
        # Of a direction on the sphere a coordinate's square has a beta law.
        squares = (np.asarray(noise)[:, 0] / lengths) ** 2
        law = scipy.stats.beta(0.5, (d - 1) / 2)
        assert scipy.stats.kstest(squares, law.cdf).pvalue > 1e-3


def test_laplace_in_the_l2_norm_takes_one_array():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="value must be one whole array"):
        laplace(key, {"a": jnp.ones(2), "b": jnp.ones(2)}, scale=1.0, norm="l2")


def test_laplace_in_the_l2_norm_refuses_parts_of_an_array():
    # Each part would have a length of its own: sqrt(2) epsilon on two devices.
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("rows")

    @jax.shard_map(mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    def noisy(keys, value):
        return laplace(keys[0], value, scale=1.0, norm="l2")

    with pytest.raises(ValueError, match="value must be one whole array"):
        noisy(jax.random.split(jax.random.key(0), 1), jnp.zeros(4))


@pytest.mark.parametrize("shape", [(), (3,), (4, 5), (1_023,), (2, 700)])
def test_padding_changes_no_noise(shape, key):
    value = jnp.arange(math.prod(shape), dtype="float32").reshape(shape)
    vector = padded(value)
    assert vector.shape == (max(1_024, value.size),)
    noisy = gaussian_of_padded(key, vector, jnp.full_like(vector, 2.0))[: value.size]
    again = gaussian(jax.random.clone(key), value, stddev=jnp.float32(2.0))
    np.testing.assert_allclose(noisy.reshape(shape), again, rtol=1e-6)


def test_short_releases_share_one_program(key):
    keys = jax.random.split(key)
    vectors = padded(jnp.ones(64)), padded(jnp.ones(()))
    gaussian_of_padded(keys[0], vectors[0], jnp.full_like(vectors[0], 1.0))
    num = gaussian_of_padded._cache_size()
    gaussian_of_padded(keys[1], vectors[1], jnp.full_like(vectors[1], 3.0))
    assert gaussian_of_padded._cache_size() == num
