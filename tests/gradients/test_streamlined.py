"""Rewriting a gradient's program changes its speed and nothing else."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.estimators import Truncation
from dpjax.gradients._streamlined import streamlined

CONVOLUTIONS = {
    "1d": ((9, 3), (4, 3, 5), ("NHC", "HIO", "NHC"), {}),
    "2d": ((8, 7, 3), (3, 2, 3, 5), ("NHWC", "HWIO", "NHWC"), {}),
    "channels first": ((3, 8, 7), (5, 3, 3, 2), ("NCHW", "OIHW", "NCHW"), {}),
    "odd orders": ((8, 3, 7), (3, 5, 2, 3), ("NHCW", "HOWI", "CNHW"), {}),
    "3d": ((5, 6, 4, 2), (2, 3, 2, 2, 3), ("NDHWC", "DHWIO", "NDHWC"), {}),
    "groups": (
        (8, 7, 4),
        (3, 3, 2, 6),
        ("NHWC", "HWIO", "NHWC"),
        {"feature_group_count": 2},
    ),
    "dilated": (
        (8, 7, 3),
        (3, 2, 3, 5),
        ("NHWC", "HWIO", "NHWC"),
        {"lhs_dilation": (2, 1), "rhs_dilation": (1, 2)},
    ),
}


def convolution(name, strides, padding=(1, 2)):
    x, kernel, orders, options = CONVOLUTIONS[name]
    num_space = len(x) - 1
    strides = (strides,) * num_space

    def loss_fn(kernel, x):
        out = jax.lax.conv_general_dilated(
            x[None],
            kernel,
            strides,
            [padding] * num_space,
            dimension_numbers=orders,
            **options,
        )
        return jnp.sum(jnp.sin(out))

    return loss_fn, x, kernel


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_all_kinds(name, strides, key):
    with jax.enable_x64(True):
        loss_fn, x, kernel = convolution(name, strides)
        keys = jax.random.split(key)
        x = jax.random.normal(keys[0], x, jnp.float64)
        kernel = jax.random.normal(keys[1], kernel, jnp.float64)
        grad_fn = jax.value_and_grad(loss_fn, argnums=(0, 1))
        actual, expected = streamlined(grad_fn)(kernel, x), grad_fn(kernel, x)
        for got, wanted in zip(
            jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
        ):
            np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


def test_no_convolution_of_another_order_is_left_inside_a_loop_on_cpu(key):
    loss_fn, x, kernel = convolution("2d", 1, padding=(0, 0))
    arguments = (
        jax.random.normal(key, kernel),
        jax.random.normal(jax.random.fold_in(key, 1), (16, *x)),
    )
    grad_fn = dpjax.robust_grad(loss_fn, Truncation(1.0), microbatch_size=1)
    text = jax.jit(grad_fn).lower(*arguments).compile().as_text()
    orders = set(re.findall(r"dim_labels=(\S+?)[,\s]", text))
    assert orders == {"b01f_01io->b01f"}

    def plain(kernel, batch):  # the reason for it all: where this fails, delete it
        def step(total, x):
            return total + jax.grad(loss_fn)(kernel, x), None

        return jax.lax.scan(step, jnp.zeros_like(kernel), batch)[0]

    text = jax.jit(plain).lower(*arguments).compile().as_text()
    assert set(re.findall(r"dim_labels=(\S+?)[,\s]", text)) != orders


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


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_outer_products_keep_their_dtype(dtype):
    def loss_fn(w, x):
        return jnp.sum(jnp.dot(x, w, preferred_element_type=jnp.float32))

    w, x = jnp.ones((4, 3), dtype), jnp.arange(4, dtype=dtype)
    actual, expected = streamlined(jax.grad(loss_fn))(w, x), jax.grad(loss_fn)(w, x)
    assert actual.dtype == expected.dtype == dtype
    np.testing.assert_array_equal(actual, expected)


@jax.custom_vjp
def with_rule(x):
    return x**2


with_rule.defvjp(lambda x: (x**2, x), lambda x, g: (7 * x * g,))


def test_all_that_a_loss_may_hold_stays_as_it_is(key):
    scale = jnp.float32(3.0)

    @jax.jit
    def layer(w, x):
        return jnp.where(x > 0, jax.nn.relu(x * w), jax.nn.gelu(w))

    def loss_fn(params, example):
        x, label, key = example
        x = jax.checkpoint(layer)(params["w"], x) * scale
        x, _ = jax.lax.scan(lambda c, w: (jnp.tanh(c * w), c), x, params["stack"])
        x = jax.lax.cond(label > 1, jnp.sin, with_rule, x)
        x = x * jax.random.bernoulli(key, 0.5, x.shape).astype(x.dtype)
        x = jnp.zeros(5).at[label].set(x.sum()) + jax.lax.stop_gradient(jnp.sort(x)[0])
        return -jax.nn.log_softmax(x)[label], {"x": x, "label": label}

    params = {"w": jnp.linspace(-1.0, 1.0, 6), "stack": jnp.ones((3, 6))}
    example = jnp.linspace(-2.0, 1.0, 6), jnp.int32(2), key
    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
    copy = (*example[:2], jax.random.clone(key))
    actual, expected = streamlined(grad_fn)(params, example), grad_fn(params, copy)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for got, wanted in zip(
        jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    # The closed-over number keeps its derivative, through vmap and jit.

    def total(s):
        def closed(w, x):
            return jnp.sum(jnp.sin(s * w * x))

        grads = jax.vmap(streamlined(jax.grad(closed)), (None, 0))
        return jnp.sum(jax.jit(grads)(params["w"], jnp.ones((2, 6))) ** 2)

    def direct(s):
        return 2 * jnp.sum((s * jnp.cos(s * params["w"])) ** 2)

    np.testing.assert_allclose(jax.grad(total)(0.7), jax.grad(direct)(0.7), rtol=1e-5)
    np.testing.assert_allclose(
        jax.jvp(total, (0.7,), (1.0,))[1], jax.grad(direct)(0.7), rtol=1e-5
    )
