"""Per-sample gradients, one for every example of a batch."""

from collections.abc import Callable
from typing import Any

import jax

from dpjax import _validate
from dpjax._sharding import by_device, row_axes, varying_with
from dpjax._types import LossFn, PyTree
from dpjax.gradients._loss import loss_of_users, no_running_statistics, streamlined


def per_sample_grad(
    loss_fn: LossFn, *, has_aux: bool = False
) -> Callable[[PyTree, PyTree], Any]:
    """Returns a function that computes the gradient of each example's loss.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`, or `(scalar, aux)` with has_aux.
        has_aux: whether loss_fn returns auxiliary values too.

    Returns:
        `grad_fn(params, batch)`, where leaves of batch have shape (n, ...). It returns
        a pytree like params with leaves (n, ...), and the stacked aux with has_aux. It
        holds n gradients at once: `robust_grad` gives their robust mean without that.
        The gradients of sharded rows are sharded alike. Inside `jax.shard_map`, too,
        each is of one example: no psum over devices, as `jax.grad` makes for replicated
        parameters.

    Raises:
        ValueError: (from grad_fn) where leaves of batch disagree on n, or params hold
            running statistics of BatchNorm.

    Example:
        >>> import jax.numpy as jnp
        >>> loss_fn = lambda w, x: 0.5 * (w - x) ** 2
        >>> print(per_sample_grad(loss_fn)(1.0, jnp.array([0.0, 3.0])))
        [ 1. -2.]
    """
    loss_fn = loss_of_users(loss_fn, has_aux=has_aux)
    grad = streamlined(jax.grad(loss_fn, has_aux=has_aux))

    def on_device(params: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        # With respect to replicated parameters `grad` would be a psum over devices.
        params = varying_with(params, batch)
        return (), jax.vmap(grad, in_axes=(None, 0))(params, batch)

    def grad_fn(params: PyTree, batch: PyTree) -> Any:
        _validate.leading_size(batch, "batch")
        no_running_statistics(params)
        return by_device(on_device, row_axes(batch, None), params, batch)[1]

    return grad_fn
