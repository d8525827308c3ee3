"""The samplers: their law, their tails, and what extreme random bits give.

Every random check has a fixed key and a false-alarm rate of 1e-6 for a right sampler.
"""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from dpjax.mechanisms import _samplers, _smooth_noise

FALSE_ALARM = 1e-6
LAWS = {
    "normal": (_samplers.normal, scipy.stats.norm.cdf),
    "laplace": (_samplers.laplace, scipy.stats.laplace.cdf),
    "exponential": (_samplers.exponential, scipy.stats.expon.cdf),
    "gumbel": (_samplers.gumbel, scipy.stats.gumbel_r.cdf),
}


def ks_distance(draws, cdf):
    return scipy.stats.kstest(np.asarray(draws, np.float64), cdf).statistic


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("law", LAWS)
def test_law_accepts_its_scale_and_rejects_others(law, dtype, key):
    sampler, cdf = LAWS[law]
    num_draws = 100_000
    # Massart: Pr[distance > t] <= 2 exp(-2 n t^2).
    bound = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * num_draws))
    with jax.enable_x64(dtype == jnp.float64):
        draws = sampler(key, (num_draws,), dtype)
    assert draws.dtype == dtype
    assert ks_distance(draws, cdf) <= bound
    for wrong in (2 / 3, 3 / 2):
        assert ks_distance(draws, lambda x, wrong=wrong: cdf(x / wrong)) > 5 * bound


@partial(jax.jit, static_argnums=(1, 2))
def count_beyond(key, sampler, num_chunks, thresholds):
    """Counts draws above each threshold, and below minus it, over chunks of 2^18."""

    def chunk(counts, chunk_key):
        draws = sampler(chunk_key, (2**18,), jnp.float32)
        above = (draws[None] > thresholds[:, None]).sum(axis=1)
        below = (draws[None] < -thresholds[:, None]).sum(axis=1)
        return counts + jnp.stack([above, below]), None

    zeros = jnp.zeros((2, len(thresholds)), jnp.int32)
    return jax.lax.scan(chunk, zeros, jax.random.split(key, num_chunks))[0]


def check_tails(counts, tail_probs, num_draws):
    """Holds each count to its Poisson law, and the two signs to a fair coin."""
    for above, below, prob in zip(*counts, tail_probs, strict=True):
        for count in (above, below):
            law = scipy.stats.poisson(num_draws * prob)
            assert law.cdf(count) > FALSE_ALARM / 2
            assert law.sf(count - 1) > FALSE_ALARM / 2
        sign = scipy.stats.binomtest(int(above), int(above + below))
        assert sign.pvalue > FALSE_ALARM


@pytest.mark.slow
def test_normal_tails(key):
    thresholds = jnp.array([4.0, 5.0, 5.3, 5.42], jnp.float32)
    num_draws = 2**28
    counts = np.asarray(count_beyond(key, _samplers.normal, 2**10, thresholds))
    tail_probs = scipy.stats.norm.sf(np.asarray(thresholds, np.float64))
    check_tails(counts, tail_probs, num_draws)
    # An empty tail beyond 5.42, both signs together, would be caught.
    assert scipy.stats.poisson.pmf(0, 2 * num_draws * tail_probs[-1]) < FALSE_ALARM
    assert counts[:, -1].sum() > 0


def test_jax_random_normal_has_no_tails():
    # Why dpjax has a sampler of its own: each of the 2^23 uniforms that
    # jax.random.normal can start from, and none passes 5.42.
    mantissa = jnp.arange(2**23, dtype=jnp.uint32) | jnp.uint32(0x3F800000)
    unit = jax.lax.bitcast_convert_type(mantissa, jnp.float32) - 1
    low = np.nextafter(np.float32(-1), np.float32(0))
    uniform = jnp.maximum(low, unit * (1 - low) + low)
    normal = np.sqrt(np.float32(2)) * jax.lax.erf_inv(uniform)
    assert -5.42 <= float(normal.min()) < -5.41
    assert 5.21 < float(normal.max()) <= 5.23


@pytest.mark.slow
def test_laplace_tails(key):
    thresholds = jnp.array([10.0, 14.0, 15.95, 17.0], jnp.float32)
    num_draws = 2**28
    counts = np.asarray(count_beyond(key, _samplers.laplace, 2**10, thresholds))
    check_tails(counts, np.exp(-np.asarray(thresholds, np.float64)) / 2, num_draws)
    assert counts[:, -1].sum() > 0


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


@pytest.mark.slow
def test_quantile_accuracy():
    # Error of ndtri in float32 against float64, on the tail probabilities in use. The
    # input's own rounding is 2^-24 of the probability, which moves the quantile by at
    # most 2^-24 / |z|; the largest error measured was 1.5e-6 at 8.8 sigma.
    tail = np.concatenate([2.0 ** -np.linspace(1, 65, 50_001), np.linspace(0.3, 0.5)])
    tail = tail.astype(np.float32)
    exact = scipy.special.ndtri(tail.astype(np.float64))
    error = np.abs(np.asarray(jax.scipy.special.ndtri(tail), np.float64) - exact)
    assert error.max() < 4e-6
    assert (error / np.maximum(np.abs(exact), 1)).max() < 8 * 2.0**-24


def test_sign_and_size_are_independent(key):
    # Correlation of sign and size: standard normal over sqrt(n) for a right sampler.
    draws = np.asarray(_samplers.normal(key, (100_000,), jnp.float32), np.float64)
    sign, size = np.sign(draws), np.abs(draws)
    z = np.corrcoef(sign, size)[0, 1] * math.sqrt(len(draws))
    assert abs(z) < scipy.stats.norm.isf(FALSE_ALARM / 2)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_extreme_bits_give_finite_noise(dtype, monkeypatch):
    # Tail probabilities of 2^-65 and of 1/2, where a normal is zero.
    ends = [0, 1, 2**32 - 2, 2**32 - 1]
    words = np.array([*itertools.product(ends, repeat=2)], np.uint32)
    samplers = {law: sampler for law, (sampler, _) in LAWS.items()}
    samplers["spherical"] = _samplers.spherical_laplace
    largest = np.array(8, dtype)
    for name in ("_laplace_log_normal", "_arsinh_normal"):
        sampler = getattr(_smooth_noise, name)
        samplers[name] = lambda key, *kind, f=sampler: f(key, largest, *kind, None)

    def draws(pair):
        def same(key, shape, _):
            return [jnp.full(shape, x) for x in pair]

        monkeypatch.setattr(_samplers, "_words", same)
        return {
            (name, size): sampler(jax.random.key(0), (size,), dtype)
            for name, sampler in samplers.items()
            for size in (1, 3)
        }

    with jax.enable_x64(dtype == jnp.float64):
        found = jax.jit(jax.vmap(draws))(words)
    for kind, noise in found.items():
        assert np.isfinite(noise).all(), kind
        if kind[0] == "spherical":  # its sign is the lowest bit, that of zeros too
            even, odd = np.signbit(noise).reshape(2, 2, 4, -1).swapaxes(0, 1)
            assert (even != odd).all()
