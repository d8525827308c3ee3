"""Hat functions of columns beside the features, with a whitening of each column's own.

Joint moments of all features and hat functions would have so much noise that it hides
the features; those of a column's few hat functions alone have little.
"""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from dpjax._sharding import AxisName
from dpjax._types import Key, Scalar
from dpjax.solvers.statistics._moments import Whitening
from dpjax.solvers.statistics._noisy_mean import SetClipping, noisy_mean
from dpjax.solvers.training._curves import bounded, hats

# Added to the eigenvalues of moments, in mean weights, and the least mean weight, in
# stddevs of the noise: rare values get no large weights.
_FLOOR, _CLEAR_WEIGHT = 0.01, 2.0


@dataclass(frozen=True)
class Bends:
    """Makes hat functions of some columns, each record by itself.

    Together with a column's line they can be any curve that is linear between the
    knots and constant beyond them, and zero at zero.
    """

    places: tuple[int, ...]  # indices of the k columns
    knots: tuple[float, ...]  # m + 1 positions, with zero, which has no hat function

    @property
    def num_functions(self) -> int:
        """Counts the hat functions of all columns."""
        return len(self.places) * (len(self.knots) - 1)

    def __call__(self, columns: jax.Array) -> jax.Array:
        """Returns the values, in [0, 1], of hat functions of columns (n, c): (n, k m).

        Those of one column add up to at most 1, and at most two neighbors are not zero.
        """
        values = hats(bounded(columns[:, jnp.asarray(self.places)]), self.knots)
        values = jnp.delete(values, self.knots.index(0.0), axis=-1)
        return values.reshape(len(columns), -1)


@partial(jax.jit, static_argnums=(0, 1))
def bends_whitening(
    bends: Bends,
    axis_name: AxisName | None,  # mesh axes of the records
    columns: jax.Array,  # (n, c)
    weights: jax.Array,  # (n,), in [0, 1]
    mean_weight: jax.Array | None,  # released; None: no intercept, so no centers
    key: Key,
    multiplier: Scalar,  # the noise multiplier
) -> Whitening:
    """Releases the center (k m,) and the map (k m, k (m - 1)) that whiten `bends`.

    The map's functions of a column are uncorrelated with each other and with the
    column's line between the knots, which is a sum of its hat functions too.

    Privacy:
        Under replace-one one Gaussian mechanism of the multiplier: a mean of values,
        squares and products of neighbors, of norm sqrt(2 k) and without negative
        entries (`docs/privacy/proofs/linear.md`, 8.9).
    """
    k, m = len(bends.places), len(bends.knots) - 1

    def products(moments: jax.Array, record: tuple[jax.Array, jax.Array]) -> jax.Array:
        row, weight = record
        values = bends(row[None]).reshape(k, m)
        neighbors = values[:, 1:] * values[:, :-1]
        entries = jnp.concatenate([values, values**2, neighbors], axis=1)
        return weight * jnp.sum(moments * entries)

    clipping = SetClipping(math.sqrt(2 * k), math.sqrt(2))
    shape = jnp.zeros((k, 3 * m - 1), weights.dtype)
    args = clipping, (columns, weights), multiplier, key, axis_name
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
    matrix = jax.scipy.linalg.block_diag(*maps)
    return Whitening(centers.reshape(-1), matrix, jnp.ones((), means.dtype))
