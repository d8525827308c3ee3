"""The untuned private mean: clipped in layers around private medians."""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _keys
from dpjax._sharding import AxisName, gathered
from dpjax._tree import like
from dpjax._types import Key, Scalar
from dpjax.estimators import Clipping
from dpjax.solvers.statistics._moments import noisy_second_moments, whitening
from dpjax.solvers.statistics._noisy_mean import SetClipping, noisy_mean
from dpjax.solvers.statistics._noisy_quantile import (
    SizeHistogram,
    median_and_bound,
    noisy_quantile,
    noisy_size_histogram,
)

# The noise that a release may have, as a share of the n records. It determines the
# release's share of the budget.
_SIZE_NOISE, _CENTER_NOISE, _SCALE_NOISE = 1 / 100, 1 / 30, 1 / 100
_LEAST, _MOST, _MOST_CENTER = 0.005, 0.05, 0.1  # limits of the shares of the budget
_RADIUS, _MOMENTS, _LENGTHS, _SQUARES = 0.025, 0.08, 0.06, 0.04
_LENGTHS_ALONE = 0.2  # for a single column, which needs no moments
_NUM_SKIPPED = 2  # bins that seem empty, below one with much of the mean
_NUM_HALVINGS = 20
_SCALED_BEYOND = 0.02  # share of the records beyond the scale of a column
_BEYOND_RADIUS = 0.5  # share of the records; second moments need only show a shape
# The share of records beyond the first layer, and the number beyond the last layer, in
# 2 sqrt(d) multipliers: there bias and noise are alike if all of those records lie on
# one side.
_BEYOND_FIRST, _BEYOND_LAST = 0.2, 0.5
_FARTHEST = 4.0  # the end of the last layer, in the size where its tail begins
_NUM_LAYERS = 3
_WIDTH_POWER = 0.5  # a layer's share is in proportion to this power of its width
_HIDDEN = 3.0  # a larger edge of the noise hides eigenvalues, 1 on average
ONE_NUMBER, HIDDEN_RECORDS = 2.0**-19, 2.0  # in bounds, and in stddevs of counts
LEAST_BOUND = 1e-5  # sizes below 2^-19 are not seen, nor bounds below four of them
_ROUNDED = 4.0  # least standard error, in units of the center's last place
_LARGEST = 1e15  # numbers are clipped to it, so that squares are finite


class Shares(NamedTuple):
    """Holds the share of the budget of each release; all add up to 1.

    Attributes:
        sizes: the sizes of the columns' numbers.
        centers: medians of the columns.
        scales: distances of numbers from the medians.
        radius: norms of rows.
        moments: second moments.
        lengths: norms of rows in whitened coordinates.
        squares: second moments in these coordinates.
        mean: the mean.
    """

    sizes: float
    centers: float
    scales: float | None
    radius: float | None
    moments: float | None
    lengths: float
    squares: float
    mean: float

    @classmethod
    def of(cls, shape: tuple[int, ...], noise_multiplier: float) -> "Shares":
        """Returns the shares for (n, d) samples: enough for a center and a scale.

        A share is None if there is no such release.
        """
        num_samples, d = shape
        unit = noise_multiplier / num_samples

        def needed(num_counts: int, noise: float, most: float) -> float:
            share = (math.sqrt(2 * num_counts) * unit / noise) ** 2
            return min(max(share, _LEAST), most)

        sizes = needed(d, _SIZE_NOISE, _MOST)
        centers = needed(2 * _NUM_HALVINGS * d, _CENTER_NOISE, _MOST_CENTER)
        scales = needed(d, _SCALE_NOISE, _MOST) if d > 1 else None
        # Second moments are released only if the edge of their noise would show some.
        edge = math.sqrt(2 * d) * math.sqrt(2) * d * unit / math.sqrt(_MOMENTS)
        is_round = d == 1 or edge > _HIDDEN
        radius, moments = (None, None) if is_round else (_RADIUS, _MOMENTS)
        lengths = _LENGTHS_ALONE if d == 1 else _LENGTHS
        before = sizes, centers, scales, radius, moments, lengths, _SQUARES
        mean = 1 - math.fsum(share for share in before if share)
        return cls(
            sizes, centers, scales, radius, moments, lengths, _SQUARES, mean=mean
        )

    @property
    def hiding(self) -> Scalar:
        """Returns the share of the release that hides records far from a center."""
        return self.lengths if self.scales is None else self.scales

    def multipliers(self, noise_multiplier: float) -> "Shares":
        """Returns the noise multiplier of each release, from their total."""
        return jax.tree.map(
            lambda share: noise_multiplier / math.sqrt(share) if share else 0.0, self
        )


class Estimate(NamedTuple):
    """Holds a released mean, its standard errors, and further released numbers."""

    mean: jax.Array
    standard_errors: jax.Array
    stats: dict[str, Scalar]


@partial(jax.jit, static_argnums=0)
def untuned_mean(
    axis_name: AxisName | None, samples: jax.Array, key: Key, multipliers: Shares
) -> Estimate:
    """Releases the mean of rows, for any distribution and any center.

    1. Each column gets a size, from a histogram of exponents, a median within four
       sizes, and a scale of the distances from the median.
    2. Second moments of rows in those units give coordinates z of equal spread.
    3. The mean of z is released in layers. With |z| the length of a row, and radii 0 =
       C_0 < C_1 < C_2 < C_3 from a histogram of lengths, layer j adds the part

           z / |z| · min(max(|z| - C_(j-1), 0), C_j - C_(j-1)),

       and all layers together make the row clipped to length C_3. A fifth of all rows
       are longer than C_1, and few are than C_3. Outer layers have most of the noise,
       and often a mean near zero, so they are shrunk toward zero (James and Stein).

    Privacy:
        As one Gaussian mechanism of the noise multiplier, under replace-one. Each
        release is a `noisy_quantile`, `noisy_median`, `noisy_second_moments` or clipped
        mean, with parameters that were released before. Quantiles of d columns are d
        releases of sqrt(d) times the multiplier. Layers are one vector clipped to norm
        1: layer j, over its width, times the root of its share.
    """
    num_samples, d = samples.shape
    *round_keys, length_key, mean_key, square_key = _keys.split(key, 5)
    place = Round.of(round_keys, samples, multipliers, axis_name)
    z, (center, scale, bounds) = place.rows, place.place
    lengths = jnp.sqrt(jnp.sum(z**2, axis=1))
    seen = noisy_size_histogram(
        length_key,
        gathered(lengths),
        multipliers.lengths,
        num_skipped=_NUM_SKIPPED if d == 1 else 0,
    )
    radii, left_out = radii_of(seen, multipliers.mean, num_samples, d)
    radii, left_out = radii.astype(z.dtype), left_out.astype(z.dtype)
    sampling = jax.vmap(seen.sum_of_squares)(radii[:-1], radii[1:])
    sampling = sampling / (d * float(num_samples) ** 2)
    mean, variance = _layered(
        mean_key, z, lengths, radii, sampling, multipliers.mean, axis_name
    )
    squares = _squares(square_key, z, lengths, seen, radii, multipliers, axis_name)
    bias = left_out / math.sqrt(d)
    variance = squares / num_samples + variance + bias**2
    if place.inverse is not None:
        variance = jnp.matmul(place.inverse**2, variance, precision="highest")
    errors = scale * jnp.sqrt(variance)
    # If all numbers of a column seem to be one number, noise may hide a few records.
    spread = scale if d > 1 else radii[1] * jnp.ones_like(scale)
    num_hidden = HIDDEN_RECORDS * math.sqrt(2 * d) * multipliers.hiding
    hidden = jnp.minimum(num_hidden / num_samples, 1.0) * bounds
    errors = errors + jnp.where(spread < ONE_NUMBER * bounds, hidden, 0.0)
    # Rounding must not make an interval a single point.
    errors = errors + _ROUNDED * jnp.finfo(z.dtype).eps * jnp.abs(center)
    # If all numbers are about zero, no unit is known for records that noise may hide.
    is_seen = (seen.top >= 0) & (bounds > LEAST_BOUND)
    errors = jnp.where(is_seen, errors, jnp.inf)
    stats: dict[str, Scalar] = {"l2_clip_norms": radii[1:], "left_out": left_out}
    return Estimate(place.back(mean), errors, stats)


class Place(NamedTuple):
    """Holds the columns' medians, scales of distances from them, and bounds."""

    centers: jax.Array
    scales: jax.Array
    bounds: jax.Array


class Round(NamedTuple):
    """Holds rows in coordinates of about equal spread, z = A^T (x - center) / scale.

    Attributes:
        rows: z, shape (n, d).
        place: centers, scales and bounds of the columns.
        inverse: the inverse of A^T; None if A is the identity.
    """

    rows: jax.Array
    place: Place
    inverse: jax.Array | None

    @classmethod
    def of(
        cls,
        keys: Sequence[Key],
        samples: jax.Array,
        multipliers: Shares,
        axis_name: AxisName | None,
    ) -> "Round":
        """Releases the place of the columns, and A if it has a share of the budget."""
        place_key, moments_key = keys
        samples = jnp.where(jnp.isnan(samples), 0.0, samples)
        place = _standard(place_key, samples, multipliers)
        clipped = jnp.clip(samples, -_LARGEST, _LARGEST)
        z = (clipped - place.centers[None]) / place.scales[None]
        if multipliers.radius is None or multipliers.moments is None:
            return cls(z, place, None)
        noise = multipliers.radius, multipliers.moments
        matrix = _round(moments_key, z, noise, axis_name)
        rows = jnp.matmul(z, matrix, precision="highest")
        return cls(rows, place, jnp.linalg.inv(matrix.T))

    def back(self, row: jax.Array) -> jax.Array:
        """Returns `row` in the units of the columns."""
        if self.inverse is not None:
            row = jnp.matmul(self.inverse, row, precision="highest")
        return self.place.centers + self.place.scales * row


def _standard(key: Key, samples: jax.Array, multipliers: Shares) -> Place:
    """Releases a center and a scale for every column; a single column has scale 1."""
    num_samples, d = samples.shape
    size_key, median_key, scale_key = _keys.split(key, 3)
    columns = gathered(samples)

    center, bound = median_and_bound(
        (size_key, median_key),
        columns,
        jnp.ones(len(columns), columns.dtype),
        size_multiplier=multipliers.sizes,
        multiplier=multipliers.centers,
    )
    if multipliers.scales is None:
        return Place(center, jnp.ones_like(center), bound)
    quantile = partial(
        noisy_quantile,
        num_above=_SCALED_BEYOND * num_samples,
        noise_multiplier=multipliers.scales * math.sqrt(d),
    )
    distances = jnp.abs(columns - center[None])
    scale = jax.vmap(quantile, (0, 1))(jax.random.split(scale_key, d), distances)
    return Place(center, scale, bound)


def _round(
    key: Key, z: jax.Array, noise: tuple[float, float], axis_name: AxisName | None
) -> jax.Array:
    """Releases a matrix A, such that A^T z has about equal spread.

    `noise` holds the multipliers of the radius and of the moments.
    """
    radius_key, moments_key = _keys.split(key)
    radius = noisy_quantile(
        radius_key,
        gathered(jnp.sqrt(jnp.sum(z**2, axis=1))),
        share_above=_BEYOND_RADIUS,
        noise_multiplier=noise[0],
    )
    moments, stddev = noisy_second_moments(
        moments_key, z, radius=radius, noise_multiplier=noise[1], axis_name=axis_name
    )
    return whitening(moments, stddev).matrix


def radii_of(
    seen: SizeHistogram, multiplier: float, num_samples: int, d: int
) -> tuple[jax.Array, jax.Array]:
    """Returns the ends of layers, zero first, and the mean length beyond the last."""
    first = seen.quantile(0.0, _BEYOND_FIRST)
    # The last radius follows from a Pareto tail, because few records are beyond it.
    size, number, index = seen.tail()
    wanted = _BEYOND_LAST * 2 * multiplier * math.sqrt(d)
    reach = jnp.maximum(number / wanted, 1.0) ** (1 / index)
    last = jnp.maximum(size * jnp.minimum(reach, _FARTHEST), 1.05 * first)
    passing = number * (size / last) ** index / num_samples
    middle = jnp.sqrt(first * last)
    radii = jnp.stack([jnp.zeros_like(first), first, middle, last])
    return radii, passing * last / (index - 1)


def layers_of(
    z: jax.Array, lengths: jax.Array, radii: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns each row's weighted layers, shape (n, 3, d), and the weights, shape (3,).

    The layers of a row have at most norm 1 together. Their mean is divided by the
    weights.
    """
    widths = radii[1:] - radii[:-1]
    shares = widths**_WIDTH_POWER / jnp.sum(widths**_WIDTH_POWER)
    weights = jnp.sqrt(shares) / widths
    depth = jnp.clip(lengths[:, None] - radii[None, :-1], 0.0, widths[None])
    direction = z / jnp.where(lengths > 0, lengths, 1.0)[:, None]
    return (depth * weights[None])[:, :, None] * direction[:, None, :], weights


def kept_of(layers: jax.Array, variances: jax.Array) -> jax.Array:
    """Returns the factors by which outer layers shrink toward zero (James and Stein).

    A factor is the share of the layer's energy that exceeds its variance.

    Args:
        layers: noisy sums or means, shape (3, k).
        variances: shape (3,), the variance of each coordinate by noise and sampling.
    """
    energy = jnp.sum(layers[1:] ** 2, axis=1)
    noise = layers.shape[1] * variances[1:]
    return jnp.maximum(0.0, 1 - noise / jnp.maximum(energy, noise))


def _layered(
    key: Key,
    z: jax.Array,
    lengths: jax.Array,
    radii: jax.Array,
    sampling: jax.Array,
    multiplier: float,
    axis_name: AxisName | None,
) -> tuple[jax.Array, jax.Array]:
    """Releases the mean of clipped rows by layers, and returns the noise variance too.

    The variance does not count shrinking.
    """
    num_samples, d = z.shape
    layers, weights = layers_of(z, lengths, radii)
    clipping = Clipping(1.0)
    noisy = noisy_mean(clipping, layers, multiplier, key, axis_name)
    noisy = noisy / weights[:, None]
    parameters = clipping.noise_parameters(multiplier, num_samples, _NUM_LAYERS * d)
    stddev = like(parameters["stddev"], weights)
    variances = (stddev / weights) ** 2
    mean = noisy[0] + kept_of(noisy, variances + sampling) @ noisy[1:]
    return mean, jnp.sum(variances)


def _squares(
    key: Key,
    z: jax.Array,
    lengths: jax.Array,
    seen: SizeHistogram,
    radii: jax.Array,
    multipliers: Shares,
    axis_name: AxisName | None,
) -> jax.Array:
    """Releases second moments of the coordinates of rows clipped to the last radius."""
    num_samples, d = z.shape
    # Rows are clipped to the middle radius, for less noise. The histogram of lengths
    # gives the rest, and all coordinates an equal part of it.
    middle, last = radii[-2], radii[-1]
    short = z * jnp.minimum(1.0, middle / jnp.maximum(lengths, middle))[:, None]
    clipping = SetClipping(1.0, math.sqrt(min(d, 2)))
    samples = (short / middle) ** 2
    noisy = noisy_mean(clipping, samples, multipliers.squares, key, axis_name)
    parameters = clipping.noise_parameters(multipliers.squares, num_samples, d)
    stddev = like(parameters["stddev"], noisy)
    squares = middle**2 * jnp.maximum(noisy + stddev, 0.0)
    beyond = seen.sum_of_squares(0.0, last) - seen.sum_of_squares(0.0, middle)
    return squares + beyond / (num_samples * d)
