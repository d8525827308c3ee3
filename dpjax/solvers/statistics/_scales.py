"""Private centers and scales of columns, also for the estimators and for the command.

All releases add Gaussian noise to counts and means. Together with a Gaussian model they
compose exactly to one Gaussian mechanism; selections by the exponential mechanism would
compose as zCDP and lose a third of the budget.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _keys
from dpjax._rounding import ROUNDED_UP
from dpjax._sharding import check_key_of_rows
from dpjax._sums.fold import Unrounded, two_sum
from dpjax._types import ArrayLike, Key, Scalar
from dpjax.estimators import Clipping
from dpjax.mechanisms._additive import gaussian_of_padded, padded
from dpjax.solvers.statistics._noisy_mean import mean_and_stddevs, one_gaussian
from dpjax.solvers.statistics._quantile import checked_samples
from dpjax.solvers.training._calibration import check_budget
from dpjax.solvers.training._solution import Solution

# Bins [2^j, 2^(j+1)) of |x|; numbers outside count in the nearest bin.
_FIRST, _LAST = -30, 50
_NUM_BINS = _LAST - _FIRST + 1
_BEYOND = 2.0**60  # numbers are clipped to it, so that no quotient overflows
_WINDOW = 3  # adjacent bins, which hold 3/4 of a normal distribution
# The probability that some window without records seems to have some.
_FALSE = 0.05
# The size is a quantile of the numbers in that window, which could be an atom near the
# center, and in bins that exceed the noise. This is the probability that some bin
# without records exceeds the noise: it might be far from all other bins.
_FALSE_BIN = 0.001
# The quantiles of numbers, and of distances from a mean: a twentieth of the numbers of
# a one-hot column are far from its mean.
_QUANTILE, _QUANTILE_AWAY = 0.75, 0.97
_MOST_MEAN = 1.5  # numbers are clipped to this many sizes for their mean
_RECENTERED = 0.5  # in sizes; columns with a larger mean are centered
_LEAST_SPREAD = 2.0**-20  # in sizes: about what float32 resolves
# Shares for the number of nonzero cells, sizes, and two rounds of means and distances.
_SHARES = (0.05, 0.45, 0.15, 0.1, 0.05, 0.2)
_LEAST_COUNTED = 0.05  # smallest share of records with a weight above zero
_MOST_DENSE = 0.05  # share of rows that may have more nonzero cells
_MOST_SHARE = 0.35  # largest share of the budget
_FEWEST_RELEASED = 1024  # numbers are padded to this many with zeros
_MOST_SCALES = 100.0  # cells are clipped to so many scales from the center
_MOST_UNITS = 2**14  # of a whole cell, if counts of all records fit in int32


class Standard(NamedTuple):
    """Holds centers, scales and ranges of columns, shape (k,); public, or released."""

    centers: np.ndarray  # NaN counts as the center
    scales: np.ndarray  # positive
    low: np.ndarray  # columns are clipped to at least this
    high: np.ndarray  # columns are clipped to at most this
    is_known: np.ndarray  # whether these numbers are informative

    @classmethod
    def of_ranges(cls, low: np.ndarray, high: np.ndarray) -> "Standard":
        """Returns the middle and the half width of public ranges."""
        is_known = ~np.isnan(low)
        return cls(low / 2 + high / 2, high / 2 - low / 2, low, high, is_known)

    @classmethod
    def unknown(cls, num_columns: int) -> "Standard":
        """Returns center 0 and scale 1 for columns that are clipped to [-1, 1]."""
        ones = np.ones(num_columns)
        return cls(0 * ones, ones, -ones, ones, ones < 0)

    def for_knots(self, is_public: ArrayLike = False) -> "Standard":
        """Returns scales such that most numbers of a column are within two of them.

        A scale is halved if it is half of a range, or covers nearly all numbers about a
        released center, so that all columns extend beyond one scale.
        """
        is_wide = np.asarray(is_public) | (self.centers != 0) | ~self.is_known
        return self._replace(scales=self.scales * np.where(is_wide, 0.5, 1.0))

    def clipped(self, columns: np.ndarray) -> np.ndarray:
        """Returns finite numbers, clipped to their range, in the user's units."""
        known = np.where(np.isnan(columns), self.centers, columns)
        return np.clip(known, self.low, self.high)

    def of(self, columns: np.ndarray) -> np.ndarray:
        """Returns clipped numbers minus their centers, in units of the scales."""
        return ((self.clipped(columns) - self.centers) / self.scales).astype(np.float32)


def scales_share(
    num_samples: int, num_columns: int, noise_multiplier: float, *, least: float
) -> float:
    """Returns the share of the budget for releasing scales, from public numbers.

    It is from `least` to 0.35, and such that noise does not hide a size (to a factor of
    two) of a quarter of the records; 0 if 0.35 would not show a size of half.
    """
    if num_columns == 0:
        return 0.0
    shown = (_least_seen(num_columns, noise_multiplier) / num_samples) ** 2
    if 4 * shown > _MOST_SHARE:
        return 0.0
    return min(max(16 * shown, least), _MOST_SHARE)


def least_seen(num_columns: int, multiplier: float) -> float:
    """Returns the number of records of one size that `release_scales` can detect."""
    return _least_seen(num_columns, multiplier / math.sqrt(_SHARES[1]))


def _least_seen(num_columns: int, multiplier: float) -> float:
    log_sums = math.log(num_columns * (_NUM_BINS - 1))
    return _largest(multiplier * math.sqrt(2 * num_columns), log_sums, _WINDOW, _FALSE)


def _largest(stddev: Any, log_sums: Any, num_terms: int, prob: float) -> Any:
    """Returns a bound that some noisy sum exceeds with probability `prob`."""
    return stddev * (2 * num_terms * (log_sums - math.log(prob))) ** 0.5


def dp_center_and_scale(
    samples: ArrayLike, *, key: Key, epsilon: float, delta: float
) -> Solution:
    """Releases for each column a center and a scale that standardize it.

    A histogram of binary exponents gives the size of most numbers of a column. If half
    of the records have about that size and their clipped mean is far from zero, that
    mean is the center, and the scale is a 97 percent quantile of distances from it,
    2.5 standard deviations of a normal distribution. Other columns, such as amounts,
    dummies, and columns that are mostly zero, keep the center zero, and their scale is
    a 75 percent quantile of |x| without zeros. The scaled columns are of about unit
    size, as steps need. A center has the errors of a mean; `dp_quantile` releases a
    median. The budget is spent once for any number of columns.

    Args:
        samples: shape (n, k), real; n is public. Missing values are NaN. Zeros count
            only for a center.
        key: a typed key.
        epsilon: privacy of all columns together, positive.
        delta: privacy of all columns together, in (0, 1).

    Returns:
        A `Solution` with params (centers, scales), each of shape (k,), in units of the
        columns; scales are positive. A column keeps center 0 and scale 1 if the noise
        hides its size. Its stats hold is_known, shape (k,), false for such columns;
        least_seen, the number of records of one size that the noise does not hide, from
        n, k and the budget alone; and noise_multiplier.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input: six adaptive Gaussian
        mechanisms on counts and clipped means, which compose exactly. A row with many
        cells that are not zero counts less in each histogram, so that it moves all of
        them by no more than a row of few cells does.

    Example:
        >>> import jax, numpy as np
        >>> normal = np.random.default_rng(0).normal(size=(20_000, 2))
        >>> samples = np.array([2000.0, -3.0]) + np.array([50.0, 0.1]) * normal
        >>> centers, scales = dp_center_and_scale(
        ...     samples, key=jax.random.key(0), epsilon=0.5, delta=1e-6).params
        >>> print(np.round(samples.std(axis=0) / scales, 1))
        [0.4 0.4]

    Reference:
        Karwa, Vadhan (2018), "Finite sample differentially private confidence
        intervals", for sizes by a noisy histogram of exponents; Biswas, Dong, Kamath,
        Ullman (2020), "CoinPress", for rounds of clipping about a released center.
    """
    check_budget(epsilon, delta)
    check_key_of_rows(key, samples)
    samples = checked_samples(samples, num_axes=2)
    multiplier, privacy = one_gaussian(epsilon, delta, len(samples))
    scales = _released(key, samples, None, multiplier)
    stats = {
        "is_known": scales.is_known,
        "least_seen": least_seen(samples.shape[1], multiplier),
        "noise_multiplier": multiplier,
    }
    return Solution((scales.centers, scales.scales), privacy, stats)


def release_scales(
    key: Key,
    columns: np.ndarray,  # private, (n, k)
    *,
    noise_multiplier: float,  # of all releases together
    weights: np.ndarray | None = None,  # (n,); zero: does not count
    is_centered: bool = True,
) -> Standard:
    """Releases centers, scales and ranges of columns, by `dp_center_and_scale`.

    Models clip and scale features by them. Columns whose size the noise hides are
    clipped to [-1, 1], which keeps dummies and the signs of amounts. Without
    is_centered all centers are zero. All releases together are one Gaussian mechanism
    of the noise multiplier under replace-one.
    """
    cells = np.clip(columns, -_BEYOND, _BEYOND).astype(np.float32)
    is_counted = None if weights is None else jnp.asarray(weights > 0)
    scales = _released(
        key, jnp.asarray(cells), is_counted, noise_multiplier, is_centered=is_centered
    )
    centers, sizes = (np.array(x, np.float64) for x in scales[:2])
    is_known = np.array(scales.is_known)
    most = np.where(is_known, _MOST_SCALES * sizes, 1.0)
    return Standard(centers, sizes, centers - most, centers + most, is_known)


class _Scales(NamedTuple):
    """Holds released numbers of columns, each of shape (k,) but the last two."""

    centers: jax.Array  # subtracted first
    scales: jax.Array  # divisors of the differences
    sizes: jax.Array  # the scales about zero
    is_known: jax.Array  # whether the noise shows a size
    is_away: jax.Array  # whether the column may have a center other than zero
    num_counted: jax.Array  # the number of records that count, a scalar
    most_cells: jax.Array  # b, a number of cells that few rows exceed, a scalar


def _released(
    key: Key,
    columns: jax.Array,  # private, (n, k)
    is_counted: jax.Array | None,  # None: all records count
    multiplier: float,  # the noise multiplier
    *,
    is_centered: bool = True,
) -> _Scales:
    """Releases a center and a scale of each column, (k,), as `dp_center_and_scale`.

    1. A histogram of the number of nonzero cells of a row gives b, which few rows
       exceed. Rows with more cells count less.
    2. A histogram of binary exponents of each column gives its size, if three adjacent
       bins exceed the noise.
    3. If half of the records have about that size, the mean of numbers clipped to 1.5
       sizes is the center, unless it is within half a size of zero.
    4. A histogram of differences from the center gives the scale of such columns.
    5. Steps 3 and 4 are repeated about the center and in the scale, because the error
       of a mean is in proportion to the size at which numbers are clipped.

    Privacy:
        One Gaussian mechanism of the noise multiplier under replace-one. A row with m
        cells counts at most sqrt(min(1, b/m)) in the histogram of each: sqrt(b) in the
        norm, and sqrt(2b) if another row replaces it. The number of records that count
        is released too. If a row replaces a row that does not count, all of these move
        by sqrt(b + 1) together, at most sqrt(2b). Counts are exact. A row of a numbers
        within 1.5 has a norm of at most 1.5 sqrt(a). The columns of each step, centers,
        sizes and b come from earlier releases.
    """
    dense, first, *rounds = (multiplier / math.sqrt(share) for share in _SHARES)
    first_key, *keys = _keys.split(key, 3)
    dense_key, first_key = _keys.split(first_key)
    columns, scales = _start(columns, is_counted)
    if columns.shape[1] > 1:
        counts, stddevs = _numbers_of_cells(columns, dense)
        noisy = gaussian_of_padded(dense_key, counts, stddevs)
        most_cells = _most_cells(columns.shape, noisy, stddevs)
        scales = scales._replace(most_cells=most_cells)

    def resized(key: Key, is_first: bool, multiplier: float) -> _Scales:
        counts, stddevs = _exponents(columns, is_counted, scales, multiplier)
        noisy = gaussian_of_padded(key, counts, stddevs)
        return _resized((is_first, is_counted is not None), scales, noisy, stddevs)

    scales = resized(first_key, True, first)
    rounds = zip(keys, rounds[::2], rounds[1::2], strict=True)
    for round_key, of_mean, of_size in rounds if is_centered else ():
        mean_key, size_key = _keys.split(round_key)
        mean, stddevs = _means(columns, scales, of_mean)
        noisy = gaussian_of_padded(mean_key, mean, stddevs)
        scales = _centered(len(columns), scales, noisy)
        scales = resized(size_key, False, of_size)
    return scales


@jax.jit
def _start(
    columns: jax.Array, is_counted: jax.Array | None
) -> tuple[jax.Array, _Scales]:  # columns, scales
    """Returns columns (n, k) clipped to ±2^60, and centers 0 and scales 1 for them.

    `_released` starts from these; within ±2^60 no quotient overflows. Rows that do not
    count become NaN, as if missing. is_counted is (n,), or None: all rows count.
    """
    columns = jnp.clip(columns, -_BEYOND, _BEYOND)
    if is_counted is not None:
        columns = jnp.where(is_counted[:, None], columns, jnp.nan)
    zeros = jnp.zeros(columns.shape[1], columns.dtype)
    ones, num_counted = zeros + 1, jnp.float32(len(columns))
    scales = zeros, ones, ones, zeros > 0, zeros == 0, num_counted, jnp.float32(1)
    return columns, _Scales(*scales)


def _differences(columns: jax.Array, scales: _Scales) -> jax.Array:
    """Returns cells minus their centers, zero if they do not count."""
    is_cell = scales.is_away[None] & ~jnp.isnan(columns)
    return jnp.where(is_cell, columns - scales.centers[None], 0.0)


def _num_away(scales: _Scales) -> jax.Array:
    return jnp.maximum(jnp.sum(scales.is_away, dtype="float32"), 1.0)


def _entries(
    counts: jax.Array, unit: int, sensitivity: Scalar, multiplier: Scalar
) -> tuple[Unrounded, jax.Array]:
    """Returns integer counts over `unit`, exact, and the stddevs of their noise."""
    # Both are padded with zeros, as `gaussian_of_padded` takes them.
    parts = (x.astype("float32") / unit for x in (counts >> 12 << 12, counts & 4095))
    entries = Unrounded(*map(padded, two_sum(*parts)))
    stddev = ROUNDED_UP * jnp.asarray(multiplier, "float32") * sensitivity
    return entries, jnp.full_like(entries.high, stddev)


def _edges_of(num_columns: int) -> jax.Array:
    num_bins = math.ceil(2 * math.log2(num_columns)) + 1
    edges = np.minimum(2 ** (np.arange(num_bins) / 2), num_columns)
    return jnp.asarray(edges, "float32")


@jax.jit
def _numbers_of_cells(
    columns: jax.Array, multiplier: Scalar
) -> tuple[Unrounded, jax.Array]:  # a histogram, padded, and stddevs of its noise
    """Counts rows by number of nonzero entries, before noise, for `_most_cells`."""
    edges = _edges_of(columns.shape[1])
    is_cell = (columns != 0) & ~jnp.isnan(columns)
    num_cells = jnp.sum(is_cell, axis=1, dtype="float32")
    bins = jnp.sum(num_cells[:, None] > edges[None], axis=1, dtype="int32")
    counts = jnp.zeros(len(edges), "int32").at[bins].add(1)
    return _entries(counts, 1, math.sqrt(2), multiplier)


@partial(jax.jit, static_argnums=0)
def _most_cells(
    shape: tuple[int, int], noisy: jax.Array, stddevs: jax.Array
) -> jax.Array:
    """Returns b, a number of nonzero cells that few of the rows exceed.

    It bounds the sensitivity of `_exponents`. `noisy` are counts of rows by their
    number of nonzero cells, with noise of `stddevs`; `shape` is (n, k) of the columns.
    """
    edges = _edges_of(shape[1])
    bins = jnp.arange(len(edges))
    is_above = bins[None] > bins[:, None]
    above = jnp.sum(jnp.where(is_above, noisy[None, : len(edges)], 0.0), axis=1)
    is_few = above <= _MOST_DENSE * shape[0] + stddevs[0] * math.sqrt(len(edges))
    return edges[jnp.argmax(is_few)]


@jax.jit
def _exponents(columns, is_counted, scales: _Scales, multiplier):
    """Returns histograms of exponents of |x - center|, before noise, and stddevs.

    Columns are (n, k), `scales` has centers and b, and is_counted is (n,), or None for
    all. A row with over b nonzero differences counts less, so b bounds the sensitivity.
    The last entry is the number of records that count. Vectors are padded with zeros.
    """
    num_samples, num_columns = columns.shape
    most_cells = scales.most_cells
    differences = _differences(columns, scales)
    exponents = jnp.frexp(differences)[1].astype("int32") - 1
    bins = jnp.clip(exponents, _FIRST, _LAST) - _FIRST
    bins = bins + _NUM_BINS * jnp.arange(num_columns, dtype="int32")[None]
    is_cell = differences != 0
    num_cells = jnp.sum(is_cell, axis=1, dtype="float32")
    # The share by which such a row counts is rounded down to units of a power
    # of two, so that sums are exact.
    unit = 1 << int(math.log2(min(_MOST_UNITS, (2**31 - 1) // num_samples)))
    share = jnp.floor(unit * (jnp.sqrt(most_cells / num_cells) / ROUNDED_UP))
    share = jnp.where(num_cells > most_cells, share, unit).astype("int32")
    shares = jnp.where(is_cell, share[:, None], 0)
    counts = jnp.zeros(num_columns * _NUM_BINS, "int32").at[bins].add(shares)
    num_counted: Any = num_samples
    if is_counted is not None:
        num_counted = jnp.sum(is_counted, dtype="int32")
    counts = jnp.append(counts, unit * num_counted)
    return _entries(counts, unit, jnp.sqrt(2 * most_cells), multiplier)


@partial(jax.jit, static_argnums=0)
def _resized(
    static: tuple[bool, bool], scales: _Scales, noisy: jax.Array, stddevs: jax.Array
) -> _Scales:
    """Returns `scales` with new divisors, from noisy histograms of |x - center|.

    A divisor is a high quantile of |x - center|; where noise hides it, it is 1 in the
    first round, then unchanged. `static` tells whether this is the first round, and
    whether records have weights.
    """
    is_first, is_weighted = static
    num_cells = scales.centers.size * _NUM_BINS
    num_counted, noisy = noisy[num_cells], noisy[:num_cells].reshape(-1, _NUM_BINS)
    sums = noisy[:, :-2] + noisy[:, 1:-1] + noisy[:, 2:]
    best, num_seen = jnp.argmax(sums, axis=1), jnp.max(sums, axis=1)
    stddev, log_columns = stddevs[0], jnp.log(_num_away(scales))
    log_bins, log_windows = (log_columns + math.log(_NUM_BINS - x) for x in (0, 1))
    is_seen = num_seen > _largest(stddev, log_windows, _WINDOW, _FALSE)
    stands_out = noisy > _largest(stddev, log_bins, 1, _FALSE_BIN)
    bins = jnp.arange(_NUM_BINS)
    is_near = jnp.abs(bins[None] - best[:, None] - 1) <= 1  # in the window
    # The quantile is interpolated in the logarithm of the size, within its bin.
    counted = jnp.where(is_near | stands_out, jnp.maximum(noisy, 0.0), 0.0)
    below = counted @ (bins[:, None] <= bins[None]).astype("float32")
    quantile = jnp.float32(_QUANTILE if is_first else _QUANTILE_AWAY)
    requested = quantile * below[:, -1:]
    places = jnp.argmax(below >= requested, axis=1)[:, None]
    inside, up_to = (jnp.take_along_axis(x, places, 1) for x in (counted, below))
    steps = 1 - (up_to - requested) / jnp.maximum(inside, 1e-9)
    sizes = jnp.exp2((places.astype(steps.dtype) + steps + _FIRST)[:, 0])
    sizes = jnp.where(is_seen, sizes, 1.0).astype(scales.centers.dtype)
    if not is_first:
        sizes = jnp.where(is_seen, sizes, scales.scales)
        sizes = jnp.maximum(sizes, _LEAST_SPREAD * scales.sizes)
        return scales._replace(scales=jnp.where(scales.is_away, sizes, scales.scales))
    num_seen, num_samples = jnp.where(is_seen, num_seen, 0.0), scales.num_counted
    if is_weighted:
        num_samples = jnp.clip(num_counted, _LEAST_COUNTED * num_samples, num_samples)
    return scales._replace(
        scales=sizes,
        sizes=sizes,
        is_known=num_seen > 0,
        is_away=num_seen > num_samples / 2,
        num_counted=num_samples,
    )


@jax.jit
def _means(
    columns: jax.Array, scales: _Scales, multiplier: Scalar
) -> tuple[Unrounded, jax.Array]:
    """Returns means of differences in scales, and the stddevs of their noise."""
    rows = _differences(columns, scales) / scales.scales[None]
    rows = jnp.clip(rows, -_MOST_MEAN, _MOST_MEAN)
    clipping = Clipping(_MOST_MEAN * jnp.sqrt(_num_away(scales)))
    return mean_and_stddevs(clipping, rows, multiplier, None)


@partial(jax.jit, static_argnums=0)
def _centered(num_samples: int, scales: _Scales, noisy: jax.Array) -> _Scales:
    """Returns `scales` with centers moved by noisy means that are far from zero."""
    # `noisy` has means of (x - center) / scale over all n records, padded, released.
    centers = scales.centers
    to_counted = (num_samples / scales.num_counted).astype(centers.dtype)
    means = noisy[: centers.size].astype(centers.dtype) * to_counted
    is_away = scales.is_away & ((jnp.abs(means) > _RECENTERED) | (centers != 0))
    centers = centers + jnp.where(is_away, means * scales.scales, 0.0)
    scales = scales._replace(centers=centers, is_away=is_away)
    return scales._replace(most_cells=_num_away(scales))


def released(key: Key, values: np.ndarray, stddev: float) -> np.ndarray:
    """Releases counts, such as counts of labels, with Gaussian noise of a given stddev.

    `values` have any shape. They are clipped to 2^24, up to which float32 is exact.
    """
    size = max(_FEWEST_RELEASED, 1 << (values.size - 1).bit_length())
    padded = np.zeros(size, np.float32)  # one program serves all numbers of labels
    padded[: values.size] = np.minimum(values, 2.0**24).ravel()
    stddevs = np.full_like(padded, stddev * ROUNDED_UP)
    noisy = gaussian_of_padded(key, padded, stddevs)
    return np.asarray(noisy, np.float64)[: values.size].reshape(values.shape)
