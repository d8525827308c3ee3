"""Private choices: whether curves would gain, and which columns are mostly zero."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpjax import _keys
from dpjax._sharding import gathered
from dpjax._types import Key, Scalar
from dpjax.estimators import Clipping
from dpjax.solvers.additive._curves import MOST_FINEST, MOST_SHARE, STEP
from dpjax.solvers.linear._fit import row_norms
from dpjax.solvers.linear._kind import Examples, ModelKind
from dpjax.solvers.statistics._noisy_mean import SetClipping, noisy_mean
from dpjax.solvers.statistics._noisy_quantile import noisy_quantile

# Shares of the budget: the moments of the tested functions and the mean of slopes; and
# the bound of products, which for labels may depend on few records.
_SHARES, _SIZE, _LABEL_SIZE = {"bend_moments": 0.01, "slope_mean": 0.002}, 0.005, 0.02
# The linear model that is tested has the same share as the mean of products, but at
# least this. Without labels the mean of products has no less either.
_LEAST = 0.02
# The standard deviation of a gain, in thresholds: more precision is useless. That of
# labels is small because their threshold is many times the gains of straight effects.
_NOISE, _LABEL_NOISE = 0.5, 0.05
_LINE, _HAT = 4.0, 2.0  # the ends of the tested line and hats
_CLIPPED = 0.05  # the largest share of the records with clipped products
# Added to the eigenvalues of moments, and to the moments of bends, in mean weights, so
# that few records make no gain.
_FLOOR, _RARE = 1e-3, 0.01
_LEAST_CURVATURE = 0.05  # of the constant prediction, over the loss's bound
RARE_SHARE = 0.005  # of the budget, for choosing columns that are mostly zero
# The share of records beside zero below which functions of them cost little even if
# they gain nothing. Of capital gains and losses 5 to 9 in 100 are not zero, of most
# columns half or more.
_FEW = 0.15


def shares_of(
    kind: ModelKind,  # the static description of the model
    noise: float,  # the stddev of a gain that is released with the whole budget
    threshold: float,  # the least gain (reduction of the loss) for curves
) -> dict[str, float]:  # by name of the release; the final model has the rest
    """Returns shares of the budget for the private choice between lines and curves."""
    # `first_fit` is for a linear model, the other shares are for `released_gain`.
    if kind.has_labels:
        bends, size = noise / (_LABEL_NOISE * threshold), _LABEL_SIZE
    else:
        bends, size = max(noise / (_NOISE * threshold), _LEAST), _SIZE
    bends = min(bends, MOST_SHARE)
    first = max(bends, _LEAST)
    return _SHARES | {"first_fit": first, "bends": bends, "bend_size": size}


def released_gain(
    kind: ModelKind,  # the static description of the model
    examples: Examples,  # features: the columns that may have curves
    predictions: jax.Array,  # of the linear model, (n,) or (n, K)
    constant: jax.Array,  # the best constant prediction, released
    *,
    key: Key,
    noise_multiplier: float,
    shares: Mapping[str, float],  # of the budget, by release
) -> tuple[jax.Array, jax.Array]:  # gain, clip norm of slopes
    """Releases the gain of curves, an estimate of how much they reduce the mean loss.

    The gain is a scalar, in squares of a clip norm; above a threshold, curves are
    fitted in place of a linear model. Each column has two hat functions, one on either
    side of zero. Their parts explained by a constant and a bounded line are removed by
    released second moments, and the rest has about unit spread. The mean of function
    times slope (derivative of the loss in the prediction) is then zero where a straight
    line is best, and half its square, over the curvature, is the reduction by a small
    bend. The squares are summed, less the expected square of the noise.

    Privacy:
        Under replace-one as four Gaussian mechanisms, of the noise multiplier
        over the roots of their shares. Moments are means of vectors clipped to a public
        norm; slopes and products are clipped to a released norm, a noisy quantile.
    """
    moments_key, size_key, mean_key = _keys.split(key, 3)
    multipliers = {
        name: noise_multiplier / math.sqrt(share) for name, share in shares.items()
    }
    tested = _tested(kind, examples, predictions, constant)
    functions, slopes, curvatures, num_clipped = tested
    moments = curvatures, moments_key, multipliers["bend_moments"]
    matrix = _straightened(kind.axis_name, functions, *moments)
    bends, lengths = _bends(functions, matrix, slopes)
    norm = noisy_quantile(
        size_key,
        gathered(lengths),
        num_above=num_clipped,
        noise_multiplier=multipliers["bend_size"],
    )
    # Clipped slopes of skewed targets have a mean, and so have slopes of labels if the
    # first model is inaccurate. Noisy moments do not remove all of a constant, so this
    # mean would add to the gain. It is released and subtracted.
    mean_key, slope_key = _keys.split(mean_key)
    # The norm of bends of unit spread is about the root of their number.
    largest, axes = norm / math.sqrt(bends.shape[1]), kind.axis_name
    slopes = _centered(axes, slopes, largest, slope_key, multipliers["slope_mean"])
    gain = _gain(axes, bends, slopes, norm, mean_key, multipliers["bends"])
    return gain, largest


@partial(jax.jit, static_argnums=0)
def _tested(
    kind: ModelKind, examples: Examples, predictions: jax.Array, constant: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns each record's functions, slopes and curvatures, to test if curves help.

    Functions (n, k, 4) of each of k columns are the constant 1, a line, and two hats.
    Slopes (n, K) are derivatives of the loss at `predictions`, times weights, and
    curvatures (n,), in [0, 1], second derivatives in units of the one at `constant`,
    which is small where labels are rare. The last number says how many records may be
    clipped. For labels it is at most a quarter of those without the most frequent
    label, because their slopes are largest.
    """
    features, targets, offsets, weights = examples
    clipped = jnp.asarray(_CLIPPED, constant.dtype)
    if kind.has_labels:
        scores = constant if constant.ndim else jnp.stack([constant, 0 * constant])
        clipped = jnp.minimum(clipped, (1 - jnp.max(jax.nn.softmax(scores))) / 4)
    several = predictions.ndim > 1
    shift = offsets[:, None] if several else offsets
    slopes = kind.loss.derivative(predictions + shift, targets)
    slopes = jnp.nan_to_num(slopes).reshape(len(targets), -1) * weights[:, None]
    curvatures = weights
    if kind.has_labels and not several:
        bends = kind.loss.curvature(predictions + shift, targets)
        usual = kind.loss.curvature(jnp.broadcast_to(constant, targets.shape), targets)
        least = _LEAST_CURVATURE * kind.loss.curvature_bound
        curvatures = weights * jnp.clip(bends / jnp.maximum(usual, least), 0.0, 1.0)
    functions = [
        jnp.ones_like(features),
        jnp.clip(features / _LINE, -1.0, 1.0),
        jnp.clip(-features / _HAT, 0.0, 1.0),
        jnp.clip(features / _HAT, 0.0, 1.0),
    ]
    return jnp.stack(functions, axis=-1), slopes, curvatures, clipped * len(targets)


@partial(jax.jit, static_argnums=0)
def _straightened(
    axis_name: Any,  # mesh axes of the records
    functions: jax.Array,  # four of each column, (n, k, 4)
    curvatures: jax.Array,  # (n,), in [0, 1]
    key: Key,
    multiplier: Scalar,  # the noise multiplier
) -> jax.Array:
    """Releases coefficients (k, 2, 4) that remove constant and line from hat functions.

    With them `_bends` makes two functions of each of k columns: combinations of hats,
    constant and line, uncorrelated with the latter two, of about unit spread. They
    follow from a noisy mean of squares and products of a record's four functions, times
    the curvature. No two records are at an obtuse angle, as their inner product is a
    sum of squares of inner products of functions.
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
    # All numbers below are released.
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
    # The last two rows have unit spread. Bends of few records have less.
    bends = factor[:, 2:, 2:]
    spread = jnp.einsum("kij,klj->kil", bends, bends) + _RARE * mean * ones[:, :2, :2]
    straight = jnp.einsum("kij,kjl->kil", bends, inverse[:, 2:])
    return jax.scipy.linalg.solve_triangular(
        jnp.linalg.cholesky(spread), straight, lower=True
    )


@jax.jit
def _bends(
    functions: jax.Array, matrix: jax.Array, slopes: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns functions without straight parts, (n, 2 k), and norms of products (n,).

    They are the products of a record's functions and its `slopes`, (n, K).
    """
    bends = jnp.einsum("nkj,kij->nki", functions, matrix, precision="highest")
    bends = bends.reshape(len(bends), -1)
    return bends, row_norms(bends) * row_norms(slopes)


@partial(jax.jit, static_argnums=0)
def _centered(
    axis_name: Any, slopes: jax.Array, norm: jax.Array, key: Key, multiplier: Scalar
) -> jax.Array:
    """Returns slopes, derivatives of the loss in K predictions (n, K), less their mean.

    They are clipped to `norm`, and the mean is released with the noise multiplier.
    Otherwise each curve would seem to reduce the loss by what an intercept alone can.
    """

    def products(weights, slope):
        return jnp.sum(weights * slope)

    slopes = slopes * (norm / jnp.maximum(row_norms(slopes), norm))[:, None]
    shape = jnp.zeros(slopes.shape[1], slopes.dtype)
    args = Clipping(norm), slopes, multiplier, key, axis_name
    mean = noisy_mean(*args, product=products, weights=shape)
    return slopes - mean[None, :]


@partial(jax.jit, static_argnums=0)
def _gain(
    axis_name: Any,  # mesh axes of the records
    bends: jax.Array,  # hat functions less constant and line, (n, 2 k)
    slopes: jax.Array,  # (n, K), derivatives of the loss
    norm: jax.Array,  # the clip norm of products, and their unit
    key: Key,
    multiplier: Scalar,  # the noise multiplier
) -> jax.Array:
    """Releases the gain of curves, an estimate of how much they reduce the mean loss.

    The scalar, in squares of `norm`, is the sum of squares of the noisy mean products
    of bends and slopes, less the expected square of the noise.
    """

    def products(weights, record):
        bend, slope = record
        return jnp.sum(weights * bend[:, None] * slope[None, :])

    clipping = Clipping(norm)
    shape = jnp.zeros((bends.shape[1], slopes.shape[1]), bends.dtype)
    args = clipping, (bends, slopes), multiplier, key, axis_name
    means = noisy_mean(*args, product=products, weights=shape)
    noise = clipping.noise_parameters(multiplier, len(bends), shape.size)["stddev"]
    return jnp.sum((means / norm) ** 2) - shape.size * (noise / norm) ** 2


@partial(jax.jit, static_argnums=0)
def rare_columns(
    axis_name: Any, examples: Examples, key: Key, multiplier: Scalar
) -> tuple[jax.Array, jax.Array]:
    """Releases the indices of columns that are mostly zero, and their number.

    An additive model may have narrow hat functions of them. The array of indices has
    the static size min(k, `MOST_FINEST`); only its first entries, as many as the
    number, are columns that are mostly zero. Those with more values that are not zero
    come first, because narrow functions help them most.

    Privacy:
        Under replace-one one Gaussian mechanism of the multiplier. A record gives its
        weight in [0, 1] times numbers in [-0.15, 0.85], one for each of k columns, so
        that two records are apart by at most sqrt(k).
    """
    features, weights = examples.features, jnp.clip(examples.weights, 0.0, 1.0)

    def products(sums: jax.Array, record: tuple[jax.Array, jax.Array]) -> jax.Array:
        beside, weight = record
        return weight * jnp.sum(sums * (beside - _FEW))

    # The narrowest functions cannot tell smaller numbers from zero.
    beside = (jnp.abs(features) > STEP / 2).astype(features.dtype)
    shape = jnp.zeros(features.shape[1], features.dtype)
    clipping = SetClipping((1 - _FEW) * math.sqrt(features.shape[1]), 1 / (1 - _FEW))
    args = clipping, (beside, weights), multiplier, key, axis_name
    means = noisy_mean(*args, product=products, weights=shape)
    is_rare = means < 0
    places = jnp.argsort(jnp.where(is_rare, -means, jnp.inf))[:MOST_FINEST]
    return places, jnp.minimum(jnp.sum(is_rare), len(places))
