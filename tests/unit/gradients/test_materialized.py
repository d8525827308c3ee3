"""What an estimator measures is what it sums: no program makes a gradient twice."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import pytest

import dpjax
from dpjax._tree import materialized
from dpjax.estimators import (
    Clipping,
    Grouped,
    MedianOfMeans,
    Normalization,
    SmoothedClipping,
    TrimmedMean,
)

NUM_ROWS = 8
PARAMS = {"w": jnp.zeros((50, 60)), "b": jnp.zeros(1000)}
USERS = {"user_ids": jnp.arange(NUM_ROWS), "num_users": NUM_ROWS, "records_per_user": 1}
ONE_FACTOR = "ceil("  # in the program below, of nothing else


def loss_fn(params, example):
    a, b, c, d = example
    # Where both products are close, this is all rounding: whoever computes it in
    # another way has another number.
    left = (a * b - jnp.ceil(c) * d)[:50]
    return left @ params["w"] @ a[:60] + jnp.sum(params["b"] * (c * d))


def program_text(function, *args):
    return jax.jit(function).lower(*args).compile().as_text()


@pytest.mark.parametrize("users", [{}, USERS], ids=["rows", "users"])
@pytest.mark.parametrize(
    "estimator",
    [
        Clipping(1.0),
        SmoothedClipping(1.0),
        Normalization(1.0),
        Grouped(Clipping(jnp.ones(2)), ("w", "b")),
        MedianOfMeans(Clipping(1.0), 2),
        TrimmedMean(0.2, -1.0, 1.0),
    ],
    ids=lambda x: type(x).__name__,
)
def test_no_gradient_is_made_twice(estimator, users):
    grad_fn = dpjax.robust_grad(loss_fn, estimator, **users)
    batch = (jnp.ones((NUM_ROWS, 1000)),) * 4
    assert program_text(grad_fn, PARAMS, batch).count(ONE_FACTOR) == 1


def norm_and_direction(once, a, b, c):
    difference = once((a * b - jnp.ceil(c))[..., :50])
    norm = jnp.sum(difference**2, axis=-1, keepdims=True)
    return norm, difference / (1 + norm)


def test_readers_share_a_number():
    rows = (jnp.ones((NUM_ROWS, 1000)),) * 3
    for_each = partial(norm_and_direction, materialized)
    assert program_text(for_each, *rows).count(ONE_FACTOR) == 1
    assert program_text(jax.vmap(for_each), *rows).count(ONE_FACTOR) == 1
    apart = partial(norm_and_direction, lambda x: x)
    assert program_text(apart, *rows).count(ONE_FACTOR) > 1, "else it may be deleted"


def test_it_is_the_number_itself_with_its_derivative():
    tree = {"a": jnp.arange(3.0), "b": (jnp.array(2, jnp.bfloat16), jnp.arange(4))}
    chex.assert_trees_all_equal(materialized(tree), tree)
    assert jax.grad(lambda x: materialized(x) ** 3)(2.0) == 12
    assert jax.jvp(lambda x: materialized(x) ** 3, (2.0,), (1.0,)) == (8, 12)
