"""Real vectors rounded to integers on a grid, and their sensitivity after rounding."""

import math
from dataclasses import dataclass

import numpy as np

from dpjax import _validate

# With so many steps the discrete noise costs as much as the continuous one, and
# rounding is negligible: d/2 per 2^48 of the variance of the noise.
_STEPS_PER_STDDEV = 2**24


@dataclass(frozen=True)
class Grid:
    """The multiples of a step within a bound.

    Attributes:
        step: the distance of neighboring points, a power of two, in units of values.
        bound: coordinates are clipped to this; at most 2^52 steps.

    Raises:
        ValueError: If step is not a power of two, or bound is out of its range.

    Example:
        >>> grid = Grid(step=0.25, bound=100.0)
        >>> integers = grid.to_integers(np.array([1.1, np.nan, -np.inf]))
        >>> print(integers, grid.to_reals(integers))
        [   4    0 -400] [   1.    0. -100.]
    """

    step: float
    bound: float

    def __post_init__(self) -> None:
        _validate.positive(step=self.step, bound=self.bound)
        _validate.require(
            math.frexp(self.step)[0] == 0.5, "step", self.step, "a power of two"
        )
        rule = (
            f"at most 2^52 steps of {self.step:g}: there are too many records for the "
            "noise, or the noise is too small"
        )
        _validate.require(self.bound <= 2**52 * self.step, "bound", self.bound, rule)

    @classmethod
    def for_stddev(cls, stddev: float, *, bound: float) -> "Grid":
        """A grid with 2^24 steps or more, below 2^25, in a stddev of the noise.

        Example:
            >>> Grid.for_stddev(3.0, bound=10.0).step == 2.0**-23
            True
        """
        _validate.positive(stddev=stddev)
        _, exponent = math.frexp(stddev)
        return cls(math.ldexp(1.0, exponent - 1) / _STEPS_PER_STDDEV, bound)

    def to_integers(self, values: np.ndarray) -> np.ndarray:
        """Rounds float64 values; NaN counts as zero, larger ones as the bound."""
        values = np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf)
        values = np.clip(values, -self.bound, self.bound)
        return np.rint(values / self.step).astype(np.int64)

    def to_reals(self, integers: np.ndarray) -> np.ndarray:
        """Returns the float64 values of integers."""
        return integers * self.step

    def sensitivity(self, l2_sensitivity: float, num_coordinates: int) -> float:
        """The l2 sensitivity after rounding, in steps.

        Sensitivity:
            Rounding moves a coordinate by at most half a step, and so does the float64
            product before it, by 2^-53 of 2^52 steps: one step for each of two
            neighbors, in each of d coordinates, hence 2 sqrt(d) more. Clipping to the
            bound increases no distance.

        Example:
            >>> Grid(step=0.25, bound=100.0).sensitivity(1.0, 9)
            10.0
        """
        return l2_sensitivity / self.step + 2 * math.sqrt(num_coordinates)
