"""Noise for smooth sensitivities: its law, its scales, its leaves, its keys."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax.mechanisms import arsinh_normal, laplace_log_normal

FALSE_ALARM = 1e-6
# Y of the log-normal factor, and its weights, for a mean over it.
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def laplace_log_normal_cdf(z, sigma):
    scales = np.exp(sigma * NODES)
    return sum(
        w * scipy.stats.laplace.cdf(z / b) for w, b in zip(WEIGHTS, scales, strict=True)
    )


def arsinh_normal_cdf(z, sigma):
    return scipy.stats.norm.cdf(np.arcsinh(sigma * z) / sigma)


# name: (mechanism, cdf of the noise at scale 1, its standard deviation)
MECHANISMS = {
    "laplace_log_normal": (
        laplace_log_normal,
        laplace_log_normal_cdf,
        lambda sigma: math.sqrt(2) * math.exp(sigma**2),
    ),
    "arsinh_normal": (
        arsinh_normal,
        arsinh_normal_cdf,
        lambda sigma: math.sqrt(math.expm1(2 * sigma**2) / 2) / sigma,
    ),
}
each = pytest.mark.parametrize("name", MECHANISMS)


@pytest.mark.quick(1)
@each
@pytest.mark.parametrize("sigma", [0.4, 1.0])
@pytest.mark.parametrize("scale", [1e-3, 2.5, 1e4])
def test_law(name, sigma, scale, key):
    mechanism, cdf, _ = MECHANISMS[name]
    num_draws = 50_000
    # Massart: Pr[distance > t] <= 2 exp(-2 n t^2).
    bound = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * num_draws))
    noise = mechanism(key, jnp.zeros(num_draws), scale=scale, sigma=sigma)
    noise = np.asarray(noise, np.float64)

    def distance(scale, sigma):
        return scipy.stats.kstest(noise, lambda z: cdf(z / scale, sigma)).statistic

    assert distance(scale, sigma) <= bound
    for wrong in (2 / 3, 3 / 2):
        assert distance(scale * wrong, sigma) > 3 * bound
    assert distance(scale, 3 * sigma) > bound


@pytest.mark.slow
@each
def test_standard_deviation(name, key):
    mechanism, _, stddev = MECHANISMS[name]
    noise = mechanism(key, jnp.zeros(400_000), scale=1.0, sigma=0.3)
    # Kurtosis is below 13: five standard errors, false alarm 1e-6 or so.
    assert abs(float(noise.std()) / stddev(0.3) - 1) < 5 * math.sqrt(12 / 4 / 400_000)


@pytest.mark.slow
@each
def test_one_scale_an_entry(name, key):
    mechanism, _, _ = MECHANISMS[name]
    value = {"a": jnp.zeros((200, 3)), "b": (jnp.zeros(200), jnp.ones(()))}

    @jax.jit
    def noisy(scale):
        return mechanism(jax.random.clone(key), value, scale=scale, sigma=0.5)

    unit, half = noisy(1.0), noisy(0.5)
    by_column = jnp.array([[0.0, 1.0, 0.5]])
    mixed = noisy({"a": by_column, "b": jnp.array(0.5)})
    np.testing.assert_array_equal(mixed["a"][:, 0], 0)
    np.testing.assert_allclose(mixed["a"][:, 1], unit["a"][:, 1], rtol=1e-6)
    np.testing.assert_allclose(mixed["a"][:, 2], half["a"][:, 2], rtol=1e-6)
    np.testing.assert_allclose(mixed["b"][0], half["b"][0], rtol=1e-6)
    np.testing.assert_allclose(mixed["b"][1], half["b"][1], rtol=1e-6)
    full = noisy({"a": jnp.full((200, 3), 0.5), "b": (jnp.full(200, 0.5), 0.5)})
    chex.assert_trees_all_close(full, half, rtol=1e-6)
    # No leaf repeats the noise of another: correlation is normal(0, 1 / 200).
    first, second = unit["a"][:, 0], unit["b"][0]
    assert abs(scipy.stats.spearmanr(first, second).statistic) < 5 / math.sqrt(200)


@pytest.mark.quick(1)
@each
def test_jit_and_vmap_over_keys_scales_and_sigmas(name):
    mechanism, _, _ = MECHANISMS[name]

    def noisy(key, value, scale, sigma):
        return mechanism(key, value, scale=scale, sigma=sigma)

    value = {"a": jnp.arange(4.0), "b": jnp.ones((2, 3))}
    scales, sigmas = jnp.array([0.5, 1.0, 2.0]), jnp.array([0.3, 0.5, 1.0])
    singles = [
        noisy(jax.random.key(i), value, float(scales[i]), float(sigmas[i]))
        for i in range(3)
    ]
    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    mapped = jax.jit(jax.vmap(noisy, (0, None, 0, 0)))(keys, value, scales, sigmas)
    for name in value:
        expected = jnp.stack([x[name] for x in singles])
        np.testing.assert_allclose(mapped[name], expected, rtol=1e-5, atol=1e-6)


@each
@pytest.mark.parametrize(
    "scale", [jnp.ones(2), jnp.ones((1, 3)), {"a": 1.0}, (1.0, 1.0)], ids=str
)
def test_scale_that_does_not_fit(name, scale, key):
    with pytest.raises(ValueError, match="scale must be a number, or a pytree prefix"):
        MECHANISMS[name][0](key, jnp.zeros(3), scale=scale, sigma=0.5)


@pytest.mark.quick(1)
@each
def test_a_private_scale_is_never_looked_at(name, key):
    # An error would tell about the data.
    for bad in (jnp.nan, -1.0, jnp.inf):
        noisy = MECHANISMS[name][0](
            jax.random.clone(key), jnp.zeros(3), scale=jnp.full(3, bad), sigma=0.5
        )
        assert noisy.shape == (3,)
