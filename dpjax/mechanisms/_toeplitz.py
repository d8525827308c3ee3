"""Strategies of correlated noise whose diagonals are constant."""

import dataclasses
import math

import jax
import numpy as np

from dpjax import _validate
from dpjax.mechanisms._optimal import optimal_bands, optimal_buffers
from dpjax.mechanisms._strategy import Toeplitz


@dataclasses.dataclass(frozen=True)
class BandedToeplitz(Toeplitz):
    """A Toeplitz matrix with few bands, C_ij = c_(i - j).

    Its noise keeps num_bands - 1 trees like the parameters. Where two steps of a record
    are num_bands apart at least, columns do not meet, and `CyclicPoisson` batches have
    their gain of privacy.

    Attributes:
        num_steps: T.
        coefficients: c_0 to c_(b - 1), divided by c_0 and rounded to float32: not
            negative, and none larger than the one before it.

    Raises:
        ValueError: where coefficients are more than num_steps, or not so.

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
        _validate.count(num_steps=self.num_steps)
        given = np.asarray(self.coefficients, np.float64)
        _validate.require(
            given.ndim == 1
            and 1 <= len(given) <= self.num_steps
            and bool(np.all(np.isfinite(given)) and given[0] > 0),
            "coefficients",
            self.coefficients,
            f"1 to {self.num_steps} finite numbers, one a step at most, the first "
            "positive",
        )
        scaled = (given / given[0]).astype(np.float32)
        _validate.require(
            bool(np.all(np.diff(scaled) <= 0) and scaled[-1] >= 0),
            "coefficients",
            self.coefficients,
            "not negative, and none larger than the one before it",
        )
        object.__setattr__(self, "coefficients", tuple(map(float, scaled)))

    @classmethod
    def square_root(cls, num_steps: int, num_bands: int) -> "BandedToeplitz":
        """Returns the first bands of the root of the matrix of prefix sums.

        Args:
            num_steps: T.
            num_bands: b, at most T.

        Raises:
            ValueError: where num_bands is not in 1, ..., num_steps.

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
        """Returns coefficients for the least mean squared error of prefix sums.

        Found by jax_privacy, for steps of one record that are num_bands apart. It does
        not look at data, and takes seconds.

        Args:
            num_steps: T.
            num_bands: b, at most T.

        Raises:
            ValueError: where num_bands is not in 1, ..., num_steps.
            ImportError: without `pip install "dpjax[correlated]"` (jax_privacy).

        Reference:
            McKenna (2024), "Scaling up the banded matrix factorization mechanism for
            differentially private ML".
        """
        _check_bands(num_steps, num_bands)
        found = optimal_bands(num_steps, num_bands)
        # To float32 and beyond: an optimum may rise by what the optimizer leaves.
        found = np.minimum.accumulate(np.maximum(np.asarray(found, np.float64), 0))
        return cls(num_steps, tuple(found))

    @property
    def num_bands(self) -> int:
        """See `Strategy.num_bands`: the number of coefficients."""
        return len(self.coefficients)

    @property
    def num_buffers(self) -> int:
        """See `Strategy.num_buffers`: a band less."""
        return self.num_bands - 1

    def toeplitz(self) -> np.ndarray:
        """Returns the first column of C, float64 of shape (T,)."""
        return np.pad(self.coefficients, (0, self.num_steps - self.num_bands))

    def next_noise(self, noise, buffers, step):
        """See `Strategy.next_noise`: x_t = z_t - sum_(j >= 1) c_j x_(t - j)."""
        del step

        def solve(z: jax.Array, *before: jax.Array) -> jax.Array:
            for c, x in zip(self.coefficients[1:], before, strict=True):
                z = z - c * x
            return z

        found = jax.tree.map(solve, noise, *buffers)
        return found, (found, *buffers)[: self.num_buffers]


@dataclasses.dataclass(frozen=True)
class BufferedToeplitz(Toeplitz):
    """A Toeplitz matrix by a few decaying buffers: c_0 = 1, c_t = sum_i s_i d_i^(t-1).

    Its noise keeps a tree like the parameters for each buffer, however many bands C
    has: all of them, so that batches have no gain from sampling.

    Attributes:
        num_steps: T.
        decays: d_i in [0, 1], rounded to float32.
        scales: s_i, not negative, one a decay, rounded to float32; their sum is at most
            1.

    Raises:
        ValueError: where decays and scales are not so.

    Example:
        >>> strategy = BufferedToeplitz(4, decays=(0.5,), scales=(0.5,))
        >>> print(strategy.matrix()[:, 0])
        [1.    0.5   0.25  0.125]

    Reference:
        Dvijotham, McMahan, Pillutla, Steinke, Thakurta (2024), "Efficient and
        near-optimal noise generation for streaming differential privacy"; McMahan, Xu,
        Zhang (2024), "A hassle-free algorithm for strong differential privacy in
        federated learning systems".
    """

    decays: tuple[float, ...]
    scales: tuple[float, ...]

    def __post_init__(self):
        _validate.count(num_steps=self.num_steps)
        for name in ("decays", "scales"):
            given = getattr(self, name)
            numbers = np.asarray(given, np.float64).astype(np.float32)
            _validate.require(
                numbers.ndim == 1
                and len(numbers) == len(self.decays) >= 1
                and bool(np.all((numbers >= 0) & (numbers <= 1))),
                name,
                given,
                "numbers between 0 and 1, at least one, as many decays as scales",
            )
            object.__setattr__(self, name, tuple(map(float, numbers)))
        _validate.require(
            math.fsum(self.scales) <= 1,
            "scales",
            self.scales,
            "at most 1 in sum, so that coefficients do not increase",
        )

    @classmethod
    def optimal(
        cls, num_steps: int, *, max_participations: int = 1, min_separation: int = 1
    ) -> "BufferedToeplitz":
        """Returns buffers for the least largest squared error of prefix sums.

        Found by jax_privacy, which chooses their number, for a pattern of
        participation. It does not look at data, and takes seconds to minutes.

        Args:
            num_steps: T.
            max_participations: of how many steps one record may be.
            min_separation: how many steps apart two of them are at least.

        Raises:
            ValueError: where a count is not positive.
            ImportError: without `pip install "dpjax[correlated]"` (jax_privacy).

        Reference:
            McMahan, Xu, Zhang (2024), Section 4.
        """
        _validate.count(
            num_steps=num_steps,
            max_participations=max_participations,
            min_separation=min_separation,
        )
        decays, scales = optimal_buffers(num_steps, max_participations, min_separation)
        # The last float32 digit may lift the sum above 1.
        scales = scales / max(1.0, math.fsum(scales) * (1 + 2.0**-20))
        return cls(num_steps, tuple(np.minimum(decays, 1.0)), tuple(scales))

    @property
    def num_bands(self) -> int:
        """See `Strategy.num_bands`: all."""
        return self.num_steps

    @property
    def num_buffers(self) -> int:
        """See `Strategy.num_buffers`."""
        return len(self.decays)

    def toeplitz(self) -> np.ndarray:
        """Returns the first column of C, float64 of shape (T,)."""
        powers = np.arange(self.num_steps - 1)[:, None]
        later = (np.asarray(self.decays) ** powers) @ np.asarray(self.scales)
        return np.concatenate([[1.0], later])

    def next_noise(self, noise, buffers, step):
        """See `Strategy.next_noise`: x_t = z_t - s . m, then m <- d m + x_t."""
        del step

        def solve(z: jax.Array, *kept: jax.Array) -> jax.Array:
            for scale, m in zip(self.scales, kept, strict=True):
                z = z - scale * m
            return z

        found = jax.tree.map(solve, noise, *buffers)
        return found, tuple(
            jax.tree.map(lambda m, x, decay=decay: decay * m + x, kept, found)
            for decay, kept in zip(self.decays, buffers, strict=True)
        )


def _check_bands(num_steps: int, num_bands: int) -> None:
    _validate.count(num_steps=num_steps, num_bands=num_bands)
    _validate.require(
        num_bands <= num_steps, "num_bands", num_bands, f"at most {num_steps} steps"
    )
