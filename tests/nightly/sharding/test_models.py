"""Rows and parameters over two axes of a mesh, and noise where it is added."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from dpjax.estimators import (
    Clipping,
)
from dpjax.gradients import robust_grad
from dpjax.mechanisms import gaussian, laplace_log_normal
from dpjax.transforms import aggregate, privatize
from tests.nightly.sharding._devices import (
    BATCH,
    ESTIMATORS,
    N,
    assert_close,
    assert_equal,
    collectives,
    dealt,
    loss_fn,
    normal,
    sizes,
)


def mesh_over_two_axes(kind):
    kinds = kind, AxisType.Auto
    return jax.make_mesh((4, 2), ("records", "model"), axis_types=kinds)


WIDE = {"w": normal(13, 6, 512) / 10, "v": normal(14, 512)}
MODEL = {"w": P(None, "model"), "v": P("model")}


def over_model(tree, mesh):
    return {name: dealt(x, mesh, MODEL[name]) for name, x in tree.items()}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Clipping", AxisType.Auto),
        ("Clipping", AxisType.Explicit),
        ("median-3", AxisType.Auto),
        ("trimmed", AxisType.Auto),
    ],
)
def test_rows_and_parameters_over_two_axes(name, kind):
    estimator, mesh_2d = ESTIMATORS[name], mesh_over_two_axes(kind)
    expected = jax.jit(robust_grad(loss_fn, estimator))(WIDE, BATCH)
    inputs = over_model(WIDE, mesh_2d), dealt(BATCH, mesh_2d)
    run = jax.jit(robust_grad(loss_fn, estimator, axis_name="records"))
    found = run(*inputs)
    assert_close(found, expected)
    for name, x in found.items():
        assert x.sharding.is_equivalent_to(inputs[0][name].sharding, x.ndim)
    moved = collectives(run.lower(*inputs).compile().as_text())
    assert {kind for kind, _ in moved} == {"all-reduce"}
    groups = getattr(estimator, "num_groups", 1)
    # A device's half of the model, its digits of every group.
    assert max(max(sizes(s)) for _, s in moved) <= 6 * 256 * groups


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gaussian", AxisType.Auto),
        ("gaussian", AxisType.Explicit),
        ("laplace_log_normal", AxisType.Explicit),
    ],
)
@pytest.mark.parametrize("rows", [96, 2048])
def test_noise_is_made_where_it_is_added(name, kind, rows):
    mesh = jax.make_mesh((4, 2), ("records", "model"), axis_types=(kind,) * 2)
    add = {
        "gaussian": partial(gaussian, stddev=1.0),
        "laplace_log_normal": partial(laplace_log_normal, scale=1.0, sigma=0.4),
    }[name]
    value = {"w": jnp.ones((rows, 514)), "v": jnp.ones(514, jnp.bfloat16)}
    split = over_model(value, mesh)
    expected = jax.jit(add)(jax.random.key(15), value)
    assert_equal(add(jax.random.key(15), split), expected)
    found = add(dealt(jax.random.key(15), mesh, P()), split)
    assert_equal(found, expected)
    for leaf, x in found.items():
        assert x.sharding.is_equivalent_to(split[leaf].sharding, x.ndim)
    key = dealt(jax.random.key(15), mesh, P())
    text = jax.jit(add).lower(key, split).compile().as_text()
    assert not collectives(text)
    if rows == 2048:  # drawn alone: no device makes the whole
        every_size = sizes(re.findall(r"= \(?\w+\[([\d,]+)\]", text))
        assert max(every_size) == rows * 257


def test_private_steps_of_a_sharded_model():
    mesh_2d = mesh_over_two_axes(AxisType.Explicit)
    zeros = {"w": jnp.zeros((N, 6, 512)), "v": jnp.zeros((N, 512))}
    specs = {"w": P("records", None, "model"), "v": P("records", "model")}
    split = {name: dealt(x, mesh_2d, specs[name]) for name, x in zeros.items()}

    def run(grads, axis_name=None):
        transform = privatize(
            Clipping(1.0),
            noise_multiplier=1.0,
            key=jax.random.key(16),
            axis_name=axis_name,
        )
        return transform.update(grads, transform.init(None))[0]

    private = jax.jit(partial(run, axis_name="records"))
    assert_equal(private(split), jax.jit(run)(zeros))
    moved = collectives(private.lower(split).compile().as_text())
    assert {kind for kind, _ in moved} == {"all-reduce"}
    # Clipped by the norm over the whole model.
    rows = jax.tree.map(lambda x: x + 3.0, zeros)
    split = {name: dealt(x, mesh_2d, specs[name]) for name, x in rows.items()}
    transform = aggregate(Clipping(1.0))
    assert_close(transform.update(split, None)[0], transform.update(rows, None)[0])


def test_explicit_axes_of_the_model_are_refused():
    mesh = jax.make_mesh((4, 2), ("records", "model"))
    with pytest.raises(ValueError, match=r"with \['model'\] of jax.sharding.AxisType"):
        robust_grad(loss_fn, Clipping(1.0))(over_model(WIDE, mesh), dealt(BATCH, mesh))
