"""The streaming gradient against the estimator in float64, on new inputs each run.

Losses here are linear in the parameters, with whole numbers and powers of two in the
data: per-sample gradients are the same floats however they are computed, so that all
that is left to differ is the influence and its mean.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.estimators import (
    Clipping,
    Mean,
    MedianOfMeans,
    SmoothedTruncation,
    Truncation,
    Winsorization,
)


def dense(rows, columns):
    """Gradient of each record: the outer product of two vectors, and a vector."""

    def loss_fn(params, example):
        x, y = example
        return (x @ params["w"] + params["b"]) @ y

    params = {"w": jnp.zeros((rows, columns)), "b": jnp.zeros(columns)}
    return loss_fn, params, [(rows,), (columns,)]


def convolution(channels):
    """Gradient of each record: a correlation of two images."""

    def loss_fn(kernel, example):
        x, y = example
        where = (2, 2), "SAME", None, None, ("NHWC", "HWIO", "NHWC")
        return (jax.lax.conv_general_dilated(x[None], kernel, *where)[0] * y).sum()

    return loss_fn, jnp.zeros((3, 3, 4, channels)), [(8, 8, 4), (4, 4, channels)]


MODELS = {
    "side by side": dense(9, 5),
    "one by one": dense(110, 90),
    "convolution": convolution(6),
    "large convolution": convolution(256),
}


def records(rng, shapes, n, dtype=np.float32):
    """Small whole numbers, times a power of two for each record: heavy tails."""
    size = 2.0 ** rng.integers(-8, 9, n)
    x, y = (rng.integers(-3, 4, (n, *shape)).astype(dtype) for shape in shapes)
    return x * size.astype(dtype).reshape(n, *(1,) * (x.ndim - 1)), y


@pytest.fixture
def rng():
    seed = int.from_bytes(os.urandom(4))
    print(f"numpy.random.default_rng({seed})")  # pytest shows it where a test fails
    return np.random.default_rng(seed)


ESTIMATORS = [Mean(), Clipping(30.0), MedianOfMeans(Winsorization(10.0), 5)]
ESTIMATORS += [x(10.0) for x in (Truncation, Winsorization, SmoothedTruncation)]
ESTIMATORS += [SmoothedTruncation(10.0, beta) for beta in (9.21, 30.0)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_the_stream_is_the_estimator(estimator, model, rng):
    loss_fn, params, shapes = MODELS[model]
    n = int(rng.integers(16, 80))
    batch = records(rng, shapes, n)
    each = jax.jit(dpjax.per_sample_grad(loss_fn))(params, batch)
    with jax.enable_x64(True):  # whose estimates are compared with the definitions
        grads = jax.tree.leaves(jax.tree.map(np.float64, each))
        expected = jax.tree.map(np.asarray, jax.jit(estimator)(grads))
    # Digits resolve 2^-30 of an influence; the series errs by 1e-6 of the scale.
    largest = max(np.abs(g).max() for g in grads)
    bound = {Mean: 1e-6 * largest, SmoothedTruncation: 1.1e-5, Clipping: 1e-5}
    atol = bound.get(type(estimator), 2e-6)
    for size in (None, 1, int(rng.integers(2, n + 1))):
        grad_fn = dpjax.robust_grad(loss_fn, estimator, microbatch_size=size)
        actual = jax.tree.leaves(jax.jit(grad_fn)(params, batch))
        for mean, exact in zip(actual, expected, strict=True):
            np.testing.assert_allclose(mean, exact, rtol=1e-6, atol=atol)
