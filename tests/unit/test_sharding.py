"""Rows over the devices of a mesh: of one here, of eight in `nightly/sharding`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from dpjax.estimators import Clipping, Winsorization
from dpjax.gradients import robust_grad
from dpjax.transforms import aggregate, dp_sgd, privatize

ROWS = jnp.arange(6.0).reshape(3, 2)
MEAN = Winsorization(1.0)


def of_transform(make):
    def use(rows, name):
        transform = make(axis_name=name)
        return transform.update(rows, transform.init(jnp.zeros(2)))[0]

    return use


def silent(make, *args):
    return lambda **options: make(
        *args, noise_multiplier=0.0, key=jax.random.key(0), **options
    )


USERS = {
    "estimator": lambda rows, name: MEAN(rows, axis_name=name),
    "robust_grad": lambda rows, name: robust_grad(jnp.vdot, MEAN, axis_name=name)(
        jnp.zeros(2), rows
    ),
    "aggregate": of_transform(partial(aggregate, MEAN)),
    "privatize": of_transform(silent(privatize, MEAN)),
    "dp_sgd": of_transform(silent(dp_sgd, -1.0, MEAN)),
}


def dealt(rows, names=("records",), axis="records"):
    mesh = jax.make_mesh((1,) * len(names), names)
    return jax.device_put(rows, NamedSharding(mesh, PartitionSpec(axis)))


@pytest.mark.parametrize("use", USERS.values(), ids=USERS)
def test_means_over_a_mesh_of_one_device_are_those_without_a_mesh(use):
    for name in (("records",), "records", None):
        np.testing.assert_allclose(use(dealt(ROWS), name), [2 / 3, 1.0])
    # Nothing of a mesh is asked of arrays that are on none.
    np.testing.assert_allclose(use(ROWS, None), [2 / 3, 1.0])
    for bad in (3, "", (), ("a", "a"), ["records"], "elsewhere"):
        with pytest.raises(ValueError, match="axis_name must be"):
            use(dealt(ROWS), bad)


def test_rows_over_different_axes_need_the_names_of_their_axes():
    batch = {axis: dealt(ROWS, ("a", "b"), axis) for axis in ("a", "b")}
    with pytest.raises(ValueError, match="axis_name must be given"):
        Clipping(1.0)(batch)


def test_a_program_without_a_mesh_has_no_devices_in_it():
    grad_fn = jax.jit(robust_grad(jnp.vdot, Clipping(1.0)))
    text = grad_fn.lower(jnp.zeros(2), ROWS).as_text()
    assert "all_reduce" not in text
    assert "manual_computation" not in text
    assert "records" in grad_fn.lower(jnp.zeros(2), dealt(ROWS)).as_text("stablehlo")
