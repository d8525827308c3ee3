"""Additive noise and its samplers: laws, leaves, scales; what all mechanisms owe."""

import itertools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax.mechanisms import _samplers, arsinh_normal, laplace, laplace_log_normal
from dpjax.mechanisms._additive import gaussian, gaussian_of_padded, padded
from tests import registry

FALSE_ALARM = 1e-6
# Y of the log-normal factor, and its weights, for a mean over it.
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def by_place(mechanism, *names):
    """A function of key, value, scale and sigma, for a mechanism that has these."""
    return lambda key, value, *numbers: mechanism(
        key, value, **dict(zip(names, (*numbers, 0.5), strict=False))
    )


# name: (mechanism; cdf of the noise at scale 1)
MECHANISMS = {
    "gaussian": (by_place(gaussian, "stddev"), lambda z, _: scipy.stats.norm.cdf(z)),
    "laplace": (by_place(laplace, "scale"), lambda z, _: scipy.stats.laplace.cdf(z)),
    "laplace_log_normal": (
        by_place(laplace_log_normal, "scale", "sigma"),
        lambda z, sigma: (
            WEIGHTS @ [scipy.stats.laplace.cdf(z / b) for b in np.exp(sigma * NODES)]
        ),
    ),
    "arsinh_normal": (
        by_place(arsinh_normal, "scale", "sigma"),
        lambda z, sigma: scipy.stats.norm.cdf(np.arcsinh(sigma * z) / sigma),
    ),
}
SMOOTH = ("laplace_log_normal", "arsinh_normal")
each = pytest.mark.parametrize("name", MECHANISMS)


@each
def test_noise_has_its_law_at_the_stated_scale(name):
    mechanism, cdf = MECHANISMS[name]
    num_draws = 50_000
    # Massart: Pr[distance > t] <= 2 exp(-2 n t^2).
    bound = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * num_draws))

    @jax.jit
    def draws(seed, scale, sigma):
        return mechanism(jax.random.key(seed), jnp.zeros(num_draws), scale, sigma)

    for seed, (scale, sigma) in enumerate([(1e-3, 0.4), (1e4, 1.0)]):
        noise = np.asarray(draws(seed, scale, sigma), np.float64)

        def distance(scale, sigma, noise=noise):
            law = lambda z: cdf(z / scale, sigma)  # noqa: E731
            return scipy.stats.kstest(noise, law).statistic

        assert distance(scale, sigma) <= bound
        for wrong in (2 / 3, 3 / 2):
            assert distance(scale * wrong, sigma) > 3 * bound
        if name in SMOOTH:
            assert distance(scale, 3 * sigma) > bound


@each
def test_every_entry_has_noise_of_its_own_and_the_scale_of_its_leaf(name, key):
    mechanism, _ = MECHANISMS[name]
    value = {"a": jnp.zeros((200, 3)), "b": (jnp.zeros(200), jnp.ones(()))}

    noisy = jax.jit(lambda scale: mechanism(jax.random.clone(key), value, scale))
    unit, half, none = noisy(1.0), noisy(0.5), noisy(0.0)
    # Correlation of independent columns is normal(0, 1 / 200), of ranks too.
    columns = [unit["a"][:, 0], unit["a"][:, 1], unit["b"][0]]
    ranks = scipy.stats.spearmanr(np.stack(columns, axis=1)).statistic
    assert np.abs(ranks - np.eye(3)).max() < 5 / math.sqrt(200)
    for x, y, z in zip(*map(jax.tree.leaves, (value, none, half)), strict=True):
        np.testing.assert_array_equal(x, y)
        assert (x != z).all()
    twice = jax.tree.map(lambda x, y: x + 2 * (y - x), value, half)
    for x, y in zip(*map(jax.tree.leaves, (twice, unit)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)
    if name in SMOOTH:  # by column, and by leaf
        mixed = noisy({"a": jnp.array([[0.0, 1.0, 0.5]]), "b": jnp.array(0.5)})
        each_column = [none["a"][:, 0], unit["a"][:, 1], half["a"][:, 2]]
        expected = {"a": np.stack(each_column, axis=1), "b": half["b"]}
        chex.assert_trees_all_close(mixed, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", SMOOTH)
def test_a_private_scale_is_never_looked_at_but_has_to_fit(name, key):
    # An error would tell about the data.
    mechanism, _ = MECHANISMS[name]
    for bad in (jnp.nan, -1.0, jnp.inf):
        noisy = mechanism(jax.random.clone(key), jnp.zeros(3), jnp.full(3, bad))
        assert noisy.shape == (3,)
    for scale in (jnp.ones(2), jnp.ones((1, 3)), {"a": 1.0}, (1.0, 1.0)):
        with pytest.raises(ValueError, match="scale must be a number, or a pytree"):
            mechanism(key, jnp.zeros(3), scale)


@pytest.mark.quick(1)
@each
def test_releases_are_differentiable_in_value_and_scale(name, key):
    mechanism, _ = MECHANISMS[name]
    noise = mechanism(jax.random.clone(key), jnp.zeros(3), 1.0)
    by_value = jax.jacobian(lambda x: mechanism(jax.random.clone(key), x, 1.0))
    np.testing.assert_array_equal(by_value(jnp.ones(3)), jnp.eye(3))
    by_scale = jax.jacobian(lambda s: mechanism(key, jnp.zeros(3), s))
    np.testing.assert_allclose(by_scale(2.0), noise, rtol=1e-6)


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_a_rounded_scale_never_means_less_noise(name, key):
    # A scale in float32 may lie three roundings below what was calibrated.
    mechanism, zeros = MECHANISMS[name][0], jnp.zeros(1000)
    sampler = {"gaussian": _samplers.normal, "laplace": _samplers.laplace}[name]

    @jax.jit  # draws of two programs may differ in their last bit
    def both(key, scale):
        unit = _samplers.like(sampler, jax.random.clone(key), zeros)
        return unit, mechanism(jax.random.clone(key), zeros, scale)

    for scale in (1 / 3, 0.1, 7.7):
        low = np.float32(scale * (1 - 3 * 2**-24))
        unit, noise = (np.asarray(x, np.float64) for x in both(key, low))
        assert (np.abs(noise) >= scale * np.abs(unit)).all()
        assert (np.abs(noise) <= scale * (1 + 2**-19) * np.abs(unit)).all()


@pytest.mark.parametrize("d", [1, 2, 30])
def test_laplace_in_the_l2_norm_has_a_gamma_length_and_any_direction(d):
    keys = jax.random.split(jax.random.key(3), 20_000)
    noise = jax.vmap(lambda key: laplace(key, jnp.zeros(d), scale=2.0, norm="l2"))(keys)
    lengths = np.linalg.norm(noise, axis=1)
    assert scipy.stats.kstest(lengths / 2, scipy.stats.gamma(d).cdf).pvalue > 1e-3
    assert abs((np.asarray(noise)[:, 0] > 0).mean() - 0.5) < 0.02
    if d > 1:
        # Of a direction on the sphere a coordinate's square has a beta law.
        squares = (np.asarray(noise)[:, 0] / lengths) ** 2
        law = scipy.stats.beta(0.5, (d - 1) / 2)
        assert scipy.stats.kstest(squares, law.cdf).pvalue > 1e-3


def test_laplace_in_the_l2_norm_refuses_parts_of_an_array():
    # Each part would have a length of its own: sqrt(2) epsilon on two devices.
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("rows")

    @jax.shard_map(mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    def noisy(keys, value):
        return laplace(keys[0], value, scale=1.0, norm="l2")

    key, two = jax.random.key(0), {"a": jnp.ones(2), "b": jnp.ones(2)}
    for release in (
        lambda: noisy(jax.random.split(key, 1), jnp.zeros(4)),
        lambda: laplace(key, two, scale=1.0, norm="l2"),
    ):
        with pytest.raises(ValueError, match="value must be one array, not sh"):
            release()


def test_padding_changes_no_noise_and_short_releases_share_one_program(key):
    for shape in [(3,), (2, 700)]:
        value = jnp.arange(math.prod(shape), dtype="float32").reshape(shape)
        vector = padded(value)
        assert vector.shape == (max(1_024, value.size),)
        scales = jnp.full_like(vector, 2.0)
        noisy = gaussian_of_padded(jax.random.clone(key), vector, scales)[: value.size]
        again = gaussian(jax.random.clone(key), value, stddev=jnp.float32(2.0))
        np.testing.assert_allclose(noisy.reshape(shape), again, rtol=1e-6)
    num = gaussian_of_padded._cache_size()
    vector = padded(jnp.ones(64))
    gaussian_of_padded(key, vector, jnp.full_like(vector, 3.0))
    assert gaussian_of_padded._cache_size() == num


# -- Samplers: false alarms of a right one are 1e-6, by a fixed key --------------------
LAWS = {
    "normal": (_samplers.normal, scipy.stats.norm),
    "laplace": (_samplers.laplace, scipy.stats.laplace),
    "exponential": (_samplers.exponential, scipy.stats.expon),
    "gumbel": (_samplers.gumbel, scipy.stats.gumbel_r),
}


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_all_bits_are_fair_and_independent(impl):
    n = 2**16
    words = _samplers._words(jax.random.key(0, impl=impl), (2, n // 2), None)
    words = np.stack([np.asarray(x).ravel() for x in words])
    assert (words.dtype, words.shape) == (np.uint32, (2, n))
    shifts = np.arange(32, dtype=np.uint32)
    bits = ((words[..., None] >> shifts) & 1).transpose(0, 2, 1).reshape(64, n)
    # Hoeffding: Pr[|mean of n signs| > t] <= 2 exp(-n t^2 / 2), for all 64^2 at once.
    signs = 2.0 * bits - 1
    bound = math.sqrt(2 * math.log(2 * 64**2 / FALSE_ALARM) / n)
    assert np.abs(signs.mean(axis=1)).max() <= bound
    assert np.abs(signs @ signs.T / n - np.eye(64)).max() <= bound


def test_extreme_bits_give_finite_noise_on_a_sphere(monkeypatch):
    # Its sign is the lowest bit, that of zeros too.
    def draws(pair):
        words = lambda key, shape, _: [jnp.full(shape, x) for x in pair]  # noqa: E731
        monkeypatch.setattr(_samplers, "_words", words)
        sampler = _samplers.spherical_laplace
        return [sampler(jax.random.key(0), (size,), jnp.float32) for size in (1, 3)]

    ends = [0, 1, 2**32 - 2, 2**32 - 1]
    words = np.array([*itertools.product(ends, repeat=2)], np.uint32)
    for noise in jax.jit(jax.vmap(draws))(words):
        assert np.isfinite(noise).all()
        even, odd = np.signbit(noise).reshape(2, 2, 4, -1).swapaxes(0, 1)
        assert (even != odd).all()


# -- What every mechanism with a key owes ----------------------------------------------
REGISTERED = dict(registry.MECHANISMS)
del REGISTERED["discrete_gaussian"]  # on the host, from bytes
NOISE = [name for name in REGISTERED if name not in ("exponential", "permute_and_flip")]
VALUE = jnp.linspace(-2.0, 2.0, 100)
each_registered = pytest.mark.parametrize("name", REGISTERED)


@pytest.mark.quick(2)
@each_registered
def test_jit_and_vmap_are_the_call_as_it_is(name):
    mechanism, jitted = REGISTERED[name], jax.jit(REGISTERED[name])
    seeds = jnp.arange(3)
    eager = [mechanism(jax.random.key(seed), VALUE) for seed in seeds]
    traced = [jitted(jax.random.key(seed), VALUE) for seed in seeds]
    keys = jax.vmap(jax.random.key)(seeds)
    mapped = jax.jit(jax.vmap(mechanism, (0, None)))(keys, VALUE)
    for released in (jnp.stack(traced), mapped):
        np.testing.assert_allclose(released, jnp.stack(eager), rtol=1e-5, atol=1e-6)


@pytest.mark.quick(1)
@each_registered
def test_half_precision_is_cast_down_after_the_noise(name, key):
    dtype = jnp.bfloat16
    half = REGISTERED[name](jax.random.clone(key), VALUE.astype(dtype))
    wide = REGISTERED[name](key, VALUE.astype(dtype).astype(jnp.float32))
    assert half.dtype == (dtype if name in NOISE else jnp.int32)
    np.testing.assert_array_equal(half, wide.astype(half.dtype))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", NOISE)
def test_float64_noise_has_its_last_digits(name, key):
    with jax.enable_x64(True):
        released = REGISTERED[name](key, jnp.zeros(1000, jnp.float64))
        assert released.dtype == jnp.float64
        released = released[released != 0]  # a few, where they are chosen
        assert (released.astype(jnp.float32).astype(jnp.float64) != released).all()


@pytest.mark.quick(1)
@each_registered
def test_exports_for_every_platform(name, key):
    platforms = ("cpu", "cuda", "tpu")
    exported = jax.export.export(jax.jit(REGISTERED[name]), platforms=platforms)
    assert exported(key, VALUE).platforms == platforms
