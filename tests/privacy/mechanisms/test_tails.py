"""All noise that is drawn: the mass of its tails, its symmetry, its repetitions.

Where a sample sees a tail its mass is counted; beyond, the quantile that random bits
are mapped to is checked, bit by bit. Every random check has a fixed key and a
false-alarm rate of 1e-6 for a right sampler.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from dpjax import mechanisms
from dpjax.mechanisms import _discrete_gaussian, _samplers
from tests.unit.mechanisms.test_additive import LAWS

FALSE_ALARM = 1e-6
SIGMA = 0.7  # of the noise for smooth sensitivities
# The log-normal factor's values and their weights, for a mean over it.
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)
SPREADS, WEIGHTS = np.exp(SIGMA * NODES), WEIGHTS / WEIGHTS.sum()


class Noise(NamedTuple):
    """A way to draw n float32 numbers, and their law, which is symmetric."""

    draw: Callable[[jax.Array, int], jax.Array]
    cdf: Callable[[np.ndarray], np.ndarray]
    pdf: Callable[[np.ndarray], np.ndarray]
    num_draws: int = 2**22


def arsinh(z):
    return np.arcsinh(SIGMA * z) / SIGMA


def mixed(function):
    """Averages a function of a number and a spread over the spreads."""
    parts = [*zip(WEIGHTS, SPREADS, strict=True)]
    return lambda z: sum(w * function(z, b) for w, b in parts)


def of_vector(mechanism, **scale):
    return jax.jit(
        lambda key, n: mechanism(key, jnp.zeros(n), **scale), static_argnums=1
    )


def of_peeling(key, n):
    options = {"selection_scale": 1.0, "release_stddev": 1.0}
    return mechanisms.peeling(key, jnp.zeros(n), sparsity=n, **options)


def of_peeling_laplace(key, n):
    options = {"selection_scale": 1.0, "release_stddev": math.sqrt(2), "sparsity": 1}
    options |= {"noise": "laplace"}
    one = jax.vmap(lambda key: mechanisms.peeling(key, jnp.zeros(1), **options)[0])
    return one(jax.random.split(key, n))


NORMAL = scipy.stats.norm.cdf, scipy.stats.norm.pdf
LAPLACE = scipy.stats.laplace.cdf, scipy.stats.laplace.pdf
NOISES = {
    "gaussian": Noise(of_vector(mechanisms.gaussian, stddev=1.0), *NORMAL),
    "laplace": Noise(of_vector(mechanisms.laplace, scale=1.0), *LAPLACE),
    "arsinh_normal": Noise(
        of_vector(mechanisms.arsinh_normal, scale=1.0, sigma=SIGMA),
        cdf=lambda z: scipy.stats.norm.cdf(arsinh(z)),
        pdf=lambda z: scipy.stats.norm.pdf(arsinh(z)) / np.hypot(1, SIGMA * z),
    ),
    "laplace_log_normal": Noise(
        of_vector(mechanisms.laplace_log_normal, scale=1.0, sigma=SIGMA),
        cdf=mixed(lambda z, b: scipy.stats.laplace.cdf(z / b)),
        pdf=mixed(lambda z, b: scipy.stats.laplace.pdf(z / b) / b),
    ),
    "peeling": Noise(of_peeling, *NORMAL, num_draws=2**20),
    "peeling_laplace": Noise(of_peeling_laplace, *LAPLACE, num_draws=2**20),
}
# Tail probabilities (q + 1/2) 2^-64 from 2^-65 to nearly 1/2: q is 31 bits of the first
# word, above one bit for the half of the law, and 32 of the second.
Q = [0, 1, 2**32 - 1, 2**32, 2**40 - 1, 2**40, 2**63 - 1]
Q += [int(2.0**x) for x in np.linspace(0, 62.999, 2000)]
PROBS = ((np.array(Q, object) + 0.5) * 2.0**-64).astype(np.float64)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", NOISES)
def test_tails_have_their_mass_and_no_value_repeats_beyond_chance(name, key):
    noise = NOISES[name]
    draws = np.asarray(noise.draw(key, noise.num_draws))
    assert draws.dtype == np.float32
    assert np.isfinite(draws).all()
    for mass in (1e-2, 1e-3, 1e-4, 1e-5):
        if noise.num_draws * mass < 15:
            break  # to find none would be no alarm
        end = scipy.optimize.brentq(lambda z, m=mass: noise.cdf(-z) - m, -700, 700)
        end = np.float32(end)
        counts = [int(np.sum(side * draws > end)) for side in (1, -1)]
        beyond = draws.size, noise.cdf(-np.float64(end))
        for test in (*((count, *beyond) for count in counts), (counts[0], sum(counts))):
            assert scipy.stats.binomtest(*test).pvalue > FALSE_ALARM
    # Two draws are equal with probability E m(Z), where m(z) is the mass of one float:
    # that between neighbouring tail probabilities, and between neighbouring values, of
    # which the last few roundings leave at least every other one.
    n, draws = 2**20, draws[: 2**20]
    some = draws[: 2**14]
    z = some.astype(np.float64)
    tail = noise.cdf(-np.abs(z)).astype(np.float32)
    spacing = np.spacing(np.abs(some)).astype(np.float64)
    mass = np.maximum(np.spacing(tail), 2.0**-32) + 2 * noise.pdf(z) * spacing
    most = scipy.stats.poisson.isf(FALSE_ALARM, n * (n - 1) / 2 * mass.mean())
    assert num_pairs(draws) <= most
    if name == "gaussian":  # 2^23 values in all, as of jax.random.normal
        assert num_pairs(jax.random.normal(jax.random.clone(key), (n,))) > 2 * most


def num_pairs(draws):
    _, counts = np.unique(draws, return_counts=True)
    return int((counts * (counts - 1) // 2).sum())


@pytest.fixture
def with_bits(monkeypatch):
    """Lets samplers draw the words of given tail probabilities."""

    def patch(q, is_lower):
        q = np.array(q, np.uint64)
        first = (q >> np.uint64(32)).astype(np.uint32) * np.uint32(2)
        words = first + np.uint32(is_lower), q.astype(np.uint32)
        monkeypatch.setattr(_samplers, "_words", lambda *_: map(jnp.asarray, words))

    return patch


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("name", LAWS)
def test_every_quantile_has_the_mass_beyond_it(name, dtype, key, with_bits):
    # Whatever tail no sample reaches: the mass beyond each value is that of the bits
    # which lead to it and beyond, to 1 in 10,000. No float is better: at 9 sigma its
    # last digit is worth 4 in a million.
    sampler, distribution = LAWS[name]
    values = []
    for is_lower in (False, True):
        with jax.enable_x64(dtype == jnp.float64):
            with_bits(Q, is_lower)
            value = np.asarray(sampler(jax.random.clone(key), (len(Q),), dtype))
        assert value.dtype == dtype
        assert np.isfinite(value).all()
        values.append(value)
        # Of the Gumbel, minus the logarithm of an exponential, the halves change sides.
        tail = distribution.cdf if is_lower != (name == "gumbel") else distribution.sf
        np.testing.assert_allclose(tail(value.astype(np.float64)), PROBS, rtol=1e-4)
    if name in ("normal", "laplace"):
        np.testing.assert_array_equal(values[0], -values[1])
        assert values[0].max() > {"normal": 9.1, "laplace": 44.0}[name]


@pytest.mark.quick(1)
@pytest.mark.parametrize("sigma", [0.001, 0.3, 1.0, 8.0])
def test_smooth_noise_of_every_quantile(sigma, key, with_bits):
    zeros, values = jnp.zeros(len(Q)), []
    for is_lower, sign in ((False, 1), (True, -1)):
        y, z = sign * scipy.stats.norm.isf(PROBS), sign * scipy.stats.laplace.isf(PROBS)
        expected = {
            mechanisms.arsinh_normal: np.sinh(sigma * y) / sigma,
            mechanisms.laplace_log_normal: z * np.exp(sigma * y),
        }
        for mechanism, exact in expected.items():
            with_bits(Q, is_lower)
            with jax.disable_jit():  # what is traced here must not stay
                value = mechanism(jax.random.clone(key), zeros, scale=1.0, sigma=sigma)
            value = np.asarray(value)
            assert np.isfinite(value).all()
            # The normal errs by 1.5e-6, of which the exponent is 8 times.
            near = {"rtol": 1e-5 + 4e-6 * sigma, "atol": 4e-6}
            np.testing.assert_allclose(value.astype(np.float64), exact, **near)
            values.append(value)
    np.testing.assert_allclose(values[0], -values[2], rtol=1e-6)


def test_discrete_gaussian_repeats_as_its_law_does():
    # Two draws are equal with probability 1 / (2 sigma sqrt(pi)): 144 pairs.
    n, stddev = 2**18, 2**26
    bits = np.random.default_rng(0).bytes
    draws = mechanisms.discrete_gaussian(n, stddev=stddev, random_bytes=bits)
    expected = scipy.stats.poisson(n * (n - 1) / 4 / stddev / np.sqrt(np.pi))
    assert expected.cdf(num_pairs(draws)) > FALSE_ALARM / 2
    assert expected.sf(num_pairs(draws) - 1) > FALSE_ALARM / 2
    positive = scipy.stats.binomtest(int((draws > 0).sum()), int((draws != 0).sum()))
    assert positive.pvalue > FALSE_ALARM


@pytest.mark.parametrize("num_scales", [6, 7, 8, 9])
@pytest.mark.parametrize("stddev", [1000, 2**20, 2**26])
def test_discrete_gaussian_far_out_is_accepted_as_often_as_it_should(
    stddev, num_scales
):
    # The proposal y = k t, t = sigma + 1, made by the words; it is kept where the last
    # word is below exp(-(y - sigma^2/t)^2 / (2 sigma^2)) 2^53, to the last bit.
    scale = stddev + 1
    with mpmath.workdps(60):
        ratio = mpmath.mpf(num_scales * scale**2 - stddev**2) / (scale * stddev)
        threshold = int(mpmath.floor(mpmath.exp(-(ratio**2) / 2) * 2**53))
    assert threshold > 100

    def is_drawn(word, then):
        # 0 < scale, and kept; k times on and then no more; positive; kept or not.
        words = [0, 0, *[0] * num_scales, 2**64 - 1, 0, word << 11]
        script = iter([*words, then])

        def random_bytes(count):
            assert count == 8
            return next(script).to_bytes(8, "little")

        drawn = _discrete_gaussian._accepted(1, stddev, random_bytes).tolist()
        assert drawn in ([], [num_scales * scale])
        return bool(drawn)

    for then in (0, 2**64 - 1):
        assert is_drawn(threshold - 1, then)
        assert not is_drawn(threshold + 1, then)
    # Only more bits can tell.
    assert is_drawn(threshold, 0)
    assert not is_drawn(threshold, 2**64 - 1)
