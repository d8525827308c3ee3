"""Tails of many draws, large selections, and strategies beside those of jax_privacy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax import mechanisms
from dpjax.mechanisms import BandedToeplitz, BufferedToeplitz, _samplers

FALSE_ALARM = 1e-6


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


@pytest.mark.parametrize(
    ("sampler", "law", "thresholds"),
    [
        (_samplers.normal, scipy.stats.norm, [4.0, 5.0, 5.3, 5.42]),
        (_samplers.laplace, scipy.stats.laplace, [10.0, 14.0, 15.95, 16.7]),
    ],
    ids=["normal", "laplace"],
)
def test_far_tails_have_their_mass(sampler, law, thresholds, key):
    num_draws = 2**28
    counts = count_beyond(key, sampler, 2**10, jnp.float32(thresholds))
    tail_probs = law.sf(np.float64(np.float32(thresholds)))
    # Each count has its Poisson law, and the two signs are a fair coin.
    means = num_draws * tail_probs
    for above, below, mean in zip(*np.asarray(counts), means, strict=True):
        for count in (above, below):
            assert scipy.stats.poisson.cdf(count, mean) > FALSE_ALARM / 2
            assert scipy.stats.poisson.sf(count - 1, mean) > FALSE_ALARM / 2
        sign = scipy.stats.binomtest(int(above), int(above + below))
        assert sign.pvalue > FALSE_ALARM
    # An empty last tail, both signs together, would be caught.
    assert scipy.stats.poisson.pmf(0, 2 * num_draws * tail_probs[-1]) < FALSE_ALARM
    assert counts[:, -1].sum() > 0


def test_tails_of_discrete_gaussian_noise_have_their_mass():
    options = {"stddev": 2**24, "random_bytes": np.random.default_rng(2).bytes}
    draws = mechanisms.discrete_gaussian(4_000_000, **options)
    for limit in (4.0, 4.5, 5.0):
        beyond = int(np.sum(np.abs(draws) > limit * 2**24))
        mass = 2 * scipy.stats.norm.sf(limit)
        test = scipy.stats.binomtest(beyond, draws.size, mass)  # two-sided
        assert test.pvalue > FALSE_ALARM


@pytest.mark.parametrize("name", ["exponential", "permute_and_flip"])
def test_memory_of_a_selection_is_that_of_one_chunk(name, key):
    size, num_chunks = 2**12, 2**8  # a million candidates, 4 MB of scores

    def choose(key):
        def score(i):
            return -jnp.abs(i * size + jnp.arange(size) - 777_777).astype(jnp.float32)

        options = {"epsilon": 50.0, "sensitivity_range": 1.0, "num_chunks": num_chunks}
        return getattr(mechanisms, name)(key, score, **options)

    compiled = jax.jit(choose).lower(key).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 40 * size
    assert int(compiled(key)) == 777_777


def test_sensitivities_of_strategies_are_those_of_jax_privacy():
    theirs = pytest.importorskip("jax_privacy.matrix_factorization")
    banded = BandedToeplitz.square_root(60, 10)
    buffered = BufferedToeplitz(60, decays=(0.9, 0.5), scales=(0.3, 0.2))
    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        parts = list(buffered.decays), list(buffered.scales)
        blt = theirs.buffered_toeplitz.BufferedToeplitz.build(*parts)
        columns = jnp.asarray(banded.coefficients), blt.toeplitz_coefs(60)
        squared_of = partial(theirs.toeplitz.minsep_sensitivity_squared, n=60)
        for most, apart in ((1, 1), (3, 20), (6, 10)):
            pattern = {"max_participations": most, "min_separation": apart}
            for ours, column in zip((banded, buffered), columns, strict=True):
                squared = squared_of(column, apart, most)
                expected = ours.sensitivity(**pattern) ** 2
                np.testing.assert_allclose(expected, squared, rtol=1e-8)


def test_optimal_strategies_have_a_smaller_error():
    def errors(strategy, **pattern):
        prefix = np.tri(24) @ np.linalg.inv(strategy.matrix())
        return strategy.sensitivity(**pattern) ** 2 * (prefix**2).sum(axis=1)

    pytest.importorskip("jax_privacy")
    best, root = BandedToeplitz.optimal(24, 4), BandedToeplitz.square_root(24, 4)
    assert best.num_bands == 4
    assert errors(best).mean() < errors(root).mean()
    pattern = {"max_participations": 2, "min_separation": 12}
    buffered = BufferedToeplitz.optimal(24, **pattern)
    one = BandedToeplitz(24, (1.0,))
    assert buffered.num_buffers <= 10
    assert errors(buffered, **pattern).max() < 0.7 * errors(one, **pattern).max()
