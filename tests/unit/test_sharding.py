"""Rows over the devices of a mesh: of one here, of eight in `nightly/sharding`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from dpjax.estimators import Clipping, Winsorization
from dpjax.gradients import robust_grad
from dpjax.transforms import aggregate, dp_sgd, privatize

ROWS = jnp.arange(6.0).reshape(3, 2)


def loss_fn(params, example):
    return params @ example


USERS = {
    "estimator": lambda rows, name: Winsorization(1.0)(rows, axis_name=name),
    "robust_grad": lambda rows, name: robust_grad(
        loss_fn, Winsorization(1.0), axis_name=name
    )(jnp.zeros(2), rows),
    "aggregate": lambda rows, name: aggregate(
        Winsorization(1.0), axis_name=name
    ).update(rows, None)[0],
    "privatize": lambda rows, name: updated(
        privatize(
            Winsorization(1.0),
            noise_multiplier=0.0,
            key=jax.random.key(0),
            axis_name=name,
        ),
        rows,
    ),
    "dp_sgd": lambda rows, name: (
        -updated(
            dp_sgd(
                1.0,
                Winsorization(1.0),
                noise_multiplier=0.0,
                key=jax.random.key(0),
                axis_name=name,
            ),
            rows,
        )
    ),
}
each = pytest.mark.parametrize("use", USERS.values(), ids=USERS)


def updated(transform, rows):
    return transform.update(rows, transform.init(jnp.zeros(2)))[0]


def dealt(rows):
    mesh = jax.make_mesh((1,), ("records",))
    return jax.device_put(rows, NamedSharding(mesh, PartitionSpec("records")))


@pytest.mark.quick(2)
@each
def test_a_mesh_of_one_device(use):
    for name in (None, "records", ("records",)):
        np.testing.assert_allclose(use(dealt(ROWS), name), [2 / 3, 1.0])
    # Nothing of a mesh is asked of arrays that are on none.
    np.testing.assert_allclose(use(ROWS, None), [2 / 3, 1.0])


@each
@pytest.mark.parametrize("name", [3, "", (), ("a", "a"), ["records"], "elsewhere"])
def test_bad_axes_are_named(use, name):
    with pytest.raises(ValueError, match="axis_name must be"):
        use(dealt(ROWS), name)


def test_leaves_over_different_axes_are_refused():
    mesh = jax.make_mesh((1, 1), ("a", "b"))
    batch = {
        axis: jax.device_put(ROWS, NamedSharding(mesh, PartitionSpec(axis)))
        for axis in ("a", "b")
    }
    with pytest.raises(ValueError, match="axis_name must be given"):
        Clipping(1.0)(batch)


def test_a_program_without_a_mesh_has_no_devices_in_it():
    grad_fn = jax.jit(robust_grad(loss_fn, Clipping(1.0)))
    text = grad_fn.lower(jnp.zeros(2), ROWS).as_text()
    assert "all_reduce" not in text
    assert "manual_computation" not in text
    on_mesh = grad_fn.lower(jnp.zeros(2), dealt(ROWS)).as_text("stablehlo")
    assert "records" in on_mesh
