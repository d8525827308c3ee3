"""The samplers: their law, their tails, and what extreme random bits give.

Every random check has a fixed key and a false-alarm rate of 1e-6 for a right sampler.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax.mechanisms import _samplers

FALSE_ALARM = 1e-6
LAWS = {
    "normal": (_samplers.normal, scipy.stats.norm),
    "laplace": (_samplers.laplace, scipy.stats.laplace),
    "exponential": (_samplers.exponential, scipy.stats.expon),
    "gumbel": (_samplers.gumbel, scipy.stats.gumbel_r),
}


def ks_distance(draws, cdf):
    return scipy.stats.kstest(np.asarray(draws, np.float64), cdf).statistic


@pytest.mark.quick(5)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("law", LAWS)
def test_law_accepts_its_scale_and_rejects_others(law, dtype, key):
    sampler, distribution = LAWS[law]
    cdf = distribution.cdf
    num_draws = 100_000
    # Massart: Pr[distance > t] <= 2 exp(-2 n t^2).
    bound = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * num_draws))
    with jax.enable_x64(dtype == jnp.float64):
        draws = sampler(key, (num_draws,), dtype)
    assert draws.dtype == dtype
    assert ks_distance(draws, cdf) <= bound
    for wrong in (2 / 3, 3 / 2):
        assert ks_distance(draws, lambda x, wrong=wrong: cdf(x / wrong)) > 5 * bound
    if law == "normal":
        # Correlation of sign and size: normal(0, 1 / n) if they are independent.
        sign, size = np.sign(draws), np.abs(draws)
        z = np.corrcoef(sign, size)[0, 1] * math.sqrt(num_draws)
        assert abs(z) < scipy.stats.norm.isf(FALSE_ALARM / 2)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_all_bits_are_fair_and_independent(impl):
    n = 2**16
    words = _samplers._words(jax.random.key(0, impl=impl), (2, n // 2), None)
    words = np.stack([np.asarray(x).ravel() for x in words])
    assert words.dtype == np.uint32
    assert words.shape == (2, n)
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
        return [
            _samplers.spherical_laplace(jax.random.key(0), (size,), jnp.float32)
            for size in (1, 3)
        ]

    ends = [0, 1, 2**32 - 2, 2**32 - 1]
    words = np.array([*itertools.product(ends, repeat=2)], np.uint32)
    for noise in jax.jit(jax.vmap(draws))(words):
        assert np.isfinite(noise).all()
        even, odd = np.signbit(noise).reshape(2, 2, 4, -1).swapaxes(0, 1)
        assert (even != odd).all()
