"""Private histograms, and counts, means and quantiles of groups."""

import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.solvers import dp_group_means, dp_histogram
from dpjax.solvers.statistics import _group_means

BUDGET = {"epsilon": 1.0, "delta": 1e-5}
SHARES, PLACES = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.0, 5.0, -5.0, 20.0])


def histogram(samples, seed=0, **changes):
    return dp_histogram(samples, key=jax.random.key(seed), **BUDGET | changes)


def group_means(samples, groups, seed=0, **changes):
    settings = BUDGET | {"num_groups": 4} | changes
    return dp_group_means(samples, groups, key=jax.random.key(seed), **settings)


def table(num_samples=20_000, seed=0):
    rng = np.random.default_rng(seed)
    groups = rng.choice(4, num_samples, p=SHARES)
    return 100 + PLACES[groups] + rng.standard_t(3, num_samples), groups


def test_a_solution_is_a_table_and_its_guarantee_a_sentence(monkeypatch):
    solution = group_means(*table())
    frame, ends = solution.to_frame().set_index("name"), solution.interval()
    assert frame.loc["means[3]"].tolist()[2:] == ends["means"][:, 3].tolist()
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert solution._repr_html_().endswith(solution.privacy._repr_html_())
    text = "<Solution: 8 released numbers, epsilon = 1, delta = 1e-05>"
    assert repr(solution) == text


def test_counts_have_the_stated_noise():
    edges = np.array([0.0, 1.0, 2.0, 3.0])
    samples = jnp.array([-9.0, 0.5, 1.0, 1.5, 2.5, jnp.inf, jnp.nan])
    release = jax.vmap(lambda seed: histogram(samples, seed, edges=edges))
    solutions = release(jnp.arange(2_000))
    counts = np.asarray(solutions.params)
    assert counts.dtype == np.int32
    stddev = float(solutions.stats["stddev"][0])
    np.testing.assert_allclose(stddev, 2**0.5 * 3.7306, rtol=1e-3)
    off = counts - np.array([3, 1, 2])  # bins hold their upper edges, NaN is in none
    # Six standard deviations of a mean and of a variance of 2,000 draws.
    assert np.all(np.abs(off.mean(axis=0)) < 6 * stddev / 2_000**0.5)
    assert np.all(np.abs(off.var(axis=0) / stddev**2 - 1) < 0.2)


def test_errors_of_counts_hold_the_sampling():
    samples = np.tile([0.5, 1.5], 500)
    errors = histogram(samples, epsilon=100.0, edges=[0.0, 1.0, 2.0]).standard_errors
    np.testing.assert_allclose(errors, 1000**0.5 / 2, rtol=0.1)


@pytest.mark.parametrize("unit", [1.0, 3e4])
def test_edges_are_round_and_hold_most_samples(unit):
    samples = unit * (50 + 10 * np.random.default_rng(1).standard_normal(20_000))
    solution = histogram(samples)
    edges, counts = np.asarray(solution.stats["edges"]), np.asarray(solution.params)
    step = edges[1] - edges[0]
    leading = step / 10 ** np.floor(np.log10(step) + 1e-3)
    assert np.any(np.abs(leading - np.array([1, 2, 5])) < 1e-2)
    assert np.mean((edges[0] < samples) & (samples < edges[-1])) > 0.9
    assert np.mean((edges[5] < samples) & (samples < edges[-6])) < 0.99
    right = np.histogram(np.clip(samples, edges[0] + 1e-3, edges[-1]), edges)[0]
    assert np.max(np.abs(counts - right)) < 50 + 6 * float(solution.stats["stddev"])
    assert np.all(solution.standard_errors > 0)


@pytest.mark.parametrize("value", [0.0, 7.0, -1e6])
def test_edges_about_one_number_differ(value):
    edges = np.asarray(histogram(np.full(20_000, value)).stats["edges"])
    assert np.all(np.diff(edges) > 0)
    assert edges[0] < value < edges[-1]


def test_groups_are_found_and_missing_records_count_nowhere():
    samples, groups = table()
    is_known = np.ones(20_000, bool)
    is_known[:200] = False
    samples[:100], groups[100:200] = np.nan, [-1, 7] * 50
    solution = group_means(samples, groups, quantiles=(0.5, 0.9))
    names = "counts", "means", "quantiles"
    counts, means, quantiles = (np.asarray(solution.params[name]) for name in names)
    assert counts.dtype == np.int32
    assert np.all(np.abs(counts - np.bincount(groups[is_known])) < 100)
    assert np.all(np.abs(means - 100 - PLACES) < [0.3, 0.4, 0.6, 2.0])
    of_groups = [samples[is_known & (groups == g)] for g in range(4)]
    right = [np.quantile(x, [0.5, 0.9]) for x in of_groups]
    assert np.all(np.abs(quantiles - right)[:3] < [0.2, 0.6])
    for name, error in solution.standard_errors.items():
        assert error.shape == solution.params[name].shape
        assert np.all(np.asarray(error)[:3] < 100)
    # The same program: counts without noise.
    exact = group_means(samples, groups, quantiles=(0.5, 0.9), epsilon=1e4)
    np.testing.assert_array_equal(exact.params["counts"], np.bincount(groups[is_known]))


def test_an_interval_of_a_quantile_reaches_the_next_number():
    """The quantile of the law may be that one: half are 1, and half are 2."""
    samples = np.round(np.linspace(1.0, 2.0, 2_000))
    settings = {"epsilon": 100.0, "quantiles": (0.49, 0.51)}
    solution = group_means(samples, np.zeros(2_000, int), **settings)
    low, high = solution.interval()["quantiles"]
    assert low[0, 0] <= 2 <= high[0, 0]
    assert low[0, 1] <= 1 <= high[0, 1]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300, 0.0])
def test_no_interval_is_a_point(value):
    samples = np.full(30, value)
    of_groups = group_means(samples, np.zeros(30, int), quantiles=(0.5,))
    for solution in (of_groups, histogram(samples)):
        for low, high in jax.tree.leaves(solution.interval()):
            assert np.all(low < high)


def test_the_shares_of_the_budget_add_up_to_it(monkeypatch):
    sums = mock.Mock(side_effect=InterruptedError)
    monkeypatch.setattr(_group_means, "_sums", sums)
    with pytest.raises(InterruptedError):
        group_means(np.zeros(40), np.zeros(40, int))
    of_sums, of_squares, _ = sums.call_args.args[-1]  # noise multipliers
    names = "_COUNTS", "_SIZE", "_MEDIAN", "_LENGTHS", "_SQUARES"
    total = sum(getattr(_group_means, name) for name in names)
    total += _group_means._SQUARES * (of_squares / of_sums) ** 2
    assert total <= 1 + 1e-9
