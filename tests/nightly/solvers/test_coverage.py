"""Intervals of means, quantiles and groups hold the population's numbers."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.solvers import dp_group_means, dp_mean, dp_quantile
from tests.unit.solvers import test_groups as groups
from tests.unit.solvers.test_untuned_mean import BUDGET, laws

FACTORS = np.array([1.0, 0.3, 0.3, 4.0])  # of the sizes of unlike tails


def mostly_zero(num_samples=20_000, seed=0):
    """Samples of which one in ten is not zero, in groups of unlike tails."""
    rng = np.random.default_rng(seed)
    of = rng.choice(4, num_samples, p=groups.SHARES)
    sizes = np.minimum(rng.lognormal(0.0, 1.5, num_samples), 20.0)
    is_zero = rng.random(num_samples) < 0.9
    return np.where(is_zero, 0.0, FACTORS[of] * sizes), of


def covered(tables, truths, **settings):
    samples, of_groups = (np.stack(x) for x in zip(*tables, strict=True))
    keys = jax.random.split(jax.random.key(1), len(tables))

    def interval(table):
        key, x, g = table
        return dp_group_means(x, g, key=key, num_groups=4, **settings).interval()

    runs = keys, samples.astype(np.float32), of_groups
    bounds = jax.jit(partial(jax.lax.map, interval))(runs)
    ends = {name: np.moveaxis(np.asarray(bounds[name]), 1, 0) for name in truths}
    return {
        name: np.mean((low < truths[name]) & (truths[name] < high), axis=0)
        for name, (low, high) in ends.items()
    }


def test_intervals_of_groups():
    every, of = groups.table(2_000_000, seed=100)
    truths = {
        "counts": 20_000 * groups.SHARES,
        "means": 100 + groups.PLACES,
        "quantiles": np.array([[np.quantile(every[of == g], 0.8)] for g in range(4)]),
    }
    tables = [groups.table(seed=seed) for seed in range(100)]
    for shares in covered(tables, truths, quantiles=(0.8,), **BUDGET).values():
        # 93 percent in 400, of which 5 may come together: one alarm in a hundred.
        assert np.mean(shares) > 0.89


def test_intervals_of_groups_of_unlike_tails():
    every, of = mostly_zero(4_000_000, seed=100)
    truths = {"means": np.array([every[of == g].mean() for g in range(4)])}
    tables = [mostly_zero(seed=seed) for seed in range(100)]
    for epsilon in (0.5, 1.0):
        shares = covered(tables, truths, **BUDGET | {"epsilon": epsilon})["means"]
        assert np.min(shares) > 0.86, epsilon  # 93 percent less 2.7 std. deviations


@pytest.mark.parametrize("law", ["normal", "student", "lognormal"])
def test_intervals_of_means(law):
    num_runs, num_samples = 400, 20_000
    rng = np.random.default_rng(1)
    z, mean, _ = laws(rng, law, (num_runs, num_samples))
    keys = jax.random.split(jax.random.key(2), num_runs)

    def interval(run):
        key, x = run
        return dp_mean(x, key=key, **BUDGET).interval()

    runs = keys, z.astype(np.float32)
    low, high = np.asarray(jax.jit(partial(jax.lax.map, interval))(runs)).T
    # 93 percent less what 400 runs may miss: 1 in 100.
    assert np.mean((low < mean) & (mean < high)) > 0.9


def test_an_interval_of_a_mean_counts_the_noise():
    keys = jax.random.split(jax.random.key(3), 200)
    samples = np.random.default_rng(2).standard_normal(4_000)

    def release(key):
        solution = dp_mean(samples, key=key, epsilon=0.1, delta=1e-5)
        return solution.params, solution.standard_errors

    means, errors = jax.jit(jax.vmap(release))(keys)
    # The samples are the same: all that moves is noise, most of the width.
    noise = np.std(np.asarray(means))
    assert 2 / 4_000**0.5 < noise < 1.2 * np.median(np.asarray(errors))


def test_an_interval_reaches_the_next_number_from_a_narrow_bin():
    """From zero, whose bin is 1e-6 wide: 240 widths say less than the one that does."""

    @jax.jit
    @jax.vmap
    def draw(key):
        data_key, key = jax.random.split(key)
        places = jnp.array([0.4695, 0.4995, 0.53])  # the median is 1/16
        places = jnp.searchsorted(places, jax.random.uniform(data_key, (10_000,)))
        samples = jnp.array([-1.0, 0.0, 1 / 16, 1.0])[places]
        return dp_quantile(samples, key=key, epsilon=0.5).interval()

    low, high = np.asarray(draw(jax.random.split(jax.random.key(0), 400))).T
    assert np.mean((low <= 1 / 16) & (high >= 1 / 16)) > 0.94


@pytest.mark.parametrize("quantile", [0.05, 0.5, 0.9])
def test_the_rank_is_as_near_as_is_stated(quantile, key):
    # Failure probability 0.01 for each of 200 draws: more than 12 have 1e-6.
    samples = 1e3 * jax.random.cauchy(jax.random.key(0), (2_000,))

    def draw(key):
        return dp_quantile(samples, key=key, epsilon=1.0, quantile=quantile)

    solutions = jax.jit(jax.vmap(draw))(jax.random.split(key, 200))
    error, rank = solutions.stats["rank_error"][0], solutions.stats["rank"][0]
    assert rank == math.ceil(2_000 * quantile)
    assert error == pytest.approx(4 * math.log(1501 / 0.01), rel=1e-5)
    ordered = np.sort(samples)
    bounds = ordered[np.clip([rank - error - 1, rank + error], 0, 1999).astype(int)]
    value = np.asarray(solutions.params)
    width = 0.05 * np.abs(value)
    is_outside = (value + width < bounds[0]) | (value - width > bounds[1])
    assert is_outside.sum() <= 12
