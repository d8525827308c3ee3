"""Factored samples: sums and norms from factors, and how they may round."""

import math
from functools import cache, partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax._sums import samples as forms
from dpjax._sums.samples import FactoredSamples, OuterProducts
from dpjax._sums.stream import SampleStream
from dpjax._sums.tables import TableRows, scatter_add
from dpjax.estimators import Clipping, SmoothedClipping, Truncation
from tests import registry
from tests.factored import FAST_TO_COMPILE

NORMWISE = [Clipping(1.5), SmoothedClipping(1.5), Clipping(1e-12)]
BY_ENTRY = ("Truncation", "Winsorization", "SmoothedTruncation")
ESTIMATORS = [*NORMWISE, *(registry.ESTIMATORS[name](0.5) for name in BY_ENTRY)]
BAD = [np.nan, np.inf, -np.inf, 1e30, 1e-30, 1e37, 1e-42, 1e15]
UNUSUAL = {
    "nan": [np.nan, np.nan, np.nan, np.nan],
    "infinite": [np.inf, 1.0, -np.inf, np.inf],
    "huge times zero": [1e30, 0.0, 0.0, 0.0],
}


def samples_of(rows):
    """A product, a table and an array."""
    left, right, places, values, array = rows
    table = TableRows.of(places, values, num_rows=7, build=lambda x: x.T)
    product = OuterProducts(left, right, lambda x: x.T.reshape(3, 2, 5))
    return FactoredSamples({"a": product, "t": table, "x": array})


def rows_of(n, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(n, 5), (n, 6), (n, 4, 3), (n, 2, 2)]
    left, right, values, array = (
        jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes
    )
    places = jnp.asarray(rng.integers(0, 9, (n, 4)), jnp.int32)  # 7, 8: outside
    return left, right, places, values, array


def stream_of(rows, microbatch_size=None):
    """A stream of these samples in both forms."""

    def written_out(shared, rows):
        return samples_of(rows).written_out(), ()

    def factored(shared, rows):
        return lambda some: (samples_of(some), ())

    return SampleStream(written_out, (), rows, microbatch_size, factored)


@cache  # of one plan
def exactly(estimator):
    """The estimator's mean of samples that are written out."""
    mean = lambda rows: estimator(samples_of(rows).written_out())  # noqa: E731
    return jax.jit(mean, compiler_options=FAST_TO_COMPILE)


@pytest.mark.quick(3)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_the_mean_is_that_of_arrays(estimator, plan):
    mean = jax.jit(lambda rows: estimator(stream_of(rows)))
    exact_mean = exactly(estimator)
    rows = rows_of(12)
    means, expected = mean(rows), exact_mean(rows)
    chex.assert_trees_all_close(means, expected, rtol=1e-7, atol=1e-6)
    if estimator not in NORMWISE:
        return
    for bad in BAD:
        left, right, places, values, array = rows
        several = [
            (left.at[3, 1].set(bad), right, places, values, array),
            (left, right.at[3].set(bad), places, values, array),
            (left, right, places, values.at[3, 0].set(bad), array),
            (left, right, places, values, array.at[3].set(bad)),
            (left.at[3].set(bad), right.at[3].set(bad), places, values, array),
        ]
        for i, changed in enumerate(several):
            means = jax.tree.leaves(mean(changed))
            assert all(np.isfinite(x).all() for x in means)
            if i == 4 and abs(bad) > 1e18:
                continue  # a product beyond the largest float is no infinity here
            expected = jax.tree.leaves(exact_mean(changed))
            atol = 1e-6 * float(estimator.limit)
            chex.assert_trees_all_close(means, expected, rtol=0, atol=atol)


@pytest.mark.quick(1)
@pytest.mark.parametrize("microbatch_size", [None, 700, 100])
@pytest.mark.parametrize("estimator", [Clipping(1.5), Truncation(0.5)], ids=str)
def test_the_mean_of_many_blocks_is_that_of_arrays(estimator, microbatch_size, plan):
    # 1,003 rows are four blocks or more: the last one is filled up.
    left, *rest = rows_of(1003)
    rows = left.at[jnp.array([0, 500, 1002])].multiply(1e25), *rest
    is_padding = jnp.arange(1003) % 5 == 0

    @jax.jit
    def both(rows):
        samples = stream_of(rows, microbatch_size), samples_of(rows).written_out()
        return [estimator(x, is_padding, normalize_by=1003) for x in samples]

    chex.assert_trees_all_close(*both(rows), rtol=1e-7, atol=1e-6)


def test_factors_whose_squares_underflow_are_clipped():
    # Entries of one factor near 2^-63 and below, of which squares are zero, beside a
    # norm of the other near 2^64: such a sample would pass with 55 times the limit.
    rng = np.random.default_rng(0)
    largest = 0.0

    @jax.jit
    @partial(jax.vmap, in_axes=(0, 0, None))
    def shares(left, right, limit):
        """The weight that clipping leaves of a sample."""
        sample = FactoredSamples(OuterProducts(left, right, lambda x: x))
        clipped = Clipping(limit).bound_fn()(sample.finite())[0].leaves
        factors = (clipped.left, left), (clipped.right, right)
        return math.prod(jnp.max(x) / jnp.max(y) for x, y in factors)

    for p, q in ((1, 1), (3, 3000), (3000, 3), (400, 400)):
        sizes = 2.0 ** rng.uniform([[58], [-66]], [[64], [-60]], (2, 500))
        left = rng.choice([0.5, 1.0], (500, p)) * sizes[0, :, None] / p**0.5
        right = rng.choice([0.5, 1.0], (500, q)) * sizes[1, :, None]
        exact = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        for limit in (1e-12, 1.0, 1e12):
            pair = jnp.float32(left), jnp.float32(right * limit)
            lengths = np.asarray(shares(*pair, jnp.float32(limit)), float) * exact
            largest = max(largest, lengths.max())
    assert largest <= 1 + 1e-6
    assert largest > 0.9


def records_like_nothing(rows, kind):
    """Two batches: a row of zeros, or of numbers that count as zeros, then others."""
    left, right, places, values, array = rows
    rows = [x.at[:300].set(0) for x in (left, right, values, array)]
    for x in ([0.0] * 4, UNUSUAL[kind]):
        changed = [row.at[0].set(value) for row, value in zip(rows, x, strict=True)]
        yield *changed[:2], places, *changed[2:]


@pytest.fixture
def other_order(monkeypatch):
    """Products of matrices add rows in another order than one after the other."""
    product = forms.sum_of_products

    def in_halves(x, y):
        if len(x) == 1:
            return product(x, y)
        return product(x[::2], y[::2]) + product(x[1::2], y[1::2])

    monkeypatch.setattr(forms, "sum_of_products", in_halves)


@pytest.mark.quick(1)
@pytest.mark.parametrize("microbatch_size", [None, 1500, 500])
@pytest.mark.parametrize("estimator", NORMWISE[:2], ids=str)
def test_a_record_does_not_change_how_other_blocks_round(
    estimator, microbatch_size, plan, other_order
):
    # The first block, of 256 rows, holds zeros: not one bit of the mean may differ.
    mean = jax.jit(lambda rows: estimator(stream_of(rows, microbatch_size)))
    for kind in UNUSUAL:
        plain, unusual = map(mean, records_like_nothing(rows_of(1500), kind))
        for x, y in zip(*map(jax.tree.leaves, (plain, unusual)), strict=True):
            assert np.abs(x).max() > 0
            np.testing.assert_array_equal(x, y)


@pytest.mark.quick(1)
def test_a_record_does_not_change_how_other_means_round(plan, other_order):
    means = jax.jit(jax.vmap(lambda rows: Clipping(1.5)(stream_of(rows, 1500))))
    others = rows_of(1500, seed=1)
    for kind in UNUSUAL:
        pair = [
            means(jax.tree.map(lambda *x: np.stack(x), rows, others))
            for rows in records_like_nothing(rows_of(1500), kind)
        ]
        chex.assert_trees_all_equal(*pair)


@pytest.mark.quick(1)
@pytest.mark.parametrize("derivative", [jax.grad, jax.jacfwd])
def test_the_derivative_by_the_clip_norm(derivative):
    # What counts as zero has no derivative, nor spoils that of others.

    @jax.jit
    def length(limit, rows):
        mean = Clipping(limit)(stream_of(rows))
        return sum(jnp.vdot(x, x) for x in jax.tree.leaves(mean))

    limit, step, derivative_fn = jnp.float32(1.5), 0.01, jax.jit(derivative(length))
    left, right, *rest = rows_of(9)
    for bad in (1.0, np.nan, 1e22):
        rows = left.at[3, 1].set(bad), right.at[5, 0].set(bad), *rest
        above, below = length(limit + step, rows), length(limit - step, rows)
        slope = derivative_fn(limit, rows)
        np.testing.assert_allclose(slope, (above - below) / (2 * step), rtol=1e-3)


def test_rows_outside_of_the_table_are_zero_and_places_have_any_type():
    table_of = partial(TableRows.of, build=lambda x: x)
    for num_rows, num_read in [(7, 6), (100, 6), (7, 1)]:
        places = jnp.asarray([[-1, num_rows, num_rows, 0, 1, 0]])[:, :num_read]
        values = jnp.full((1, num_read, 2), jnp.nan).at[:, 3:].set(1.0)
        rows = table_of(places, values, num_rows=num_rows)
        assert rows.values.sum() == rows.written_out().sum() == 2 * max(num_read - 3, 0)
    for num_rows, dtype in [(256, jnp.uint8), (200, jnp.int8)]:
        places, values = jnp.asarray([[1, 99, 1]], dtype), jnp.ones((1, 3, 2))
        rows = table_of(places, values, num_rows=num_rows)
        np.testing.assert_array_equal(rows.written_out()[0, [1, 99]], [[2, 2], [1, 1]])


@pytest.mark.parametrize("plan", ["parallel"], indirect=True)
def test_rows_of_a_table_add_up_to_the_same_bits_in_any_order(plan):
    # A GPU adds them in another order in each run.
    rng = np.random.default_rng(0)
    places, order = rng.integers(0, 9, 500), rng.permutation(500)
    counts = np.bincount(places, minlength=9)[:7]  # 7 and 8 are outside of the table
    add = jax.jit(lambda *x: scatter_add(500, jnp.zeros((7, 3)), *x))
    for scale in (0.0, 1e-30, 1.0, 1e36):
        rows = np.float32(scale * rng.standard_t(2, (500, 3)))
        total = np.asarray(add(places, rows))
        np.testing.assert_array_equal(total, add(places[order], rows[order]))
        exact = [rows[places == i].astype(float).sum(axis=0) for i in range(7)]
        np.testing.assert_allclose(total, exact, rtol=0, atol=2e-7 * np.abs(rows).max())
    tangent = jax.jvp(lambda x: add(places, x), (rows,), (np.ones_like(rows),))[1]
    np.testing.assert_array_equal(tangent, np.broadcast_to(counts[:, None], (7, 3)))
    # A row near the largest float leaves other places finite.
    rows = jnp.asarray([[3e38], [1.0], [2.0]])
    add = jax.jit(partial(scatter_add, 3))
    total = add(jnp.zeros((2, 1)), jnp.array([0, 1, 1]), rows)
    assert jnp.isfinite(total[1]).all()
