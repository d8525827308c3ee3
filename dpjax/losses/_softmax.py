"""Multinomial logistic regression."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._types import ArrayLike
from dpjax.losses._linear_loss import LEAST_SHARE, LinearLoss


def softmax(num_classes: int) -> LinearLoss:
    """Makes the loss of multinomial logistic regression, for labels 0 to K - 1.

    log(sum_k exp(<w_k, x>)) - <w_y, x>, evaluated without overflow, with a column w_k
    of the parameters for each class. Its derivative p - e_y has l2 norm at most
    L = sqrt(2), and its curvature diag(p) - p p^T operator norm at most c = 1/2,
    because the absolute values of a row sum to 2 p_k (1 - p_k).

    Labels are rounded to the nearest integer and clipped to 0 ... K - 1; NaN is none.

    Args:
        num_classes: K, at least 2.

    Returns:
        A per-example loss, of params (d, K).

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
        _validate.require(
            self.num_classes >= 2, "num_classes", self.num_classes, "at least 2"
        )
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
        # Infinities are clipped, because their differences would be NaN.
        most = jnp.finfo(predictions.dtype).max / 4
        return jax.nn.softmax(jnp.clip(predictions, -most, most), axis=-1)

    def _one_hot(self, predictions: jax.Array, targets: ArrayLike) -> jax.Array:
        labels = jnp.asarray(targets)
        if not jnp.issubdtype(labels.dtype, jnp.floating):
            labels = labels.astype("float32")
        labels = self.targets_of(labels).astype("int32")
        return jax.nn.one_hot(labels, self.num_classes, dtype=predictions.dtype)
