"""Dropout with a key for each example; parameters with running statistics refused."""

import re
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.estimators import Clipping
from dpjax.gradients import streamed_grad

WIDTH = 8
FAST_TO_COMPILE = {"xla_backend_optimization_level": 0}
pytestmark = pytest.mark.usefixtures("their_promotion")
ROW = np.random.default_rng(0).standard_normal(WIDTH).astype(np.float32)


def linen_dropout():
    nn = pytest.importorskip("flax.linen", reason="needs flax")
    model = nn.Sequential([nn.Dense(WIDTH), nn.Dropout(0.5, deterministic=False)])
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    params = jax.jit(model.init)(keys, ROW)

    def loss_fn(params, example):
        x, key = example
        return model.apply(params, x, rngs={"dropout": key}).sum()

    return loss_fn, params


def nnx_dropout():
    nnx = pytest.importorskip("flax.nnx", reason="needs flax")

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.dense = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
            self.dropout = nnx.Dropout(0.5)

        def __call__(self, x, rngs):
            return self.dropout(self.dense(x), rngs=rngs)

    graph, params, rest = nnx.split(Model(nnx.Rngs(0)), nnx.Param, ...)

    def loss_fn(params, example):
        x, key = example
        model = nnx.merge(graph, params, rest)
        return model(x, nnx.Rngs(dropout=key)).sum()

    return loss_fn, params


def equinox_dropout():
    eqx = pytest.importorskip("equinox", reason="needs equinox")
    model = {
        "dense": eqx.nn.Linear(WIDTH, WIDTH, key=jax.random.key(0)),
        "dropout": eqx.nn.Dropout(0.5),
    }
    params, rest = eqx.partition(model, eqx.is_inexact_array)

    def loss_fn(params, example):
        x, key = example
        model = eqx.combine(params, rest)
        return model["dropout"](model["dense"](x), key=key).sum()

    return loss_fn, params


@pytest.mark.parametrize("make", [linen_dropout, nnx_dropout, equinox_dropout])
def test_dropout_with_a_key_for_each_example(make):
    loss_fn, params = make()
    keys = jax.random.split(jax.random.key(7), 6)
    batch = jnp.tile(ROW, (6, 1)), keys
    assert dpjax.check_model(loss_fn, params, batch).problems == ()
    estimator = Clipping(1.0)

    @partial(jax.jit, compiler_options=FAST_TO_COMPILE)
    def both(params, batch):
        grads = dpjax.per_sample_grad(loss_fn)(params, batch)
        few = dpjax.robust_grad(loss_fn, estimator, microbatch_size=2)
        return grads, estimator(grads), few(params, batch)

    grads, mean, folded = both(params, batch)
    chex.assert_trees_all_close(mean, folded, rtol=0, atol=1e-6)
    # The gradient by the bias tells which units were kept: 1 / 0.5, or none.
    bias = next(x for x in jax.tree.leaves(grads) if x.ndim == 2)
    np.testing.assert_array_equal(np.unique(np.round(bias, 4)), [0, 2])
    assert len(np.unique(bias, axis=0)) > 3  # of equal rows, by other keys
    one = jax.grad(loss_fn)(params, jax.tree.map(lambda x: x[2], batch))
    one = next(x for x in jax.tree.leaves(one) if x.ndim == 1)
    np.testing.assert_allclose(one, bias[2], rtol=1e-6)


def nnx_batch_norm():
    nnx = pytest.importorskip("flax.nnx", reason="needs flax")
    model = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    graph, all_of_it = nnx.split(model)
    _, params, rest = nnx.split(model, nnx.Param, ...)

    def fixed(params, x):
        model = nnx.merge(graph, params, rest)
        return model(x, use_running_average=True).sum()

    return all_of_it, params, fixed


def linen_batch_norm():
    nn = pytest.importorskip("flax.linen", reason="needs flax")
    model = nn.BatchNorm(use_running_average=True)
    variables = jax.jit(model.init)(jax.random.key(0), jnp.ones(3))
    statistics = {"batch_stats": variables["batch_stats"]}

    def fixed(params, x):
        return model.apply({"params": params, **statistics}, x).sum()

    return {"inner": variables}, variables["params"], fixed


def equinox_batch_norm():
    eqx = pytest.importorskip("equinox", reason="needs equinox")
    make = eqx.nn.make_with_state(lambda: eqx.nn.BatchNorm(3, "rows", mode="batch"))
    model, state = make()
    params, rest = eqx.partition(model, eqx.is_inexact_array)

    def fixed(params, x):
        model = eqx.nn.inference_mode(eqx.combine(params, rest))
        return model(x, state)[0].sum()

    return (params, state), params, fixed


BATCH_NORMS = {
    "nnx.BatchStat": nnx_batch_norm,
    "batch_stats": linen_batch_norm,
    "equinox.nn.State": equinox_batch_norm,
}


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_running_statistics_are_refused(name):
    all_of_it, params, fixed = BATCH_NORMS[name]()

    def loss_fn(params, x):
        raise AssertionError("nothing is computed before the check")

    for grad_fn in (
        dpjax.per_sample_grad(loss_fn),
        dpjax.robust_grad(loss_fn, Clipping(1.0)),
        streamed_grad(loss_fn),
    ):
        with pytest.raises(ValueError, match=rf"params .*{name}.* BatchNorm.*Group"):
            grad_fn(all_of_it, jnp.ones((4, 3)))
    told, *_ = dpjax.check_model(loss_fn, all_of_it, jnp.ones((4, 3))).problems
    assert re.match(rf"params .*{name}.* BatchNorm.*Group", told)
    # The recipe: statistics that stay fixed, outside of the parameters.
    (told,) = dpjax.check_model(fixed, params, jnp.ones((4, 3))).problems
    assert re.match(rf"loss_fn closes over .*{name}.* must be fixed and public", told)
    grads = dpjax.robust_grad(fixed, Clipping(1.0))(params, jnp.ones((4, 3)))
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(grads))
