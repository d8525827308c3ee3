"""Private second moments of features, and a whitening computed from them."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._rounding import ROUNDED_UP
from dpjax._sharding import AxisName
from dpjax._sums.fold import Unrounded
from dpjax._tree import like
from dpjax._types import Key, PyTree, Scalar
from dpjax.estimators import Clipping
from dpjax.gradients import streamed_grad
from dpjax.mechanisms._additive import gaussian_of_padded, padded

# Floors that are added to every eigenvalue, so that directions hidden by noise are not
# scaled up: multiples of the edge of the noise's spectrum, and of the mean eigenvalue.
FLOORS, _LEAST = (3.0, 0.1), 1e-6
_CLEAR_WEIGHT = 2.0  # least mean weight, in stddevs of its noise


class Whitening(NamedTuple):
    """Holds a linear map to coordinates in which second moments are about the identity.

    z = A^T (x - center) has these coordinates.
    """

    center: jax.Array  # shape (d,); zeros without an intercept
    matrix: jax.Array  # A, shape (d, d)
    share_kept: jax.Array  # share of the off-diagonal moments that is not noise


def noisy_second_moments(
    key: Key,
    features: jax.Array,
    radius: Scalar,  # R, public or released
    noise_multiplier: Scalar,  # stddev / l2 sensitivity
    axis_name: AxisName | None,  # mesh axes of the rows
) -> tuple[jax.Array, Scalar]:
    """Releases the mean of x x^T over rows x of `features` (n, d), clipped to norm R.

    With `whitening` it gives coordinates in which rows have about equal spread.

    Returns:
        The symmetric noisy moments, shape (d, d), and the stddev s of their diagonal;
        each pair off the diagonal has s / sqrt(2), one draw for both.

    Privacy:
        A Gaussian mechanism of the noise multiplier under replace-one. Scaled to equal
        noise, the entries move by sqrt(2) R^2 / n with a record, and sqrt(2) times the
        rounding: `docs/privacy/proofs/linear.md`, 8.1.
    """
    moments, stddevs = _second_moments(axis_name, features, radius, noise_multiplier)
    noisy = gaussian_of_padded(key, moments, stddevs)
    return _symmetric(features.shape[1], noisy, stddevs)


def second_moments(
    axis_name: AxisName | None,  # mesh axes of the records
    records: PyTree,
    radius: Scalar,  # rows are clipped to this norm
    noise_multiplier: Scalar,  # stddev / l2 sensitivity
    row_of: Callable[[PyTree], jax.Array] = lambda row: row,
) -> tuple[Unrounded, jax.Array]:
    """Returns the moments of `noisy_second_moments` before noise, and stddevs of noise.

    Both are vectors, padded with zeros for `gaussian_of_padded`, of the d (d + 1) / 2
    distinct entries, the diagonal first. `row_of` makes a row (d,) from each of the n
    records when it is read; by default records are rows.
    """

    def product(moments: jax.Array, record: PyTree) -> jax.Array:
        row = row_of(record)
        return row @ moments @ row

    num_samples = len(jax.tree.leaves(records)[0])
    single = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), records)
    row = jax.eval_shape(row_of, single)
    num_features = row.size
    largest = radius**2
    clipping = Clipping(largest)
    shape = jnp.zeros((num_features, num_features), row.dtype)
    samples = streamed_grad(product)(shape, records)
    moments = clipping.unrounded(samples, axis_name=axis_name)
    bound = clipping.sensitivity(num_samples, num_features**2, rounded=False).l2
    sensitivity = math.sqrt(2) * (bound - largest / num_samples)
    stddev = noise_multiplier * sensitivity * ROUNDED_UP
    rows, columns = _entries(num_features)
    entries = padded(moments.map(lambda x: x[rows, columns]))
    # The noise is divided by sqrt(2): products of the entries would round again.
    above = (np.arange(entries.high.size) >= num_features) * (2**0.5 - 1) + 1
    return entries, like(stddev, row) / above.astype(row.dtype)


_second_moments = jax.jit(second_moments, static_argnums=0)


def _entries(num_features: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows and columns of the released entries, the diagonal first."""
    both = np.diag_indices(num_features), np.triu_indices(num_features, 1)
    rows, columns = (np.concatenate(x) for x in zip(*both, strict=True))
    return rows, columns


def symmetric(
    num_features: int, entries: jax.Array, stddevs: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the moments with the entries of `second_moments`, and their stddev."""
    rows, columns = _entries(num_features)
    place = np.zeros((num_features, num_features), "int32")
    place[rows, columns] = place[columns, rows] = np.arange(len(rows))
    return entries[place], stddevs[0]


_symmetric = jax.jit(symmetric, static_argnums=0)


def whitening(
    moments: jax.Array,
    stddev: Scalar,  # of the noise on the diagonal
    *,
    ones: Scalar | None = None,
    floors: tuple[float, float] = FLOORS,
) -> Whitening:
    """Returns the center and the map A that whiten features, from released moments.

    The moments (d, d) are a mean of x x^T with noise, so this costs no privacy. With
    `ones`, the last of the d columns is that constant times the root of a record's
    weight: it gives the mean weight and, with it, the center. Floors are added to all
    eigenvalues, so that directions hidden by noise are not scaled up: floors[0] times
    the largest eigenvalue of the remaining noise, plus floors[1] times the mean
    eigenvalue.
    """
    unit = jnp.maximum(jnp.max(jnp.abs(moments)), jnp.asarray(stddev, moments.dtype))
    moments, stddev = moments / unit, stddev / unit  # squares are finite
    num_features = len(moments) - (ones is not None)
    center = jnp.zeros(num_features, moments.dtype)
    if ones is not None:
        # Both are in units of the constant, and so is the center until the end. The
        # weight is at least two stddevs of its noise: a center too near to zero does
        # little harm, and a center too far from it a lot.
        means, weight = moments[:-1, -1], moments[-1, -1]
        weight = jnp.maximum(weight, _CLEAR_WEIGHT * stddev)
        noise = num_features * stddev**2 / 2
        center = _above_noise(noise, means) * means / weight
        moments = moments[:-1, :-1] - weight * jnp.outer(center, center)
    alike = jnp.ones(num_features, bool)
    moments, mean, kept_spread, share = shrunk(moments, stddev, alike)
    values, vectors = jnp.linalg.eigh(moments)
    edge = math.sqrt(2 * num_features) * stddev  # of the noise's spectrum
    left = share * edge + (1 - share) * kept_spread * 2 * stddev
    values = jnp.maximum(values, 0) + floors[0] * left + floors[1] * mean
    values = values + _LEAST * jnp.max(values)
    matrix = vectors / jnp.sqrt(values * unit)[None, :]
    return Whitening(center if ones is None else center * ones, matrix, share)


def shrunk(
    moments: jax.Array,  # (k, k), released
    stddev: Scalar,  # of the noise on the diagonal
    alike: jax.Array,  # (k,), which diagonal entries may be about the same
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns moments (k, k), shrunk to a diagonal, a mean of it, and two shares.

    The entries off the diagonal, and the differences of the alike ones from their mean,
    shrink by the shares of their energy that are not noise (James and Stein 1961).
    """
    diagonal = jnp.diag(moments)
    number = jnp.maximum(jnp.sum(alike, dtype=diagonal.dtype), 1)
    rest = moments - jnp.diag(diagonal)
    kept_rest = _above_noise(len(moments) * (len(moments) - 1) / 2 * stddev**2, rest)
    mean = jnp.sum(diagonal, where=alike) / number
    mean = jnp.maximum(mean, stddev / jnp.sqrt(number))
    spread = jnp.where(alike, diagonal - mean, 0.0)
    kept_spread = _above_noise(number * stddev**2, spread)
    diagonal = jnp.where(alike, mean + kept_spread * spread, diagonal)
    return jnp.diag(diagonal) + kept_rest * rest, mean, kept_spread, kept_rest


def _above_noise(noise: Scalar, x: jax.Array) -> jax.Array:
    """Returns the share of the sum of squares of `x` that is not noise, 0 to 1."""
    energy = jnp.sum(x**2)
    return jnp.maximum(0.0, 1 - noise / jnp.maximum(energy, jnp.finfo(x.dtype).tiny))
