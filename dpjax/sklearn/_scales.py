"""Centres and scales of columns, all by Gaussian releases.

So they compose with a Gaussian model to one Gaussian mechanism, exactly, where choices
by the exponential mechanism would compose as zCDP and lose a third of the budget.
"""

import math
from typing import NamedTuple

import numpy as np

from dpjax import _keys
from dpjax._rounding import ROUNDED_UP, ROUNDOFF
from dpjax._types import Key
from dpjax.mechanisms import gaussian

# Bins [2^j, 2^(j+1)) of |x|, beyond which a number counts in the nearest.
_FIRST, _LAST = -30, 50
_BEYOND = 2.0**60  # numbers are held within it: no quotient by a size overflows
_WINDOW = 3  # bins together: three quarters of a normal law are in three
# One of all windows passes for one with records once in twenty fits.
_FALSE = 0.05
# Of numbers in that window, and in bins that stand out so many standard deviations, the
# size is the quantile. A window alone would be what an atom near the centre leaves.
_STANDS_OUT = 3.0
# Of numbers, and of distances from a mean: a twentieth of a dummy's lie far from it.
_QUANTILE, _QUANTILE_AWAY = 0.75, 0.97
_MOST_MEAN = 1.5  # numbers are held within so many sizes for their mean
_RECENTERED = 0.5  # a column whose mean is so many sizes away from zero
_LEAST_SPREAD = 1 / 64  # in sizes: what is nearly constant is not blown up
# Of the number of cells that are not zero, sizes, means, and distances from the means.
_SHARES = (0.05, 0.45, 0.3, 0.2)
_LEAST_COUNTED = 0.05  # of records, which have a weight above zero
_MOST_DENSE = 0.05  # of rows, which may have more cells that are not zero
_MOST_SHARE = 0.35  # of the budget
_FEWEST_RELEASED = 1024  # at once, with zeros at the end
_MOST_SCALES = 100.0  # cells are held within so many scales of the centre


class Standard(NamedTuple):
    """How columns become numbers near 1; public, or released.

    Attributes:
        centers: shape (k,); NaN counts as it.
        scales: shape (k,), positive.
        low: shape (k,), the least number that a column is held to.
        high: shape (k,), the largest one.
    """

    centers: np.ndarray
    scales: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of_ranges(cls, low: np.ndarray, high: np.ndarray) -> "Standard":
        """Returns the middle and the half width of public ranges."""
        return cls(low / 2 + high / 2, high / 2 - low / 2, low, high)

    @classmethod
    def unknown(cls, num_columns: int) -> "Standard":
        """Returns that of columns which keep their units, held to -1 and 1."""
        ones = np.ones(num_columns)
        return cls(0 * ones, ones, -ones, ones)

    def held(self, columns: np.ndarray) -> np.ndarray:
        """Returns finite numbers, each within its range, in the user's units."""
        known = np.where(np.isnan(columns), self.centers, columns)
        return np.clip(known, self.low, self.high)

    def of(self, columns: np.ndarray) -> np.ndarray:
        """Returns held numbers in units of their scales, about their centres."""
        return ((self.held(columns) - self.centers) / self.scales).astype(np.float32)


def scales_share(
    num_samples: int, num_columns: int, noise_multiplier: float, *, least: float
) -> float:
    """Returns the part of the budget that buys scales, from public numbers.

    As much as shows a size that a quarter of the records have, from `least` to 0.35;
    and none where that would not show one that half of them have.
    """
    if num_columns == 0:
        return 0.0
    noise = _significant(num_columns) * math.sqrt(2 * _WINDOW * num_columns)
    shown = (noise * noise_multiplier / num_samples) ** 2  # that all records have
    if 4 * shown > _MOST_SHARE:
        return 0.0
    return min(max(16 * shown, least), _MOST_SHARE)


def buy_scales(
    key: Key,
    columns: np.ndarray,
    *,
    noise_multiplier: float,
    weights: np.ndarray | None = None,
    is_centered: bool = True,
) -> Standard:
    """Releases a centre and a scale of every column.

    1. How many cells of a row are not zero, by a histogram. Rows with more count less.
    2. Of every column a histogram of binary exponents, without zeros and NaN: it has a
       size where three neighbouring bins stand out from the noise, which is the 75 per
       cent quantile of what stands out.
    3. Of columns in which half of the records have about that size, the mean of numbers
       held within 1.5 sizes. All others, and those whose mean is within half a size of
       zero, are centred at zero, and the size is their scale.
    4. For the rest the size of what is left after their mean is taken off, now the
       97 per cent quantile.

    Where no size stands out from the noise, the column keeps its unit and is held
    to -1 and 1: of dummies all is kept then, and of amounts their sign.

    Args:
        key: a typed key.
        columns: shape (n, k), float64, k at least 1.
        noise_multiplier: of all releases together.
        weights: shape (n,), or None. A record of weight zero changes no release: its
            cells are missing, and it is none of the records of which these are shares.
        is_centered: whether centres are sought; else the last two are left out.

    Privacy:
        A Gaussian mechanism of the noise multiplier under replace-one. A row with m
        cells in a histogram each counts as min(1, sqrt(b/m)) in all of them: sqrt(b) in
        the l2 norm, and sqrt(2b) where another takes its place, and the rounding of
        sums. With weights the histograms also tell how many records have one above
        zero. If a row replaces a record of weight zero, that moves them by sqrt(b + 1)
        together, no more than sqrt(2b). A mean of k numbers within ±1.5 moves by
        3 sqrt(k) / n, and its rounding.
        Columns, and b, are told by the releases before.
    """
    num_samples, num_columns = columns.shape
    is_known = np.isfinite(columns)
    is_counted = None if weights is None else weights > 0
    if is_counted is not None:
        is_known &= is_counted[:, None]
    columns = np.clip(np.where(is_known, columns, 0.0), -_BEYOND, _BEYOND)
    keys = _keys.split(key, 4)
    dense, first, second, third = (
        noise_multiplier / math.sqrt(share) for share in _SHARES
    )
    most_cells = 1.0 if num_columns == 1 else _most_cells(keys[3], columns, dense)
    scales, num_seen, num_counted = _sizes(
        keys[0], columns, first, most_cells, _QUANTILE, is_counted
    )
    most = np.where(num_seen > 0, _MOST_SCALES * scales, 1.0)
    centers = np.zeros(num_columns)
    away = np.flatnonzero((num_seen > num_counted / 2) & is_centered)
    if away.size:
        held = np.clip(columns[:, away] / scales[away], -_MOST_MEAN, _MOST_MEAN)
        # The mean is rounded in float64, and as it is passed to the mechanism.
        moved = 2 * _MOST_MEAN / num_samples + 4 * ROUNDOFF
        means = released(
            keys[1], held.mean(axis=0), second * math.sqrt(away.size) * moved
        )
        means = means * (num_samples / num_counted)
        is_away = np.abs(means) > _RECENTERED
        away, means = away[is_away], means[is_away]
        centers[away] = means * scales[away]
    if away.size:
        distances = np.where(is_known, columns - centers, 0.0)[:, away]
        found, num_found, _ = _sizes(
            keys[2], distances, third, away.size, _QUANTILE_AWAY
        )
        found = np.where(num_found > 0, found, scales[away])
        scales[away] = np.maximum(found, _LEAST_SPREAD * scales[away])
        most[away] = _MOST_SCALES * scales[away]
    return Standard(centers, scales, centers - most, centers + most)


def _significant(num_columns: int) -> float:
    num_windows = num_columns * (_LAST - _FIRST)
    return math.sqrt(2 * math.log(num_windows / _FALSE))


def _most_cells(key: Key, columns: np.ndarray, noise_multiplier: float) -> float:
    """Releases how many cells of a row are not zero at most, in all but a few rows."""
    num_samples, num_columns = columns.shape
    num_bins = math.ceil(2 * math.log2(num_columns)) + 1
    edges = np.minimum(2 ** (np.arange(num_bins) / 2), num_columns)
    bins = np.searchsorted(edges, np.count_nonzero(columns, axis=1))
    counts = np.bincount(bins, minlength=num_bins)
    stddev = math.sqrt(2) * noise_multiplier
    noisy = released(key, counts, stddev)
    above = np.cumsum(noisy[::-1])[::-1] - noisy  # of each bin
    is_few = above <= _MOST_DENSE * num_samples + stddev * math.sqrt(num_bins)
    return float(edges[np.argmax(is_few)])


def _sizes(
    key: Key,
    columns: np.ndarray,
    noise_multiplier: float,
    most_cells: float,
    quantile: float,
    is_counted: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Releases a size of |x| in each column, and about how many records have it.

    Where none is seen these are 1 and 0. The third is how many records count at all.
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
    stddev = sensitivity * noise_multiplier
    if is_counted is None:
        noisy, num_counted = (
            released(key, np.stack(counts), stddev),
            float(len(columns)),
        )
    else:
        cells = np.append(np.stack(counts), np.count_nonzero(is_counted))
        *flat, num_counted = released(key, cells, stddev)
        noisy = np.reshape(flat, (num_columns, num_bins))
        num_counted = min(max(num_counted, _LEAST_COUNTED * len(columns)), len(columns))
    windows = np.lib.stride_tricks.sliding_window_view(noisy, _WINDOW, axis=1)
    sums = windows.sum(axis=2)
    best, num_seen = np.argmax(sums, axis=1), sums.max(axis=1)
    is_seen = num_seen > _significant(num_columns) * math.sqrt(_WINDOW) * stddev
    is_near = np.abs(np.arange(num_bins) - best[:, None] - 1) <= 1  # in the window
    kept = np.maximum(noisy, 0.0) * (is_near | (noisy > _STANDS_OUT * stddev))
    below = np.cumsum(kept, axis=1)
    wanted = quantile * below[:, -1]
    places = np.argmax(below >= wanted[:, None], axis=1)
    inside, up_to = (x[np.arange(num_columns), places] for x in (kept, below))
    steps = 1 - (up_to - wanted) / np.maximum(inside, 1e-9)
    sizes = np.exp2(_FIRST + places + steps)
    num_seen = np.where(is_seen, num_seen, 0.0)
    return np.where(is_seen, sizes, 1.0), num_seen, num_counted


def released(key: Key, values: np.ndarray, stddev: float) -> np.ndarray:
    """Returns values with Gaussian noise; counts are held to 2^24, and so exact."""
    size = max(_FEWEST_RELEASED, 1 << (values.size - 1).bit_length())
    padded = np.zeros(size, np.float32)  # compiled once for all numbers of columns
    padded[: values.size] = np.minimum(values, 2.0**24).ravel()
    noisy = np.asarray(gaussian(key, padded, stddev=stddev * ROUNDED_UP), np.float64)
    return noisy[: values.size].reshape(values.shape)
