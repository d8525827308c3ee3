"""Orders of a sum: none passes what the stated sensitivity allows for rounding."""

from fractions import Fraction

import numpy as np
import pytest

from dpjax.estimators import Clipping
from dpjax.estimators._sensitivity import sum_error, sum_error_in_turn

ROUNDOFF = 2.0**-24


def random_tree_sum(terms, rng):
    """The float32 sum of rows in a random order, another one for every column."""

    def one(column):
        column = list(column.astype(np.float32))
        while len(column) > 1:
            # Mostly one after the other, as the worst sums are.
            i = 0 if rng.random() < 0.9 else rng.integers(len(column))
            x = column.pop(i)
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
    assert largest <= allowed
    assert largest > allowed / 100  # the search comes near enough to mean something


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
    counted = Clipping(1.0).sensitivity(n, 1000, rounded=False).l2
    assert counted >= 2 / n * (1 + sum_error(length) * ROUNDOFF)
