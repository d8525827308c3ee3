"""Gradients held as two matrices, made once, and of users: norms, sums, sensitivity."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import batching, estimators, losses
from dpjax.estimators import Clipping
from dpjax.gradients import _products, by_user, robust_grad
from dpjax.gradients._factored import FactoredSamples
from dpjax.solvers import dp_gradient_descent

NORM_ERROR, LONGEST = 2.0**-13, 2.0**63  # of a norm; in units, what counts as zero


def cancelling(rng, shape):
    """Collinear positions of alternating signs: nothing is left but their noise."""
    signs = np.where(np.arange(shape[1]) % 2, -1.0, 1.0)[None, :, None]
    return signs * (1 + 1e-4 * rng.standard_normal(shape))


def by_position(rng, shape):
    """1e30 beside 1e-30, of which the other factor has the inverse."""
    sizes = 10.0 ** np.linspace(-30, 30, shape[1])[None, :, None]
    return rng.standard_normal(shape) * (sizes if shape[2] % 2 else 1 / sizes)


FAMILIES = {
    "random": lambda rng, shape: rng.standard_normal(shape),
    "cancelling": cancelling,
    "of all sizes": lambda rng, shape: (
        rng.standard_normal(shape) * 10.0 ** rng.uniform(-30, 30, shape)
    ),
    "by position": by_position,
}
NUM_ROWS = 8
PARAMS = {"w": jnp.zeros((50, 60)), "b": jnp.zeros(1000)}
CLIPPING = Clipping(1.0)
ESTIMATORS = [CLIPPING, estimators.SmoothedClipping(1.0), estimators.Normalization(1.0)]
ESTIMATORS += [estimators.Grouped(Clipping(jnp.ones(2)), ("w", "b"))]
ESTIMATORS += [estimators.MedianOfMeans(CLIPPING, 2)]
ESTIMATORS += [estimators.TrimmedMean(0.2, -1.0, 1.0)]
ONE_FACTOR = "ceil("  # in the program below, of nothing else


@jax.jit
def clipped(limit, left, right):
    product = _products.MatrixProducts(left[None], right[None], lambda x: x)
    row = jax.tree.map(lambda x: x[0], FactoredSamples(product).finite())
    return Clipping(limit).bound_fn()(row)[0].leaves.numbers


def sums_in_some_orders(left, right):
    """The float32 sums over positions, worst where all of one sign come first."""
    terms = left[..., :, None] * right[..., None, :]
    signs = np.argsort(np.sign(terms[0, :, 0, 0]), kind="stable")
    for order in (slice(None), slice(None, None, -1), signs):
        yield np.add.accumulate(terms[:, order], axis=1, dtype=np.float32)[:, -1]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_no_sum_is_longer_than_the_limit(family, dtype):
    """In any order over positions, for sizes with and without a common power of 2."""
    rng, longest = np.random.default_rng(0), 0.0
    for shape, q in (((1, 2, 3), 4), ((3, 40, 21), 8), ((1, 4096, 5), 2)):
        for limit in (1e-12, 0.7, 1e30):
            left = jnp.asarray(family(rng, shape), dtype)
            right = jnp.asarray(family(rng, (*shape[:2], q)), dtype)
            factors = [*map(np.asarray, clipped(limit, left, right))]
            sums = [*sums_in_some_orders(*factors)]
            assert all(np.isfinite(x).all() for x in factors + sums)
            norms = [np.linalg.norm(x.astype(float)) / np.float32(limit) for x in sums]
            longest = max(longest, *norms)
    assert 0.8 < longest <= 1 + NORM_ERROR


def test_what_rounding_may_hide_is_little_where_positions_do_not_cancel():
    rng = np.random.default_rng(0)
    for *sizes, p, q in ((3, 5, 40, 70), (1, 64, 99, 9)):
        left, right = (rng.standard_normal((*sizes, width)) for width in (p, q))
        exact = np.linalg.norm(np.einsum("gtp,gtq->gpq", left, right))
        pair = _products.balanced(jnp.float32(left), jnp.float32(right))
        squared_norm = jax.jit(_products.squared_norm_of_matrices)
        for unit in (1e-12, 1.0, 1e9):
            squared = squared_norm(*pair, jnp.float32(1 / unit))
            norm = float(squared) ** 0.5 * np.float32(unit)
            assert exact * (1 - 1e-6) < norm < exact * 1.001


def test_the_norm_of_positions_that_cancel_is_not_too_small():
    """Without the slack for rounding, Gram matrices find zero for some of these."""
    rng, length = np.random.default_rng(0), 1024
    signs = np.where(np.arange(length) % 2, -1.0, 1.0)[:, None]
    norm = jax.jit(_products.squared_norm_of_matrices)
    for _ in range(20):
        left = (signs * (1 + 1e-6 * rng.standard_normal((length, 3)))).astype("f4")
        right = (1 + 1e-6 * rng.standard_normal((length, 2))).astype("f4")
        exact = np.linalg.norm(left.T.astype(float) @ right.astype(float))
        products = left[:, :, None] * right[:, None]
        summed = np.add.accumulate(products, dtype=np.float32)[-1]  # one by one
        squared = norm(*map(jnp.asarray, (left[None], right[None])), jnp.float32(1))
        assert float(squared) ** 0.5 >= max(exact, np.linalg.norm(summed))


def test_products_of_rows_are_added_one_by_one_on_cpu():
    """One sum over rows and positions would round by what cancels in a row."""
    left = jnp.ones((64, 1, 8, 40))
    leaf = _products.MatrixProducts(left, left, lambda x: x)
    text = jax.jit(lambda leaf: leaf.add(leaf.zeros(), None, None)).lower(leaf)
    dots = [x for x in text.compile().as_text().splitlines() if " dot(" in x]
    assert dots
    assert all("f32[1,40,40]" in x or "f32[40,40]" in x for x in dots)


@pytest.mark.parametrize("constant", [0.0, 1e-12, 1.0, 1e12, 1e30])
def test_constant_entries_are_measured_too(constant):
    # Of a parameter that the loss does not use the gradient is a constant, which the
    # compiler may square by itself, and the unit by itself: infinity times zero.
    @jax.jit
    def squares(x):
        return FactoredSamples([jnp.full(9, constant), x]).squared_norm(1 / x[0])

    for x in (1e-12, 1.0, 1e12, 1e30):
        measured = float(squares(jnp.full(4, x, jnp.float32)))
        expected = 9 * (constant / x) ** 2 + 4
        if expected < LONGEST**2:
            assert measured == pytest.approx(expected, rel=1e-6)
        else:
            assert measured >= LONGEST**2


def loss_fn(params, example):
    a, b, c, d = example
    # Where both products are close, this is all rounding: whoever computes it in
    # another way has another number.
    left = (a * b - jnp.ceil(c) * d)[:50]
    return left @ params["w"] @ a[:60] + jnp.sum(params["b"] * (c * d))


def program_text(function, *args):
    return jax.jit(function).lower(*args).compile().as_text()


@pytest.mark.parametrize("is_by_user", [False, True], ids=["rows", "users"])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda x: type(x).__name__)
def test_no_gradient_is_made_twice(estimator, is_by_user):
    grad_fn = dpjax.robust_grad(loss_fn, estimator)
    batch = (jnp.ones((NUM_ROWS, 1000)),) * 4
    if is_by_user:
        ids, sizes = jnp.arange(NUM_ROWS), {"num_users": NUM_ROWS}
        batch = by_user(batch, ids, **sizes, records_per_user=1)
    assert program_text(grad_fn, PARAMS, batch).count(ONE_FACTOR) == 1


def test_the_compiler_makes_it_twice_where_nothing_is_done():
    """The reason for it all: where this fails, the library need not do anything."""

    def norm_and_direction(a, b, c):
        difference = (a * b - jnp.ceil(c))[..., :50]
        norm = jnp.sum(difference**2, axis=-1, keepdims=True)
        return norm, difference / (1 + norm)

    rows = (jnp.ones((NUM_ROWS, 1000)),) * 3
    assert program_text(norm_and_direction, *rows).count(ONE_FACTOR) > 1


def test_one_user_moves_the_mean_by_no_more_than_the_sensitivity():
    # Records of user 0 come, go and are replaced, those of others stay; ids and values
    # are whatever floats and integers there are, and nothing raises.
    rng, estimator = np.random.default_rng(2), Clipping(1.0)
    bound = estimator.sensitivity(3, 2).l2

    @jax.jit
    def mean(x, ids):
        users = by_user(x, ids, num_users=3, records_per_user=4)
        return robust_grad(lambda w, x: w @ x, estimator)(jnp.zeros(2), users)

    odd = [0.0, 1.0, -1.0, 1e30, -1e30, 3e38, 1e-40, np.nan, np.inf, -np.inf]
    theirs = np.array([[1.0, 2], [-3, 4], [5e20, 0]], np.float32)
    ends = []
    for _ in range(300):
        mine = rng.choice(odd, (6, 2)).astype(np.float32)
        my_ids = rng.choice([0, 0, 0, -7, 3, 2**31 - 1], 6)
        x = jnp.asarray(np.concatenate([mine[:3], theirs, mine[3:]]))
        ids = jnp.asarray(np.concatenate([my_ids[:3], [1, 2, 1], my_ids[3:]]), "int32")
        ends.append(np.asarray(mean(x, ids)))
    ends = np.array(ends)
    assert np.isfinite(ends).all()
    farthest = np.linalg.norm(ends[:, None] - ends[None], axis=-1).max()
    assert 0.9 * bound < farthest <= bound


def test_users_are_drawn_and_the_guarantee_says_so(key):
    data, ids = (jnp.ones((60, 2)), jnp.ones(60)), jnp.arange(60) % 20
    users = by_user(data, ids, num_users=20, records_per_user=3)
    options = {"key": key, "epsilon": 2.0, "delta": 1e-5, "estimator": Clipping(1.0)}
    options |= {"learning_rate": 0.1, "num_steps": 4, "batching": batching.Poisson(5.0)}
    solution = dp_gradient_descent(losses.squared, jnp.zeros(2), users, **options)
    assert str(solution.privacy).startswith("Replacing any one of the 20 users changes")
