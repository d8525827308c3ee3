"""`check_model` says what becomes of each parameter, and what cannot be private."""

import re
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from dpjax.gradients import check_model

N, WIDTH = 12, 3
KEY = jax.random.key(0)
FEATURES = jnp.linspace(-1, 1, N * WIDTH).reshape(N, WIDTH)
BATCH = FEATURES, FEATURES.sum(axis=1)
PARAMS = {"b": jnp.zeros(()), "w": jnp.zeros(WIDTH)}
pytestmark = pytest.mark.usefixtures("their_promotion")


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
    assert check == check_model(squared, PARAMS, BATCH)
    assert check == check_model(
        lambda p, x: (squared(p, x), x), PARAMS, BATCH, has_aux=True
    )
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

    for bad, loss, said in (
        (PARAMS, loss_fn, r"params\['b'\] has no gradient.* \(used by stop_gradient"),
        (PARAMS | {"x": jnp.ones(2)}, squared, r"params\['x'\] has.* \(not used: zero"),
        (PARAMS | {"w": jnp.log(jnp.arange(3.0))}, squared, r"params\['w'\] holds NaN"),
    ):
        (problem,) = check_model(loss, bad, BATCH).problems
        assert re.match(said, problem)
    data = FEATURES.at[0].set(jnp.nan), BATCH[1]
    assert check_model(squared, PARAMS, data).problems == ()


LOSSES = {
    "must return one real scalar": lambda p, x: p["w"] * x[0] + p["b"],
    r"closes over FEATURES, with an array of shape \(12, 3\)": (
        lambda p, x: of_pairs(SimpleNamespace(rows=FEATURES), p, x)
    ),
    r"holds an array of shape \(12, 3\)": (
        partial(of_pairs, SimpleNamespace(rows=FEATURES))
    ),
    "mixes examples by a collective, .*unbound axis name: batch": (
        lambda p, x: jax.lax.pmean(squared(p, x), "batch")
    ),
    "a key that is the same for all examples": partial(dropped, KEY),
    "a key that is .* same for all": partial(dropped, jax.random.PRNGKey(0)),
    "has side effects": lambda p, x: [squared(p, x), jax.debug.print("{}", x[0])][0],
    "loss_fn has no gradient: ValueError": lambda p, x: jax.lax.while_loop(
        lambda y: y < 1, lambda y: y + 1, squared(p, x)
    ),
    "cannot be traced for one example": lambda p, x: float(squared(p, x)),
}


@pytest.mark.parametrize("said", LOSSES)
def test_a_loss_that_is_not_of_one_example_is_told(said):
    problems = check_model(LOSSES[said], PARAMS, BATCH).problems
    (problem,) = [x for x in problems if "loss_fn" in x]
    assert re.search(said, problem)
