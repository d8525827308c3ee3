"""Private centers and scales of columns, for the estimators and for the command.

All releases add Gaussian noise to counts and means. They compose exactly, together with
a Gaussian model, to one Gaussian mechanism; selections by the exponential mechanism
would compose as zCDP and lose a third of the budget.
"""

import math
from typing import NamedTuple

import numpy as np

from dpjax import _keys
from dpjax._rounding import ROUNDED_UP, ROUNDOFF
from dpjax._types import ArrayLike, Key
from dpjax.mechanisms._additive import gaussian_of_padded

# Bins [2^j, 2^(j+1)) of |x|; numbers outside count in the nearest bin.
_FIRST, _LAST = -30, 50
_BEYOND = 2.0**60  # numbers are clipped to this: no quotient by a size overflows
_WINDOW = 3  # adjacent bins: three hold three quarters of a normal distribution
# The probability that some window without records seems to have some.
_FALSE = 0.05
# The size is a quantile of the numbers in that window and in bins that exceed the
# noise. The window alone could be an atom near the center. This is the probability that
# some bin without records exceeds the noise: it might be far from all others.
_FALSE_BIN = 0.001
# Of numbers, and of distances from a mean: a twentieth of a dummy's are far from it.
_QUANTILE, _QUANTILE_AWAY = 0.75, 0.97
_MOST_MEAN = 1.5  # numbers are clipped to so many sizes for their mean
_RECENTERED = 0.5  # columns with means of more sizes than this are centered
_LEAST_SPREAD = 2.0**-20  # in sizes: about what float32 resolves
# Shares for the number of nonzero cells, sizes, and two rounds of means and distances.
_SHARES = (0.05, 0.45, 0.15, 0.1, 0.05, 0.2)
_LEAST_COUNTED = 0.05  # smallest share of records with a weight above zero
_MOST_DENSE = 0.05  # share of rows that may have more nonzero cells
_MOST_SHARE = 0.35  # largest share of the budget
_FEWEST_RELEASED = 1024  # numbers are padded to this many with zeros
_MOST_SCALES = 100.0  # cells are clipped to so many scales from the center


class Noise(NamedTuple):
    """Represents a budget by a multiplier: stddev of the noise / l2 sensitivity."""

    multiplier: float

    def part(self, share: float) -> "Noise":
        """Returns the noise of a release with a share of the budget.

        Shares add up to 1, because inverse squares of multipliers add up.
        """
        return Noise(self.multiplier / math.sqrt(share))

    def stddev(self, sensitivity: float) -> float:
        """Returns the standard deviation of the noise in one number."""
        return self.multiplier * sensitivity

    def largest(
        self, sensitivity: float, num_sums: int, num_terms: int, prob: float
    ) -> float:
        """Returns what the largest of many sums of noise exceeds with a probability."""
        return self.stddev(sensitivity) * math.sqrt(
            2 * num_terms * math.log(num_sums / prob)
        )

    def released(self, key: Key, values: np.ndarray, sensitivity: float) -> np.ndarray:
        """Returns values of that sensitivity with noise."""
        return released(key, values, self.stddev(sensitivity))


class Standard(NamedTuple):
    """Centers, scales and ranges of columns; public, or released.

    Attributes:
        centers: shape (k,); NaN counts as the center.
        scales: shape (k,), positive.
        low: shape (k,); columns are clipped to at least this.
        high: shape (k,); columns are clipped to at most this.
        is_known: shape (k,), whether these numbers are informative.
    """

    centers: np.ndarray
    scales: np.ndarray
    low: np.ndarray
    high: np.ndarray
    is_known: np.ndarray

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
        released center. So all columns extend beyond one scale.
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
    """Returns the share of the budget for scales, from public numbers.

    Enough to detect a size that a quarter of the records have, from `least` to 0.35;
    zero if 0.35 could not detect one that half of them have.
    """
    if num_columns == 0:
        return 0.0
    shown = (_least_seen(num_columns, Noise(noise_multiplier)) / num_samples) ** 2
    if 4 * shown > _MOST_SHARE:
        return 0.0
    return min(max(16 * shown, least), _MOST_SHARE)


def least_seen(num_columns: int, noise: Noise) -> float:
    """Returns the number of records of one size that `release_scales` can detect."""
    return _least_seen(num_columns, noise.part(_SHARES[1]))


def _least_seen(num_columns: int, noise: Noise) -> float:
    return _largest_window(noise, math.sqrt(2 * num_columns), num_columns)


def release_scales(
    key: Key,
    columns: np.ndarray,
    *,
    noise: Noise,
    weights: np.ndarray | None = None,
    is_centered: bool = True,
) -> Standard:
    """Releases a center and a scale of every column.

    1. A histogram of the number of nonzero cells of a row gives b, which nearly all
       rows do not exceed. Rows with more cells count less.
    2. A histogram of binary exponents of each column, without zeros and NaN. The column
       has a size if three adjacent bins exceed the noise: the 75 per cent quantile of
       the bins that do.
    3. For columns in which half of the records have about that size, the mean of
       numbers clipped to 1.5 sizes. Other columns, and those whose mean is within half
       a size of zero, have the center zero and the size as their scale.
    4. For the rest, the size of the differences from the mean, with the 97 per cent
       quantile.
    5. Steps 3 and 4 again, about their center and in their size. The error of a mean is
       in proportion to the size that numbers are clipped to: of a column whose spread
       is far below its mean the first distances are mostly that error.

    If no size exceeds the noise, the column keeps its unit and is clipped to [-1, 1]:
    this keeps dummies, and the signs of amounts.

    Args:
        key: a typed key.
        columns: shape (n, k), float64, k at least 1.
        noise: the noise of all releases together.
        weights: shape (n,), or None. A record of weight zero does not count in any
            release.
        is_centered: whether to release centers; otherwise steps 3 and 4 are skipped.

    Privacy:
        One Gaussian mechanism of the noise multiplier under replace-one. A row with m
        cells counts sqrt(min(1, b/m)) in the histogram of each: sqrt(b) in the norm,
        and sqrt(2b) if another row replaces it, plus the rounding of sums. With weights
        the number of records of weight above zero is released too. If a row replaces a
        record of weight zero, all of these move by sqrt(b + 1) together, at most
        sqrt(2b). A mean of k numbers within ±1.5 moves by 3 sqrt(k) / n, plus its
        rounding. The columns of each step, centers, sizes and b come from earlier
        releases.
    """
    num_samples, num_columns = columns.shape
    is_known = np.isfinite(columns)
    is_counted = None if weights is None else weights > 0
    if is_counted is not None:
        is_known &= is_counted[:, None]
    columns = np.clip(np.where(is_known, columns, 0.0), -_BEYOND, _BEYOND)
    first_key, *keys = _keys.split(key, 3)
    dense, first, *rounds = map(noise.part, _SHARES)
    dense_key, first_key = _keys.split(first_key)
    most_cells = 1.0 if num_columns == 1 else _most_cells(dense_key, columns, dense)
    scales, num_seen, num_counted = _sizes(
        first_key, columns, first, most_cells, _QUANTILE, is_counted
    )
    most = np.where(num_seen > 0, _MOST_SCALES * scales, 1.0)
    centers, least = np.zeros(num_columns), _LEAST_SPREAD * scales
    away = np.flatnonzero((num_seen > num_counted / 2) & is_centered)
    # Both means are rounded in float64, by up to n units, and to float32.
    rounded = max(4.0, 3 + num_samples * 2.0**-27) * ROUNDOFF
    moved = 2 * _MOST_MEAN / num_samples + rounded
    for round_key, of_mean, of_size in zip(
        keys, rounds[::2], rounds[1::2], strict=True
    ):
        if not away.size:
            break
        mean_key, size_key = _keys.split(round_key)
        distances = np.where(is_known, columns - centers, 0.0)[:, away]
        clipped = np.clip(distances / scales[away], -_MOST_MEAN, _MOST_MEAN)
        sensitivity = math.sqrt(away.size) * moved
        means = of_mean.released(mean_key, clipped.mean(axis=0), sensitivity)
        means = means * (num_samples / num_counted)
        is_away = (np.abs(means) > _RECENTERED) | (centers[away] != 0)
        away, means = away[is_away], means[is_away]
        if not away.size:
            break
        centers[away] += means * scales[away]
        distances = np.where(is_known, columns - centers, 0.0)[:, away]
        new_sizes, num_found, _ = _sizes(
            size_key, distances, of_size, away.size, _QUANTILE_AWAY
        )
        new_sizes = np.where(num_found > 0, new_sizes, scales[away])
        scales[away] = np.maximum(new_sizes, least[away])
        most[away] = _MOST_SCALES * scales[away]
    return Standard(centers, scales, centers - most, centers + most, num_seen > 0)


def _largest_window(noise: Noise, sensitivity: float, num_columns: int) -> float:
    num_windows = num_columns * (_LAST - _FIRST)
    return noise.largest(sensitivity, num_windows, _WINDOW, _FALSE)


def _most_cells(key: Key, columns: np.ndarray, noise: Noise) -> float:
    """Releases a bound on the number of nonzero cells that few rows exceed."""
    num_samples, num_columns = columns.shape
    num_bins = math.ceil(2 * math.log2(num_columns)) + 1
    edges = np.minimum(2 ** (np.arange(num_bins) / 2), num_columns)
    bins = np.searchsorted(edges, np.count_nonzero(columns, axis=1))
    counts = np.bincount(bins, minlength=num_bins)
    sensitivity = math.sqrt(2)
    noisy, stddev = noise.released(key, counts, sensitivity), noise.stddev(sensitivity)
    above = np.cumsum(noisy[::-1])[::-1] - noisy  # of each bin
    is_few = above <= _MOST_DENSE * num_samples + stddev * math.sqrt(num_bins)
    return float(edges[np.argmax(is_few)])


def _sizes(
    key: Key,
    columns: np.ndarray,
    noise: Noise,
    most_cells: float,
    quantile: float,
    is_counted: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Releases a size of |x| of each column, and the number of records of that size.

    They are 1 and 0 if no size is detected. Also returns the number of all records.
    """
    num_columns = columns.shape[1]
    exponents = np.clip(np.frexp(columns)[1] - 1, _FIRST, _LAST) - _FIRST
    num_bins = _LAST - _FIRST + 1
    is_cell = columns != 0
    num_cells = np.maximum(np.count_nonzero(is_cell, axis=1), 1)
    shares = np.sqrt(np.minimum(1.0, most_cells / num_cells))
    counts = [
        np.bincount(bins[cells], shares[cells], num_bins)
        for bins, cells in zip(exponents.T, is_cell.T, strict=True)
    ]
    sensitivity = math.sqrt(2 * most_cells)
    if most_cells < num_columns:  # Sums of shares are rounded; counts are exact.
        sensitivity += math.sqrt(2 * num_columns) * 2 * ROUNDOFF * len(columns)
    if is_counted is None:
        noisy = noise.released(key, np.stack(counts), sensitivity)
        num_counted = float(len(columns))
    else:
        cells = np.append(np.stack(counts), np.count_nonzero(is_counted))
        *flat, num_counted = noise.released(key, cells, sensitivity)
        noisy = np.reshape(flat, (num_columns, num_bins))
        num_counted = min(max(num_counted, _LEAST_COUNTED * len(columns)), len(columns))
    windows = np.lib.stride_tricks.sliding_window_view(noisy, _WINDOW, axis=1)
    sums = windows.sum(axis=2)
    best, num_seen = np.argmax(sums, axis=1), sums.max(axis=1)
    is_seen = num_seen > _largest_window(noise, sensitivity, num_columns)
    stands_out = noisy > noise.largest(sensitivity, noisy.size, 1, _FALSE_BIN)
    is_near = np.abs(np.arange(num_bins) - best[:, None] - 1) <= 1  # in the window
    counted = np.maximum(noisy, 0.0) * (is_near | stands_out)
    below = np.cumsum(counted, axis=1)
    wanted = quantile * below[:, -1]
    places = np.argmax(below >= wanted[:, None], axis=1)
    inside, up_to = (x[np.arange(num_columns), places] for x in (counted, below))
    steps = 1 - (up_to - wanted) / np.maximum(inside, 1e-9)
    sizes = np.exp2(_FIRST + places + steps)
    num_seen = np.where(is_seen, num_seen, 0.0)
    return np.where(is_seen, sizes, 1.0), num_seen, num_counted


def released(key: Key, values: np.ndarray, stddev: float) -> np.ndarray:
    """Returns values with Gaussian noise of that standard deviation.

    Counts are clipped to 2^24, up to which float32 is exact.
    """
    size = max(_FEWEST_RELEASED, 1 << (values.size - 1).bit_length())
    padded = np.zeros(size, np.float32)  # compiled once for all numbers of columns
    padded[: values.size] = np.minimum(values, 2.0**24).ravel()
    stddevs = np.full_like(padded, stddev * ROUNDED_UP)
    noisy = gaussian_of_padded(key, padded, stddevs)
    return np.asarray(noisy, np.float64)[: values.size].reshape(values.shape)
