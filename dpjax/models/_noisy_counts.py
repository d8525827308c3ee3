"""Noisy counts of records, and what follows from them, with its uncertainty."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._rounding import ROUNDED_UP
from dpjax._types import Key
from dpjax.mechanisms import gaussian

_NUM_RESAMPLES = 200
WIDTH = 1.96  # standard deviations: 95 per cent of a normal law


class Interval(NamedTuple):
    """A released number, with 95 per cent bounds for sampling and noise together."""

    value: float
    low: float
    high: float


class Measure(NamedTuple):
    """One measure, of the model and of the constant beside it.

    Attributes:
        name: with its unit.
        model: of the model.
        constant: of a prediction that is the same for all records.
    """

    name: str
    model: Interval
    constant: Interval


class Release:
    """Adds Gaussian noise to sums of whole numbers, which float64 holds exactly."""

    def __init__(self, key: Key, multiplier: float):
        self.keys = iter(jax.random.split(key))
        self.multiplier = multiplier

    def __call__(
        self, sums: np.ndarray, sensitivity: float
    ) -> tuple[np.ndarray, float]:
        """Returns the noisy sums, and the standard deviation of the noise."""
        stddev = self.multiplier * sensitivity * ROUNDED_UP
        noise = gaussian(next(self.keys), jnp.zeros(sums.shape), stddev=stddev)
        return sums + np.asarray(noise, np.float64), stddev


def interval_of(
    statistic: Callable[[np.ndarray], float],
    counts: np.ndarray,
    num_samples: int,
    stddev: float,
) -> Interval:
    """Returns a statistic of noisy counts, and bounds from counts drawn like them.

    Drawing uses what is released alone, hence costs nothing.
    """
    rng = np.random.default_rng(0)
    # Counts of mostly noise are taken as empty: cut at zero, they would add up.
    shares = np.where(counts > 2 * stddev, counts, 0.0).ravel()
    if shares.sum() <= 0:
        shares = np.ones(counts.size)
    drawn = rng.multinomial(num_samples, shares / shares.sum(), _NUM_RESAMPLES)
    noisy = drawn + stddev * rng.standard_normal(drawn.shape)
    spread = float(
        np.std(
            [
                statistic(adding_up(one.reshape(counts.shape), num_samples))
                for one in noisy
            ]
        )
    )
    value = float(statistic(adding_up(counts, num_samples)))
    return Interval(value, value - WIDTH * spread, value + WIDTH * spread)


def adding_up(counts: np.ndarray, num_samples: int) -> np.ndarray:
    """Returns noisy counts that add up to the public number of records."""
    return counts + (num_samples - counts.sum()) / counts.size
