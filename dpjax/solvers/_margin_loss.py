"""Convex losses of a margin, with the bounds that perturbed objectives rest on."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _validate


@dataclass(frozen=True)
class MarginLoss:
    """A convex loss phi of the margin z = y <w, x>, told by its derivative.

    A loss without declared bounds has no noise that would make its minimiser private,
    so the bounds are part of it. The derivative is clipped to the declared bound (and
    to zero from above where it is declared non-increasing), so that this bound holds
    whatever is passed. That phi' grows, and no faster than declared, is taken on trust.

    Compares and hashes by its fields: one of a new lambda is compiled anew.

    Attributes:
        derivative_fn: phi', from a scalar margin to a scalar, differentiable by JAX;
            `jax.grad(phi)`, for instance. It must never decrease, and be
            evaluated to 16 units in the last place of L, at a margin that is off by
            16 units in the last place of 1 + |z|.
        derivative_bound: L, a bound on |phi'|.
        curvature_bound: c, a Lipschitz constant of phi'.
        is_non_increasing: whether phi' <= 0 everywhere; less noise is then enough.

    Raises:
        ValueError: where derivative_fn is not callable or a bound is not positive.

    Example:
        >>> MarginLoss.logistic().curvature_bound
        0.25
        >>> import jax.numpy as jnp
        >>> pseudo_huber = MarginLoss(lambda z: (z - 1) / jnp.hypot(1.0, z - 1),
        ...                           derivative_bound=1.0, curvature_bound=1.0)

    Reference:
        Rajkumar, Agarwal (2012), Theorem 4.1; Chaudhuri, Monteleoni, Sarwate (2011),
        Corollaries 10 to 13, for the two losses that are made here.
    """

    derivative_fn: Callable[[jax.Array], jax.Array]
    derivative_bound: float
    curvature_bound: float
    is_non_increasing: bool = False

    def __post_init__(self) -> None:
        _validate.require(
            callable(self.derivative_fn),
            "derivative_fn",
            self.derivative_fn,
            "callable",
        )
        _validate.positive(
            derivative_bound=self.derivative_bound,
            curvature_bound=self.curvature_bound,
        )

    @classmethod
    def logistic(cls) -> "MarginLoss":
        """The logistic loss log(1 + e^-z): L = 1, c = 1/4."""
        return cls(_logistic_derivative, 1.0, 0.25, is_non_increasing=True)

    @classmethod
    def smoothed_hinge(cls, width: float = 0.5) -> "MarginLoss":
        """The hinge of a support vector machine, smoothed by Huber's parabola.

        0 for z > 1 + h, (1 + h - z)^2 / (4h) for |1 - z| <= h, else 1 - z: L = 1 and
        c = 1/(2h).

        Args:
            width: h > 0, half the width of the parabola.

        Returns:
            The loss.

        Raises:
            ValueError: where the width is not positive.
        """
        _validate.positive(width=width)
        derivative_fn = _SmoothedHingeDerivative(width)
        return cls(derivative_fn, 1.0, 1 / (2 * width), is_non_increasing=True)

    def derivative(self, margins: jax.Array) -> jax.Array:
        """Returns phi' of each margin, within its bound; NaN counts as zero."""
        values = _elementwise(self.derivative_fn)(margins)
        upper = 0.0 if self.is_non_increasing else self.derivative_bound
        values = jnp.where(jnp.isnan(values), 0.0, values)
        return jnp.clip(values, -self.derivative_bound, upper)

    def curvature(self, margins: jax.Array) -> jax.Array:
        """Returns phi'' of each margin, within [0, c]; NaN counts as zero."""
        values = _elementwise(jax.grad(self.derivative_fn))(margins)
        values = jnp.where(jnp.isnan(values), 0.0, values)
        return jnp.clip(values, 0.0, self.curvature_bound)


def _logistic_derivative(margin: jax.Array) -> jax.Array:
    return -jax.nn.sigmoid(-margin)


@dataclass(frozen=True)
class _SmoothedHingeDerivative:
    width: float

    def __call__(self, margin: jax.Array) -> jax.Array:
        inner = jnp.clip(1 + self.width - margin, 0.0, 2 * self.width)
        return -inner / (2 * self.width)


def _elementwise(fn: Callable[[jax.Array], jax.Array]) -> Callable:
    return lambda x: jax.vmap(fn)(x.reshape(-1)).reshape(x.shape)
