"""Convex losses of labels, of two or K classes, with bounds for private solvers."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._types import ArrayLike
from dpjax.losses._linear_loss import LEAST_SHARE, LinearLoss, like


@dataclass(frozen=True)
class MarginLoss(LinearLoss):
    """A convex loss phi of the margin z = y <w, x>, defined by its derivative.

    The noise of a private minimizer depends on the bounds. The derivative is clipped to
    derivative_bound (and to at most zero if is_non_increasing), so this bound always
    holds. The caller must ensure that phi' increases, and no faster than declared: this
    is not checked.

    Labels are -1 and +1: a target above zero counts as +1, any other number, including
    0, as -1, and NaN as no label. Without labels, `derivative` and `curvature` take the
    predictions as margins.

    Attributes:
        derivative_fn: phi', from a scalar margin to a scalar, differentiable by JAX,
            such as `jax.grad(phi)`. It must never decrease, and be accurate to 16 units
            in the last place of L, for an error of the margin of 16 units in the last
            place of 1 + |z|.
        derivative_bound: L, a bound on |phi'|.
        curvature_bound: c, a Lipschitz constant of phi'.
        is_non_increasing: true if phi' <= 0 everywhere; less noise is then enough.
        value_fn: phi, from an array of margins to an array of losses. Without it, the
            loss and its `value` raise `ValueError` when called.

    Example:
        >>> MarginLoss.smoothed_hinge(width=0.5).curvature_bound
        1.0
        >>> import jax.numpy as jnp
        >>> pseudo_huber = MarginLoss(lambda z: (z - 1) / jnp.hypot(1.0, z - 1),
        ...                           derivative_bound=1.0, curvature_bound=1.0)

    Reference:
        Rajkumar, Agarwal (2012), Theorem 4.1; Chaudhuri, Monteleoni, Sarwate (2011),
        Corollaries 10 to 13, for `logistic` and `smoothed_hinge`.
    """

    derivative_fn: Callable[[jax.Array], jax.Array]
    derivative_bound: float
    curvature_bound: float
    is_non_increasing: bool = False
    value_fn: Callable[[jax.Array], jax.Array] | None = None

    target_range = (-1.0, 1.0)

    def __post_init__(self) -> None:
        for name in ("derivative_fn", "value_fn"):
            function = getattr(self, name)
            is_fine = callable(function) or (name == "value_fn" and function is None)
            _validate.require(is_fine, name, function, "callable")
        _validate.positive(derivative_bound=self.derivative_bound)
        _validate.positive(curvature_bound=self.curvature_bound)

    @classmethod
    def smoothed_hinge(cls, width: float = 0.5) -> "MarginLoss":
        """Makes the hinge loss of a support vector machine, smoothed by a parabola.

        At the margin z = y <w, x> the loss is 0 for z > 1 + h, (1 + h - z)^2 / (4h) for
        |1 - z| <= h, else 1 - z, where h = width > 0 is half the parabola's width. Its
        derivative is at most L = 1, and its curvature c = 1/(2h).
        """
        _validate.positive(width=width)
        derivative_fn, value_fn = _SmoothedHingeDerivative(width), _SmoothedHinge(width)
        return cls(derivative_fn, 1.0, 1 / (2 * width), True, value_fn)

    def value(self, predictions: jax.Array, targets: ArrayLike = 1.0) -> jax.Array:
        """Returns phi of each margin, or NaN where the label is NaN."""
        if self.value_fn is None:
            raise ValueError(f"value_fn must be given to evaluate {self!r}, got None.")
        values = self.value_fn(self._signs(targets, predictions) * predictions)
        return jnp.where(jnp.isnan(targets), jnp.nan, values)

    def derivative(self, predictions: jax.Array, targets: ArrayLike = 1.0) -> jax.Array:
        """Returns y phi' of each margin, within its bound; NaN counts as zero."""
        return super().derivative(predictions, targets)

    def curvature(self, predictions: jax.Array, targets: ArrayLike = 1.0) -> jax.Array:
        """Returns phi'' of each margin, within [0, c]; NaN counts as zero."""
        return super().curvature(predictions, targets)

    def targets_of(self, targets: jax.Array) -> jax.Array:
        """Maps targets above zero to +1, and all other targets, NaN too, to -1."""
        return jnp.where(targets > 0, jnp.ones_like(targets), -1.0)

    def constant_prediction(self, mean: ArrayLike) -> jax.Array:
        """Returns log(p / (1 - p)) for p = (1 + mean) / 2, between 1e-6 and 1 - 1e-6.

        This is the best constant for the logistic loss, and a good one for other phi.
        """
        share = jnp.clip((1 + jnp.asarray(mean)) / 2, LEAST_SHARE, 1 - LEAST_SHARE)
        return jnp.log(share) - jnp.log1p(-share)

    def mean_of(self, predictions: jax.Array) -> jax.Array:
        """Returns the logistic probability of +1 at each prediction."""
        return jax.nn.sigmoid(predictions)

    def _signs(self, targets: ArrayLike, predictions: jax.Array) -> jax.Array:
        return self.targets_of(like(targets, predictions))

    def _derivative(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        signs = self._signs(targets, predictions)
        slopes = jnp.vectorize(self.derivative_fn)(signs * predictions)
        upper = 0.0 if self.is_non_increasing else self.derivative_bound
        return signs * jnp.clip(slopes, -self.derivative_bound, upper)

    def _curvature(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        signs = self._signs(targets, predictions)
        return jnp.vectorize(jax.grad(self.derivative_fn))(signs * predictions)


class _Logistic(MarginLoss):
    """Logistic loss of two classes, log(1 + exp(-y <w, x>)): L = 1 and c = 1/4.

    A label above zero is the positive class, y = +1; any other label is y = -1.

    Example:
        >>> import jax.numpy as jnp
        >>> round(float(logistic(jnp.zeros(2), (jnp.ones(2), 1.0))), 4)
        0.6931
        >>> logistic.mean_of(jnp.array([0.0])).tolist()
        [0.5]

    Reference:
        001, section 6.
    """


def _logistic_derivative(margin: jax.Array) -> jax.Array:
    return -jax.nn.sigmoid(-margin)


def _logistic_value(margins: jax.Array) -> jax.Array:
    return jax.nn.softplus(-margins)


logistic = _Logistic(_logistic_derivative, 1.0, 0.25, True, _logistic_value)


@dataclass(frozen=True)
class _SmoothedHingeDerivative:
    width: float

    def __call__(self, margin: jax.Array) -> jax.Array:
        inner = jnp.clip(1 + self.width - margin, 0.0, 2 * self.width)
        return -inner / (2 * self.width)


@dataclass(frozen=True)
class _SmoothedHinge:
    width: float

    def __call__(self, margins: jax.Array) -> jax.Array:
        inner = jnp.clip(1 + self.width - margins, 0.0, 2 * self.width)
        beyond = jnp.maximum(1 - self.width - margins, 0.0)
        return inner**2 / (4 * self.width) + beyond


def softmax(num_classes: int) -> LinearLoss:
    """Makes the loss of multinomial logistic regression, for labels 0 to K - 1.

    The loss is log(sum_k exp(<w_k, x>)) - <w_y, x>, evaluated without overflow, with a
    column w_k of the parameters for each class. Its derivative p - e_y has l2 norm at
    most L = sqrt(2). Its curvature diag(p) - p p^T has operator norm at most c = 1/2,
    because the absolute values of a row sum to 2 p_k (1 - p_k).

    Labels are rounded to the nearest integer and clipped to 0 ... K - 1; NaN is none.

    Args:
        num_classes: K, at least 2; params have shape (d, K).

    Example:
        >>> import jax.numpy as jnp
        >>> loss = softmax(4)
        >>> round(float(loss(jnp.zeros((2, 4)), (jnp.ones(2), 3))), 4)
        1.3863
        >>> loss.mean_of(jnp.zeros((1, 4))).tolist()
        [[0.25, 0.25, 0.25, 0.25]]

    Reference:
        D. Böhning, Multinomial logistic regression algorithm (1992), for c.
    """
    return _Softmax(num_classes)


@dataclass(frozen=True)
class _Softmax(LinearLoss):
    num_classes: int

    derivative_bound = math.sqrt(2)
    curvature_bound = 0.5

    def __post_init__(self) -> None:
        _validate.count(num_classes=self.num_classes)
        is_fine = self.num_classes >= 2
        _validate.require(is_fine, "num_classes", self.num_classes, "at least 2")
        object.__setattr__(self, "num_outputs", self.num_classes)
        object.__setattr__(self, "target_range", (0.0, self.num_classes - 1.0))

    def value(self, predictions: jax.Array, targets: ArrayLike) -> jax.Array:
        chosen = jnp.sum(self._one_hot(predictions, targets) * predictions, axis=-1)
        values = jax.nn.logsumexp(predictions, axis=-1) - chosen
        return jnp.where(jnp.isnan(jnp.asarray(targets)), jnp.nan, values)

    def targets_of(self, targets: jax.Array) -> jax.Array:
        return jnp.round(super().targets_of(targets))

    def constant_prediction(self, mean: ArrayLike) -> jax.Array:
        shares = jnp.clip(jnp.asarray(mean), LEAST_SHARE, 1.0)
        logs = jnp.log(shares)
        return logs - logs.mean(axis=-1, keepdims=True)

    def mean_of(self, predictions: jax.Array) -> jax.Array:
        return jax.nn.softmax(predictions, axis=-1)

    def _derivative(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        return self._shares(predictions) - self._one_hot(predictions, targets)

    def _curvature(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        shares = self._shares(predictions)
        one_hot = jnp.eye(self.num_classes, dtype=shares.dtype)
        diagonal = jnp.einsum("...i,ij->...ij", shares, one_hot)
        return diagonal - shares[..., :, None] * shares[..., None, :]

    def _shares(self, predictions: jax.Array) -> jax.Array:
        # Infinities are clipped, because the difference of two infinities is NaN.
        most = jnp.finfo(predictions.dtype).max / 4
        return jax.nn.softmax(jnp.clip(predictions, -most, most), axis=-1)

    def _one_hot(self, predictions: jax.Array, targets: ArrayLike) -> jax.Array:
        labels = jnp.asarray(targets)
        if not jnp.issubdtype(labels.dtype, jnp.floating):
            labels = labels.astype("float32")
        labels = self.targets_of(labels).astype("int32")
        return jax.nn.one_hot(labels, self.num_classes, dtype=predictions.dtype)
