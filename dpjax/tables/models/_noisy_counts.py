"""Noisy counts of records, and statistics of the counts with intervals.

Counts are integers. Their noise is discrete Gaussian, an integer in units of 2^-k. It
is exact in its tails and in its last bits, so these reveal nothing about a count. Sums
in float64 are exact below 2^52 units.

By (3) and (4) of `dpjax.accounting._discrete_gaussian`, d counts cost as much as with
Gaussian noise of the same standard deviation (s counts, or S units), except for 2 eta
in epsilon and e^eta in delta, where eta = d z^2 / (8 S^2). The mass beyond z = 30 is
below e^-420. The standard deviation is therefore multiplied by 1 + 2^-16 and by 1 + 4
eta m, with the noise multiplier m, which pays for both terms:
`docs/privacy/proofs/estimators.md`, 9.5.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from dpjax._types import Key, RandomBytes
from dpjax.mechanisms import discrete_gaussian

_RAISED = 1 + 2.0**-16
_FURTHEST = 30.0  # z in the module's docstring
_MOST_BITS = 20  # the largest k
_LARGEST_STDDEV = 2**25  # of one draw, in units; more noise is a sum of draws
_NUM_RESAMPLES = 200
WIDTH = 1.96  # standard deviations: 95 per cent of a normal law


class Interval(NamedTuple):
    """A released number, with 95 per cent bounds for sampling and noise together."""

    value: float
    low: float
    high: float


class Release:
    """Adds discrete Gaussian noise to sums of integers, exactly."""

    def __init__(self, key: Key, multiplier: float):
        self.keys = iter(jax.random.split(key))
        self.multiplier = multiplier

    def __call__(
        self, sums: np.ndarray, sensitivity: float
    ) -> tuple[np.ndarray, float]:
        """Returns the noisy sums, and the standard deviation of the noise."""
        stddev = self.multiplier * sensitivity * _RAISED
        # The unit is the finest in which the noise is not above the largest draw.
        bits = math.floor(math.log2(_LARGEST_STDDEV / max(stddev, 1e-300)))
        unit = 2.0 ** -min(max(bits, 0), _MOST_BITS)
        eta = sums.size * (_FURTHEST / max(stddev / unit, 1.0)) ** 2 / 8
        stddev *= 1 + 4 * eta * self.multiplier
        num_draws = max(1, math.ceil((stddev / unit / _LARGEST_STDDEV) ** 2))
        of_one = max(1, math.ceil(stddev / unit / math.sqrt(num_draws)))
        shape, source = (num_draws, *sums.shape), _random_bytes_of(next(self.keys))
        noise = discrete_gaussian(shape, stddev=of_one, random_bytes=source)
        noise = unit * noise.sum(axis=0)
        return sums + noise, unit * of_one * math.sqrt(num_draws)


def _random_bytes_of(key: Key) -> RandomBytes:
    """Returns a source of random bytes, which is as secret as the key."""
    left = b""

    def random_bytes(count: int) -> bytes:
        nonlocal key, left
        while len(left) < count:
            key, block = jax.random.split(key)
            left += np.asarray(jax.random.bits(block, (2048,), "uint32")).tobytes()
        first, left = left[:count], left[count:]
        return first

    return random_bytes


def interval_of(
    statistic: Callable[[np.ndarray], float],
    counts: np.ndarray,
    num_samples: int,
    stddev: float,
) -> Interval:
    """Returns a statistic of released counts, with bounds; it costs no privacy."""
    # The bounds are from a parametric bootstrap with the released counts as shares.
    rng = np.random.default_rng(0)
    # Counts that are mostly noise are set to zero. Clipped at zero, many of them would
    # have a large sum.
    shares = np.where(counts > 2 * stddev, counts, 0.0).ravel()
    if shares.sum() <= 0:
        shares = np.ones(counts.size)
    drawn = rng.multinomial(num_samples, shares / shares.sum(), _NUM_RESAMPLES)
    noisy = drawn + stddev * rng.standard_normal(drawn.shape)
    tables = (adding_up(x.reshape(counts.shape), num_samples) for x in noisy)
    spread = float(np.std([statistic(table) for table in tables]))
    value = float(statistic(adding_up(counts, num_samples)))
    return Interval(value, value - WIDTH * spread, value + WIDTH * spread)


def num_seen(num_missing: float, num_samples: int, stddev: float) -> float:
    """Returns the number of records with a target, from the noisy number without."""
    # A count that may be noise alone is taken as 0, so that a table without missing
    # targets gets no noise here.
    is_clear = num_missing > WIDTH * stddev
    return max(num_samples - num_missing * is_clear, 1.0)


def adding_up(counts: np.ndarray, num_samples: int) -> np.ndarray:
    """Returns noisy counts, shifted to add up to the public number of records."""
    return counts + (num_samples - counts.sum()) / counts.size
