"""`check_model` says what becomes of each parameter, and what cannot be private."""

import re
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.batching import WithoutReplacement
from dpjax.gradients import check_model, streamed_grad

N, WIDTH = 12, 3
KEY = jax.random.key(0)
FEATURES = jnp.linspace(-1, 1, N * WIDTH).reshape(N, WIDTH)
BATCH = FEATURES, FEATURES.sum(axis=1)
PARAMS = {"b": jnp.zeros(()), "w": jnp.zeros(WIDTH)}


@pytest.fixture(autouse=True)
def their_promotion():
    """Losses of users mix dtypes and ranks, and use keys again."""
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.debug_key_reuse(False),
    ):
        yield


def squared(params, example):
    x, y = example
    return (x @ params["w"] + params["b"] - y) ** 2


def dropped(key, params, example):
    keep = jax.random.bernoulli(key, 0.5, (WIDTH,))
    return squared(params, (example[0] * keep, example[1]))


def of_pairs(others, params, example):
    return jnp.mean((params["w"] @ (example[0] - others.rows).T + params["b"]) ** 2)


def test_shapes_are_enough_and_nothing_is_found_of_a_good_model():
    check = check_model(squared, *jax.eval_shape(lambda: (PARAMS, BATCH)))
    of_aux = check_model(lambda p, x: (squared(p, x), x), PARAMS, BATCH, has_aux=True)
    assert check == check_model(squared, PARAMS, BATCH) == of_aux
    lines = str(check).splitlines()
    assert re.match(r"\['b'\] +\(\) +float32 +written out +4 B +used by add", lines[1])
    assert re.match(r"\['w'\] +\(3,\) +float32 +outer product +16 B +mult", lines[2])
    assert lines[3].split() == ["in", "all", "20", "B"]
    assert "Leave those that you freeze out of params" in lines[4]
    assert lines[5:] == ["no problem found"]
    with pytest.raises(ValueError, match="batch"):
        check_model(squared, PARAMS, (jnp.ones(3), jnp.ones(4)))


def test_memory_is_that_of_the_factors():
    table = jax.ShapeDtypeStruct((999, 50), "bfloat16")
    batch = jax.ShapeDtypeStruct((8, 4), "int32")
    (row,) = check_model(lambda w, rows: w[rows].sum(), table, batch).rows
    assert (row.way, row.num_bytes) == ("table rows", 2 * 4 * (1 + 50))


def test_values_are_looked_at_of_parameters_alone():
    def loss_fn(params, example):
        bias = jax.jit(jax.lax.stop_gradient)(params["b"])
        return squared(params | {"b": bias}, example)

    for bad, loss, message in (
        (PARAMS, loss_fn, r"params\['b'\] has no gradient.* \(used by stop_gradient"),
        (PARAMS | {"x": jnp.ones(2)}, squared, r"params\['x'\] has.* \(not used: zero"),
        (PARAMS | {"w": jnp.log(jnp.arange(3.0))}, squared, r"params\['w'\] holds NaN"),
    ):
        (problem,) = check_model(loss, bad, BATCH).problems
        assert re.match(message, problem)
    data = FEATURES.at[0].set(jnp.nan), BATCH[1]
    assert check_model(squared, PARAMS, data).problems == ()


LOSSES = {
    "must return one real scalar": lambda p, x: p["w"] * x[0] + p["b"],
    r"closes over FEATURES, with an array of shape \(12, 3\)": (
        lambda p, x: of_pairs(SimpleNamespace(rows=FEATURES), p, x)
    ),
    "mixes examples by a collective, .*unbound axis name: batch": (
        lambda p, x: jax.lax.pmean(squared(p, x), "batch")
    ),
    "a key that is .* same for all": partial(dropped, jax.random.PRNGKey(0)),
    "that is the same for all examples": jax.checkpoint(
        jax.jit(lambda p, x: jax.lax.cond(x[1] > 0, dropped, dropped, KEY, p, x))
    ),
    "has side effects": lambda p, x: [squared(p, x), jax.debug.print("{}", x[0])][0],
    "loss_fn has no gradient: ValueError": lambda p, x: jax.lax.while_loop(
        lambda y: y < 1, lambda y: y + 1, squared(p, x)
    ),
    "several examples at once: .* ragged_dot .* microbatch_size=1": lambda p, x: (
        jax.lax.ragged_dot(p["w"][None], x[0][None, :, None], jnp.array([1])).sum()
    ),
    "cannot be traced for one example": lambda p, x: float(squared(p, x)),
}


@pytest.mark.parametrize("message", LOSSES)
def test_a_loss_that_is_not_of_one_example_is_told(message):
    problems = check_model(LOSSES[message], PARAMS, BATCH).problems
    (problem,) = [x for x in problems if "loss_fn" in x]
    assert re.search(message, problem)


class Contrast(NamedTuple):
    """A loss that compares an example with all others, in its own way each."""

    rows: Any

    def __call__(self, params, example):
        return of_pairs(self, params, example)

    method = __call__


def plain(params, example):
    return of_pairs(SimpleNamespace(rows=FEATURES), params, example)


@jax.custom_vjp
def backward_alone(params, example):
    return squared(params, example)


backward_alone.defvjp(
    lambda params, example: (squared(params, example), (params, example)),
    lambda inputs, g: (
        jax.tree.map(lambda x: g + 0 * x + FEATURES.mean(), inputs[0]),
        jax.tree.map(jnp.zeros_like, inputs[1]),
    ),
)
HOLDERS = {
    "function": plain,
    "jit": jax.jit(plain),
    "filter_jit": plain,  # of Equinox, below
    "partial": partial(of_pairs, SimpleNamespace(rows=FEATURES)),
    "jit of a partial": jax.jit(partial(of_pairs, SimpleNamespace(rows=FEATURES))),
    "NumPy": partial(of_pairs, Contrast(np.asarray(FEATURES))),
    "NumPy's mean": lambda p, x: squared(p, x) + Contrast(ARRAY).rows.mean(),
    "object": Contrast(FEATURES),
    "object without leaves": SimpleNamespace(call=Contrast(FEATURES).method).call,
    "method": Contrast(FEATURES).method,
    "checkpoint": jax.checkpoint(jax.jit(Contrast(FEATURES).method)),
    "branch": lambda p, x: jax.lax.cond(x[1] > 0, plain, squared, p, x),
    "loop": lambda p, x: jax.lax.fori_loop(
        0, 2, lambda i, y: y + jax.jit(plain)(p, x), 0.0
    ),
    "derivative": jax.jit(backward_alone),
}
ARRAY = np.asarray(FEATURES)


@pytest.mark.parametrize("name", HOLDERS)
def test_rows_that_a_loss_holds_are_told_however_it_holds_them(name):
    message = r"loss_fn (closes over .*|holds )an array of .*12, 3"
    loss_fn = HOLDERS[name]
    if name == "filter_jit":
        loss_fn = pytest.importorskip("equinox").filter_jit(plain)
    (problem,) = check_model(loss_fn, PARAMS, BATCH).problems
    assert re.match(message, problem)
    grad_fn = dpjax.robust_grad(loss_fn, dpjax.estimators.Clipping(1.0))
    options = {"epsilon": 1.0, "delta": 1e-3, "batching": WithoutReplacement(4)}
    run = dpjax.PrivateTraining(loss_fn, num_samples=N, **options)  # N: beyond a batch
    state = run.init(PARAMS, jax.random.key(1))
    for traced in (
        lambda: grad_fn(PARAMS, BATCH),
        lambda: streamed_grad(loss_fn)(PARAMS, BATCH),
        lambda: run.step(state, BATCH),
    ):
        with pytest.warns(UserWarning, match=message):
            jax.eval_shape(lambda traced=traced: [traced(), ()][1])


def test_rows_that_are_traced_are_told_and_other_arrays_are_not():
    def step(rows):
        loss_fn = jax.jit(partial(of_pairs, SimpleNamespace(rows=rows)))
        return dpjax.robust_grad(loss_fn, dpjax.estimators.Clipping(1.0))(PARAMS, BATCH)

    with pytest.warns(UserWarning, match=r"holds an array of shape \(12, 3\)"):
        jax.eval_shape(step, FEATURES)
    jax.eval_shape(step, FEATURES[1:])
    table = {1: "no", "pytree": 2}
    loss_fn = lambda p, x: squared(p, x) if table else None  # noqa: E731
    assert check_model(loss_fn, PARAMS, BATCH).problems == ()


@pytest.mark.parametrize(
    "leaf", [jax.random.key(0), jnp.arange(3), "text", jnp.ones(2, complex), None]
)
def test_leaves_without_gradients_are_refused_by_name(leaf):
    params = PARAMS | {"other": leaf}
    grad_fn, check = streamed_grad(squared), check_model(squared, params, BATCH)
    if leaf is None:  # a place without a leaf
        assert check.problems == ()
        grad_fn(params, BATCH)
        return
    with pytest.raises(ValueError, match=r"params\['other'\] must be") as refused:
        grad_fn(params, BATCH)
    assert check.problems == (str(refused.value),)
