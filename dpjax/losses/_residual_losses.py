"""Losses of the residual <w, x> - y: squared, absolute, Huber's, Tukey's biweight."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._types import ArrayLike, Scalar
from dpjax.losses._linear_loss import LinearLoss, like
from dpjax.losses._margin_loss import logistic


@dataclass(frozen=True)
class _Squared(LinearLoss):
    """Squared loss of linear regression, (<w, x> - y)^2 / 2: L = inf and c = 1.

    The papers have the same gradient, but print the loss without the factor 1/2.

    Example:
        >>> import jax.numpy as jnp
        >>> float(squared(jnp.ones(2), (jnp.array([1.0, 2.0]), 1.0)))
        2.0

    Reference:
        004, section 4 (LASSO).
    """

    derivative_bound = math.inf
    curvature_bound = 1.0

    def value(self, predictions: jax.Array, targets: ArrayLike) -> jax.Array:
        return 0.5 * (predictions - like(targets, predictions)) ** 2

    def _derivative(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        return predictions - targets

    def _curvature(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        return jnp.ones_like(predictions)


squared = _Squared()


@dataclass(frozen=True)
class _Absolute(LinearLoss):
    """Absolute loss of l1 regression, |<w, x> - y|: L = 1 and c = inf.

    Its subgradient at residual zero is 0.

    Example:
        >>> import jax.numpy as jnp
        >>> float(absolute(jnp.ones(2), (jnp.array([1.0, 2.0]), 5.0)))
        2.0

    Reference:
        000, section 1.
    """

    derivative_bound = 1.0
    curvature_bound = math.inf

    def value(self, predictions: jax.Array, targets: ArrayLike) -> jax.Array:
        return jnp.abs(predictions - like(targets, predictions))

    def _derivative(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        return jnp.sign(predictions - targets)

    def _curvature(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        return jnp.zeros_like(predictions)


absolute = _Absolute()


def huber(threshold: Scalar) -> LinearLoss:
    """Makes the Huber loss: quadratic near zero, linear beyond the threshold.

    With s = <w, x> - y and threshold t > 0, in units of the target, the loss is s^2 / 2
    if |s| <= t, else t |s| - t^2 / 2. Its slope is at most L = t, its curvature c = 1.

    Example:
        >>> import jax.numpy as jnp
        >>> float(huber(1.0)(jnp.ones(1), (jnp.array([3.0]), 0.0)))
        2.5

    Reference:
        P. J. Huber, Robust estimation of a location parameter (1964).
    """
    return Huber(threshold)


@dataclass(frozen=True)
class Huber(LinearLoss):
    """The loss of `huber`; if `in_scales`, the threshold is in scales of residuals.

    Solvers that release a scale, such as `solvers.dp_linear_model`, then divide the
    residuals by this scale first: a threshold of 1.345 has 95 percent efficiency for
    normal errors of any size.
    """

    threshold: Scalar
    in_scales: bool = False

    curvature_bound = 1.0

    def __post_init__(self) -> None:
        _validate.positive(threshold=self.threshold)
        object.__setattr__(self, "derivative_bound", self.threshold)

    def value(self, predictions: jax.Array, targets: ArrayLike) -> jax.Array:
        residuals = predictions - like(targets, predictions)
        inner = jnp.clip(residuals, -self.threshold, self.threshold)
        excess = jnp.abs(residuals) - jnp.abs(inner)
        return 0.5 * inner**2 + self.threshold * excess

    def _derivative(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        return predictions - targets  # clipped to L, which is the threshold

    def _curvature(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        is_inner = jnp.abs(predictions - targets) <= self.threshold
        return is_inner.astype(predictions.dtype)


def biweight(threshold: Scalar) -> LinearLoss:
    """Makes Tukey's biweight loss of robust regression, bounded and not convex.

    With s = <w, x> - y and threshold t > 0, in units of the target, the loss is
    (t^2 / 6) (1 - (1 - (s/t)^2)^3) if |s| <= t, else t^2 / 6. Near zero it is about
    s^2 / 2; beyond t its gradient is zero. Its slope is at most L = 16 t / (25
    sqrt(5)), and its curvature c = 1.

    Example:
        >>> import jax.numpy as jnp
        >>> float(biweight(3.0)(jnp.ones(1), (jnp.array([9.0]), 0.0)))
        1.5

    Reference:
        004, section 4, footnote 4 (robust regression, Theorem 3).
    """
    return _Biweight(threshold)


@dataclass(frozen=True)
class _Biweight(LinearLoss):
    threshold: Scalar

    curvature_bound = 1.0  # at s = 0; the minimum is -4/5, at s^2 = 3 t^2 / 5
    is_convex = False

    def __post_init__(self) -> None:
        _validate.positive(threshold=self.threshold)
        # The derivative is largest at s = t / sqrt(5), where the curvature is zero.
        largest = 16 / (25 * math.sqrt(5)) * self.threshold
        object.__setattr__(self, "derivative_bound", largest)

    def value(self, predictions: jax.Array, targets: ArrayLike) -> jax.Array:
        squares = self._ratios(predictions, like(targets, predictions)) ** 2
        return (self.threshold**2 / 6) * (1 - (1 - squares) ** 3)

    def _derivative(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        ratios = self._ratios(predictions, targets)
        return self.threshold * ratios * (1 - ratios**2) ** 2

    def _curvature(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        squares = self._ratios(predictions, targets) ** 2
        return (1 - squares) * (1 - 5 * squares)

    def _ratios(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        # The ratio is clipped before it is squared, because the square of a huge ratio
        # would overflow, and its gradient would be NaN.
        return jnp.clip((predictions - targets) / self.threshold, -1.0, 1.0)


_LOSSES: dict[str, LinearLoss] = {
    "squared": squared,
    "logistic": logistic,
    # 1.345 has 95 percent efficiency for normal errors (Holland and Welsch 1977).
    "huber": Huber(1.345, in_scales=True),
}


def named(loss: str | LinearLoss) -> LinearLoss:
    """Returns the `LinearLoss` of the name "squared", "logistic" or "huber".

    A `LinearLoss` is returned as it is. The threshold of "huber" is 1.345 scales of the
    residuals (P. W. Holland, R. E. Welsch, Robust regression using iteratively
    reweighted least-squares, 1977).
    """
    if isinstance(loss, LinearLoss):
        return loss
    rule = " or ".join([*map(repr, _LOSSES), "a losses.LinearLoss"])
    _validate.require(isinstance(loss, str) and loss in _LOSSES, "loss", loss, rule)
    return _LOSSES[loss]
