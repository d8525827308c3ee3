"""What every loss of a linear predictor has in common."""

import abc
import math
from typing import cast

import jax
import jax.numpy as jnp

from dpjax._types import ArrayLike, PyTree, Scalar

# Targets are held within this where a loss takes any number: their squares, and those
# of predictions as large, stay within the range of float32.
_MOST = 1e18
# Of a share that is none or all: the least that a prediction is made for.
LEAST_SHARE = 1e-6


class LinearLoss(abc.ABC):
    """A loss of a prediction eta = <w, x> and a target y.

    A subclass is a frozen dataclass of its hyperparameters. It declares the attributes
    below, and defines `value`, `_derivative` and `_curvature`, all elementwise. The
    methods take arrays of one shape, predictions and targets alike; of `softmax`,
    predictions have one more axis of `num_outputs` at the end.

    Attributes:
        derivative_bound: L, a bound on |derivative| for targets in the range, of its
            l2 norm where there are several outputs; `math.inf` where there is none.
        curvature_bound: c, a bound on |curvature| for targets in the range, that is, a
            Lipschitz constant of the derivative; of the Hessian's operator norm where
            there are several outputs; `math.inf` where there is none.
        is_convex: whether it is convex in the prediction.
        num_outputs: how many predictions an example has: 1, or K classes.
        target_range: the least and the largest target, or infinities.
        has_log_link: whether the mean is the exponential of the prediction, so that an
            offset is the logarithm of what the mean is in proportion to.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.losses import huber
        >>> loss = huber(1.5)
        >>> loss.derivative(jnp.array([0.0, 1.0, 9.0]), jnp.zeros(3)).tolist()
        [0.0, 1.0, 1.5]
        >>> loss.derivative_bound, loss.curvature_bound, loss.is_convex
        (1.5, 1.0, True)

    Reference:
        P. McCullagh, J. A. Nelder, Generalized linear models (1989), chapter 2.
    """

    derivative_bound: float
    curvature_bound: float
    is_convex: bool = True
    num_outputs: int = 1
    target_range: tuple[float, float] = (-math.inf, math.inf)
    has_log_link: bool = False

    def __call__(self, params: PyTree, example: PyTree) -> jax.Array:
        """Returns the loss of one example.

        Args:
            params: weights, shape (d,); (d, K) where there are K outputs.
            example: pair (features of shape (d,), scalar target).

        Returns:
            A scalar, in the dtype of <w, x>.
        """
        weights = cast(jax.Array, params)
        features, target = cast(tuple[jax.Array, jax.Array], example)
        return self.value(jnp.dot(features, weights), target)

    @abc.abstractmethod
    def value(self, predictions: jax.Array, targets: ArrayLike) -> jax.Array:
        """Returns the loss of each prediction, in the shape of the targets.

        It may overflow to an infinity, and is NaN where either is.
        """

    @abc.abstractmethod
    def _derivative(self, predictions: jax.Array, targets: jax.Array) -> jax.Array: ...

    @abc.abstractmethod
    def _curvature(self, predictions: jax.Array, targets: jax.Array) -> jax.Array: ...

    def derivative(self, predictions: jax.Array, targets: ArrayLike) -> jax.Array:
        """Returns the derivative in each prediction, in the shape of the predictions.

        Whatever is passed, it is finite and within its bound; NaN counts as zero.
        """
        slopes = self._derivative(predictions, like(targets, predictions))
        bound = like(self.derivative_bound, slopes)
        return jnp.clip(jnp.nan_to_num(slopes), -bound, bound)

    def curvature(self, predictions: jax.Array, targets: ArrayLike) -> jax.Array:
        """Returns the second derivative in each prediction, in their shape.

        Whatever is passed, it is finite and within [0, c], or [-c, c] where the loss is
        not convex; NaN counts as zero. Where there are K outputs, it is the Hessian,
        of shape (..., K, K).
        """
        values = self._curvature(predictions, like(targets, predictions))
        bound = like(self.curvature_bound, values)
        is_bent_one_way = self.is_convex and self.num_outputs == 1
        lowest = jnp.zeros_like(bound) if is_bent_one_way else -bound
        return jnp.clip(jnp.nan_to_num(values), lowest, bound)

    def targets_of(self, targets: jax.Array) -> jax.Array:
        """Maps any targets into the loss's range, by a rule that sees one at a time.

        NaN becomes 0, and what lies beyond `target_range` its nearer end, where an
        infinite end counts as 1e18. Losses of labels say their own rule.

        Args:
            targets: floats, any shape.

        Returns:
            Finite targets, of the same shape and dtype.
        """
        low, high = self.target_range
        most = min(_MOST, float(jnp.finfo(targets.dtype).max))
        known = jnp.where(jnp.isnan(targets), 0.0, targets)
        return jnp.clip(known, max(low, -most), min(high, most))

    def constant_prediction(self, mean: ArrayLike) -> jax.Array:
        """Returns the best prediction of a model that is constant, from a mean target.

        The inverse of `mean_of` in the scale of the targets, finite for any mean that
        is finite. For losses of residuals it is the mean itself.

        Args:
            mean: the mean of `targets_of(targets)`; of `softmax`, the shares of the
                classes, shape (K,).

        Returns:
            The prediction, a scalar; of `softmax`, shape (K,).
        """
        return jnp.asarray(mean)

    def mean_of(self, predictions: jax.Array) -> jax.Array:
        """Returns the mean response at each prediction, in their shape.

        The mean of the targets for losses of residuals and with a log link; the
        probability of the class +1, or of each class, for losses of labels.
        """
        return predictions


def like(value: ArrayLike | Scalar, array: jax.Array) -> jax.Array:
    """Returns a value in the dtype of an array, so that integer labels will do."""
    return jnp.asarray(value, array.dtype)
