"""What an estimator measures is what it sums: no program makes a gradient twice."""

import jax
import jax.numpy as jnp
import pytest

import dpjax
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
CLIPPING = Clipping(1.0)
ESTIMATORS = [CLIPPING, SmoothedClipping(1.0), Normalization(1.0)]
ESTIMATORS += [Grouped(Clipping(jnp.ones(2)), ("w", "b")), MedianOfMeans(CLIPPING, 2)]
ESTIMATORS += [TrimmedMean(0.2, -1.0, 1.0)]
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
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda x: type(x).__name__)
def test_no_gradient_is_made_twice(estimator, users):
    grad_fn = dpjax.robust_grad(loss_fn, estimator, **users)
    batch = (jnp.ones((NUM_ROWS, 1000)),) * 4
    assert program_text(grad_fn, PARAMS, batch).count(ONE_FACTOR) == 1


def test_the_compiler_makes_it_twice_where_nothing_is_done():
    """The reason for it all: where this fails, the library need not do anything."""

    def norm_and_direction(a, b, c):
        difference = (a * b - jnp.ceil(c))[..., :50]
        norm = jnp.sum(difference**2, axis=-1, keepdims=True)
        return norm, difference / (1 + norm)

    rows = (jnp.ones((NUM_ROWS, 1000)),) * 3
    assert program_text(norm_and_direction, *rows).count(ONE_FACTOR) > 1
