"""Laws of features and noise, most of them heavy-tailed.

A law is a frozen dataclass of Python numbers. It compares and hashes by its parameters,
so it may be a static argument of `jax.jit`. Its samples are a pure function of the key.

Samples in float32 are limited in two ways. A draw beyond the range of float32 becomes
the largest number, so that samples are always finite, and no draw lies beyond the
quantile with a tail probability of about 1e-7. With `jax_enable_x64` neither limit
matters for data sets of any practical size.
"""

import abc
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._types import Key


class Law(abc.ABC):
    """A law of independent real numbers."""

    @property
    def mean(self) -> float:
        """The mean in closed form; inf or nan if there is no finite mean."""
        return self._mean()

    def sample(self, key: Key, shape: tuple[int, ...] = ()) -> jax.Array:
        """Draws independent samples, all finite, in JAX's default float type.

        A key that is not a single typed key raises `ValueError`.
        """
        _validate.typed_key(key)
        samples = self._sample(key, shape)
        largest = jnp.finfo(samples.dtype).max
        return jnp.clip(samples, -largest, largest)

    def centered(self) -> "Law":
        """Returns the law shifted to mean zero, as in paper 001, section 6.

        Raises:
            ValueError: If the mean is not finite, as for a Pareto law with tail_index
                1.
        """
        return _Centered(self)

    @abc.abstractmethod
    def _mean(self) -> float: ...

    @abc.abstractmethod
    def _sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array: ...


@dataclass(frozen=True)
class LocationScale(Law):
    """A law with a location, by default its mean, and a scale."""

    location: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        is_finite = math.isfinite(self.location)
        _validate.require(is_finite, "location", self.location, "finite")
        _validate.positive(scale=self.scale)

    def _mean(self) -> float:
        return self.location


class Normal(LocationScale):
    """Normal law; N(0, v) in 004 has scale sqrt(v).

    Args:
        location: the mean.
        scale: the standard deviation, positive.

    Example:
        >>> import jax
        >>> Normal(scale=5**0.5).sample(jax.random.key(0), (2, 3)).shape
        (2, 3)

    Reference:
        004, section 6.5.
    """

    def _sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        return self.location + self.scale * jax.random.normal(key, shape)


class LogNormal(LocationScale):
    """Log-normal law: log x is normal.

    Args:
        location: mean of log x, mu in 001.
        scale: standard deviation of log x, sigma in 001, positive. In 004 the second
            number of Lognormal(0, 0.6) is the variance, so that scale is sqrt(0.6).

    Example:
        >>> round(LogNormal(location=1.0, scale=1.0).mean, 4)  # e^(1 + 1/2)
        4.4817

    Reference:
        001, section 6; 004, section 6.3.
    """

    def _mean(self) -> float:
        try:
            return math.exp(self.location + self.scale**2 / 2)
        except OverflowError:
            return math.inf

    def _sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        return jnp.exp(self.location + self.scale * jax.random.normal(key, shape))


@dataclass(frozen=True)
class StudentT(Law):
    """Student's t law.

    Args:
        degrees_of_freedom: upsilon in 004, positive. Moments exist only of lower order
            than this.

    Example:
        >>> StudentT(degrees_of_freedom=10.0).mean
        0.0

    Reference:
        004, section 6.4; sampled as in Bailey (1994).
    """

    degrees_of_freedom: float

    def __post_init__(self) -> None:
        _validate.positive(degrees_of_freedom=self.degrees_of_freedom)

    def _mean(self) -> float:
        return 0.0 if self.degrees_of_freedom > 1 else math.nan

    def _sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        # A coordinate of the bivariate t law has Student's law, and its radius has the
        # closed form P(radius > r) = (1 + r^2/nu)^(-nu/2). This needs no rejection, so
        # it is many times faster than `jax.random.t`.
        radius_key, angle_key = jax.random.split(key)
        nu = self.degrees_of_freedom
        grown = jnp.expm1(2 / nu * jax.random.exponential(radius_key, shape))
        angle = jax.random.uniform(angle_key, shape, maxval=2 * math.pi)
        return jnp.sqrt(nu * grown) * jnp.cos(angle)


@dataclass(frozen=True)
class Pareto(Law):
    """Pareto law: P(X > x) = (scale / x)^tail_index for x >= scale.

    Args:
        tail_index: exponent of the tail, positive. Moments exist only of lower order
            than this, so 003, which bounds the (1 + v)-th moment, needs 1 + v <
            tail_index.
        scale: the smallest value, positive.

    Example:
        >>> Pareto(tail_index=1.5).mean
        3.0

    Reference:
        003, section 4 (bounded moments of order 1 + v).
    """

    tail_index: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        _validate.positive(tail_index=self.tail_index, scale=self.scale)

    def _mean(self) -> float:
        excess = max(self.tail_index - 1, 0.0)
        return self.scale * self.tail_index / excess if excess else math.inf

    def _sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        return self.scale * jax.random.pareto(key, self.tail_index, shape)


@dataclass(frozen=True, repr=False)
class _Centered(Law):
    law: Law

    def __repr__(self) -> str:
        return f"{self.law!r}.centered()"

    def __post_init__(self) -> None:
        is_finite = math.isfinite(self.law.mean)
        _validate.require(is_finite, "law", self.law, "a law with a finite mean")

    def _mean(self) -> float:
        return 0.0

    def _sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        return self.law.sample(key, shape) - self.law.mean
