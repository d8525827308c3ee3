"""Parameters of a layer in a branch of a `cond`: the same mean, and bounds."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from dpjax.estimators import Clipping
from dpjax.gradients import explain
from tests.privacy.gradients.test_factored_attacks import (
    P,
    Q,
    each_dtype,
    farthest_move_of_positions,
)
from tests.unit.gradients.test_factored import (
    assert_same_mean,
    assert_same_on_two_devices,
    numbers,
)

pytestmark = pytest.mark.optimized
WIDTH = 40


def chosen(p, x):
    """One of two layers."""
    branches = (lambda p, x: jnp.tanh(x @ p["w"]), lambda p, x: x @ p["v"].T)
    return lax.cond(x[0] > 0, *branches, p, x)


def skipped(p, x):
    """A layer, or none: half of the records have the gradient zero by it."""
    return lax.cond(x[0] > 0, lambda p: jnp.tanh(x @ p["w"]), lambda _: x, p)


def in_all(p, x):
    """The same parameter in three branches, at one of which it stands twice."""
    branches = (
        lambda w: x @ w,
        lambda w: jnp.tanh(x @ w.T) @ w,
        lambda w: -jnp.sin(jax.jit(lambda w: w)(w).T @ x),
    )
    return lax.switch(jnp.int32(3 * jax.nn.sigmoid(x[0])), branches, p["w"])


def of_rows(p, x):
    """Rows of a table, of which the branch that is not chosen would read others."""
    first = jnp.int32(5 * jax.nn.sigmoid(x[:3]))
    return lax.cond(x[0] > 0, lambda t: t[first].sum(axis=0), lambda _: x, p["t"])


def in_a_loop(p, x):
    """Slices of a parameter and it whole, in branches in a loop of checkpoints."""

    @jax.checkpoint
    def layer(x, w):
        y = lax.cond(x[0] > 0, lambda w, v: x @ w + x @ v, lambda w, v: x, w, p["v"])
        return jnp.tanh(y), None

    return lax.scan(layer, x, p["g"])[0]


def nested(p, x):
    def inner(w):
        return lax.cond(x[1] > 0, lambda w: x @ w, lambda w: x, w)

    return jnp.tanh(lax.cond(x[0] > 0, inner, lambda w: x, p["w"]))


SQUARE = (WIDTH, WIDTH)
MODELS = {
    chosen: ({"w": SQUARE, "v": SQUARE}, "outer product", "one vector"),
    skipped: ({"w": SQUARE}, "outer product", "one vector"),
    in_all: ({"w": SQUARE}, "matrix product", "4 vectors"),
    of_rows: ({"t": (50, WIDTH)}, "table rows", "3 of 50 rows"),
    in_a_loop: ({"g": (2, *SQUARE), "v": SQUARE}, "matrix product", "2 vectors"),
    nested: ({"w": SQUARE}, "outer product", "one vector"),
}


@pytest.mark.parametrize("num_rows", [1, 9])  # one alone is another program
@pytest.mark.parametrize("function", MODELS)
def test_layers_in_branches_have_the_same_mean(function, num_rows):
    shapes, way, why = MODELS[function]
    params = {name: 0.2 * numbers(*shape, seed=5) for name, shape in shapes.items()}
    batch = numbers(num_rows, WIDTH, seed=6)

    def loss_fn(params, x):
        return jnp.sum(jnp.sin(function(params, x)) * jnp.arange(1.0, WIDTH + 1))

    for row in explain(loss_fn, params, batch).rows:
        assert row.way == way
        assert why in row.why
    assert_same_mean(loss_fn, params, batch, 1e-4)


def test_what_is_not_read_in_branches_is_written_out():
    def returned(w, x):
        return jnp.sum(x @ lax.cond(x[0] > 0, lambda w: w, lambda w: -w, w))

    def for_platforms(w, x):
        other = lax.platform_dependent(w, cpu=lambda w: x @ w, default=lambda w: x @ w)
        return jnp.sum(jnp.sin(other))

    for loss_fn, why in ((returned, "used 2 times"), (for_platforms, "inside cond")):
        w, batch = numbers(WIDTH, WIDTH), numbers(5, WIDTH, seed=6)
        (row,) = explain(loss_fn, w, batch).rows
        assert row.way == "written out"
        assert row.why.endswith(why)
        assert_same_mean(loss_fn, w, batch, 1e-4)


@each_dtype
def test_no_record_moves_the_mean_too_far(dtype, monkeypatch):
    """Nor does one that changes its branch: the other's numbers are zeros, not NaN."""
    monkeypatch.setattr("dpjax._sums.samples.SAVING", 0)

    def loss_fn(w, example):
        x, y = example
        z = lax.cond(x[0, 0] > 0, lambda w: x @ w, lambda w: x[::-1] @ w, w)
        z = lax.cond(x[0, 1] > 0, lambda w: z + x @ w, lambda w: z, w)
        return jnp.sum(z * y[None]).astype(jnp.float32)

    w = jnp.zeros((P, Q), dtype)
    assert farthest_move_of_positions(loss_fn, w, Clipping(1.0)) > 0.9


@pytest.mark.devices(2)
@pytest.mark.parametrize("function", [chosen, in_a_loop, of_rows])
def test_rows_on_several_devices(function):
    shapes, *_ = MODELS[function]
    params = {name: 0.2 * numbers(*shape, seed=5) for name, shape in shapes.items()}
    batch = numbers(8, WIDTH, seed=6)

    def loss_fn(params, x):
        return jnp.sum(jnp.sin(function(params, x)))

    assert_same_on_two_devices(loss_fn, params, batch)
