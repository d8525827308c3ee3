"""`check_model` says what becomes of each parameter, and what cannot be private."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.gradients import by_user, check_model

N, WIDTH = 12, 3
FEATURES = jnp.asarray(np.random.default_rng(0).standard_normal((N, WIDTH)), np.float32)
BATCH = FEATURES, FEATURES.sum(axis=1)
PARAMS = {"b": jnp.zeros(()), "w": jnp.zeros(WIDTH)}
KEY = jax.random.key(0)
pytestmark = pytest.mark.usefixtures("their_promotion")


def squared(params, example):
    x, y = example
    return (x @ params["w"] + params["b"] - y) ** 2


def with_dropout(key, params, example):
    keep = jax.random.bernoulli(key, 0.5, (WIDTH,))
    return squared(params, (example[0] * keep, example[1]))


def only_problem(loss_fn, params=PARAMS, batch=BATCH, **kwargs):
    (problem,) = check_model(loss_fn, params, batch, **kwargs).problems
    return problem


def test_shapes_are_enough_and_nothing_is_found_of_a_good_model():
    shapes = jax.eval_shape(lambda: (PARAMS, BATCH))
    for params, batch in ((PARAMS, BATCH), shapes):
        check = check_model(squared, params, batch)
        assert check.problems == ()
        assert [(x.name, x.way, x.num_bytes) for x in check.rows] == [
            ("['b']", "written out", 4),
            ("['w']", "outer product", 4 * (WIDTH + 1)),
        ]
        assert str(check).splitlines()[-1] == "no problem found"
    aux = check_model(lambda p, x: (squared(p, x), x), PARAMS, BATCH, has_aux=True)
    assert aux == check_model(squared, PARAMS, BATCH)


def test_memory_is_that_of_the_factors():
    def loss_fn(params, i):
        return jnp.sum(jnp.tanh(params["table"][i].mean(axis=0) @ params["kernel"]))

    params = {
        "kernel": jax.ShapeDtypeStruct((50, 70), jnp.bfloat16),
        "table": jax.ShapeDtypeStruct((1000, 50), jnp.float32),
    }
    kernel, table = check_model(
        loss_fn, params, jax.ShapeDtypeStruct((8, 4), jnp.int32)
    ).rows
    assert (kernel.way, kernel.num_bytes) == ("written out", 2 * 50 * 70)
    assert (table.way, table.num_bytes) == ("table rows", 4 * 4 * (1 + 50))


LEAVES = {
    "integer": (jnp.arange(3), r"params\['x'\] must be a float array.*int32"),
    "key": (KEY, r"params\['x'\] must be a float array.*key<fry>"),
    "function": (jnp.tanh, r"params\['x'\] must be a float array"),
    "complex": (jnp.ones(2, complex), r"params\['x'\] must be real: split it into two"),
    "unused": (jnp.ones(2), r"params\['x'\] has no gradient.*not used: zero"),
}


@pytest.mark.parametrize("name", LEAVES)
def test_leaves_without_gradients_are_told_with_what_to_do(name):
    leaf, said = LEAVES[name]
    check = check_model(squared, PARAMS | {"x": leaf}, BATCH)
    (problem,) = check.problems
    assert re.match(said, problem)
    assert [row.way for row in check.rows] == ["written out", "outer product", "none"]
    assert check.rows[-1].num_bytes == 0


def test_a_stopped_gradient_and_nan_are_told():
    def loss_fn(params, example):
        bias = jax.jit(jax.lax.stop_gradient)(params["b"])
        return squared(params | {"b": bias}, example)

    assert "params['b'] has no gradient" in only_problem(loss_fn)
    bad = PARAMS | {"w": jnp.array([0.0, jnp.nan, 1.0])}
    assert "params['w'] holds NaN" in only_problem(squared, bad)
    data = FEATURES.at[0].set(jnp.nan), BATCH[1]  # of records no value is looked at
    assert check_model(squared, PARAMS, data).problems == ()


class Holder:
    """An object with an array, which a closure hides."""

    def __init__(self):
        self.others = FEATURES


def of_pairs(params, example, holder=None):
    others = FEATURES if holder is None else holder.others
    return jnp.mean((params["w"] @ (example[0] - others).T + params["b"]) ** 2)


LOSSES = {
    "not scalar": (lambda p, x: p["w"] * x[0] + p["b"], "must return one real scalar"),
    "integer": (lambda p, x: jnp.int32(squared(p, x)), "must return one real scalar"),
    "pairs": (of_pairs, r"closes over FEATURES, with an array of shape \(12, 3\)"),
    "hidden pairs": (partial(of_pairs, holder=Holder()), "array of shape .12, 3."),
    "collective": (
        lambda p, x: jax.lax.pmean(squared(p, x), "batch"),
        "mixes examples by a collective, .*unbound axis name: batch",
    ),
    "closed-over key": (partial(with_dropout, KEY), "same for all examples"),
    "old key": (partial(with_dropout, jax.random.PRNGKey(0)), "same for all examples"),
    "seed": (
        lambda p, x: with_dropout(jax.random.key(1), p, x),
        "same for all examples",
    ),
    "side effect": (
        lambda p, x: [squared(p, x), jax.debug.print("{}", x[0])][0],
        "has side effects",
    ),
    "no gradient": (
        lambda p, x: jax.lax.while_loop(
            lambda y: y < 1, lambda y: y + 1, squared(p, x)
        ),
        "loss_fn has no gradient: ValueError",
    ),
    "no trace": (lambda p, x: float(squared(p, x)), "cannot be traced for one example"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_is_not_of_one_example_is_told(name):
    loss_fn, said = LOSSES[name]
    problems = check_model(loss_fn, PARAMS, BATCH).problems
    assert any(re.search(said, problem) for problem in problems), problems
    assert len([x for x in problems if "loss_fn" in x]) == 1


def test_a_key_for_each_example_and_users_are_fine():
    def loss_fn(params, example):
        key, *rest = example
        return with_dropout(key, params, rest)

    keys = jax.random.split(KEY, N)
    assert check_model(loss_fn, PARAMS, (keys, *BATCH)).problems == ()
    users = by_user(BATCH, jnp.arange(N) % 3, num_users=3, records_per_user=4)
    check = check_model(squared, PARAMS, users)
    assert check.problems == ()
    assert [row.way for row in check.rows] == ["written out", "written out"]


def test_linens_batch_norm():
    nn = pytest.importorskip("flax.linen", reason="needs flax")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, *, is_fixed=False):
            x = nn.BatchNorm(use_running_average=is_fixed)(nn.Dense(4)(x))
            return nn.Dense(1)(x)[0]

    model = Model()
    variables = model.init(KEY, FEATURES[0], is_fixed=True)

    def trained(variables, example):
        value, _ = model.apply(variables, example[0], mutable=["batch_stats"])
        return (value - example[1]) ** 2

    problems = check_model(trained, variables, BATCH).problems
    assert "Linen's collection 'batch_stats'" in problems[0]

    def fixed(params, example):
        found = {**variables, "params": params}
        return (model.apply(found, example[0], is_fixed=True) - example[1]) ** 2

    assert "closes over variables, which holds Linen's" in only_problem(
        fixed, variables["params"]
    )


def test_nnx_batch_norm_and_dropout():
    nnx = pytest.importorskip("flax.nnx", reason="needs flax")
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(
        nnx.Linear(WIDTH, 4, rngs=rngs),
        nnx.BatchNorm(4, rngs=rngs),
        nnx.Dropout(0.5, rngs=rngs),
        nnx.Linear(4, 1, rngs=rngs),
    )
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss_fn(params, example):
        return (nnx.merge(graph, params, rest)(example[0])[0] - example[1]) ** 2

    problems = "\n".join(check_model(loss_fn, params, BATCH).problems)
    assert "closes over rest, which holds nnx.BatchStat" in problems
    assert "cannot be traced for one example: TraceContextError" in problems


def test_equinox_modules():
    eqx = pytest.importorskip("equinox", reason="needs equinox")
    model = eqx.nn.MLP(WIDTH, 1, 4, 1, key=KEY)

    def loss_fn(model, example):
        return (model(example[0])[0] - example[1]) ** 2

    check = check_model(loss_fn, model, BATCH)
    assert [row.way for row in check.rows].count("none") == 2  # two functions
    assert all("must be a float array" in problem for problem in check.problems)
    params, static = eqx.partition(model, eqx.is_inexact_array)
    good = check_model(lambda p, x: loss_fn(eqx.combine(p, static), x), params, BATCH)
    assert good.problems == ()
    assert len(good.rows) == 4
