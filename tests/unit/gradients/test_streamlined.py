"""Rewriting a gradient's program changes its speed and nothing else."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dpjax.gradients._loss import streamlined


def test_outer_products_are_multiplied_out_as_they_are_read(key):
    def loss_fn(w, x):
        return jnp.sum(jnp.tanh(x @ w) * jnp.arange(3.0))

    w, x = jax.random.normal(key, (4, 3)), jnp.arange(4.0)
    program = str(jax.make_jaxpr(streamlined(jax.grad(loss_fn)))(w, x))
    assert "dot_general" in program  # the forward pass is left alone
    np.testing.assert_array_equal(
        streamlined(jax.grad(loss_fn))(w, x), jax.grad(loss_fn)(w, x)
    )
    lowered = jax.jit(streamlined(jax.grad(loss_fn))).lower(w, x).as_text()
    assert lowered.count("dot_general") == 1
    assert jax.jit(jax.grad(loss_fn)).lower(w, x).as_text().count("dot_general") == 2


def outer(x, y, **options):
    return jax.lax.dot_general(x, y, (((), ()), ((), ())), **options)


def swaps_nothing(x, y):
    return jax.lax.transpose_p.bind(outer(x, y), permutation=(0, 1))


def of_weak_type(x, y):
    return outer(jax.lax.broadcast(2.0, (3,)), jax.lax.broadcast(3.0, (4,)))


def several_results(x, y):
    matrix = outer(x, y)
    return jnp.linalg.svd(matrix), jnp.linalg.qr(matrix), jax.lax.top_k(y, 2)


def over_a_named_axis(x, y):
    def share(y):
        return y / jax.lax.psum(y, "axis")

    return outer(x, jax.vmap(share, axis_name="axis")(y))


def of_a_callback(x, y):
    shape = jax.ShapeDtypeStruct(y.shape, y.dtype)
    return outer(x, jax.pure_callback(np.sin, shape, y, vmap_method="sequential"))


def by_a_rule_for_batches(x, y):
    @jax.custom_batching.custom_vmap
    def triple(x):
        return 3 * x

    @triple.def_vmap
    def _(axis_size, in_batched, x):
        return 5 * x, in_batched[0]

    return outer(triple(x), y)


def on_devices(x, y):
    places = {"in_specs": PartitionSpec(), "out_specs": PartitionSpec()}
    mesh = jax.make_mesh((1,), ("axis",))
    return jax.shard_map(lambda x, y: outer(x, y).T, mesh=mesh, **places)(x, y)


def of_other_numbers(x, y):
    k = jnp.arange(100, 103).astype(jnp.int8)
    wide = outer(k, k, preferred_element_type=jnp.int32)
    return outer(k, k), wide, outer(k > 101, k > 0)


OPERATIONS = (swaps_nothing, of_weak_type, several_results, over_a_named_axis)
OPERATIONS += (of_a_callback, by_a_rule_for_batches, on_devices, of_other_numbers)


@pytest.mark.parametrize(
    "by", [lambda f: f, jax.jit, jax.vmap], ids=["", "jit", "vmap"]
)
def test_operations_beside_the_two_stay_as_they_are(by):
    args = jnp.linspace(-1.0, 1.0, 3), jnp.linspace(0.5, 2.0, 4)
    if by is jax.vmap:
        args = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), args)

    def function(x, y):
        return [operation(x, y) for operation in OPERATIONS]

    actual, expected = by(streamlined(function))(*args), by(function)(*args)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for x, y in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        assert x.aval == y.aval
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


def test_a_constant_may_be_transposed():
    matrix = np.arange(6.0, dtype=np.float32).reshape(2, 3)

    def scaled(x):
        return jax.lax.transpose(matrix, (1, 0)) * x

    jax.config.update("jax_use_simplified_jaxpr_constants", True)  # else no literal
    try:
        np.testing.assert_array_equal(streamlined(scaled)(jnp.ones(())), matrix.T)
    finally:
        jax.config.update("jax_use_simplified_jaxpr_constants", False)


def test_what_states_its_sharding_keeps_it(key):
    mesh = jax.make_mesh((1,), ("axis",), axis_types=(AxisType.Explicit,))
    dealt = NamedSharding(mesh, PartitionSpec("axis"))
    x = jnp.arange(1.0, 5.0)

    def placed(x):
        return jax.jit(jnp.sin, out_shardings=dealt)(x)

    assert streamlined(placed)(x).sharding == placed(x).sharding == dealt
    with jax.set_mesh(mesh):
        x = jax.device_put(x, dealt)  # an outer product cannot be dealt out twice

        def by_rows(x):
            return outer(x, x, out_sharding=PartitionSpec("axis", None))

        assert streamlined(by_rows)(x).sharding == by_rows(x).sharding
        np.testing.assert_array_equal(streamlined(by_rows)(x), by_rows(x))

        def channels_first(kernel, x):
            return jax.lax.conv_general_dilated(
                x, kernel, (1,), "SAME", out_sharding=PartitionSpec("axis", None, None)
            )

        kernel = jax.random.normal(key, (3, 2, 2))
        images = jax.device_put(jnp.ones((2, 2, 5)), dealt)
        actual, expected = (
            f(kernel, images) for f in (streamlined(channels_first), channels_first)
        )
        assert actual.sharding == expected.sharding
        np.testing.assert_array_equal(actual, expected)


def test_a_product_spelled_out_keeps_its_marks():
    def marked(x):
        with set_xla_metadata(mark="this"):
            return outer(x, x)

    text = jax.jit(streamlined(marked)).lower(jnp.ones(3)).as_text()
    assert re.search('multiply.*mark = "this"', text)


def test_each_callback_is_called_once():
    calls = []

    def loss_fn(w, x):
        jax.debug.callback(calls.append, x)
        jax.debug.callback(calls.append, -x, ordered=True)
        return jnp.sum(outer(w, x) ** 2)

    jax.block_until_ready(streamlined(jax.value_and_grad(loss_fn))(*jnp.ones((2, 3))))
    jax.effects_barrier()
    assert sorted(call[0].item() for call in calls) == [-1, 1]


def test_a_closed_over_number_keeps_its_derivative_through_vmap_and_jit():
    def total(s):
        def closed(w, x):
            return jnp.sum(jnp.sin(s * w * x))

        grads = jax.vmap(streamlined(jax.grad(closed)), (None, 0))
        return jnp.sum(jax.jit(grads)(w, jnp.ones((2, 6))) ** 2)

    s, w = 0.7, np.linspace(-1.0, 1.0, 6)  # of sum (s cos(s w))^2, twice
    slope = 4 * np.sum(
        s * np.cos(s * w) * (np.cos(s * w) - s * w * np.sin(s * w)), dtype=np.float64
    )
    backward = jax.jit(jax.grad(total))(s)
    forward = jax.jit(lambda s: jax.jvp(total, (s,), (1.0,))[1])(s)
    np.testing.assert_allclose([backward, forward], slope, rtol=1e-5)
