"""Real vectors as integers on a grid, and what rounding adds to their sensitivity."""

import math
from dataclasses import dataclass

import numpy as np

from dpjax import _validate

# The grid is this fine against the noise. Then the discrete noise costs no more than
# the continuous one, and rounding nothing that could be seen: d/2 per 2^48 of the
# noise's variance.
_STEPS_PER_STDDEV = 2**24


@dataclass(frozen=True)
class Grid:
    """The multiples of a step within a bound.

    Attributes:
        step: the distance of neighbouring points, a power of two, in units of values.
        bound: no coordinate counts as larger than this; at most 2^52 steps.

    Raises:
        ValueError: where step is no power of two, or bound is out of its range.

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
        _validate.require(
            self.bound <= 2**52 * self.step,
            "bound",
            self.bound,
            f"at most 2^52 steps of {self.step:g}: there are too many records for the "
            "noise, or the noise is too small",
        )

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
        """The values that integers stand for, in float64."""
        return integers * self.step

    def sensitivity(self, l2_sensitivity: float, num_coordinates: int) -> float:
        """The l2 sensitivity after rounding, in steps.

        Sensitivity:
            Rounding moves a coordinate by at most half a step, and one float64 product
            before it by at most as much, 2^-53 of 2^52 steps: a step for each of two
            neighbours, in each of d coordinates, hence 2 sqrt(d) more. Clipping to the
            bound brings no two values farther apart.

        Example:
            >>> Grid(step=0.25, bound=100.0).sensitivity(1.0, 9)
            10.0
        """
        return l2_sensitivity / self.step + 2 * math.sqrt(num_coordinates)
