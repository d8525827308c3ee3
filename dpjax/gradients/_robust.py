"""Gradients of samples as a stream, and their robust mean, without holding them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from dpjax import _validate
from dpjax._sharding import AxisName, manual_axes_of, row_axes, varying_with
from dpjax._sums.samples import FactoredSamples
from dpjax._sums.stream import SampleStream
from dpjax._tree import by_row
from dpjax._types import (
    REPLACE_ONE,
    LossFn,
    NeighboringRelation,
    PyTree,
    Scalar,
    check_divisor,
)
from dpjax.estimators import Estimator
from dpjax.gradients._loss import loss_of_users, streamlined, trainable, warn_of_rows
from dpjax.gradients._users import UserGradient, Users
from dpjax.gradients.factored import factored_grad


def streamed_grad(
    loss_fn: LossFn,
    *,
    microbatch_size: int | None = None,
    return_values: bool = False,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """Returns `per_sample_grad` as a stream: gradients are made where they are used.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`, or `(scalar, aux)` with has_aux.
        microbatch_size: how many samples are processed at once. It changes speed and
            memory, and a mean by rounding at most. By default it is chosen from the
            shapes of the program, the platform and the device's memory.
        return_values: whether to return the per-example losses too.
        has_aux: whether loss_fn returns auxiliary values too.

    Returns:
        `grad_fn(params, batch, is_padding_example=None)`, where leaves of batch have
        shape (n, ...) and the mask shape (n,) is true for rows that count for nothing.
        It returns a stream, which estimators, `aggregate` and `privatize` take in the
        place of gradients with leaves (n, ...), with the mask inside. It holds params
        and batch, so it is a leaf of pytrees, and everything else raises: arithmetic,
        such as `optax.tree.norm` and `optax.scale`, and jit, scan or vmap, which it may
        be made in, but not pass into or out of. It returns `(stream, values)`,
        `(stream, aux)` or `(stream, (values, aux))` where these are asked for. Values
        and aux are per sample, leading axis n, and NOT private. They are
        computed by a forward pass of their own, a third of the work of a gradient;
        `robust_grad` has them for nothing.

    Raises:
        ValueError: where microbatch_size is not a positive count; (from grad_fn) where
            leaves of batch disagree on n, the mask has another shape, or params are
            complex, no arrays, or hold running statistics of BatchNorm; (from the
            stream) where anything but an estimator or a private mean reads it.

    Training classes:
        `flax.training.train_state.TrainState.apply_gradients(grads=stream)` takes it as
        it is. `flax.nnx.Optimizer` takes gradients in variables: `optimizer.update(
        model, {"stream": nnx.Param(stream)})`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax.estimators import Winsorization
        >>> from dpjax.transforms import privatize
        >>> loss_fn = lambda w, x: 0.5 * (w - x) ** 2
        >>> optimizer = privatize(
        ...     Winsorization(1.0), noise_multiplier=0.0, key=jax.random.key(0))
        >>> grads = streamed_grad(loss_fn)(1.0, jnp.array([0.5, 1e30]))
        >>> print(optimizer.update(grads, optimizer.init(1.0))[0])
        -0.25
    """
    stream_fn = _stream_fn(_SampleGrad(loss_fn, has_aux), microbatch_size)
    wanted = _wanted(return_values=return_values, has_aux=has_aux)

    def grad_fn(
        params: PyTree, batch: PyTree, is_padding_example: jax.Array | None = None
    ) -> Any:
        stream = SampleStream.of(stream_fn(params, batch), is_padding_example)
        if not wanted:
            return stream
        params = varying_with(params, batch)  # the loss may have gradients of its own
        loss_of = partial(loss_of_users(loss_fn, has_aux=has_aux), params)
        if microbatch_size is None:
            results = jax.vmap(loss_of)(batch)
        else:
            results = jax.lax.map(loss_of, batch, batch_size=microbatch_size)
        values, aux = results if has_aux else (results, ())
        return _with_wanted(stream, {"values": values, "aux": aux}, wanted)

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
    user_ids: jax.Array | None = None,
    num_users: int | None = None,
    records_per_user: int | None = None,
    user_gradient: UserGradient = "mean",
    factored: bool = True,
) -> Callable[..., Any]:
    """Returns a function that computes the robust mean of per-sample gradients.

    The same mean as `estimator(per_sample_grad(loss_fn)(params, batch))`, to rounding,
    but gradients are folded into it as they are made: memory holds a few of them, never
    n. Of parameters that meet one vector in a product, or of which a few rows are read,
    gradients are never multiplied out: `Clipping` finds norms and sums from both
    factors, at about the price of the plain gradient, and influences by coordinate
    multiply as they add. So it is with parameters that meet several vectors, as of
    tokens, also in a `scan` or a `jax.checkpoint`, if their gradients have four times
    as many numbers as the factors, or more. `dpjax.check_model` tells which parameters
    these are. On CPU as many samples are processed at once as caches hold; elsewhere as
    memory holds. The platform is chosen at lowering.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`, or `(scalar, aux)` with has_aux.
        estimator: the robust mean.
        microbatch_size: how many samples are processed at once. It changes speed and
            memory, and the mean by rounding at most. By default it is chosen from the
            shapes of the program, the platform and the device's memory.
        normalize_by: public divisor of the mean; the batch's leading size by default.
            Give it for batches of varying size, such as Poisson ones. For small
            divisors see `Estimator.__call__`.
        relation: of the sensitivity that noise is calibrated to. ADD_OR_REMOVE_ONE
            needs normalize_by, or num_users, because the size of a batch is private.
        return_values: whether to return the per-example losses too.
        has_aux: whether loss_fn returns auxiliary values too.
        axis_name: the mesh axes over which rows are sharded, a name or a tuple of
            names, `()` for none; see below. By default read from the batch: concrete
            arrays show all their axes, traced ones Explicit axes only. Auto axes inside
            `jax.jit`, and Manual ones, must be named.
        user_ids: integers of shape (n,), the user of each row of the batch: samples are
            then users; see below.
        num_users: public number of users, with user_ids: the default divisor.
        records_per_user: public bound, with user_ids; n by default. A user's first
            records by index count, the surplus is dropped. It costs num_users times so
            many gradients: give the least that serves.
        user_gradient: "mean" or "sum" of the gradients of a user's records.
        factored: whether gradients may be held as factors. False writes all of them
            out, which changes speed and memory, and the mean by rounding at most.

    Returns:
        `grad_fn(params, batch, is_padding_example=None)`, where leaves of batch have
        shape (n, ...) and the mask shape (n,) is true for rows that count for nothing.
        It returns the mean gradient, a pytree like params in float32 for half-precision
        parameters; `(grads, values)` with return_values, `(grads, aux)` with has_aux,
        `(grads, (values, aux))` with both. Values and aux are per sample, leading axis
        n, and NOT private: they are exact functions of single records.

    Raises:
        ValueError: where a size is not a positive count, leaves of batch disagree on n,
            or the estimator cannot take the batch; where no public divisor is given
            under ADD_OR_REMOVE_ONE; where axis_name is of no mesh, its
            devices do not divide n, or rows are known to be the same on all of them;
            where params are complex, or hold running statistics of BatchNorm;
            where user_ids are no integers of shape (n,), come without num_users or with
            a sharded batch; where the gradient of an example has collectives in it.
            Never because of an id's value.

    Layers that draw or normalize:
        Dropout: give each example a key of its own, as part of the batch, new in every
        step: `batch = (x, y, jax.random.split(key, n))`, and let loss_fn hand it on
        (`nnx.Rngs(dropout=key)`, Linen's `rngs={"dropout": key}`, Equinox's
        `key=key`). A key that loss_fn closes over drops the same units of all examples.

        BatchNorm has no per-sample gradients. Parameters with `nnx.BatchStat`, Linen's
        "batch_stats" or `equinox.nn.State` among them are refused; statistics that
        loss_fn closes over cannot be seen, and must be fixed and public.

    Losses of pairs:
        A loss that reads the other examples of the batch has no gradient of one
        example. A `UserWarning` tells the shape of each array with n rows in the traced
        gradient of one example, however loss_fn holds it: see `dpjax.check_model`, and
        the guide to users for what to do.

    Users:
        With user_ids the influence acts on the mean, or the sum, of the gradients of
        one user's records, and the estimate is the mean over users, one without records
        contributing zero. Ids are public, as in `dpjax.gradients.by_user`; those
        outside of [0, num_users) belong to nobody and are left out. Values come per
        user, and aux has shape (num_users, records_per_user, ...). Users are held a few
        at a time, as samples are. To draw users, or to spread them over devices, lay
        records out by `dpjax.gradients.by_user`, once: that is a batch, too, whose rows
        are users.

    On several devices:
        Each device computes the gradients of its own rows, and one psum adds a few
        digits for every parameter; nothing of n rows is sent. n counts the rows of all
        devices. Inside the caller's `jax.shard_map`, batch, mask, values and aux are
        one device's shard, params and the mean are replicated; without axis_name the
        mean is of one device's rows, so that a record moves it, and the sum of all
        devices' means, by the sensitivity for normalize_by. With check_vma=False, and
        in `jax.pmap`, rows that are replicated, which they must not be, cannot be
        refused.

        Where n is not a multiple of the number of devices, fill up with rows that
        is_padding_example marks, and give the number without them as normalize_by.

        Parameters may be sharded over other axes of the mesh, if those are Auto, as in
        `jax.make_mesh((4, 2), ("records", "model"), axis_types=(Explicit, Auto))`. The
        mean gradient then has their sharding.

    Bad numbers:
        NaN and infinities in gradients count as `Estimator.__call__` tells. Where a
        norm comes from factors, they count as zero in a factor, and a gradient counts
        as zero where the norm of a factor is 2^64 or more. Where it comes from vectors
        at many positions, their norms times those of their cotangents are added up. A
        gradient counts as zero where that sum is 2^60 clip norms or more. The norm is
        raised by what rounding may hide: for 64 positions by about 2^-17 times the
        square of that sum, over the norm.

    Sensitivity:
        `estimator.sensitivity(n or normalize_by, number of parameters)`, under
        replace-one; neither microbatch_size, the platform nor the number of devices
        changes it. For norms it counts the rounding of products of matrices, in
        whatever order they are summed.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax.estimators import Winsorization
        >>> loss_fn = lambda w, x: 0.5 * (w - x) ** 2
        >>> grad_fn = robust_grad(loss_fn, Winsorization(1.0))
        >>> print(grad_fn(1.0, jnp.array([0.5, 1e30])))
        -0.25

        Over all devices, with a row of padding:

        >>> from jax.sharding import NamedSharding, PartitionSpec
        >>> mesh = jax.make_mesh((1,), ("records",))
        >>> rows = NamedSharding(mesh, PartitionSpec("records"))
        >>> batch = jax.device_put(jnp.array([0.5, 1e30, 0.0]), rows)
        >>> is_padding = jax.device_put(jnp.array([False, False, True]), rows)
        >>> grad_fn = robust_grad(loss_fn, Winsorization(1.0), normalize_by=2)
        >>> print(grad_fn(1.0, batch, is_padding))
        -0.25

        Of three users, of whom the first has two records and the second none:

        >>> grad_fn = robust_grad(loss_fn, Winsorization(1.0), records_per_user=2,
        ...                       user_ids=jnp.array([0, 0, 2]), num_users=3)
        >>> print(grad_fn(1.0, jnp.array([0.0, 1.0, -8.0])))
        0.5
    """
    _validate.require(callable(loss_fn), "loss_fn", loss_fn, "callable")
    _validate.estimator(estimator)
    users = Users.of(user_ids, num_users, records_per_user, user_gradient)
    check_divisor(num_users if normalize_by is None else normalize_by, relation)
    make_grads = _SampleGrad(loss_fn, has_aux, return_values)
    stream_fn = _stream_fn(make_grads, microbatch_size)
    wanted = _wanted(return_values=return_values, has_aux=has_aux)

    def grad_fn(
        params: PyTree, batch: PyTree, is_padding_example: jax.Array | None = None
    ) -> Any:
        stream = stream_fn(params, batch)
        stream = stream if factored else stream.written_out()
        if users is not None:
            axes = row_axes(batch, axis_name)
            if axis_name is None:
                axes = axes or manual_axes_of(batch)
            stream = users.stream(stream, is_padding_example, axes)
            is_padding_example = None
        grads, aux = estimator.with_aux(
            stream, is_padding_example, normalize_by=normalize_by, axis_name=axis_name
        )
        return _with_wanted(grads, aux, wanted)

    return grad_fn


def _wanted(*, return_values: bool, has_aux: bool) -> list[str]:
    return ["values"] * return_values + ["aux"] * has_aux


def _with_wanted(result: Any, available: dict[str, PyTree], wanted: list[str]) -> Any:
    """Returns a result alone, or with what is wanted beside it."""
    if not wanted:
        return result
    beside = tuple(available[name] for name in wanted)
    return result, beside if len(beside) == 2 else beside[0]


@dataclass(frozen=True)
class _SampleGrad:
    """Returns the gradients of some rows, and the requested values and aux."""

    loss_fn: LossFn
    has_aux: bool = False
    return_values: bool = False

    def __call__(self, params: PyTree, rows: PyTree) -> tuple[PyTree, PyTree]:
        loss_fn = loss_of_users(self.loss_fn, has_aux=self.has_aux)
        value_and_grad = streamlined(jax.value_and_grad(loss_fn, has_aux=self.has_aux))
        num_rows = _validate.leading_size(rows, "batch")
        # With respect to replicated parameters `grad` would be a psum over devices.
        params = varying_with(params, rows)
        values, grads = by_row(partial(value_and_grad, params), num_rows)(rows)
        return grads, self._returned(values)

    def factored(
        self, params: PyTree, rows: PyTree
    ) -> Callable[[PyTree], tuple[FactoredSamples, PyTree]]:
        """Returns a function of some rows with gradients in factored form."""
        loss_fn = loss_of_users(self.loss_fn, has_aux=self.has_aux)
        grad_fn = factored_grad(loss_fn, params, rows, has_aux=self.has_aux)

        def make(rows):
            grads, values = grad_fn(rows)
            return grads, self._returned(values)

        return make

    def _returned(self, values):
        values, aux = values if self.has_aux else (values, ())
        return {"values": values if self.return_values else (), "aux": aux}


def _stream_fn(
    make_grads: _SampleGrad, microbatch_size: int | None
) -> Callable[[PyTree, PyTree], SampleStream]:
    if microbatch_size is not None:
        _validate.count(microbatch_size=microbatch_size)

    def grad_fn(params: PyTree, batch: PyTree) -> SampleStream:
        num_rows = _validate.leading_size(batch, "batch")
        trainable(params)
        loss_fn, has_aux = make_grads.loss_fn, make_grads.has_aux
        warn_of_rows(loss_fn, params, batch, num_rows, has_aux=has_aux)
        return SampleStream(
            make_grads, params, batch, microbatch_size, make_grads.factored
        )

    return grad_fn
