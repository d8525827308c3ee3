"""Centres and scales of columns, all by Gaussian releases.

So they compose with a Gaussian model to one Gaussian mechanism, exactly, where choices
by the exponential mechanism would compose as zCDP and lose a third of the budget.
"""

import math
from typing import NamedTuple

import jax
import numpy as np

from dpjax._rounding import ROUNDED_UP, ROUNDOFF
from dpjax._types import Key
from dpjax.mechanisms import gaussian

# Bins [2^j, 2^(j+1)) of |x|, beyond which a number counts in the nearest.
_FIRST, _LAST = -30, 50
_WINDOW = 3  # bins together: three quarters of a normal law are in three
# A window passes for one with records once in 4,000 draws.
_SIGNIFICANT = 3.5
_MOST_MEAN = 1.5  # numbers are held within so many sizes for their mean
_RECENTERED = 0.5  # a column whose mean is so many sizes away from zero
_SHARES = (0.3, 0.4, 0.3)  # of sizes, means and distances from the means
_MOST_SCALES = 1_000.0  # cells are held within so many scales of the centre


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

    def held(self, columns: np.ndarray) -> np.ndarray:
        """Returns finite numbers, each within its range, in the user's units."""
        known = np.where(np.isnan(columns), self.centers, columns)
        return np.clip(known, self.low, self.high)

    def of(self, columns: np.ndarray) -> np.ndarray:
        """Returns held numbers in units of their scales, about their centres."""
        return ((self.held(columns) - self.centers) / self.scales).astype(np.float32)


def scales_share(num_samples: int, num_columns: int, noise_multiplier: float) -> float:
    """Returns the part of the budget that lets sizes be seen, from public numbers.

    As much as shows a size that a seventh of the records have, from 5 to 35 per cent.
    """
    if num_columns == 0:
        return 0.0
    noise = _SIGNIFICANT * math.sqrt(2 * _WINDOW * num_columns / _SHARES[0])
    return min(max((7 * noise * noise_multiplier / num_samples) ** 2, 0.05), 0.35)


def buy_scales(
    key: Key, columns: np.ndarray, *, noise_multiplier: float, is_centered: bool = True
) -> Standard:
    """Releases a centre and a scale of every column.

    1. Of every column a histogram of binary exponents, without zeros and NaN: the size
       is the geometric mean of the three neighbouring bins that hold most.
    2. Of columns in which half of the records have about that size, the mean of numbers
       held within 1.5 sizes. All others, and those whose mean is within half a size of
       zero, are centred at zero, and the size is their scale.
    3. For the rest the size of what is left after their mean is taken off.

    Where no size stands out from the noise, the column keeps its unit and is held
    to -1 and 1: of dummies all is kept then, and of amounts their sign.

    Args:
        key: a typed key.
        columns: shape (n, k), float64, k at least 1.
        noise_multiplier: of all three together.
        is_centered: whether centres are sought; else there is but the first release.

    Privacy:
        A Gaussian mechanism of the noise multiplier under replace-one. Of each of k
        histograms a replaced record moves two counts by 1: sqrt(2k) in the l2 norm. A
        mean of k numbers within ±1.5 moves by 3 sqrt(k) / n, and its rounding.
        Which columns are in the second and third is told by those before.
    """
    num_samples, num_columns = columns.shape
    columns = np.where(np.isfinite(columns), columns, 0.0)
    shares = _SHARES if is_centered else (1.0, 0.0, 0.0)
    keys = jax.random.split(key, 3)
    first, second, third = (
        noise_multiplier / math.sqrt(share) if share else math.inf for share in shares
    )
    scales, num_seen = _sizes(keys[0], columns, first)
    most = np.where(num_seen > 0, _MOST_SCALES * scales, 1.0)
    centers = np.zeros(num_columns)
    away = np.flatnonzero((num_seen > num_samples / 2) & is_centered)
    if away.size:
        held = np.clip(columns[:, away] / scales[away], -_MOST_MEAN, _MOST_MEAN)
        # The mean is rounded in float64, and as it is passed to the mechanism.
        moved = 2 * _MOST_MEAN / num_samples + 4 * ROUNDOFF
        means = _noisy(
            keys[1], held.mean(axis=0), second * math.sqrt(away.size) * moved
        )
        is_away = np.abs(means) > _RECENTERED
        away, means = away[is_away], means[is_away]
        centers[away] = means * scales[away]
    if away.size:
        found, num_found = _sizes(keys[2], (columns - centers)[:, away], third)
        scales[away] = np.where(num_found > 0, found, scales[away])
        most[away] = _MOST_SCALES * scales[away]
    return Standard(centers, scales, centers - most, centers + most)


def _sizes(
    key: Key, columns: np.ndarray, noise_multiplier: float
) -> tuple[np.ndarray, np.ndarray]:
    """Releases a size of |x| in each column, and about how many records have it.

    Where none is seen these are 1 and 0.
    """
    num_columns = columns.shape[1]
    exponents = np.clip(np.frexp(columns)[1] - 1, _FIRST, _LAST) - _FIRST
    num_bins = _LAST - _FIRST + 1
    places = exponents + num_bins * np.arange(num_columns)
    counts = np.bincount(places[columns != 0], minlength=num_bins * num_columns)
    stddev = math.sqrt(2 * num_columns) * noise_multiplier
    noisy = _noisy(key, counts, stddev).reshape(num_columns, num_bins)
    windows = np.lib.stride_tricks.sliding_window_view(noisy, _WINDOW, axis=1)
    sums = windows.sum(axis=2)
    best = np.argmax(sums, axis=1)
    is_seen = sums.max(axis=1) > _SIGNIFICANT * math.sqrt(_WINDOW) * stddev
    held = np.maximum(windows[np.arange(num_columns), best], 0.0)
    steps = held @ np.arange(_WINDOW) / np.maximum(held.sum(axis=1), 1e-9)
    # The geometric mean is half a bin above lower edges, and the size half a bin more.
    sizes = np.exp2(_FIRST + 1.0 + best + steps)
    return np.where(is_seen, sizes, 1.0), np.where(is_seen, sums.max(axis=1), 0.0)


def _noisy(key: Key, values: np.ndarray, stddev: float) -> np.ndarray:
    # Counts are exact in float32 up to 2^24, and err by less than noise beyond it.
    value = np.minimum(values, 2.0**24).astype(np.float32)
    return np.asarray(gaussian(key, value, stddev=stddev * ROUNDED_UP), np.float64)
