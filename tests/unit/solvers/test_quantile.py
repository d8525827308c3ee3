"""Private quantiles: their scores, their law, their error, odd columns, bad input."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax.accounting import selection_epsilon
from dpjax.solvers import dp_center_and_scale, dp_quantile
from dpjax.solvers.statistics import _ranks
from dpjax.solvers.statistics._center_and_scale import (
    _DISTANCE_EDGES,
    _roundest_of_bins,
    _scale_scores,
)
from dpjax.solvers.statistics._quantile import _WIDTH_EDGES, _preference, _width_scores
from dpjax.solvers.statistics._ranks import EDGES as DEFAULT_EDGES

WILD = [math.nan, math.inf, -math.inf, 1e38, -1e38, 1e-45, -0.0, 0.5, 1.5, 2.5, 9.0]
EDGES = jnp.array([0.0, 1.0, 2.0, 3.0])
FALSE_ALARM = 1e-6


def solve(samples, fit=dp_quantile, **changes):
    return fit(samples, **{"key": jax.random.key(1), "epsilon": 1.0} | changes)


@jax.jit(static_argnums=1)
def scores_of(samples, quantile):
    return _ranks.scores_of(samples, EDGES, quantile)


def from_counts(counts):
    """Samples with so many values in each bin of EDGES."""
    return np.repeat(np.arange(3) + 0.5, counts).astype(np.float32)


def all_counts(total):
    return [
        (a, b, total - a - b) for a in range(total + 1) for b in range(total + 1 - a)
    ]


@pytest.mark.parametrize("quantile", [0.0, 0.3, 1.0])
def test_scores_count_the_records_to_replace(quantile):
    # Over all ways to put 5 records into 3 bins: the distance to the nearest data set
    # whose r-th smallest lies in the bin.
    rank = max(1, math.ceil(5 * quantile))
    for counts in all_counts(5):
        found = scores_of(from_counts(counts), quantile)
        for j in range(3):
            distance = min(
                sum(max(0, a - b) for a, b in zip(counts, other, strict=True))
                for other in all_counts(5)
                if sum(other[:j]) < rank <= sum(other[: j + 1])
            )
            assert found[j] == -distance


def check_neighbours(scores_of, bases, values, positions):
    """Replaces records; scores move by one, and their gaps by two, and attain it."""
    largest = 0
    for base in bases:
        for position in positions:
            moved = np.repeat(np.float32(base)[None], len(values), axis=0)
            moved[:, position] = values
            scores = np.asarray(jax.vmap(scores_of)(moved))
            change = scores[:, None] - scores
            assert np.abs(change).max() <= 1
            largest = max(largest, np.ptp(change, axis=-1).max())
    assert largest <= 2
    return largest == 2  # a smaller range would be wrong


@pytest.mark.parametrize("num_samples", [1, 2, 3000])
def test_neighbours_move_scores_by_one_and_their_gaps_by_two(num_samples):
    rng = np.random.default_rng(0)
    low = np.where(np.arange(num_samples) < num_samples // 2, 0.5, 2.5)
    bases = [rng.uniform(-1, 4, num_samples), low, np.full(num_samples, 1.5)]
    positions = {0, num_samples // 2, num_samples - 1}
    is_attained = check_neighbours(
        lambda x: scores_of(x, 0.5), bases, [*WILD, 1.5], positions
    )
    assert is_attained or num_samples < 50


def law(scores, epsilon):
    """Exact probabilities of permute-and-flip (McKenna, Sheldon 2020)."""
    accept = np.exp(epsilon / 2 * (scores - scores.max()))
    total = []
    for v in range(len(accept)):
        others = np.delete(accept, v)
        terms = [
            (-1) ** size / (size + 1) * np.prod(chosen)
            for size in range(len(others) + 1)
            for chosen in itertools.combinations(others, size)
        ]
        total.append(accept[v] * sum(terms))
    return np.array(total)


def test_the_law_that_is_drawn_and_that_of_neighbours(key):
    samples, epsilon, num_draws = from_counts((9, 6, 6)), 0.7, 100_000

    def draw(key):
        return solve(samples, key=key, epsilon=epsilon, edges=EDGES).params

    values = jax.jit(jax.vmap(draw))(jax.random.split(key, num_draws))
    counts = [int((values == middle).sum()) for middle in (0.5, 1.5, 2.5)]
    assert sum(counts) == num_draws

    def rejects(epsilon):  # half of it is for the interval
        expected = law(np.array([-2.0, 0.0, -5.0]), epsilon / 2) * num_draws
        return scipy.stats.chisquare(counts, expected).pvalue < FALSE_ALARM

    assert not rejects(epsilon)
    assert rejects(epsilon * 2 / 3)
    assert rejects(epsilon * 3 / 2)
    # All data sets of 7 records in 3 bins, and all their neighbours, by the exact law.
    laws = {
        counts: law(np.asarray(scores_of(from_counts(counts), 0.5)), 2.0)
        for counts in all_counts(7)
    }
    largest = max(
        np.abs(np.log(first) - np.log(second)).max()
        for (a, first), (b, second) in itertools.product(laws.items(), repeat=2)
        if np.abs(np.subtract(a, b)).sum() == 2
    )
    assert 0.5 * 2.0 <= largest <= 2.0


def test_an_interval_that_is_not_known_is_infinite():
    samples = jnp.linspace(1.0, 2.0, 1_000)
    for changes in ({"quantile": 0.0}, {"epsilon": 0.01}, {"edges": [0.0, 5.0, 6.0]}):
        assert jnp.isinf(solve(samples, **changes).standard_errors)
    for values in (samples, 0 * samples):
        assert 0 < solve(values).standard_errors < 0.3
    # With hardly any noise, that of sampling is left.
    samples = jax.random.normal(jax.random.key(0), (4_000,))
    assert solve(samples, epsilon=50.0).standard_errors > 0.012


def test_an_interval_reaches_the_next_number_that_samples_repeat():
    """The quantile of the law may be that one: half are 1, and half are 2."""
    samples = jnp.round(jnp.linspace(1.0, 2.0, 2_000))
    options = {"epsilon": 8.0, "edges": jnp.linspace(0.0, 4.0, 4_001)}
    for quantile in (0.5, 0.51, 0.53):
        for key in jax.random.split(jax.random.key(0), 5):
            low, high = solve(samples, key=key, quantile=quantile, **options).interval()
            assert (low <= 1) == (quantile < 0.52)
            assert high >= 2


def test_what_widths_lose_is_an_integer_and_finite_at_any_epsilon():
    for scale in (0.0, 1e-20, 1.0, 1e20, 3e38, np.inf):
        for most in (-3.0, 0.0, 500.0):
            edges, scale = jnp.asarray(_WIDTH_EDGES), jnp.float32(scale)
            lost = np.asarray(_preference(edges, most, scale))
            assert np.all((lost == np.round(lost)) & (lost >= 0) & (lost <= 2**24))


def width_scores_of(samples, quantile, apart):
    edges = jnp.asarray(_WIDTH_EDGES, "float32")
    return _width_scores(samples, edges, quantile, jnp.asarray(apart, "int32"))


def test_scores_of_widths_are_those_of_their_definition():
    rng = np.random.default_rng(0)
    for spread, quantile, apart in ((1.0, 0.5, 5), (30.0, 0.2, 7), (1e3, 0.9, 40)):
        samples = np.round(spread * rng.normal(size=60)).astype(np.float32)
        rank, spare = math.ceil(quantile * 60), [-60]
        for size in (*_WIDTH_EDGES[1:-1], np.inf):
            above = np.sum(samples <= np.float32(size)) - (rank + apart)
            below = rank - apart - 1 - np.sum(samples < -np.float32(size))
            spare.append(min(above, below))
        expected = [-max(0, a + 1, -b) for a, b in itertools.pairwise(spare)]
        found = width_scores_of(jnp.asarray(samples), quantile, apart)
        np.testing.assert_array_equal(found, expected)


def test_neighbours_move_scores_of_widths_by_one_and_their_gaps_by_two():
    normal = 10 * np.random.default_rng(0).normal(size=60)
    bases = [normal, np.repeat([-5.0, 5.0], 30), np.zeros(60)]
    values = [*WILD, 0.0, 1.0, -1.0, 20.0, -20.0]
    scores_of_width = jax.jit(lambda x: width_scores_of(x, 0.5, 8))
    assert check_neighbours(scores_of_width, bases, values, (0, 29, 30, 59))


def test_a_constant_column_and_what_is_not_missing_are_found():
    for value in (0.0, -0.0, 1.0, -37.5, 2e-6, 8e8):
        median = float(solve(jnp.full(200, value)).params)
        assert median == pytest.approx(value, rel=0.03)
    samples = jnp.linspace(100.0, 200.0, 10_000)
    is_missing = jax.random.uniform(jax.random.key(3), (10_000,)) < 0.6
    samples = jnp.where(is_missing, jnp.nan, samples)
    quarter = solve(samples, quantile=0.25, epsilon=5.0).params
    assert float(quarter) == pytest.approx(125, rel=0.05)


def test_columns_come_out_in_unit_size():
    rng, n = np.random.default_rng(0), 20_000
    columns = [
        rng.normal(2000, 20, n),  # years: narrow, and far from zero
        rng.standard_t(1.5, n) * 1e-3,
        rng.lognormal(8, 2, n),
        np.where(rng.uniform(size=n) < 0.8, 0, 50),
        np.full(n, 7.0),
    ]
    samples = np.stack(columns, axis=1).astype(np.float32)
    solution = solve(samples, dp_center_and_scale, delta=1e-6)
    centers, scales = (np.asarray(x) for x in solution.params)
    within = np.mean(np.abs(samples - centers) <= scales, axis=0)
    np.testing.assert_allclose(within[:3], 0.68, atol=0.06)
    median_ranks = np.mean(samples <= centers, axis=0)[1:3]
    np.testing.assert_allclose(median_ranks, 0.5, atol=0.06)
    assert np.abs(np.median((samples - centers)[:, 0] / scales[0])) < 2
    assert (centers[3], scales[3]) == (0, 1)  # mostly one value
    assert (centers[4], scales[4]) == (7, 1)
    assert solution.stats["is_informative"]


SHARES = [0, 0.001, 0.05, 0.2, 0.3, 0.31, 0.32, 0.33, 0.4, 0.5, 0.6, 0.69, 0.9, 1]


def test_columns_of_zeros_and_ones_have_scales_near_one():
    # Between zero and one there are no records, and 300 bins.
    samples = np.stack([np.arange(2000) < share * 2000 for share in SHARES], axis=1)
    options = {"fit": dp_center_and_scale, "epsilon": 8.0}
    release = jax.jit(jax.vmap(lambda key: solve(1.0 * samples, key=key, **options)))
    many = release(jax.random.split(jax.random.key(4), 4))
    assert 0.03 < many.stats["rank_error"][0] / 2000 < 0.1
    centers, scales = (np.asarray(x) for x in many.params)
    assert (scales > 0.15).all()
    assert (scales < 1.1).all()
    assert (centers[:, :2] == 0).all()
    assert (centers[:, -1] == 1).all()
    assert (scales[:, [0, 1, 2, 3, -2, -1]] == 1).all()


def test_a_column_whose_spread_is_an_atom_has_scale_one():
    values = np.array([0.0, 1.0, 7.0, -3.0, 0.25, 100.0, 2000.0, 5e7])
    is_other = np.arange(4000)[:, None] % 7 == 0
    others = np.random.default_rng(0).normal(size=(4000, 1)) * 1e3
    samples = np.where(is_other, others, values)
    samples = np.concatenate([np.tile(values, (4000, 1)), samples], axis=1)
    centers, scales = solve(samples, dp_center_and_scale, epsilon=40.0).params
    np.testing.assert_array_equal(centers, np.float32([*values, *values]))
    np.testing.assert_array_equal(scales, np.ones(16))


def expected_scale_scores(samples):
    """The scores of scales, from their definition."""
    bins = np.searchsorted(_DISTANCE_EDGES[1:-1], samples, side="left")
    rank, lacking = math.ceil(0.6827 * samples.size), math.ceil(0.25 * samples.size)
    scores = []
    for j in range(_DISTANCE_EDGES.size - 1):
        below, up_to = np.sum(bins < j), np.sum(bins <= j)
        near = np.sum((np.abs(bins - j) <= 35) & ((bins == 0) == (j == 0)))
        scores.append(-max(0, below + 1 - rank, rank - up_to, lacking - near))
    return np.array(scores)


SCALE_SCORES = jax.jit(
    lambda samples: _scale_scores(samples, jnp.asarray(_DISTANCE_EDGES, "float32"))
)


@pytest.mark.parametrize("num_samples", [1, 3, 60])
def test_scores_of_scales_are_those_of_their_definition(num_samples):
    rng = np.random.default_rng(num_samples)
    for spread in (0.0, 1.0, 8.0):
        samples = np.exp(spread * rng.normal(size=num_samples)).astype(np.float32)
        samples[: num_samples // 3] = 0
        found = np.asarray(SCALE_SCORES(samples))
        np.testing.assert_array_equal(found, expected_scale_scores(samples))


def test_neighbours_move_scores_of_scales_by_one_and_their_gaps_by_two():
    atoms = np.where(np.arange(60) < 41, 0.0, 1.0)  # the quantile is at the last zero
    two_atoms = np.where(np.arange(60) < 12, 1e-3, 1e3)
    wide = np.exp(3 * np.random.default_rng(0).normal(size=60))
    values = np.abs([*WILD, 0.0, 1.0, 1e3, 1e-3, 5.0])
    bases = [atoms, two_atoms, wide, np.zeros(60)]
    assert check_neighbours(SCALE_SCORES, bases, values, (0, 11, 40, 41, 59))


def test_ranges_say_what_they_cannot_tell():
    # Known from n, d and the budget: a quarter of the records, or fewer.
    for epsilon, is_told in ((0.5, False), (1.0, False), (1.1, True), (5.0, True)):
        stats = solve(np.zeros((400, 2)), dp_center_and_scale, epsilon=epsilon).stats
        assert stats["is_informative"] == is_told == (stats["rank_error"] < 100)


def test_bins_have_round_numbers():
    samples = np.array([0.0, 1, -1, 2, 10, 12, 19, 0.5, 0.1, 1e-3, 2000, -1e8, 1e9])
    for dtype in (np.float32, np.float64):
        edges = DEFAULT_EDGES.astype(dtype)
        bins = np.searchsorted(edges[1:-1], samples.astype(dtype), side="left")
        np.testing.assert_array_equal(_roundest_of_bins()[bins], samples)
    assert (DEFAULT_EDGES[:-1] < _roundest_of_bins()).all()
    assert (DEFAULT_EDGES[1:] >= _roundest_of_bins()).all()


def test_choices_share_the_budget():
    for delta in (0.0, 1e-6):
        options = {"epsilon": 0.5, "delta": delta}
        solution = solve(jnp.zeros((90, 30)), dp_center_and_scale, **options)
        assert (solution.privacy.epsilon, solution.privacy.delta) == (0.5, delta)
        assert "any one of the 90 records" in str(solution.privacy)
        largest = max(
            selection_epsilon(0.5, delta, num_selections=60, mechanism=name)
            for name in ("exponential", "permute_and_flip")
        )
        assert solution.stats["selection_epsilon"] == largest >= 0.25 / 30
    pure = solve(jnp.zeros(50), epsilon=0.5).privacy
    assert (pure.epsilon, pure.delta) == (0.5, 0.0)
