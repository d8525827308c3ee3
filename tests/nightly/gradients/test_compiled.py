"""What programs are compiled to: orders of convolutions, sums on CPU, and memory."""

import re

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax.estimators import Truncation, Winsorization
from dpjax.gradients import streamed_grad


def test_no_convolution_of_another_order_is_left_inside_a_loop_on_cpu(key):
    def loss_fn(kernel, x):
        out = jax.lax.conv_general_dilated(
            x[None], kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.sum(jnp.sin(out))

    arguments = (
        jax.random.normal(key, (3, 2, 3, 5)),
        jax.random.normal(jax.random.fold_in(key, 1), (16, 8, 7, 3)),
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


def test_a_stream_holds_no_gradients():
    # 60 gradients of 2^16 numbers are 15 MB; the stream makes a few at a time.
    num_rows, width = 60, 2**16

    def bytes_of(grad_fn):
        def run(w, x):
            return Winsorization(0.5)(grad_fn(lambda w, x: jnp.sum(w * x))(w, x))

        shapes = (jnp.zeros(width), jnp.zeros((num_rows, 1)))
        memory = jax.jit(run).lower(*shapes).compile().memory_analysis()
        return memory.temp_size_in_bytes

    size = num_rows * width * np.dtype("float32").itemsize
    assert bytes_of(dpjax.per_sample_grad) > size
    assert bytes_of(streamed_grad) < size / 4
