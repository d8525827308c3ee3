"""Strategies of correlated noise: lower triangular matrices C, with noise C^-1 z.

Step t adds row t of C^-1 z, where z has independent Gaussian rows. All steps together
release C^-1 (C g + z), where row t of g is the mean of step t. So they are as private
as the Gaussian mechanism on C g (`docs/privacy/proofs/composition.md`, 3.9).

If a record enters k steps, at least b apart, and moves g by at most 1 in each, then a
Toeplitz C whose coefficients c are non-negative and do not increase has

    sensitivity^2 = sum_(t < T) (sum_(l < k) c_(t - l b))^2.                        (1)

Rounding. Coefficients are float32 numbers, so C is the matrix that the code uses. Row
x_t is computed from z_t and earlier rows x with an error of a few roundings of these
numbers, which is equivalent to an error of z_t. So the errors of banded noise do not
grow with T (with buffers of slow decay they add up, to at most T 2^-24 of a buffer). As
for independent noise, guarantees are for real numbers: see `dpjax.mechanisms`.
"""

import abc
import contextlib
import dataclasses
import math

import jax
import numpy as np
import scipy.linalg

from dpjax import _validate
from dpjax._lazy import optional
from dpjax._types import PyTree

# This exceeds the rounding of a float64 sum of T squares, and of its root.
ROUNDED_UP = 2.0**-30


@dataclasses.dataclass(frozen=True)
class Strategy(abc.ABC):
    """A matrix C that correlates the noise of T steps: step t adds row t of C^-1 z.

    C is a lower triangular Toeplitz matrix, with ones on the diagonal and coefficients
    that do not increase; z has rows of independent noise.
    """

    num_steps: int

    @property
    @abc.abstractmethod
    def num_bands(self) -> int:
        """The number of diagonals of C that may be nonzero."""

    @property
    @abc.abstractmethod
    def num_buffers(self) -> int:
        """The number of trees like the parameters in the state of the noise."""

    @abc.abstractmethod
    def toeplitz(self) -> np.ndarray:
        """Returns the first column of C, float64 of shape (T,)."""

    def matrix(self) -> np.ndarray:
        """Returns C, float64 of shape (T, T)."""
        return np.tril(scipy.linalg.toeplitz(self.toeplitz()))

    def sensitivity(
        self, *, max_participations: int = 1, min_separation: int = 1
    ) -> float:
        """Returns the l2 sensitivity of C g if one record moves g_t by at most 1.

        C is this matrix, which correlates the noise, and g_t the mean of step t. The
        result is exact, but for being rounded up.

        Args:
            max_participations: the most steps that one record may enter.
            min_separation: the least distance between two steps of one record; 1 if
                they may be consecutive.
        """
        _validate.count(max_participations=max_participations)
        _validate.count(min_separation=min_separation)
        # By (1) of this module the worst record enters steps 0, min_separation, .. and
        # moves the mean of each by 1.
        num = min(max_participations, -(-self.num_steps // min_separation))
        column = self.toeplitz()
        total = np.zeros(self.num_steps)
        for first in range(0, num * min_separation, min_separation):
            total[first:] += column[: self.num_steps - first]
        return math.sqrt(total @ total) * (1 + ROUNDED_UP)

    @abc.abstractmethod
    def next_noise(
        self, noise: PyTree, buffers: tuple[PyTree, ...], step: jax.Array
    ) -> tuple[PyTree, tuple[PyTree, ...]]:
        """Returns row `step` of C^-1 z, the noise of the step, and the next buffers.

        Args:
            noise: row `step` of z, a pytree of independent Gaussian noise.
            buffers: buffers from the previous step; zeros like noise in the first step.
            step: 0 to T - 1.
        """


@dataclasses.dataclass(frozen=True)
class BandedToeplitz(Strategy):
    """A Toeplitz matrix with few bands, C_ij = c_(i - j).

    The state of its noise is num_bands - 1 trees like the parameters. If two steps of a
    record are at least num_bands apart, their columns do not overlap, and sampling with
    `CyclicPoisson` reduces the privacy cost.

    Attributes:
        num_steps: T.
        coefficients: c_0 to c_(b - 1), divided by c_0 and rounded to float32:
            non-negative and non-increasing.

    Example:
        >>> strategy = BandedToeplitz(4, (1.0, 0.5))
        >>> print(strategy.matrix())
        [[1.  0.  0.  0. ]
         [0.5 1.  0.  0. ]
         [0.  0.5 1.  0. ]
         [0.  0.  0.5 1. ]]
        >>> round(strategy.sensitivity(max_participations=2, min_separation=2), 3)
        1.581

    Reference:
        Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu (2023),
        "(Amplified) banded matrix factorization".
    """

    coefficients: tuple[float, ...]

    def __post_init__(self):
        """Checks the coefficients; stores them in float32, divided by the first."""
        _validate.count(num_steps=self.num_steps)
        given = np.asarray(self.coefficients, np.float64)
        rule = f"1 to {self.num_steps} finite numbers, the first of them positive"
        is_fine = given.ndim == 1 and 1 <= len(given) <= self.num_steps
        is_fine = is_fine and bool(np.all(np.isfinite(given)) and given[0] > 0)
        _validate.require(is_fine, "coefficients", self.coefficients, rule)
        scaled = (given / given[0]).astype(np.float32)
        rule = "non-negative, and none larger than the one before it"
        is_fine = bool(np.all(np.diff(scaled) <= 0) and scaled[-1] >= 0)
        _validate.require(is_fine, "coefficients", self.coefficients, rule)
        object.__setattr__(self, "coefficients", tuple(map(float, scaled)))

    @classmethod
    def square_root(cls, num_steps: int, num_bands: int) -> "BandedToeplitz":
        """Returns a strategy: the first bands of the prefix-sum matrix's square root.

        Example:
            >>> BandedToeplitz.square_root(num_steps=100, num_bands=3).coefficients
            (1.0, 0.5, 0.375)

        Reference:
            Kalinin, Lampert (2024), "Banded square root matrix factorization for
            differentially private model training".
        """
        _check_bands(num_steps, num_bands)
        k = np.arange(1, num_bands)
        return cls(num_steps, (1.0, *np.cumprod((2 * k - 1) / (2 * k))))

    @classmethod
    def optimal(cls, num_steps: int, num_bands: int) -> "BandedToeplitz":
        """Returns the strategy of the smallest mean squared error of prefix sums.

        jax_privacy computes its bands in seconds, without data, for records whose steps
        are num_bands apart; num_bands is at most num_steps.

        Raises:
            ValueError: If num_bands is not in 1, ..., num_steps.
            ImportError: Without `pip install "dpjax[correlated]"` (jax_privacy).

        Reference:
            McKenna (2024), "Scaling up the banded matrix factorization mechanism for
            differentially private ML".
        """
        _check_bands(num_steps, num_bands)
        with _settings_of_jax_privacy():
            from jax_privacy.matrix_factorization import toeplitz

            bands = toeplitz.optimize_banded_toeplitz(num_steps, num_bands)
            bands = np.asarray(bands, np.float64)
        # The computed optimum may increase slightly.
        return cls(num_steps, tuple(np.minimum.accumulate(np.maximum(bands, 0))))

    @property
    def num_bands(self) -> int:
        return len(self.coefficients)

    @property
    def num_buffers(self) -> int:
        return self.num_bands - 1

    def toeplitz(self) -> np.ndarray:
        return np.pad(self.coefficients, (0, self.num_steps - self.num_bands))

    def next_noise(self, noise, buffers, step):
        """Returns a step's noise x_t = z_t - sum_(j >= 1) c_j x_(t - j), and last x."""
        # z is the independent noise of the steps, x their correlated noise C^-1 z.
        solved = _less(noise, self.coefficients[1:], buffers)
        return solved, (solved, *buffers)[: self.num_buffers]


@dataclasses.dataclass(frozen=True)
class BufferedToeplitz(Strategy):
    """A Toeplitz matrix from few buffers: c_0 = 1, c_t = sum_i s_i d_i^(t-1).

    The state of its noise is one tree like the parameters for each buffer. All bands of
    C may be nonzero, so sampling of batches does not reduce the privacy cost.

    Attributes:
        num_steps: T.
        decays: d_i in [0, 1], rounded to float32.
        scales: s_i >= 0, one for each decay, rounded to float32; their sum is at most
            1.

    Example:
        >>> strategy = BufferedToeplitz(4, decays=(0.5,), scales=(0.5,))
        >>> print(strategy.matrix()[:, 0])
        [1.    0.5   0.25  0.125]

    Reference:
        Dvijotham et al. (2024), "Efficient and near-optimal noise generation for
        streaming differential privacy"; McMahan, Xu, Zhang (2024), "A hassle-free
        algorithm for strong differential privacy in federated learning systems".
    """

    decays: tuple[float, ...]
    scales: tuple[float, ...]

    def __post_init__(self):
        """Checks decays and scales, and stores them rounded to float32."""
        _validate.count(num_steps=self.num_steps)
        for name in ("decays", "scales"):
            given = getattr(self, name)
            numbers = np.asarray(given, np.float64).astype(np.float32)
            rule = "numbers between 0 and 1, at least one, as many decays as scales"
            is_fine = numbers.ndim == 1 and len(numbers) == len(self.decays) >= 1
            is_fine = is_fine and bool(np.all((numbers >= 0) & (numbers <= 1)))
            _validate.require(is_fine, name, given, rule)
            object.__setattr__(self, name, tuple(map(float, numbers)))
        rule = "at most 1 in sum, so that coefficients do not increase"
        _validate.require(math.fsum(self.scales) <= 1, "scales", self.scales, rule)

    @classmethod
    def optimal(
        cls, num_steps: int, *, max_participations: int = 1, min_separation: int = 1
    ) -> "BufferedToeplitz":
        """Returns the strategy of the smallest maximal squared error of prefix sums.

        jax_privacy computes its decays and scales in seconds to minutes, and chooses
        their number. The arguments are as for `sensitivity`.

        Raises:
            ValueError: If a count is not positive.
            ImportError: Without `pip install "dpjax[correlated]"` (jax_privacy).

        Reference:
            McMahan, Xu, Zhang (2024), Section 4.
        """
        most, apart = max_participations, min_separation
        _validate.count(num_steps=num_steps)
        _validate.count(max_participations=most, min_separation=apart)
        with _settings_of_jax_privacy():
            from jax_privacy.matrix_factorization import buffered_toeplitz

            sizes = {"n": num_steps, "min_sep": apart, "max_participations": most}
            strategy = buffered_toeplitz.optimize(**sizes, min_buffers=1)
            decays = np.asarray(strategy.buf_decay)
            scales = np.asarray(strategy.output_scale)
        # Rounding to float32 may raise the sum above 1.
        scales = scales / max(1.0, math.fsum(scales) * (1 + 2.0**-20))
        return cls(num_steps, tuple(np.minimum(decays, 1.0)), tuple(scales))

    @property
    def num_bands(self) -> int:
        return self.num_steps

    @property
    def num_buffers(self) -> int:
        return len(self.decays)

    def toeplitz(self) -> np.ndarray:
        powers = np.arange(self.num_steps - 1)[:, None]
        later = (np.asarray(self.decays) ** powers) @ np.asarray(self.scales)
        return np.concatenate([[1.0], later])

    def next_noise(self, noise, buffers, step):
        """Returns a step's noise, x_t = z_t - s . m for buffers m, and new buffers."""
        # z is the independent noise, x the correlated noise C^-1 z; s are scales, d
        # decays; new buffers are d m + x_t.
        solved = _less(noise, self.scales, buffers)
        return solved, tuple(
            jax.tree.map(lambda m, x, decay=decay: decay * m + x, old, solved)
            for decay, old in zip(self.decays, buffers, strict=True)
        )


def _less(
    noise: PyTree, factors: tuple[float, ...], buffers: tuple[PyTree, ...]
) -> PyTree:
    """Returns the noise minus each buffer times its factor, as a row of C^-1 needs."""

    def solve(z: jax.Array, *old: jax.Array) -> jax.Array:
        for factor, x in zip(factors, old, strict=True):
            z = z - factor * x
        return z

    return jax.tree.map(solve, noise, *buffers)


def _check_bands(num_steps: int, num_bands: int) -> None:
    _validate.count(num_steps=num_steps, num_bands=num_bands)
    is_fine = num_bands <= num_steps
    _validate.require(is_fine, "num_bands", num_bands, f"at most {num_steps=}")


@contextlib.contextmanager
def _settings_of_jax_privacy():
    """Turns JAX's strict checks off in a `with` block, as jax_privacy needs them."""
    # It raises `ImportError`, with a hint, if jax_privacy is not installed.
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.debug_key_reuse(False),
    ):
        name, need = "jax_privacy.matrix_factorization", "strategies need jax_privacy"
        optional(name, f"optimal {need}", "correlated")
        yield
