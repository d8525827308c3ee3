"""Eight devices, ways to deal rows out over them, and what is compared."""

import functools
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from dpjax.estimators import Clipping, Mean, MedianOfMeans, TrimmedMean, Winsorization
from dpjax.gradients import robust_grad
from tests import registry

N = 80
ESTIMATORS = {
    "mean": Mean(),
    **registry.bounded_estimators(0.8),
    "median-3": MedianOfMeans(Winsorization(0.8), 3),  # groups of several devices
    "median-19": MedianOfMeans(Clipping(0.8), 19),  # devices of several groups
    "trimmed": TrimmedMean(0.1, -1.0, 1.0),
}


def mesh_of(count, kind=AxisType.Auto):
    devices = jax.devices()[:count]
    return jax.make_mesh((count,), ("records",), axis_types=(kind,), devices=devices)


def dealt(tree, mesh, spec=None):
    spec = P("records") if spec is None else spec
    return jax.device_put(tree, NamedSharding(mesh, spec))


def auto(function, mesh):
    """A jitted function whose arrays lie on a mesh that knows nothing of their axes."""
    run = jax.jit(partial(function, axis_name="records"))
    return lambda whole, rows: run(whole, dealt(rows, mesh))


def explicit(function, mesh):
    """Arrays tell by their type how they are dealt out; the function is not told."""
    typed = jax.make_mesh((mesh.size,), ("records",), devices=mesh.devices.ravel())
    run = jax.jit(function)
    return lambda whole, rows: run(whole, dealt(rows, typed))


def ambient(function, mesh):
    run = jax.jit(partial(function, axis_name="records"))

    def on_mesh(whole, rows):
        with jax.set_mesh(mesh):
            return run(whole, rows)

    return on_mesh


def manual(function, mesh, check_vma=True):
    function = partial(function, axis_name="records")
    specs = {"in_specs": (P(), P("records")), "out_specs": P(), "check_vma": check_vma}
    run = jax.jit(jax.shard_map(function, mesh=mesh, **specs))
    return lambda whole, rows: run(whole, dealt(rows, mesh))


def loss_fn(params, example):
    hidden = jnp.tanh(example["x"] @ params["w"])
    return 0.5 * jnp.square(hidden @ params["v"] - example["y"])


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


PARAMS = {"w": normal(1, 6, 8), "v": normal(2, 8)}
BATCH = {"x": normal(3, N, 6), "y": normal(4, N)}


def grads_of(estimator, **options):
    def grads(params, batch, axis_name=None):
        grad_fn = robust_grad(loss_fn, estimator, axis_name=axis_name, **options)
        return grad_fn(params, batch)

    return grads


def collectives(text):
    """The kind and shapes of everything that travels between devices."""
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    lines = re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", text)
    return [(kind, re.findall(r"\w+\[([\d,]*)\]", shapes)) for shapes, kind in lines]


def sizes(shapes):
    return [int(np.prod([int(n) for n in s.split(",") if n])) for s in shapes]


def assert_close(result, expected, atol=3e-6):
    def check(x, y):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(*map(np.float64, (x, y)), rtol=0, atol=atol)

    jax.tree.map(check, result, expected)


def assert_equal(result, expected):
    assert_close(result, expected, atol=0)


@functools.cache
def mean_of_one_device(name):
    return jax.jit(robust_grad(loss_fn, ESTIMATORS[name]))(PARAMS, BATCH)
