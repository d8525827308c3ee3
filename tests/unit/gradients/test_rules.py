"""Layers with a derivative of their own: the mean of what their rules say."""

import jax
import jax.numpy as jnp
import pytest

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


def with_rule(layer, gradient):
    """Returns a layer whose gradient by its first input is given, and no other has."""
    ruled = jax.custom_vjp(layer)

    def backward(inputs, cotangent):
        _, others = jax.vjp(layer, *inputs)
        return gradient(cotangent, *inputs), *others(cotangent)[1:]

    ruled.defvjp(lambda *inputs: (layer(*inputs), inputs), backward)
    return ruled


def matmul(w, x):
    return x @ w


@jax.custom_jvp
def jvp_of_its_own(w, x):
    return jnp.round(x @ w)


@jvp_of_its_own.defjvp
def _(primals, tangents):
    (w, x), (dw, dx) = primals, tangents
    return jvp_of_its_own(w, x), x @ dw + dx @ w


def tripled(cotangent, w, x):
    """No derivative at all, but what the rule says."""
    return (3 * x).T @ jnp.clip(cotangent, -0.1, 0.1)


RULES = {  # (layer of a matrix and vectors (2, WIDTH), and of which number of vectors)
    "right": (with_rule(matmul, lambda g, w, x: x.T @ g), 2),
    "another": (with_rule(matmul, tripled), 2),
    "transposed": (with_rule(matmul, lambda g, w, x: (g.T @ x).T), 2),
    "of the matrix": (with_rule(matmul, lambda g, w, x: jnp.tanh(x @ w).T @ g), 2),
    "in a jit": (with_rule(matmul, jax.jit(lambda g, w, x: x.T @ g)), 2),
    "in half": (
        with_rule(
            matmul,
            lambda g, w, x: (x.T.astype(jnp.bfloat16) @ g.astype(jnp.bfloat16)).astype(
                jnp.float32
            ),
        ),
        2,
    ),
    "one": (with_rule(matmul, lambda g, w, x: jnp.outer(x[0], g.sum(axis=0))), 1),
    "one, transposed": (
        with_rule(matmul, lambda g, w, x: jnp.outer(g.sum(axis=0), x[0]).T),
        1,
    ),
    "tangents": (jvp_of_its_own, 2),
    "in a checkpoint": (
        jax.checkpoint(with_rule(matmul, lambda g, w, x: x.T @ g)),
        2,
    ),
    "in a branch": (
        lambda w, x: jax.lax.cond(
            x[0, 0] > 0, with_rule(matmul, tripled), lambda w, x: x, w, x
        ),
        2,
    ),
}


def loss_of(layer):
    def loss_fn(w, x):
        y = jnp.sin(layer(w, jnp.tanh(x)))
        return jnp.sum(y * jnp.arange(1.0, y.size + 1).reshape(y.shape))

    return loss_fn


@pytest.mark.parametrize("name", RULES)
def test_the_mean_is_that_of_the_rule(name):
    layer, count = RULES[name]
    w, batch = 0.2 * numbers(WIDTH, WIDTH), numbers(7, 2, WIDTH, seed=1)
    (row,) = explain(loss_of(layer), w, batch).rows
    assert row.way == ("outer product" if count == 1 else "matrix product")
    number = "one vector" if count == 1 else "2 vectors"
    assert row.why == f"multiplied by {number}: {WIDTH} and {WIDTH} numbers"
    assert_same_mean(loss_of(layer), w, batch, 0.02 if name == "in half" else 1e-4)


def test_several_parameters_of_one_layer():
    def layer(w, x, v, b):
        return jnp.tanh(x @ w) @ v + jnp.stack([b, b])

    ruled = jax.custom_vjp(layer)

    def backward(inputs, g):
        w, x, v, _ = inputs
        h = jnp.tanh(x @ w)
        inner = (g @ v.T) * (1 - h**2)
        return x.T @ inner, inner @ w.T, h.T @ g, g.sum(axis=0)

    ruled.defvjp(lambda *inputs: (layer(*inputs), inputs), backward)
    batch = numbers(7, 2, WIDTH, seed=1)
    params = {name: 0.2 * numbers(WIDTH, WIDTH, seed=i) for i, name in enumerate("wv")}
    params["b"] = numbers(WIDTH)

    def loss_fn(p, x):
        return jnp.sum(jnp.sin(ruled(p["w"], x, p["v"], p["b"])))

    rows = explain(loss_fn, params, batch).rows
    found = {row.name: row.way for row in rows}
    assert found == {
        "['b']": "written out",
        "['v']": "matrix product",
        "['w']": "matrix product",
    }
    assert_same_mean(loss_fn, params, batch, 1e-4)


def in_a_loop(w, x):
    layer, _ = RULES["right"]
    return jax.lax.scan(lambda x, _: (layer(w, x), None), x, None, 2)[0]


@pytest.mark.parametrize(
    "layer",
    [
        in_a_loop,
        with_rule(matmul, lambda g, w, x: 2 * (x.T @ g)),
        with_rule(matmul, lambda g, w, x: jnp.zeros_like(w)),
        with_rule(lambda w, x: jnp.tanh(w)[:2], lambda g, w, x: jnp.sin(w)),
    ],
    ids=["in a loop", "no product", "zero", "elementwise"],
)
def test_other_rules_are_written_out(layer):
    w, batch = 0.2 * numbers(WIDTH, WIDTH), numbers(7, 2, WIDTH, seed=1)
    (row,) = explain(loss_of(layer), w, batch).rows
    assert (row.way, row.why) == ("written out", "used inside custom_vjp_call")
    assert_same_mean(loss_of(layer), w, batch, 1e-4)


@each_dtype
def test_no_record_moves_the_mean_too_far(dtype, monkeypatch):
    monkeypatch.setattr("dpjax._sums.samples.SAVING", 0)
    layer, _ = RULES["right"]

    def loss_fn(w, example):
        x, y = example
        return jnp.sum(layer(w, x) * y[None]).astype(jnp.float32)

    w = jnp.zeros((P, Q), dtype)
    assert farthest_move_of_positions(loss_fn, w, Clipping(1.0)) > 0.9


@pytest.mark.devices(2)
def test_rows_on_several_devices():
    layer, _ = RULES["of the matrix"]
    w, batch = 0.2 * numbers(WIDTH, WIDTH), numbers(8, 2, WIDTH, seed=1)
    assert_same_on_two_devices(loss_of(layer), w, batch)
