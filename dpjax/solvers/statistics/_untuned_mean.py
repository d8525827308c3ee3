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

# The noise that a release may have, in records: so many of n make up its share.
_SIZE_NOISE, _CENTER_NOISE, _SCALE_NOISE = 1 / 100, 1 / 30, 1 / 100
_LEAST, _MOST, _MOST_CENTER = 0.005, 0.05, 0.1  # the share itself
_RADIUS, _MOMENTS, _LENGTHS, _SQUARES = 0.025, 0.08, 0.06, 0.04
_LENGTHS_ALONE = 0.2  # of a single column, whose tail is all there is to know
_NUM_SKIPPED = 2  # empty bins of such a tail, before one that holds much of the mean
_NUM_HALVINGS = 20
_SCALED_BEYOND = 0.02  # of the records, which are larger than the scale of a column
_BEYOND_RADIUS = 0.5  # of the records: second moments are to show a shape alone
# Records beyond the first layer, and beyond the last in 2 sqrt(d) multipliers: there
# bias and noise are alike if all of those records lie on one side.
_BEYOND_FIRST, _BEYOND_LAST = 0.2, 0.5
_FARTHEST = 4.0  # the end of the last layer, in the size where its tail begins
_NUM_LAYERS = 3
_WIDTH_POWER = 0.5  # a layer's share is in proportion to this power of its width
_HIDDEN = 3.0  # eigenvalues, of 1 on average, by which noise hides what is not round
ONE_NUMBER, HIDDEN_RECORDS = 2.0**-19, 2.0  # of a bound, and in stddevs of counts
LEAST_BOUND = 1e-5  # what is below 2^-19 shows no size, and four of those no bound
_ROUNDED = 4.0  # steps of a center, of which a standard error is at least so many
_LARGEST = 1e15  # numbers are held within it: squares of quotients stay finite


class Shares(NamedTuple):
    """The share of the budget of each release; all add up to 1.

    Attributes:
        sizes: the size of the numbers of each column.
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

        Second moments are released where noise lets see some of them; None is none.
        """
        num_samples, d = shape
        unit = noise_multiplier / num_samples

        def needed(num_counts: int, noise: float, most: float) -> float:
            share = (math.sqrt(2 * num_counts) * unit / noise) ** 2
            return min(max(share, _LEAST), most)

        sizes = needed(d, _SIZE_NOISE, _MOST)
        centers = needed(2 * _NUM_HALVINGS * d, _CENTER_NOISE, _MOST_CENTER)
        scales = needed(d, _SCALE_NOISE, _MOST) if d > 1 else None
        edge = math.sqrt(2 * d) * math.sqrt(2) * d * unit / math.sqrt(_MOMENTS)
        is_round = d == 1 or edge > _HIDDEN  # for all one would see
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
        """Returns the noise multiplier of each release, from that of all together."""
        return jax.tree.map(
            lambda share: noise_multiplier / math.sqrt(share) if share else 0.0, self
        )


class Estimate(NamedTuple):
    """A released mean, its standard errors, and released numbers beside them."""

    mean: jax.Array
    standard_errors: jax.Array
    stats: dict[str, Scalar]


@partial(jax.jit, static_argnums=0)
def untuned_mean(
    axis_name: AxisName | None, samples: jax.Array, key: Key, multipliers: Shares
) -> Estimate:
    """Releases the mean of rows, for any distribution and any center.

    1. Of each column the size of its numbers, by a histogram of exponents, its median
       within four of those, and the scale of distances from it.
    2. Second moments of rows in those units, which give round coordinates z.
    3. The mean of z in layers: with |z| the length of a row, and radii 0 = C_0 < C_1 <
       C_2 < C_3 from a histogram of lengths, layer j adds the part

           z / |z| · min(max(|z| - C_(j-1), 0), C_j - C_(j-1)),

       and all layers together make the row clipped to length C_3. A fifth of all rows
       are longer than C_1, and few are than C_3. Outer layers have most of the noise,
       and often a mean near zero, which is then shrunk towards it (James and Stein).

    Privacy:
        As one Gaussian mechanism of the noise multiplier, under replace-one. Each
        release is that of `noisy_quantile`, `noisy_median`, `noisy_second_moments` or
        of a clipped mean, and what it is made with is released before. Quantiles of d
        columns are d releases of sqrt(d) times the multiplier. Layers are one vector
        clipped to norm 1: layer j, over its width, times the root of its share.
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
    # Of a column whose numbers all seem to be one, noise may hide a few others.
    spread = scale if d > 1 else radii[1] * jnp.ones_like(scale)
    num_hidden = HIDDEN_RECORDS * math.sqrt(2 * d) * multipliers.hiding
    hidden = jnp.minimum(num_hidden / num_samples, 1.0) * bounds
    errors = errors + jnp.where(spread < ONE_NUMBER * bounds, hidden, 0.0)
    # An interval in these floats is no point.
    errors = errors + _ROUNDED * jnp.finfo(z.dtype).eps * jnp.abs(center)
    # Where all is about zero, no unit is known in which noise may hide others.
    is_seen = (seen.top >= 0) & (bounds > LEAST_BOUND)
    errors = jnp.where(is_seen, errors, jnp.inf)
    stats: dict[str, Scalar] = {"l2_clip_norms": radii[1:], "left_out": left_out}
    return Estimate(place.back(mean), errors, stats)


class Place(NamedTuple):
    """Where columns lie: medians, distances from them, and bounds of most numbers."""

    centers: jax.Array
    scales: jax.Array
    bounds: jax.Array


class Round(NamedTuple):
    """Rows in coordinates in which they are about round, z = A^T (x - center) / scale.

    Attributes:
        rows: z, shape (n, d).
        place: where the columns lie.
        inverse: of A^T, or None where A is no matrix but one.
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
        """Releases where columns lie, and A where there is a share for it."""
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
        """Returns a row in the units of the columns."""
        if self.inverse is not None:
            row = jnp.matmul(self.inverse, row, precision="highest")
        return self.place.centers + self.place.scales * row


def _standard(key: Key, samples: jax.Array, multipliers: Shares) -> Place:
    """Releases a center and a scale of every column; of a single one the unit stays."""
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
    """Releases a matrix A for which A^T z is round, as far as noise lets see.

    Args:
        key: a typed key.
        z: rows in units of their columns, shape (n, d).
        noise: multipliers of a radius, to which rows are clipped, and of the moments.
        axis_name: the mesh axes over which rows are sharded.
    """
    radius_key, moments_key = _keys.split(key)
    radius = noisy_quantile(
        radius_key,
        gathered(jnp.sqrt(jnp.sum(z**2, axis=1))),
        num_above=0.0,
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
    """Returns where layers end, with zero before, and what lies beyond on average."""
    first = seen.quantile(0.0, _BEYOND_FIRST)
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
    """Returns each row's layers, shape (n, 3, d), which have norm 1 at most together.

    Each is multiplied by its weight, and divided by it in the end: second, shape (3,).
    """
    widths = radii[1:] - radii[:-1]
    shares = widths**_WIDTH_POWER / jnp.sum(widths**_WIDTH_POWER)
    weights = jnp.sqrt(shares) / widths
    depth = jnp.clip(lengths[:, None] - radii[None, :-1], 0.0, widths[None])
    direction = z / jnp.where(lengths > 0, lengths, 1.0)[:, None]
    return (depth * weights[None])[:, :, None] * direction[:, None, :], weights


def kept_of(layers: jax.Array, variances: jax.Array) -> jax.Array:
    """Returns which parts of outer layers are kept where these shrink towards zero.

    The share of their energy that is more than their variance (James and Stein).

    Args:
        layers: noisy sums or means, shape (3, k).
        variances: shape (3,), of each coordinate of a layer, by noise and sampling.
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
    """Releases the mean of clipped rows by layers; returns it and its noise variance.

    The variance is that of the layers without shrinking.
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
    """Releases second moments of every coordinate of rows clipped to the last radius.

    Rows are clipped to the middle radius first. What that takes off is read from the
    histogram of lengths, and falls on all coordinates alike.
    """
    num_samples, d = z.shape
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
