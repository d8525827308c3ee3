"""Strategies of correlated noise: lower triangular matrices C, noise C^-1 z.

Step t adds row t of C^-1 z, where z are independent Gaussian rows: what is released is
C^-1 (C g + z), g the rows of the steps' means, so that privacy is that of the Gaussian
mechanism on C g, and prefix sums of what is released have less noise than with C = I.
Steps may depend on those before (Denisov, McMahan, Rush, Smith, Thakurta 2022, Theorem
2.1).

One record moves row i of g by a vector u_i where it takes part, and else not. With
|u_i| <= 1 and X = C^T C,

    |C u|^2 = sum_ij X_ij <u_i, u_j> <= sum over its steps i, j of |X_ij|.          (1)

Toeplitz C has X_ij = sum_(s < T - j) c_s c_(s + j - i) for i <= j. Where its
coefficients c are not negative and do not increase, neither does X_ij increase with j
or j - i. So with steps b apart at least, of the k that a record enters the l-th is at
l b or later, l = 0, 1, ...; (1) is largest where all are as early and as near as can
be: at 0, b, ..., (k - 1) b, with all u_i the same. That is Theorem 2 of Kalinin,
Lampert (2024), and there

    sensitivity^2 = sum_(t < T) (sum_(l < k) c_(t - l b))^2.                        (2)

Rounding. Coefficients are float32 numbers, so that C is what the code uses, and x_t is
found from z_t and x before it: each x_t is off by a few units of rounding of the
numbers that make it up, which is as if z_t were. Errors of banded noise so do not grow
with T (of buffers with slow decay they add up, by T 2^-24 of a buffer at most). As for
independent noise, guarantees are for real numbers: see `dpjax.mechanisms`.
"""

import abc
import dataclasses
import math

import jax
import numpy as np

from dpjax import _validate
from dpjax._types import PyTree

# More than float64 sums of squares of T terms, and a root, are rounded down.
ROUNDED_UP = 2.0**-30


@dataclasses.dataclass(frozen=True)
class Strategy(abc.ABC):
    """A lower triangular matrix C with ones on the diagonal, of num_steps rows.

    Attributes:
        num_steps: T, the number of steps it is for.

    Example:
        >>> from dpjax.mechanisms import BandedToeplitz, BinaryTree
        >>> for strategy in BinaryTree(100), BandedToeplitz.square_root(100, 8):
        ...     print(strategy.num_bands, strategy.num_buffers,
        ...           round(strategy.sensitivity(), 2))
        64 7 2.65
        8 7 1.31
    """

    num_steps: int

    @property
    @abc.abstractmethod
    def num_bands(self) -> int:
        """The number of diagonals of C that may not be zero."""

    @abc.abstractmethod
    def matrix(self) -> np.ndarray:
        """Returns C, float64 of shape (T, T)."""

    @abc.abstractmethod
    def sensitivity(
        self, *, max_participations: int = 1, min_separation: int = 1
    ) -> float:
        """Returns the l2 sensitivity of C g, where one record moves g_t by 1 at most.

        Args:
            max_participations: of how many steps one record may be.
            min_separation: how many steps apart two of them are at least; 1 is next to
                each other.

        Returns:
            An upper bound, rounded up.

        Raises:
            ValueError: where a count is not positive.
        """

    @property
    @abc.abstractmethod
    def num_buffers(self) -> int:
        """How many trees like the parameters the noise keeps from step to step."""

    @abc.abstractmethod
    def next_noise(
        self, noise: PyTree, buffers: tuple[PyTree, ...], step: jax.Array
    ) -> tuple[PyTree, tuple[PyTree, ...]]:
        """Returns row `step` of C^-1 z, and the buffers for the next.

        Args:
            noise: row `step` of z, a pytree of arrays.
            buffers: what the last step returned; zeros like noise in the first.
            step: 0 to T - 1.
        """

    def _num_participations(self, max_participations: int, min_separation: int) -> int:
        """Returns how many steps of one record can be."""
        _validate.count(
            max_participations=max_participations, min_separation=min_separation
        )
        return min(max_participations, -(-self.num_steps // min_separation))


@dataclasses.dataclass(frozen=True)
class Toeplitz(Strategy):
    """A strategy with constant diagonals, none larger than the one before it."""

    @abc.abstractmethod
    def toeplitz(self) -> np.ndarray:
        """Returns the first column of C, float64 of shape (T,)."""

    def matrix(self) -> np.ndarray:
        """See `Strategy.matrix`."""
        column = np.concatenate([np.zeros(self.num_steps - 1), self.toeplitz()])
        windows = np.lib.stride_tricks.sliding_window_view(column, self.num_steps)
        return windows[:, ::-1].copy()

    def sensitivity(
        self, *, max_participations: int = 1, min_separation: int = 1
    ) -> float:
        """See `Strategy.sensitivity`: exact, by (2) of this module."""
        num = self._num_participations(max_participations, min_separation)
        column = self.toeplitz()
        total = np.zeros(self.num_steps)
        for first in range(0, num * min_separation, min_separation):
            total[first:] += column[: self.num_steps - first]
        return math.sqrt(total @ total) * (1 + ROUNDED_UP)
