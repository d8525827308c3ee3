"""Strategies of correlated noise: lower triangular matrices C, noise C^-1 z.

Step t adds row t of C^-1 z, where z has independent Gaussian rows. The steps release
C^-1 (C g + z), where row t of g is the mean of step t: the privacy is that of the
Gaussian mechanism on C g (`docs/privacy/proofs/composition.md`, 3.9).

One record moves row i of g by a vector u_i if it enters step i, and otherwise by zero.
With |u_i| <= 1 and X = C^T C,

    |C u|^2 = sum_ij X_ij <u_i, u_j> <= sum over its steps i, j of |X_ij|.          (1)

Toeplitz C has X_ij = sum_(s < T - j) c_s c_(s + j - i) for i <= j. If its coefficients
c are non-negative and do not increase, then X_ij does not increase with j or j - i.
Let a record enter k steps, at least b apart: step number l = 0, 1, ... of these is at
l b or later. So (1) is largest if they are as early and as close as possible, at 0, b,
..., (k - 1) b, with all u_i equal. This is Theorem 2 of Kalinin, Lampert (2024), and

    sensitivity^2 = sum_(t < T) (sum_(l < k) c_(t - l b))^2.                        (2)

Rounding. Coefficients are float32 numbers, so C is the matrix that the code uses. Row
x_t is computed from z_t and earlier rows x with an error of a few units of rounding of
these numbers, which is equivalent to an error of z_t. So the errors of banded noise do
not grow with T (with buffers of slow decay they add up, to at most T 2^-24 of a
buffer). As for independent noise, guarantees are for real numbers: see
`dpjax.mechanisms`.
"""

import abc
import dataclasses
import math

import jax
import numpy as np

from dpjax import _validate
from dpjax._types import PyTree

# More than the rounding of float64 sums of squares of T terms, and of a root.
ROUNDED_UP = 2.0**-30


@dataclasses.dataclass(frozen=True)
class Strategy(abc.ABC):
    """A lower triangular matrix C with ones on the diagonal, of num_steps rows.

    Attributes:
        num_steps: T, the number of steps.

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
        """The number of diagonals of C that may be nonzero."""

    @abc.abstractmethod
    def matrix(self) -> np.ndarray:
        """Returns C, float64 of shape (T, T)."""

    @abc.abstractmethod
    def sensitivity(
        self, *, max_participations: int = 1, min_separation: int = 1
    ) -> float:
        """Returns the l2 sensitivity of C g if one record moves g_t by at most 1.

        Args:
            max_participations: the most steps that one record may enter.
            min_separation: the least distance of two of them; 1 if they may be
                consecutive.

        Returns:
            An upper bound, rounded up.

        Raises:
            ValueError: If a count is not positive.
        """

    @property
    @abc.abstractmethod
    def num_buffers(self) -> int:
        """The number of trees like the parameters in the state of the noise."""

    @abc.abstractmethod
    def next_noise(
        self, noise: PyTree, buffers: tuple[PyTree, ...], step: jax.Array
    ) -> tuple[PyTree, tuple[PyTree, ...]]:
        """Returns row `step` of C^-1 z, and the buffers for the next.

        Args:
            noise: row `step` of z, a pytree of arrays.
            buffers: buffers from the previous step; zeros like noise in the first.
            step: 0 to T - 1.
        """

    def _num_participations(self, max_participations: int, min_separation: int) -> int:
        """Returns the most steps that one record can enter."""
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
