"""Laws of paper 004 and 001 that its figures alone draw from."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import scipy.special

from dpjax import _validate
from dpjax._types import Key
from dpjax.datasets._laws import Law, LocationScale


class Laplace(LocationScale):
    """Laplace law, of density exp(-|x - location| / scale) / (2 scale); 004, 6.5.

    Example:
        >>> Laplace(scale=5.0).mean  # the Laplace(5) of 004
        0.0
    """

    def _sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        return self.location + self.scale * jax.random.laplace(key, shape)


class Logistic(LocationScale):
    """Logistic law of location u and scale s of 004, section 6.5."""

    def _sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        return self.location + self.scale * jax.random.logistic(key, shape)


class LogLogistic(LocationScale):
    """Log-logistic law: log x is logistic (001, section 6; 004, section 6.5).

    The law of 004 has location 0 and scale 1/c. From scale 1 on there is no mean.

    Example:
        >>> round(LogLogistic(location=0.2, scale=0.2).mean, 4)
        1.3056
        >>> LogLogistic(scale=1 / 0.1).mean  # c = 0.1 in 004
        inf
    """

    def _mean(self) -> float:
        if self.scale >= 1:
            return math.inf
        angle = math.pi * self.scale
        return math.exp(self.location) * angle / math.sin(angle)

    def _sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        return jnp.exp(self.location + self.scale * jax.random.logistic(key, shape))


@dataclass(frozen=True)
class LogGamma(Law):
    """Log-gamma law: e^x has the gamma law of the given concentration.

    The density is exp(c x - e^x) / Gamma(c). The paper (004, section 6.5) prints the
    exponential of a difference as a difference of exponentials, (e^(c x) - e^x) /
    Gamma(c), which is no density: with its c = 0.5 it is negative for x > 0.

    Example:
        >>> round(LogGamma(concentration=0.5).mean, 4)  # the digamma function at c
        -1.9635
    """

    concentration: float

    def __post_init__(self) -> None:
        _validate.positive(concentration=self.concentration)

    def _mean(self) -> float:
        return float(scipy.special.digamma(self.concentration))

    def _sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.loggamma(key, self.concentration, shape)
