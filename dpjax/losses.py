"""Losses of a linear predictor, per example: `loss_fn(params, example) -> scalar`.

Everywhere `params` is the weight vector w, shape (d,), and `example` is the pair
(x, y) of a feature vector, shape (d,), and a scalar target; a column of ones among the
features serves as the intercept. `jax.vmap(loss_fn, (None, 0))` takes a data set.

No value of the data raises. Gradients are finite for finite data, as long as <w, x> and
the product of a feature and the residual stay within the range of the dtype.

A loss that a factory makes compares and hashes by its hyperparameters, so `huber(1.0)`
may be a static argument of `jax.jit` without compiling anew at each call.
"""

from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._types import LossFn, PyTree, Scalar

__all__ = ["absolute", "biweight", "huber", "logistic", "regularized", "squared"]


def squared(params: PyTree, example: PyTree) -> jax.Array:
    """Squared loss of linear regression.

    (<w, x> - y)^2 / 2, whose gradient is the x (<w, x> - y) of the papers; they print
    the loss without the half.

    Args:
        params: weights, shape (d,).
        example: pair (features of shape (d,), scalar target).

    Returns:
        The loss of this example, a scalar.

    Example:
        >>> import jax.numpy as jnp
        >>> float(squared(jnp.ones(2), (jnp.array([1.0, 2.0]), 1.0)))
        2.0

    Reference:
        004, section 4 (LASSO).
    """
    prediction, target = _predict(params, example)
    return 0.5 * (prediction - target) ** 2


def absolute(params: PyTree, example: PyTree) -> jax.Array:
    """Absolute loss of l1 regression.

    |<w, x> - y|, with 0 as the subgradient where the residual is zero.

    Args:
        params: weights, shape (d,).
        example: pair (features of shape (d,), scalar target).

    Returns:
        The loss of this example, a scalar.

    Example:
        >>> import jax.numpy as jnp
        >>> float(absolute(jnp.ones(2), (jnp.array([1.0, 2.0]), 5.0)))
        2.0

    Reference:
        000, section 1.
    """
    prediction, target = _predict(params, example)
    return jnp.abs(prediction - target)


def logistic(params: PyTree, example: PyTree) -> jax.Array:
    """Logistic loss for labels in {-1, +1}.

    log(1 + exp(-y <w, x>)), evaluated without overflow. A label outside {-1, +1}
    weighs the margin and raises nothing.

    Args:
        params: weights, shape (d,).
        example: pair (features of shape (d,), label -1 or +1).

    Returns:
        The loss of this example, a scalar.

    Example:
        >>> import jax.numpy as jnp
        >>> round(float(logistic(jnp.zeros(2), (jnp.ones(2), 1.0))), 4)
        0.6931

    Reference:
        001, section 6.
    """
    prediction, label = _predict(params, example)
    return jax.nn.softplus(-label * prediction)


def huber(threshold: Scalar) -> LossFn:
    """Makes the Huber loss: quadratic near zero, linear beyond the threshold.

    With s = <w, x> - y and threshold c: s^2 / 2 where |s| <= c, else c |s| - c^2 / 2.

    Args:
        threshold: c, in units of the target, positive.

    Returns:
        A per-example loss.

    Raises:
        ValueError: if the threshold is not positive and finite.

    Example:
        >>> import jax.numpy as jnp
        >>> float(huber(1.0)(jnp.ones(1), (jnp.array([3.0]), 0.0)))
        2.5

    Reference:
        P. J. Huber, Robust estimation of a location parameter (1964).
    """
    return _Huber(threshold)


def biweight(threshold: Scalar) -> LossFn:
    """Makes Tukey's biweight loss of robust regression, bounded and not convex.

    With s = <w, x> - y and threshold c: (c^2 / 6) (1 - (1 - (s/c)^2)^3) where |s| <= c,
    else c^2 / 6. Near zero it is s^2 / 2; beyond c its gradient is zero.

    Args:
        threshold: c, in units of the target, positive.

    Returns:
        A per-example loss.

    Raises:
        ValueError: if the threshold is not positive and finite.

    Example:
        >>> import jax.numpy as jnp
        >>> float(biweight(3.0)(jnp.ones(1), (jnp.array([9.0]), 0.0)))
        1.5

    Reference:
        004, section 4, footnote 4 (robust regression, Theorem 3).
    """
    return _Biweight(threshold)


def regularized(loss_fn: LossFn, l2: Scalar) -> LossFn:
    """Adds a squared l2 penalty to every example's loss.

    loss_fn(w, z) + (l2 / 2) ||w||^2, the norm taken over all leaves of `params`.
    `regularized(logistic, l2)` is regularised logistic regression,
    `regularized(squared, l2)` ridge regression.

    Args:
        loss_fn: per-example loss.
        l2: strength of the penalty, zero or above.

    Returns:
        A per-example loss.

    Raises:
        ValueError: if l2 is negative or not finite.

    Example:
        >>> import jax.numpy as jnp
        >>> loss_fn = regularized(logistic, l2=0.5)
        >>> round(float(loss_fn(jnp.array([2.0]), (jnp.zeros(1), 1.0))), 4)
        1.6931
        >>> regularized(squared, 1.0) == regularized(squared, 1.0)  # compiled once
        True

    Reference:
        001, section 6; 004, section 6.5.
    """
    return _Regularized(loss_fn, l2)


@dataclass(frozen=True)
class _Huber:
    threshold: Scalar

    def __post_init__(self) -> None:
        _validate.positive(threshold=self.threshold)

    def __call__(self, params: PyTree, example: PyTree) -> jax.Array:
        prediction, target = _predict(params, example)
        residual = prediction - target
        inner = jnp.clip(residual, -self.threshold, self.threshold)
        excess = jnp.abs(residual) - jnp.abs(inner)
        return 0.5 * inner**2 + self.threshold * excess


@dataclass(frozen=True)
class _Biweight:
    threshold: Scalar

    def __post_init__(self) -> None:
        _validate.positive(threshold=self.threshold)

    def __call__(self, params: PyTree, example: PyTree) -> jax.Array:
        prediction, target = _predict(params, example)
        # Clipped before it is squared, a huge residual neither overflows nor leaves a
        # NaN in the gradient of a branch that is not taken.
        ratio = jnp.clip((prediction - target) / self.threshold, -1.0, 1.0)
        return (self.threshold**2 / 6) * (1 - (1 - ratio**2) ** 3)


@dataclass(frozen=True)
class _Regularized:
    loss_fn: LossFn
    l2: Scalar

    def __post_init__(self) -> None:
        _validate.non_negative(l2=self.l2)

    def __call__(self, params: PyTree, example: PyTree) -> jax.Array:
        penalty = optax.tree.norm(params, squared=True)
        return self.loss_fn(params, example) + 0.5 * self.l2 * penalty


def _predict(params: PyTree, example: PyTree) -> tuple[jax.Array, jax.Array]:
    """Returns <w, x>, and the target in its dtype, so that integer labels will do."""
    weights = cast(jax.Array, params)
    features, target = cast(tuple[jax.Array, jax.Array], example)
    prediction = jnp.dot(features, weights)
    return prediction, jnp.asarray(target, prediction.dtype)
