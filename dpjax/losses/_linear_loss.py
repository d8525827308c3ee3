"""The base class of losses of a linear predictor."""

import abc
import math

import jax
import jax.numpy as jnp

from dpjax._types import ArrayLike, PyTree, Scalar

# Targets of a loss without a range are clipped to this: squares of targets, and of
# predictions of the same size, then stay within the range of float32.
_MOST = 1e18
# Shares of a class are at least this, so that their logarithms are finite.
LEAST_SHARE = 1e-6


class LinearLoss(abc.ABC):
    """A loss of a prediction eta = <w, x> and a target y.

    A subclass is a frozen dataclass of its hyperparameters. It declares the attributes
    below, and defines `value`, `_derivative` and `_curvature`, all elementwise. The
    methods take predictions and targets of the same shape; for `softmax`, predictions
    have one more axis of `num_outputs` at the end.

    Attributes:
        derivative_bound: L, a bound on |derivative|, or on the l2 norm of the
            derivative for several outputs; `math.inf` if there is no bound.
        curvature_bound: c, a bound on |curvature|, that is, a Lipschitz constant of the
            derivative, or a bound on the operator norm of the Hessian for several
            outputs; `math.inf` if there is no bound.
        is_convex: true if the loss is convex in the prediction.
        num_outputs: number of predictions of an example: 1, or K for K classes.
        target_range: the smallest and the largest target, or infinities.
        has_log_link: true if the mean is the exponential of the prediction, so that the
            logarithm of an exposure is an offset.
    """

    derivative_bound: float
    curvature_bound: float
    is_convex: bool = True
    num_outputs: int = 1
    target_range: tuple[float, float] = (-math.inf, math.inf)
    has_log_link: bool = False

    def __call__(self, params: PyTree, example: PyTree) -> jax.Array:
        """Returns the loss of one example, a scalar in the dtype of <w, x>.

        Args:
            params: weights, shape (d,); (d, K) for K outputs.
            example: pair (features of shape (d,), scalar target).
        """
        features, target = example
        return self.value(jnp.dot(features, params), target)

    @abc.abstractmethod
    def value(self, predictions: jax.Array, targets: ArrayLike) -> jax.Array:
        """Returns the loss of each prediction, in the shape of the targets.

        The loss may overflow to an infinity. It is NaN where the prediction or the
        target is NaN.
        """

    @abc.abstractmethod
    def _derivative(self, predictions: jax.Array, targets: jax.Array) -> jax.Array: ...

    @abc.abstractmethod
    def _curvature(self, predictions: jax.Array, targets: jax.Array) -> jax.Array: ...

    def derivative(self, predictions: jax.Array, targets: ArrayLike) -> jax.Array:
        """Returns the derivative at each prediction, in the shape of the predictions.

        The derivative is finite and within its bound for any arguments, and zero where
        the prediction or the target is NaN. Targets are clipped to their range, beyond
        which the bounds would not hold.
        """
        targets = self._in_range(targets, predictions)
        slopes = self._of_present(self._derivative(predictions, targets), targets, 1)
        bound = like(self.derivative_bound, slopes)
        return jnp.clip(slopes, -bound, bound)

    def curvature(self, predictions: jax.Array, targets: ArrayLike) -> jax.Array:
        """Returns the second derivative at each prediction, in their shape.

        For any arguments it is finite and within [0, c], or [-c, c] if the loss is not
        convex, and zero where the prediction or the target is NaN. For K outputs it is
        the Hessian, (..., K, K). Targets are clipped to their range.
        """
        targets = self._in_range(targets, predictions)
        values = self._of_present(self._curvature(predictions, targets), targets, 2)
        bound = like(self.curvature_bound, values)
        is_bent_one_way = self.is_convex and self.num_outputs == 1
        lowest = jnp.zeros_like(bound) if is_bent_one_way else -bound
        return jnp.clip(values, lowest, bound)

    def _in_range(self, targets: ArrayLike, predictions: jax.Array) -> jax.Array:
        """Returns targets within the range, in the dtype of the predictions."""
        return jnp.clip(like(targets, predictions), *self.target_range)  # keeps NaN

    def _of_present(self, values, targets, num_axes):
        """Returns finite values, zeros where a target is missing."""
        axes = num_axes if self.num_outputs > 1 else 0
        is_missing = jnp.isnan(targets).reshape(*targets.shape, *(1,) * axes)
        return jnp.where(is_missing, 0.0, jnp.nan_to_num(values))

    def targets_of(self, targets: jax.Array) -> jax.Array:
        """Maps each target into the range of the loss, in its shape and dtype.

        NaN becomes 0, and the caller must give such a record no weight. Other targets
        are clipped to `target_range`, with ±1e18 in place of an infinite end. Losses of
        labels override this rule.
        """
        low, high = self.target_range
        most = min(_MOST, float(jnp.finfo(targets.dtype).max))
        known = jnp.where(jnp.isnan(targets), 0.0, targets)
        return jnp.clip(known, max(low, -most), min(high, most))

    def constant_prediction(self, mean: ArrayLike) -> jax.Array:
        """Returns the best constant prediction for a mean of `targets_of(targets)`.

        This inverts `mean_of`, in units of the targets, and is finite for any finite
        mean. For losses of residuals it returns the mean. For `softmax`, mean and
        prediction have shape (K,), and the mean consists of the shares of the classes.
        """
        return jnp.asarray(mean)

    def mean_of(self, predictions: jax.Array) -> jax.Array:
        """Returns the mean response at each prediction, in their shape.

        It is the mean of the targets for losses of residuals and losses with a log
        link, and the probability of class +1, or of each class, for losses of labels.
        """
        return predictions


def like(value: ArrayLike | Scalar, array: jax.Array) -> jax.Array:
    """Converts a value to the dtype of an array, so that labels may be integers."""
    return jnp.asarray(value, array.dtype)
