"""Private quantiles: their scores, their law, their error, odd columns, bad input."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax.solvers import dp_quantile
from dpjax.solvers._quantile import _scores

WILD = [math.nan, math.inf, -math.inf, 1e38, -1e38, 1e-45, -0.0, 0.5, 1.5, 2.5, 9.0]
EDGES = jnp.array([0.0, 1.0, 2.0, 3.0])
FALSE_ALARM = 1e-6


def settings(**changes):
    return {"key": jax.random.key(1), "epsilon": 1.0} | changes


@jax.jit(static_argnums=1)
def scores_of(samples, quantile):
    return _scores(samples, EDGES, quantile)


def from_counts(counts):
    """Samples with so many values in each bin of EDGES."""
    return np.repeat(np.arange(3) + 0.5, counts).astype(np.float32)


def all_counts(total):
    return [
        (a, b, total - a - b) for a in range(total + 1) for b in range(total + 1 - a)
    ]


@pytest.mark.quick(2)
@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.5, 1.0])
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


@pytest.mark.quick(2)
@pytest.mark.parametrize("num_samples", [1, 2, 50, 3000])
def test_neighbours_move_scores_by_one_and_their_gaps_by_two(num_samples):
    rng = np.random.default_rng(0)
    low = np.where(np.arange(num_samples) < num_samples // 2, 0.5, 2.5)
    largest = 0
    for base in (rng.uniform(-1, 4, num_samples), low, np.full(num_samples, 1.5)):
        base = jnp.asarray(base, jnp.float32)
        base = base.at[0].set(1.5)
        for position in {0, num_samples // 2, num_samples - 1}:
            moved = jnp.stack([base.at[position].set(x) for x in WILD])
            scores = jax.vmap(lambda x: scores_of(x, 0.5))(moved)
            change = np.asarray(scores)[:, None] - np.asarray(scores)
            assert np.abs(change).max() <= 1
            largest = max(largest, np.ptp(change, axis=-1).max())
    assert largest <= 2
    if num_samples >= 50:
        assert largest == 2  # a smaller range would be wrong


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


@pytest.mark.parametrize("epsilon", [0.3, 2.0])
@pytest.mark.parametrize("quantile", [0.5, 0.9])
def test_no_neighbours_pass_epsilon(quantile, epsilon):
    # All data sets of 7 records in 3 bins, and all their neighbours, by the exact law.
    laws = {
        counts: law(np.asarray(scores_of(from_counts(counts), quantile)), epsilon)
        for counts in all_counts(7)
    }
    largest = max(
        np.abs(np.log(first) - np.log(second)).max()
        for (a, first), (b, second) in itertools.product(laws.items(), repeat=2)
        if np.abs(np.subtract(a, b)).sum() == 2
    )
    assert 0.5 * epsilon <= largest <= epsilon


def test_the_law_that_is_drawn(key):
    samples, epsilon, num_draws = from_counts((9, 6, 6)), 0.7, 100_000

    def draw(key):
        options = settings(key=key, epsilon=epsilon, edges=EDGES)
        return dp_quantile(samples, **options).params

    values = jax.jit(jax.vmap(draw))(jax.random.split(key, num_draws))
    counts = [int((values == middle).sum()) for middle in (0.5, 1.5, 2.5)]
    assert sum(counts) == num_draws

    def rejects(epsilon):
        expected = law(np.array([-2.0, 0.0, -5.0]), epsilon) * num_draws
        return scipy.stats.chisquare(counts, expected).pvalue < FALSE_ALARM

    assert not rejects(epsilon)
    assert rejects(epsilon * 2 / 3)
    assert rejects(epsilon * 3 / 2)


@pytest.mark.slow
@pytest.mark.parametrize("quantile", [0.05, 0.5, 0.9])
def test_the_rank_is_as_near_as_is_said(quantile, key):
    # Failure probability 0.01 for each of 200 draws: more than 12 have 1e-6.
    samples = 1e3 * jax.random.cauchy(jax.random.key(0), (2_000,))

    def draw(key):
        return dp_quantile(samples, **settings(key=key, quantile=quantile))

    solutions = jax.jit(jax.vmap(draw))(jax.random.split(key, 200))
    error, rank = solutions.stats["rank_error"][0], solutions.stats["rank"][0]
    assert rank == math.ceil(2_000 * quantile)
    assert error == pytest.approx(2 * math.log(1501 / 0.01), rel=1e-5)
    ordered = np.sort(samples)
    bounds = ordered[np.clip([rank - error - 1, rank + error], 0, 1999).astype(int)]
    value = np.asarray(solutions.params)
    width = 0.05 * np.abs(value)
    is_outside = (value + width < bounds[0]) | (value - width > bounds[1])
    assert is_outside.sum() <= 12


@pytest.mark.quick(1)
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -37.5, 2e-6, 8e8])
def test_a_constant_column_is_found(value):
    found = dp_quantile(jnp.full(200, value), **settings()).params
    assert float(found) == pytest.approx(value, rel=0.03)


@pytest.mark.quick(1)
@pytest.mark.parametrize("quantile", [0.25, 0.5])
def test_missing_values_leave_the_quantile_of_the_others(quantile):
    samples = jnp.linspace(100.0, 200.0, 10_000)
    is_missing = jax.random.uniform(jax.random.key(3), (10_000,)) < 0.6
    samples = jnp.where(is_missing, jnp.nan, samples)
    found = dp_quantile(samples, **settings(quantile=quantile, epsilon=5.0)).params
    assert float(found) == pytest.approx(100 + 100 * quantile, rel=0.05)


@pytest.mark.quick(1)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38, 1e-45])
def test_a_column_of_nothing(value):
    found = dp_quantile(jnp.full(50, value), **settings()).params
    assert np.abs(found) <= 1.1e9


def test_the_budget_is_pure():
    privacy = dp_quantile(jnp.zeros(90), **settings(epsilon=0.5)).privacy
    assert (privacy.epsilon, privacy.delta) == (0.5, 0.0)
    assert "any one of the 90 records" in str(privacy)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.int64, np.float64])
def test_dtypes(dtype):
    whole = np.arange(-10, 40)
    expected = dp_quantile(whole.astype(np.float32), **settings()).params
    assert expected.dtype == jnp.float32
    found = dp_quantile(whole.astype(dtype), **settings()).params
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantile": 1.5}, "quantile must be between 0 and 1, got 1.5"),
        ({"edges": [0.0, 1.0]}, "edges must be a real vector with at least three"),
        ({"edges": [0.0, 2.0, 1.0]}, "edges must be finite and increasing"),
        ({"edges": [0.0, 1.0, math.inf]}, "edges must be finite and increasing"),
        ({"edges": [1.0, 1.0 + 1e-12, 2.0]}, "edges must be .* increasing in float32"),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        dp_quantile(jnp.zeros(8), **settings(**changes))


def test_bad_samples_and_budgets():
    for samples in (jnp.zeros((3, 2)), jnp.zeros(0), jnp.zeros(3, complex)):
        with pytest.raises(
            ValueError, match="samples must be a real vector with at least one"
        ):
            dp_quantile(samples, **settings())
    with pytest.raises(ValueError, match="epsilon must be positive and finite"):
        dp_quantile(jnp.zeros(3), **settings(epsilon=math.inf))
