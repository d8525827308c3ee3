"""A loss with a squared l2 penalty on its parameters."""

from dataclasses import dataclass

import jax
import optax

from dpjax import _validate
from dpjax._types import LossFn, PyTree, Scalar


def regularized(loss_fn: LossFn, l2: Scalar) -> LossFn:
    """Adds a squared l2 penalty to every example's loss.

    loss_fn(w, z) + (l2 / 2) ||w||^2, the norm taken over all leaves of `params`.
    `regularized(logistic, l2)` is regularized logistic regression,
    `regularized(squared, l2)` ridge regression.

    Args:
        loss_fn: per-example loss.
        l2: strength of the penalty, zero or above.

    Returns:
        A per-example loss.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.losses import logistic, squared
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
class _Regularized:
    loss_fn: LossFn
    l2: Scalar

    def __post_init__(self) -> None:
        is_fine = callable(self.loss_fn)
        _validate.require(is_fine, "loss_fn", self.loss_fn, "callable")
        _validate.non_negative(l2=self.l2)

    def __call__(self, params: PyTree, example: PyTree) -> jax.Array:
        penalty = optax.tree.norm(params, squared=True)
        return self.loss_fn(params, example) + 0.5 * self.l2 * penalty
