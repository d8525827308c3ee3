"""Private quantiles: their scores, their law, their error, odd columns, bad input."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax.solvers import dp_quantile
from dpjax.solvers.statistics import _quantile
from dpjax.solvers.statistics._quantile import _WIDTH_EDGES, _preference, _width_scores
from tests.unit.mechanisms.test_selection import flip_law

WILD = [math.nan, math.inf, -math.inf, 1e38, -1e38, 1e-45, -0.0, 0.5, 1.5, 2.5, 9.0]
EDGES = jnp.array([0.0, 1.0, 2.0, 3.0])
SEVERAL = tuple(i / 10 for i in range(1, 10))


def solve(samples, **changes):
    return dp_quantile(samples, **{"key": jax.random.key(1), "epsilon": 1.0} | changes)


@jax.jit(static_argnums=1)
def scores_of(samples, quantile):
    return _quantile.scores_of(samples, EDGES, quantile)


def from_counts(counts):
    """Samples with so many values in each bin of EDGES."""
    return np.repeat(np.arange(3) + 0.5, counts).astype(np.float32)


def all_counts(total):
    return [x for x in itertools.product(range(total + 1), repeat=3) if sum(x) == total]


@pytest.mark.parametrize("quantile", [0.0, 0.3, 1.0])
def test_scores_count_the_records_to_replace(quantile):
    # For 5 records in 3 bins: how far the nearest data have their r-th smallest there.
    rank = max(1, math.ceil(5 * quantile))
    for counts in all_counts(5):
        scores = scores_of(from_counts(counts), quantile)
        for j in range(3):
            distance = min(
                sum(max(0, a - b) for a, b in zip(counts, other, strict=True))
                for other in all_counts(5)
                if sum(other[:j]) < rank <= sum(other[: j + 1])
            )
            assert scores[j] == -distance


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
def test_neighbors_move_scores_by_one_and_their_gaps_by_two(num_samples):
    rng = np.random.default_rng(0)
    low = np.where(np.arange(num_samples) < num_samples // 2, 0.5, 2.5)
    bases = [rng.uniform(-1, 4, num_samples), low, np.full(num_samples, 1.5)]
    positions = {0, num_samples // 2, num_samples - 1}
    of_median = lambda x: scores_of(x, 0.5)  # noqa: E731
    is_attained = check_neighbours(of_median, bases, WILD, positions)
    assert is_attained or num_samples < 50


def test_the_law_that_is_drawn_and_that_of_neighbors(key):
    samples, epsilon, num_draws = from_counts((9, 6, 6)), 0.7, 100_000

    def draw(key):
        return solve(samples, key=key, epsilon=epsilon, edges=EDGES).params

    values = jax.jit(jax.vmap(draw))(jax.random.split(key, num_draws))
    counts = [int((values == middle).sum()) for middle in (0.5, 1.5, 2.5)]
    assert sum(counts) == num_draws

    def rejects(epsilon):
        # Half of it is for the interval, and scores have a range of 2.
        expected = flip_law(np.array([-2.0, 0.0, -5.0]), epsilon / 4) * num_draws
        return scipy.stats.chisquare(counts, expected).pvalue < 1e-6

    assert not rejects(epsilon)
    assert rejects(epsilon * 2 / 3)
    assert rejects(epsilon * 3 / 2)
    # All data sets of 7 records in 3 bins, and all their neighbours, by the exact law.
    laws = {
        counts: flip_law(np.asarray(scores_of(from_counts(counts), 0.5)), 1.0)
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
    for changes in ({"quantile": 0.001}, {"epsilon": 0.01}, {"edges": [0.0, 5.0, 6.0]}):
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
    ones = jnp.ones(1)
    places = 0 * ones, ones, jnp.full(1, apart, "int32"), ones > 0
    return _width_scores(samples, edges, (quantile,), places)


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
        scores = width_scores_of(jnp.asarray(samples), quantile, apart)
        np.testing.assert_array_equal(scores, expected)


def test_neighbors_move_scores_of_widths_by_one_and_their_gaps_by_two():
    normal = 10 * np.random.default_rng(0).normal(size=60)
    bases = [normal, np.repeat([-5.0, 5.0], 30), np.zeros(60)]
    values = [*WILD, 0.0, 1.0, -1.0, 20.0, -20.0]
    scores_of_width = jax.jit(lambda x: width_scores_of(x, 0.5, 8))
    assert check_neighbours(scores_of_width, bases, values, (0, 29, 30, 59))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("quantiles", [(0.5,), (0.2, 0.6), SEVERAL])
def test_neighbors_move_all_choices_of_several_by_their_price(
    quantiles, dtype, monkeypatch
):
    """The worst log likelihood ratios of choices, for any common earlier outcomes."""
    ratios = []

    def choose(mechanism, key, scores, epsilon):
        every = jax.lax.all_gather(scores, "tables")
        jax.debug.callback(lambda *args: ratios.append(args), every, epsilon)
        places = jax.random.uniform(key, scores.shape)
        return jnp.argmax(jnp.where(jnp.isfinite(scores), places, -1)).astype("int32")

    @jax.jit
    def release(key, tables):
        static = "exponential", quantiles, True
        inner = partial(_quantile._with_errors.__wrapped__, static, key)
        edges = EDGES.astype(dtype)
        axes = {"in_axes": (0, None, None), "axis_name": "tables"}
        return jax.vmap(inner, **axes)(tables, edges, 1.0)

    monkeypatch.setattr(_quantile, "choose", choose)
    monkeypatch.setattr(_quantile, "_NUM_CELLS", 9)  # records are at ends of parts
    many, largest = np.repeat([0.5, 2.5], 20), []  # each number fills a bin
    bases = np.random.default_rng(0).uniform(-1, 4, 40), many, np.full(40, np.nan)
    with jax.enable_x64(dtype == "float64"):
        for base, place in itertools.product(bases, (0, 19)):
            tables = np.repeat(base.astype(dtype)[None], len(WILD), axis=0)
            tables[:, place] = WILD
            for key in jax.random.split(jax.random.key(place), 6):
                ratios.clear()
                jax.block_until_ready(release(key, tables))
                jax.effects_barrier()
                assert len(ratios) == len(quantiles) + 1
                total = 0.0
                for every, epsilon in ratios:
                    moved = every[:, None, np.isfinite(every[0])]
                    moved = moved - moved[:, 0][None]
                    total += np.ptp(moved, axis=-1) * float(epsilon) / _quantile.RANGE
                largest.append(np.max(total))
    levels = len(quantiles).bit_length() + 1
    assert max(largest) <= levels + 1e-6
    assert max(largest) > 0.7 * levels  # less noise would not be enough


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_several_are_quantiles_and_increase(dtype):
    rng = np.random.default_rng(0)
    with jax.enable_x64(dtype == "float64"):
        for samples in (
            rng.normal(size=5_000),
            rng.integers(1, 4, 5_000),  # three numbers for nine quantiles
            np.where(rng.random(5_000) < 0.4, np.nan, rng.lognormal(size=5_000)),
        ):
            x = jnp.asarray(samples).astype(dtype)
            solution = solve(x, quantile=SEVERAL, epsilon=1e3)
            released = np.asarray(solution.params, float)
            known = np.sort(np.asarray(x, float)[~np.isnan(samples)])
            right = np.quantile(known, SEVERAL, method="inverted_cdf")
            near = known[np.searchsorted(known, right) + 40]  # of missing samples, too
            assert np.all(
                np.abs(released - right) <= 0.05 * np.abs(right) + near - right
            )
            assert np.all(np.diff(released) >= 0)
            wide = jnp.float64 if dtype == "float64" else jnp.float32
            assert solution.params.dtype == solution.standard_errors.dtype == wide


def test_one_of_a_list_and_a_number_have_their_shapes_and_price():
    one, several = (solve(jnp.arange(500.0), quantile=q) for q in (0.5, (0.5,)))
    assert (one.params.shape, several.params.shape) == ((), (1,))
    assert one.privacy == several.privacy
    nine = solve(jnp.arange(500.0), quantile=np.array(SEVERAL))
    assert nine.standard_errors.shape == nine.stats["rank"].shape == (9,)
    assert jnp.isinf(nine.standard_errors[0])  # may be the smallest
    each = nine.privacy.dp_event.count
    assert each == 5  # 9 is in four levels, and intervals are the fifth


def test_a_constant_column_and_what_is_not_missing_are_found():
    for value in (0.0, -0.0, 1.0, -37.5, 2e-6, 8e8):
        median = float(solve(jnp.full(200, value)).params)
        assert median == pytest.approx(value, rel=0.03)
    samples = jnp.linspace(100.0, 200.0, 10_000)
    is_missing = jax.random.uniform(jax.random.key(3), (10_000,)) < 0.6
    samples = jnp.where(is_missing, jnp.nan, samples)
    quarter = solve(samples, quantile=0.25, epsilon=5.0).params
    assert float(quarter) == pytest.approx(125, rel=0.05)


def test_powers_of_ten_are_edges():
    for dtype in (np.float32, np.float64):
        edges = _quantile.EDGES.astype(dtype)
        powers = [-1e6, -1.0, -1e-6, 1e-6, 1e-3, 1.0, 10.0, 1e9]
        assert np.isin(np.array(powers, dtype), edges).all()


def test_choices_share_the_budget():
    solution = solve(jnp.zeros(50), epsilon=0.5)
    assert (solution.privacy.epsilon, solution.privacy.delta) == (0.5, 0.0)
    assert "any one of the 50 records" in str(solution.privacy)
    odds = (len(_quantile.EDGES) - 1) / 0.01
    assert solution.stats["rank_error"] == pytest.approx(2 / 0.25 * math.log(odds))
