"""Strategies of correlated noise whose diagonals are constant."""

import contextlib
import dataclasses
import math

import jax
import numpy as np

from dpjax import _validate
from dpjax.mechanisms._strategy import Toeplitz


@dataclasses.dataclass(frozen=True)
class BandedToeplitz(Toeplitz):
    """A Toeplitz matrix with few bands, C_ij = c_(i - j).

    The state of its noise is num_bands - 1 trees like the parameters. If two steps of a
    record are at least num_bands apart, their columns do not overlap, and sampling with
    `CyclicPoisson` reduces the privacy cost.

    Attributes:
        num_steps: T.
        coefficients: c_0 to c_(b - 1), divided by c_0 and rounded to float32:
            non-negative and non-increasing.

    Raises:
        ValueError: If there are more than num_steps coefficients, or they are negative
            or increase.

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
        rule = "not negative, and none larger than the one before it"
        is_fine = bool(np.all(np.diff(scaled) <= 0) and scaled[-1] >= 0)
        _validate.require(is_fine, "coefficients", self.coefficients, rule)
        object.__setattr__(self, "coefficients", tuple(map(float, scaled)))

    @classmethod
    def square_root(cls, num_steps: int, num_bands: int) -> "BandedToeplitz":
        """Returns the first bands of the square root of the matrix of prefix sums.

        Args:
            num_steps: T.
            num_bands: b, at most T.

        Raises:
            ValueError: If num_bands is not in 1, ..., num_steps.

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
        """Returns coefficients for the smallest mean squared error of prefix sums.

        Computed by jax_privacy in seconds, without data, for steps of one record that
        are num_bands apart.

        Args:
            num_steps: T.
            num_bands: b, at most T.

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
        bands = np.minimum.accumulate(np.maximum(bands, 0))
        return cls(num_steps, tuple(bands))

    @property
    def num_bands(self) -> int:
        """See `Strategy.num_bands`: the number of coefficients."""
        return len(self.coefficients)

    @property
    def num_buffers(self) -> int:
        """See `Strategy.num_buffers`: num_bands - 1."""
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

        solved = jax.tree.map(solve, noise, *buffers)
        return solved, (solved, *buffers)[: self.num_buffers]


@dataclasses.dataclass(frozen=True)
class BufferedToeplitz(Toeplitz):
    """A Toeplitz matrix of a few decaying buffers: c_0 = 1, c_t = sum_i s_i d_i^(t-1).

    The state of its noise is one tree like the parameters for each buffer. All bands of
    C may be nonzero, so sampling of batches does not reduce the privacy cost.

    Attributes:
        num_steps: T.
        decays: d_i in [0, 1], rounded to float32.
        scales: s_i >= 0, one for each decay, rounded to float32; their sum is at most
            1.

    Raises:
        ValueError: If decays or scales violate these rules.

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
        rule = "at most 1 in sum, so that coefficients do not increase"
        _validate.require(math.fsum(self.scales) <= 1, "scales", self.scales, rule)

    @classmethod
    def optimal(
        cls, num_steps: int, *, max_participations: int = 1, min_separation: int = 1
    ) -> "BufferedToeplitz":
        """Returns buffers for the smallest maximal squared error of prefix sums.

        Computed by jax_privacy, which chooses their number for a pattern of
        participation, in seconds to minutes and without data.

        Args:
            num_steps: T.
            max_participations: as for `Strategy.sensitivity`.
            min_separation: as for `Strategy.sensitivity`.

        Raises:
            ValueError: If a count is not positive.
            ImportError: Without `pip install "dpjax[correlated]"` (jax_privacy).

        Reference:
            McMahan, Xu, Zhang (2024), Section 4.
        """
        _validate.count(
            num_steps=num_steps,
            max_participations=max_participations,
            min_separation=min_separation,
        )
        with _settings_of_jax_privacy():
            from jax_privacy.matrix_factorization import buffered_toeplitz

            strategy = buffered_toeplitz.optimize(
                n=num_steps,
                min_sep=min_separation,
                max_participations=max_participations,
                min_buffers=1,
            )
            decays = np.asarray(strategy.buf_decay)
            scales = np.asarray(strategy.output_scale)
        # Rounding to float32 may raise the sum above 1.
        scales = scales / max(1.0, math.fsum(scales) * (1 + 2.0**-20))
        return cls(num_steps, tuple(np.minimum(decays, 1.0)), tuple(scales))

    @property
    def num_bands(self) -> int:
        """See `Strategy.num_bands`: all."""
        return self.num_steps

    @property
    def num_buffers(self) -> int:
        return len(self.decays)

    def toeplitz(self) -> np.ndarray:
        """Returns the first column of C, float64 of shape (T,)."""
        powers = np.arange(self.num_steps - 1)[:, None]
        later = (np.asarray(self.decays) ** powers) @ np.asarray(self.scales)
        return np.concatenate([[1.0], later])

    def next_noise(self, noise, buffers, step):
        """See `Strategy.next_noise`: x_t = z_t - s . m, then m <- d m + x_t."""
        del step

        def solve(z: jax.Array, *old: jax.Array) -> jax.Array:
            for scale, m in zip(self.scales, old, strict=True):
                z = z - scale * m
            return z

        solved = jax.tree.map(solve, noise, *buffers)
        return solved, tuple(
            jax.tree.map(lambda m, x, decay=decay: decay * m + x, old, solved)
            for decay, old in zip(self.decays, buffers, strict=True)
        )


def _check_bands(num_steps: int, num_bands: int) -> None:
    _validate.count(num_steps=num_steps, num_bands=num_bands)
    is_fine = num_bands <= num_steps
    _validate.require(is_fine, "num_bands", num_bands, f"at most {num_steps} steps")


@contextlib.contextmanager
def _settings_of_jax_privacy():
    """Sets JAX as jax_privacy needs it; raises an error with a hint without it."""
    try:
        with (
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
            jax.debug_key_reuse(False),
        ):
            yield
    except ImportError as why:
        raise ImportError(
            'jax_privacy computes optimal strategies: pip install "dpjax[correlated]"'
        ) from why
