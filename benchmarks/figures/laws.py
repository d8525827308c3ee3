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
    """Laplace law, of density exp(-|x - location| / scale) / (2 scale); 004, 6.5."""

    def _sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        return self.location + self.scale * jax.random.laplace(key, shape)


class Logistic(LocationScale):
    """Logistic law of location u and scale s of 004, section 6.5."""

    def _sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        return self.location + self.scale * jax.random.logistic(key, shape)


class LogLogistic(LocationScale):
    """Log-logistic law: log x is logistic (001, section 6; 004, section 6.5).

    The law of 004 has location 0 and scale 1/c. From scale 1 on there is no mean.
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
    """Log-gamma law of density exp(c x - e^x) / Gamma(c), c the concentration.

    The paper (004, section 6.5) prints (e^(c x) - e^x) / Gamma(c), which is no density.
    """

    concentration: float

    def __post_init__(self) -> None:
        _validate.positive(concentration=self.concentration)

    def _mean(self) -> float:
        return float(scipy.special.digamma(self.concentration))

    def _sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.loggamma(key, self.concentration, shape)
