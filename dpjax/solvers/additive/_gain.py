"""Whether curves would gain over a linear model, from a private test of its slopes."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _keys
from dpjax._sharding import gathered
from dpjax._types import Key, Scalar
from dpjax.estimators import Clipping
from dpjax.solvers.linear._fit import row_norms
from dpjax.solvers.linear._kind import Examples, ModelKind
from dpjax.solvers.statistics._noisy_mean import SetClipping, noisy_mean
from dpjax.solvers.statistics._noisy_quantile import noisy_quantile

# Of the budget: the moments of the tested functions and the size of what is averaged;
# and the mean of slopes that are no labels'.
_SHARES, _SLOPE_MEAN = {"bend_moments": 0.01, "bend_size": 0.005}, 0.002
# The largest share of the average. The linear model that is tested has as much, but at
# least the smallest.
_MOST, _LEAST = 0.05, 0.02
_NOISE = 0.05  # of a gain, in thresholds: more precision says no more
_LINE, _HAT = 4.0, 2.0  # where the tested line and hats reach their ends
_CLIPPED = 0.05  # of the records: those whose test functions are clipped
# Of the mean weight, what is added to the eigenvalues of moments, and of the moments
# of bends: few records are no gain.
_FLOOR, _RARE = 1e-3, 0.01
# The largest noise of a gain by which it is still chosen. Gains of real sets are 5 to
# 20 times 1e-4 in these units.
_MOST_NOISE = 3e-4


class Threshold(NamedTuple):
    """Which gain is enough, in squares of the clip norm.

    Attributes:
        records: a factor of (noise multiplier + 1) / n: the more weights there are for
            noise, and for records, the less they gain.
        most: the largest.
    """

    records: float
    most: float

    def of(self, num_samples: int, noise_multiplier: float) -> float:
        """Returns the gain that is enough, by public numbers."""
        return min(self.records * (noise_multiplier + 1) / num_samples, self.most)


def is_seen(num_samples: int, num_functions: int, noise_multiplier: float) -> bool:
    """Returns whether the noise lets gains be seen, by public numbers.

    Args:
        num_samples: the number of records.
        num_functions: two for each column that may bend and each output.
        noise_multiplier: of the whole budget.
    """
    noise = _noise(num_samples, num_functions, noise_multiplier)
    return noise <= _MOST_NOISE * _MOST


def shares_of(
    kind: ModelKind,
    threshold: float,
    num_samples: int,
    num_functions: int,
    noise_multiplier: float,
) -> dict[str, float]:
    """Returns the shares of the budget that a choice costs, by public numbers.

    Args:
        kind: of labels, whose gains are small, or not.
        threshold: which gain is enough.
        num_samples: as for `is_seen`, as all that follows.
        num_functions: see there.
        noise_multiplier: see there.
    """
    noise = _noise(num_samples, num_functions, noise_multiplier)
    if kind.has_labels:
        return {"first_fit": _MOST, "bends": _MOST} | _SHARES
    bends = min(noise / (_NOISE * threshold), _MOST)
    first = max(bends, _LEAST)
    return {"first_fit": first, "bends": bends, "slope_mean": _SLOPE_MEAN} | _SHARES


def _noise(num_samples: int, num_functions: int, noise_multiplier: float) -> float:
    """Returns the noise of a gain that has the whole budget, its standard deviation."""
    stddev = 2 * noise_multiplier / num_samples
    return stddev**2 * math.sqrt(2 * num_functions)


def released_gain(
    kind: ModelKind,
    examples: Examples,
    predictions: jax.Array,
    *,
    key: Key,
    noise_multiplier: float,
    shares: Mapping[str, float],
) -> jax.Array:
    """Releases what curves would gain over a linear model, in squares of a norm.

    Each column has two hat functions of its size, one on either side of zero. By their
    released second moments with a constant and a bounded line, what these explain is
    taken off, and the rest gets about unit spread. The mean of function times slope of
    the loss is then zero where a straight line is best, and half its square, over the
    curvature, is what a small bend gains. The squares are summed over columns, and the
    expected square of the noise is taken off.

    Clipped slopes of skewed targets have a mean, of which functions that noisy moments
    straighten would take a part for a gain. So it is released, and taken off. Those of
    labels are bounded, and have next to none.

    Args:
        kind: what is static.
        examples: finite records; features are those that may bend.
        predictions: of a released linear model, shape (n,) or (n, K).
        key: a typed key.
        noise_multiplier: of the whole budget.
        shares: what this takes of it, see `shares_of`.

    Returns:
        The gain in squares of the norm that means were clipped to, a scalar.

    Privacy:
        Under replace-one as up to four Gaussian mechanisms, of the noise multiplier
        over the roots of their shares. Moments are means of vectors clipped to a public
        norm, slopes and products are so to a released one, a noisy quantile.
    """
    moments_key, size_key, mean_key = _keys.split(key, 3)
    multipliers = {
        name: noise_multiplier / math.sqrt(share) for name, share in shares.items()
    }
    functions, slopes, curvatures = _tested(kind, examples, predictions)
    matrix = _straightened(
        kind.axis_name, functions, curvatures, moments_key, multipliers["bend_moments"]
    )
    bends = _bends(functions, matrix)
    norm = noisy_quantile(
        size_key,
        gathered(row_norms(bends) * row_norms(slopes)),
        num_above=_CLIPPED * len(slopes),
        noise_multiplier=multipliers["bend_size"],
    )
    if multiplier := multipliers.get("slope_mean"):
        mean_key, slope_key = _keys.split(mean_key)
        # The norm of bends of unit spread is about the root of their number.
        largest = norm / math.sqrt(bends.shape[1])
        slopes = _centered(kind.axis_name, slopes, largest, slope_key, multiplier)
    return _gain(kind.axis_name, bends, slopes, norm, mean_key, multipliers["bends"])


@partial(jax.jit, static_argnums=0)
def _tested(
    kind: ModelKind, examples: Examples, predictions: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns functions (n, k, 4), slopes (n, K), and curvatures in [0, 1], (n,)."""
    features, targets, offsets, weights = examples
    several = predictions.ndim > 1
    shift = offsets[:, None] if several else offsets
    slopes = kind.loss.derivative(predictions + shift, targets)
    slopes = jnp.nan_to_num(slopes).reshape(len(targets), -1) * weights[:, None]
    curvatures = weights
    if kind.has_labels and not several:
        bends = kind.loss.curvature(predictions + shift, targets)
        curvatures = weights * jnp.clip(bends / kind.loss.curvature_bound, 0.0, 1.0)
    functions = [
        jnp.ones_like(features),
        jnp.clip(features / _LINE, -1.0, 1.0),
        jnp.clip(-features / _HAT, 0.0, 1.0),
        jnp.clip(features / _HAT, 0.0, 1.0),
    ]
    return jnp.stack(functions, axis=-1), slopes, curvatures


@partial(jax.jit, static_argnums=0)
def _straightened(
    axis_name: Any,
    functions: jax.Array,
    curvatures: jax.Array,
    key: Key,
    multiplier: Scalar,
) -> jax.Array:
    """Releases how hats are combined with ones and lines, shape (k, 2, 4).

    What is averaged of a record are the squares and products of its four functions,
    each column's times the curvature. No two records are at an obtuse angle: their
    inner product is a sum of squares of those of functions.
    """
    num_columns = functions.shape[1]
    rows, columns = jnp.triu_indices(4)

    def products(moments, record):
        values, curvature = record
        return jnp.sum(moments * values[:, rows] * values[:, columns]) * curvature

    # Of most columns the squares are below 1, and that of ones is 1.
    clipping = SetClipping(math.sqrt(2 * num_columns), math.sqrt(2))
    shape = jnp.zeros((num_columns, len(rows)), functions.dtype)
    args = clipping, (functions, curvatures), multiplier, key, axis_name
    means = noisy_mean(*args, product=products, weights=shape)
    noise = clipping.noise_parameters(multiplier, len(functions), shape.size)["stddev"]
    # From here on only released numbers.
    moments = jnp.zeros((num_columns, 4, 4), means.dtype)
    moments = moments.at[:, rows, columns].set(means)
    moments = moments.at[:, columns, rows].set(means)
    values, vectors = jnp.linalg.eigh(moments)
    mean = jnp.maximum(jnp.mean(means[:, 0]), noise)
    values = jnp.maximum(values, 0) + noise + _FLOOR * mean
    moments = jnp.einsum("kij,kj,klj->kil", vectors, values, vectors)
    factor = jnp.linalg.cholesky(moments)
    ones = jnp.broadcast_to(jnp.eye(4, dtype=factor.dtype), factor.shape)
    inverse = jax.scipy.linalg.solve_triangular(factor, ones, lower=True)
    # The last two rows have unit spread. Bends of few records get less.
    bends = factor[:, 2:, 2:]
    spread = jnp.einsum("kij,klj->kil", bends, bends) + _RARE * mean * ones[:, :2, :2]
    straight = jnp.einsum("kij,kjl->kil", bends, inverse[:, 2:])
    return jax.scipy.linalg.solve_triangular(
        jnp.linalg.cholesky(spread), straight, lower=True
    )


@jax.jit
def _bends(functions: jax.Array, matrix: jax.Array) -> jax.Array:
    """Returns functions without their straight parts, shape (n, 2 k)."""
    bends = jnp.einsum("nkj,kij->nki", functions, matrix, precision="highest")
    return bends.reshape(len(bends), -1)


@partial(jax.jit, static_argnums=0)
def _centered(
    axis_name: Any, slopes: jax.Array, norm: jax.Array, key: Key, multiplier: Scalar
) -> jax.Array:
    """Returns slopes clipped to a norm, less their mean, which is released."""

    def products(weights, slope):
        return jnp.sum(weights * slope)

    slopes = slopes * (norm / jnp.maximum(row_norms(slopes), norm))[:, None]
    shape = jnp.zeros(slopes.shape[1], slopes.dtype)
    args = Clipping(norm), slopes, multiplier, key, axis_name
    mean = noisy_mean(*args, product=products, weights=shape)
    return slopes - mean[None, :]


@partial(jax.jit, static_argnums=0)
def _gain(
    axis_name: Any,
    bends: jax.Array,
    slopes: jax.Array,
    norm: jax.Array,
    key: Key,
    multiplier: Scalar,
) -> jax.Array:
    """Releases the sum of squares of mean products of bends and slopes."""

    def products(weights, record):
        bend, slope = record
        return jnp.sum(weights * bend[:, None] * slope[None, :])

    clipping = Clipping(norm)
    shape = jnp.zeros((bends.shape[1], slopes.shape[1]), bends.dtype)
    args = clipping, (bends, slopes), multiplier, key, axis_name
    means = noisy_mean(*args, product=products, weights=shape)
    noise = clipping.noise_parameters(multiplier, len(bends), shape.size)["stddev"]
    return jnp.sum((means / norm) ** 2) - shape.size * (noise / norm) ** 2
