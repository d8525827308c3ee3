"""Estimators made of others, under attack; orders of a sum, under the worst of them."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE, estimators
from dpjax.estimators._estimator import sum_error, sum_error_in_turn
from tests.unit.estimators.test_adaptive import INNER
from tests.unit.estimators.test_normwise import GROUPED, GROUPS, RANGES, tree_of

N, RELATIONS = 17, (REPLACE_ONE, ADD_OR_REMOVE_ONE)
WILD = np.float32([0.7, -0.7, 3.0, 1.0, 1e-45, 1e19, -3e38, np.inf, np.nan, 0.0])
SAME_BOUND = {"same bound": estimators.Grouped(estimators.Clipping(1.2), GROUPS)}
SCALED = {
    "truncation": estimators.Truncation(1.5),
    "winsorization": estimators.Winsorization(0.7),
    "smoothed": estimators.SmoothedTruncation(1.0, 9.21),
    "clipping": estimators.Clipping(2.0),
    "normalization": estimators.Normalization(0.1),
}
ROUNDOFF = 2.0**-24


def check_moves(mean, rows, others, least):
    """Checks how far one of N equal rows, replaced or removed, moves a mean."""

    @jax.jit
    def changes(rows, others):
        def change(pair):
            base = jnp.tile(pair[0], (N, 1))
            replaced = tree_of(base.at[3].set(pair[1]))
            unchanged = mean(tree_of(base), jnp.zeros(N, bool))
            means = mean(replaced), unchanged, mean(replaced, jnp.arange(N) == 3)
            return [jax.flatten_util.ravel_pytree(x)[0] for x in means]

        return jax.lax.map(change, (rows, others))

    first, *seconds = (np.asarray(x, np.float64) for x in changes(rows, others))
    for second, relation, share in zip(seconds, RELATIONS, least, strict=True):
        stated = mean.sensitivity(N, rows.shape[1], relation)
        moves = np.linalg.norm(first - second, axis=1)
        assert share * stated.l2 < moves.max() <= stated.l2
        if first.shape[1] == rows.shape[1]:  # no counts beside the mean
            assert np.abs(first - second).max() <= stated.linf
            assert np.abs(first - second).sum(axis=1).max() <= stated.l1


@pytest.mark.parametrize("name", GROUPED | SAME_BOUND)
def test_no_neighbor_moves_groups_beyond_the_sensitivity(name):
    # All groups of the replaced record turn round at once, and by wild values.
    rng = np.random.default_rng(1)
    rows = [1e15 * rng.normal(size=(60, 5)), rng.choice(WILD, (60, 5)), 2 * np.eye(5)]
    rows = np.concatenate(rows).astype(np.float32)
    others = np.where(np.arange(len(rows))[:, None] < 90, -rows, rng.permutation(rows))
    check_moves((GROUPED | SAME_BOUND)[name], rows, others, [0.99, 0.99])


@pytest.mark.parametrize("name", SCALED)
def test_no_neighbor_moves_ratios_beyond_the_sensitivity(name):
    scales = jax.tree.map(lambda x: x[0], tree_of(RANGES[None]))
    rng = np.random.default_rng(1)
    with np.errstate(over="ignore"):
        largest = np.sign(rng.normal(size=(40, 5))) * RANGES * np.float32(0.7)
        wild = rng.choice(WILD, (80, 5)) * rng.choice([RANGES, np.ones(5)], 80)
        rows = np.concatenate([largest, 1e9 * largest, wild]).astype(np.float32)
    if name == "truncation":
        rows[:40] *= 1.5 / 0.7 * (1 - 1e-6)
    others = np.where(np.arange(len(rows))[:, None] < 90, -rows, rng.permutation(rows))
    measured = estimators.Scaled(SCALED[name], scales).measured
    check_moves(measured, rows, others, [0.97, 0.97])


@pytest.mark.parametrize("name", INNER)
def test_no_neighbor_moves_mean_and_counts_beyond_the_sensitivity(name):
    options, rng = {"lower": 1e-6, "upper": 1e6, "share": 0.3}, np.random.default_rng(1)
    counting = estimators.AdaptiveThreshold(INNER[name], **options).counting
    directions = rng.normal(size=(40, 5))
    # As long as thresholds, and thus short; the other far longer, the other way.
    parts = [directions[:, :2], directions[:, 2:]]
    parts = parts if "grouped" in name else [directions]
    norms = np.stack([np.linalg.norm(x, axis=1) for x in parts], axis=1)
    sizes = np.asarray(counting.sizes) * (1 - 1e-6) / norms
    per_row = sizes[:, [0, 0, -1, -1, -1]] * directions
    rows = np.concatenate([per_row, rng.choice(WILD, (40, 5))]).astype(np.float32)
    others = np.concatenate([-1e15 * directions, rng.permutation(rows[40:])])
    # Short by normalization or smoothing: a threshold's length is not the limit's.
    least = 0.99 if name in ("clipping", "grouped") else 0.7
    check_moves(counting, rows, np.float32(others), [least, 0.99])
    for relation in RELATIONS:
        traced = jax.jit(lambda x, r=relation: x.sensitivity(N, 5, r))(counting)
        stated = counting.sensitivity(N, 5, relation)
        np.testing.assert_allclose(traced, stated, rtol=1e-6)


def random_tree_sum(terms, rng):
    """The float32 sum of rows in a random order, another one for every column."""

    def one(column):
        column = list(column.astype(np.float32))
        while len(column) > 1:
            # Mostly one after the other, as the worst sums are.
            x = column.pop(0 if rng.random() < 0.9 else rng.integers(len(column)))
            j = 0 if rng.random() < 0.9 else rng.integers(len(column))
            column[j] = np.float32(column[j] + x)
        return column[0]

    return np.array([one(column) for column in terms.T])


@pytest.mark.parametrize("length", [64, 256])
def test_no_order_of_a_sum_passes_what_is_allowed(length):
    """A search: nearly collinear terms of norm one, and terms of a few coordinates."""
    rng, allowed = np.random.default_rng(length), sum_error(length) * ROUNDOFF
    largest = 0.0
    for spread in (0.0, 1e-3, 1.0):
        terms = np.ones(8) + spread * rng.standard_normal((length, 8))
        terms /= np.linalg.norm(terms, axis=1, keepdims=True) * (1 + 1e-6)
        terms = terms.astype(np.float32)
        for _ in range(3):
            exact = [sum(Fraction(float(x)) for x in column) for column in terms.T]
            pairs = zip(random_tree_sum(terms, rng), exact, strict=True)
            errors = [float(Fraction(float(x)) - y) for x, y in pairs]
            largest = max(largest, np.linalg.norm(errors))
    # The search comes near enough to mean something.
    assert allowed / 100 < largest <= allowed


@pytest.mark.parametrize("length", [64, 256])
def test_the_sensitivity_counts_the_worst_orders(length):
    # Depths K - 1, K - 1, K - 2, ..., 1, in another order in each of K coordinates: the
    # terms that are as long in a coordinate as they are deep there have norm one each.
    weights = 1.0 + np.array([length - 1, *range(length - 1, 0, -1)])
    terms = np.stack([np.roll(weights, i) for i in range(length)])
    terms /= np.linalg.norm(terms, axis=1, keepdims=True)
    orders = np.stack([np.roll(weights, i) for i in range(length)])
    worst = np.linalg.norm((orders * terms).sum(axis=0))
    assert worst * (1 - 1e-12) <= sum_error(length) <= worst * (1 + 1e-4)
    # One coordinate alone has one order; the fold's terms are not rounded once more.
    assert (weights - 1).sum() < sum_error_in_turn(length) < weights.sum() * 1.01
    assert weights.sum() < worst
    n = 100_000 if length == 64 else 2**28
    counted = estimators.Clipping(1.0).sensitivity(n, 1000, rounded=False).l2
    assert counted >= 2 / n * (1 + sum_error(length) * ROUNDOFF)


def test_no_tree_is_deeper_than_one_after_the_other():
    # The largest sums of depths and of (1 + depth)^2, by the sizes of both branches.
    first, second = [0, 0], [0, 1]
    for k in range(2, 257):
        pairs = [(a, k - a) for a in range(1, k // 2 + 1)]
        first.append(k + max(first[a] + first[b] for a, b in pairs))
        below = [second[a] + second[b] + 2 * (first[a] + first[b]) for a, b in pairs]
        second.append(max(below) + 3 * k)
        depths = [k - 1, *range(k - 1, 0, -1)]
        assert first[k] == sum(depths)
        assert second[k] == sum((1 + depth) ** 2 for depth in depths)
