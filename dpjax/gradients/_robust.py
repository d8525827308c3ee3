"""Gradients of single examples: all at once, as a stream, and their robust mean."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from dpjax import _validate
from dpjax._sharding import AxisName, by_device, row_axes, varying_with
from dpjax._sums.stream import SampleStream
from dpjax._tree import by_row, narrowed_numbers
from dpjax._types import REPLACE_ONE, LossFn, NeighboringRelation, PyTree, Scalar
from dpjax.estimators import Estimator
from dpjax.estimators._estimator import check_divisor
from dpjax.gradients._factored import factored_grad
from dpjax.gradients._loss import (
    loss_of_users,
    no_running_statistics,
    streamlined,
    trainable,
    warn_of_rows,
)


def per_sample_grad(
    loss_fn: LossFn, *, has_aux: bool = False
) -> Callable[[PyTree, PyTree], Any]:
    """Returns a function that computes the gradient of each example's loss.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`, or `(scalar, aux)` with has_aux.
        has_aux: whether loss_fn returns auxiliary values too.

    Returns:
        `grad_fn(params, batch)`, where leaves of batch have shape (n, ...). It returns
        a pytree like params with leaves (n, ...), and the stacked aux with has_aux. All
        n gradients are in memory at once; `robust_grad` avoids that. The gradients of
        sharded rows are sharded alike. Inside `jax.shard_map` each gradient still
        belongs to one example, whereas `jax.grad` with respect to replicated parameters
        would sum over devices.

    Raises:
        ValueError: From grad_fn, if leaves of batch disagree on n, or params hold
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
        # `grad` with respect to replicated parameters would sum over devices.
        return (), jax.vmap(grad, in_axes=(None, 0))(varying_with(params, batch), batch)

    def grad_fn(params: PyTree, batch: PyTree) -> Any:
        batch = narrowed_numbers(batch, "batch")
        _validate.leading_size(batch, "batch")
        no_running_statistics(params)
        return by_device(on_device, row_axes(batch, None), params, batch)[1]

    return grad_fn


def streamed_grad(
    loss_fn: LossFn,
    *,
    microbatch_size: int | None = None,
    return_values: bool = False,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """Returns `per_sample_grad` as a stream: gradients are computed when they are used.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`, or `(scalar, aux)` with has_aux.
        microbatch_size: as in `robust_grad`.
        return_values: whether to return the per-example losses too.
        has_aux: whether loss_fn returns auxiliary values too.

    Returns:
        `grad_fn(params, batch, is_padding_example=None)`, where leaves of batch have
        shape (n, ...) and the mask shape (n,) is true for rows that count for nothing.
        It returns a stream that includes the mask. Estimators, `aggregate` and
        `privatize` accept it in place of gradients with leaves (n, ...). A stream is
        one leaf of a pytree; it may be made inside jit, scan or vmap, but cannot pass
        into or out of them. With return_values, has_aux or both, grad_fn returns
        `(stream, values)`, `(stream, aux)` or `(stream, (values, aux))`. Values and aux
        have the leading axis n, are NOT private, and cost another forward pass.

    Raises:
        ValueError: As for `robust_grad`; from the stream, if anything but an estimator
            or a private mean reads it.

    Training classes:
        `flax.training.train_state.TrainState.apply_gradients(grads=stream)` accepts a
        stream directly. `flax.nnx.Optimizer` needs it inside a variable:
        `optimizer.update(model, {"stream": nnx.Param(stream)})`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax.estimators import Winsorization
        >>> loss_fn = lambda w, x: 0.5 * (w - x) ** 2
        >>> grads = streamed_grad(loss_fn)(1.0, jnp.array([0.5, 1e30]))
        >>> print(Winsorization(1.0)(grads))
        -0.25
    """
    if microbatch_size is not None:
        _validate.count(microbatch_size=microbatch_size)

    def grad_fn(
        params: PyTree, batch: PyTree, is_padding_example: jax.Array | None = None
    ) -> Any:
        """Returns the stream of a batch's gradients, with losses and aux if wanted."""
        args = params, batch, microbatch_size, has_aux
        stream = SampleStream.of(_stream_of_grads(loss_fn, *args), is_padding_example)
        if not (return_values or has_aux):
            return stream
        params = varying_with(params, batch)  # loss_fn may itself compute gradients
        loss_of = partial(loss_of_users(loss_fn, has_aux=has_aux), params)
        if microbatch_size is None:
            results = jax.vmap(loss_of)(stream.rows)
        else:
            results = jax.lax.map(loss_of, stream.rows, batch_size=microbatch_size)
        values, aux = results if has_aux else (results, ())
        beside = (values,) * return_values + (aux,) * has_aux
        return stream, beside if len(beside) == 2 else beside[0]

    return grad_fn


def robust_grad(
    loss_fn: LossFn,
    estimator: Estimator,
    *,
    microbatch_size: int | None = None,
    normalize_by: Scalar | None = None,
    relation: NeighboringRelation = REPLACE_ONE,
    return_values: bool = False,
    has_aux: bool = False,
    axis_name: AxisName | None = None,
) -> Callable[..., Any]:
    """Returns a function that computes the robust mean of per-example gradients.

    It equals `estimator(per_sample_grad(loss_fn)(params, batch))`, to rounding, with
    only a few gradients in memory at once, or factors of them: see `check_model`.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`, or `(scalar, aux)` with has_aux,
            without BatchNorm. A `UserWarning` tells of arrays with n rows in it.
        estimator: the robust mean.
        microbatch_size: number of samples processed at once; by default what fits.
        normalize_by: public divisor; by default the leading size, if it never varies.
        relation: neighboring relation of the sensitivity. ADD_OR_REMOVE_ONE needs
            normalize_by, because the size of a batch is private.
        return_values: whether to return the per-example losses too.
        has_aux: whether loss_fn returns auxiliary values too.
        axis_name: mesh axes over which rows are sharded: a name or a tuple, `()` for
            none. By default they are read from the batch (only Explicit axes if it is
            traced); inside `jax.shard_map` the default is the mean of one device.

    Returns:
        `grad_fn(params, batch, is_padding_example=None)`, where leaves of batch have
        shape (n, ...) and the mask shape (n,) is true for rows that count for nothing.
        It returns the mean gradient, a pytree like params in float32 for half-precision
        parameters; with return_values and has_aux also values, aux or both, as
        `(grads, (values, aux))`: per sample, leading axis n, and NOT private.

    Raises:
        ValueError: If an argument, a shape, params or a mesh does not fit, for example
            if the number of devices does not divide n.

    Sensitivity:
        `estimator.sensitivity(n or normalize_by, number of parameters)`, under
        replace-one, for any microbatch_size, platform and number of devices. NaN and
        infinities count as `Estimator.__call__` says, and as zero in a factor; a sample
        is zero if its vectors times its cotangents have 2^60 clip norms.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax.estimators import Winsorization
        >>> loss_fn = lambda w, x: 0.5 * (w - x) ** 2
        >>> mean = robust_grad(loss_fn, Winsorization(1.0))
        >>> print(mean(1.0, jnp.array([0.5, 1e30])))
        -0.25
    """
    _validate.loss_fn(loss_fn)
    _validate.estimator(estimator)
    check_divisor(normalize_by, relation)
    if microbatch_size is not None:
        _validate.count(microbatch_size=microbatch_size)

    def grad_fn(
        params: PyTree, batch: PyTree, is_padding_example: jax.Array | None = None
    ) -> Any:
        """Returns the robust mean of all gradients, with losses and aux if wanted."""
        args = params, batch, microbatch_size, has_aux, return_values
        how = {"normalize_by": normalize_by, "axis_name": axis_name}
        stream = _stream_of_grads(loss_fn, *args)
        grads, aux = estimator.with_aux(stream, is_padding_example, **how)
        beside = (aux["values"],) * return_values + (aux["aux"],) * has_aux
        if not beside:
            return grads
        return grads, beside if len(beside) == 2 else beside[0]

    return grad_fn


def _stream_of_grads(
    loss_fn, params, batch, microbatch_size, has_aux=False, return_values=False
) -> SampleStream:
    """Returns the stream of a batch's gradients, for `robust_grad`, with its arguments.

    The stream's aux are {"values": losses, "aux": aux}, with () for each not wanted.
    """
    batch = narrowed_numbers(batch, "batch")
    num_rows = _validate.leading_size(batch, "batch")
    trainable(params)
    warn_of_rows(loss_fn, params, batch, num_rows, has_aux=has_aux)
    loss_fn = loss_of_users(loss_fn, has_aux=has_aux)

    def wanted(values):
        values, aux = values if has_aux else (values, ())
        return {"values": values if return_values else (), "aux": aux}

    def make_samples(params, rows):
        value_and_grad = streamlined(jax.value_and_grad(loss_fn, has_aux=has_aux))
        num_rows = _validate.leading_size(rows, "batch")
        # `grad` with respect to replicated parameters would sum over devices.
        params = varying_with(params, rows)
        values, grads = by_row(partial(value_and_grad, params), num_rows)(rows)
        return grads, wanted(values)

    def make_factored(params, rows):
        grad_fn = factored_grad(loss_fn, params, rows, has_aux=has_aux)

        def make(rows):
            grads, values = grad_fn(rows)
            return grads, wanted(values)

        return make

    return SampleStream(make_samples, params, batch, microbatch_size, make_factored)
