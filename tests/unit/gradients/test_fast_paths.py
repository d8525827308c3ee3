"""The streaming gradient against the definition in float64, on new inputs each run.

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

NHWC = ("NHWC", "HWIO", "NHWC")


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
        out = jax.lax.conv_general_dilated(
            x[None], kernel, (2, 2), "SAME", dimension_numbers=NHWC
        )
        return (out[0] * y).sum()

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


def smoothed(a, beta):
    """h_beta(a), by integrating phi against the normal density in float64."""
    root, (nodes, weights) = np.sqrt(beta), np.polynomial.legendre.leggauss(100)
    values, places = np.unique(a, return_inverse=True)
    # Where a (1 + z / root) passes ±sqrt(2), phi has a kink: three integrals.
    with np.errstate(divide="ignore"):
        kinks = root * (np.sqrt(2) / np.abs(values) * [[-1], [1]] - 1)
    ends = np.clip(
        [np.full(len(values), -12), *kinks, np.full(len(values), 12)], -12, 12
    )
    halves, middles = np.diff(ends, axis=0) / 2, (ends[1:] + ends[:-1]) / 2
    z = middles[..., None] + halves[..., None] * nodes
    x = np.clip(values[:, None] * (1 + z / root), -np.sqrt(2), np.sqrt(2))
    each = (x - x**3 / 6) * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    return np.sum(halves * (each @ weights), axis=0)[places].reshape(a.shape)


def influence(estimator, grads):
    """The definition, for float64 leaves of shape (n, ...)."""
    match estimator:
        case Truncation(threshold):
            return [np.where(np.abs(g) <= threshold, g, 0) for g in grads]
        case Winsorization(threshold):
            return [np.clip(g, -threshold, threshold) for g in grads]
        case SmoothedTruncation(scale, beta):
            return [scale * smoothed(g / scale, beta) for g in grads]
        case Clipping(norm):
            squares = sum((g**2).reshape(len(g), -1).sum(axis=1) for g in grads)
            shrink = np.minimum(1, norm / np.sqrt(np.maximum(squares, 1e-300)))
            return [g * shrink.reshape(-1, *(1,) * (g.ndim - 1)) for g in grads]
        case Mean():
            return grads
    raise AssertionError(estimator)


def definition(estimator, grads):
    if isinstance(estimator, MedianOfMeans):
        groups = [
            np.stack(
                [part.mean(axis=0) for part in np.array_split(g, estimator.num_groups)]
            )
            for g in influence(estimator.inner, grads)
        ]
        return [np.median(means, axis=0) for means in groups]
    return [g.mean(axis=0) for g in influence(estimator, grads)]


@pytest.fixture
def rng():
    seed = int.from_bytes(os.urandom(4))
    print(f"numpy.random.default_rng({seed})")  # pytest shows it where a test fails
    return np.random.default_rng(seed)


@pytest.mark.quick(1)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "estimator",
    [
        Mean(),
        Truncation(10.0),
        Winsorization(10.0),
        Clipping(30.0),
        SmoothedTruncation(10.0),
        SmoothedTruncation(10.0, 9.21),
        SmoothedTruncation(10.0, 30.0),
        MedianOfMeans(Winsorization(10.0), 5),
    ],
    ids=str,
)
def test_the_stream_is_the_definition(estimator, model, rng):
    loss_fn, params, shapes = MODELS[model]
    n = int(rng.integers(16, 80))
    batch = records(rng, shapes, n)
    each = jax.jit(dpjax.per_sample_grad(loss_fn))(params, batch)
    grads = [np.asarray(g, np.float64) for g in jax.tree.leaves(each)]
    expected = definition(estimator, grads)
    # Digits resolve 2^-30 of an influence; the series errs by 1e-6 of the scale.
    largest = max(np.abs(g).max() for g in grads)
    bound = {Mean: 1e-6 * largest, SmoothedTruncation: 1.1e-5, Clipping: 1e-5}
    atol = bound.get(type(estimator), 2e-6)
    for size in (None, 1, int(rng.integers(2, n + 1))):
        grad_fn = dpjax.robust_grad(loss_fn, estimator, microbatch_size=size)
        actual = jax.tree.leaves(jax.jit(grad_fn)(params, batch))
        for got, wanted in zip(actual, expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=atol)
