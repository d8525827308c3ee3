"""Whitening of hat functions beside features, by second moments of each column's own.

Joint moments of all features and hat functions would have so much noise that it hides
the features; those of a column's few hat functions alone have little.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp

from dpjax._types import Key, Scalar
from dpjax.solvers.linear._kind import Examples, ModelKind, by_block
from dpjax.solvers.statistics._moments import Whitening
from dpjax.solvers.statistics._noisy_mean import SetClipping, noisy_mean

# Added to the eigenvalues of moments, in mean weights, and the least mean weight, in
# stddevs of the noise: rare values get no large weights.
_FLOOR, _CLEAR_WEIGHT = 0.01, 2.0


@partial(jax.jit, static_argnums=0)
def with_bends(
    kind: ModelKind,  # with bends
    examples: Examples,  # features (n, c), targets, offsets, weights
    white: Whitening,  # the map of the features alone
    z: jax.Array,  # the whitened features (n, d)
    mean_weight: jax.Array | None,  # released; None: no intercept, so no centers
    key: Key,
    multiplier: Scalar,  # the noise multiplier
) -> tuple[Whitening, jax.Array]:
    """Releases a whitening of k columns' m hat functions each, and appends it.

    Returns the map of features and hat functions, (d + k m, d + k (m - 1)), and z with
    the whitened functions. These are uncorrelated with each other in a column, and with
    the column's line between the knots, which is a sum of its hat functions too.

    Privacy:
        Under replace-one one Gaussian mechanism of the multiplier: a mean of values,
        squares and products of neighbors, of norm sqrt(2 k) and without negative
        entries (`docs/privacy/proofs/linear.md`, 8.9).
    """
    bends = kind.bends
    assert bends is not None
    columns, weights, axis_name = examples.features, examples.weights, kind.axis_name
    k, m = len(bends.places), len(bends.knots) - 1

    heights = by_block(
        lambda _, rows: bends(rows), (), columns, width=k * m, axis_name=axis_name
    )

    def products(moments: jax.Array, record: tuple[jax.Array, jax.Array]) -> jax.Array:
        row, weight = record
        values = row.reshape(k, m)
        neighbors = values[:, 1:] * values[:, :-1]
        entries = jnp.concatenate([values, values**2, neighbors], axis=1)
        return weight * jnp.sum(moments * entries)

    clipping = SetClipping(math.sqrt(2 * k), math.sqrt(2))
    shape = jnp.zeros((k, 3 * m - 1), weights.dtype)
    args = clipping, (heights, weights), multiplier, key, axis_name
    means = noisy_mean(*args, product=products, weights=shape)
    noise = clipping.noise_parameters(multiplier, len(weights), shape.size)["stddev"]
    # All numbers below are released.
    values, squares, neighbors = jnp.split(means, [m, 2 * m], axis=1)
    places = jnp.arange(m)
    moments = jnp.zeros((k, m, m), means.dtype).at[:, places, places].set(squares)
    moments = moments.at[:, places[1:], places[:-1]].set(neighbors)
    moments = moments.at[:, places[:-1], places[1:]].set(neighbors)
    centers, weight = jnp.zeros_like(values), jnp.ones((), means.dtype)
    if mean_weight is not None:
        weight = jnp.maximum(mean_weight, _CLEAR_WEIGHT * noise)
        centers = jnp.clip(values / weight, 0.0, 1.0)
        moments -= weight * jnp.einsum("ki,kj->kij", centers, centers)
    spectrum, vectors = jnp.linalg.eigh(moments)
    spectrum = jnp.maximum(spectrum, 0) + math.sqrt(2 * m) * noise + _FLOOR * weight
    root, inverse = (
        jnp.einsum("kij,kj,klj->kil", vectors, scale, vectors)
        for scale in (jnp.sqrt(spectrum), 1 / jnp.sqrt(spectrum))
    )
    # The line is the sum of the hat functions times their knots. A reflection maps its
    # whitened direction to the first axis, and the map has the other axes.
    line = jnp.asarray([knot for knot in bends.knots if knot != 0], means.dtype)
    line = jnp.einsum("kij,j->ki", root, line)
    line = line / jnp.linalg.norm(line, axis=1, keepdims=True)
    mirror = line.at[:, 0].add(jnp.where(line[:, 0] < 0, -1.0, 1.0))
    mirror = mirror / jnp.linalg.norm(mirror, axis=1, keepdims=True)
    reflection = jnp.eye(m)[None] - 2 * jnp.einsum("ki,kj->kij", mirror, mirror)
    maps = jnp.einsum("kij,kjl->kil", inverse, reflection[:, :, 1:])
    center, own = centers.reshape(-1), jax.scipy.linalg.block_diag(*maps)
    shifted = heights - center[None, :]
    functions = jnp.matmul(shifted, own, precision=jax.lax.Precision.HIGHEST)
    center = jnp.concatenate([white.center, center])
    matrix = jax.scipy.linalg.block_diag(white.matrix, own)
    joined = Whitening(center, matrix, white.share_kept)
    return joined, jnp.concatenate([z, functions], axis=1)
