"""Robust aggregation of per-sample gradients, and its private version."""

from typing import NamedTuple

import jax
import optax

from dpjax import _validate
from dpjax._sharding import AxisName, num_shares, row_axes
from dpjax._types import REPLACE_ONE, Key, NeighboringRelation, Scalar
from dpjax.estimators import Estimator
from dpjax.mechanisms import gaussian


def aggregate(
    estimator: Estimator,
    *,
    normalize_by: Scalar | None = None,
    axis_name: AxisName | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation from per-sample gradients to their robust mean.

    It goes first in a chain. Not private by itself: follow it by noise that is
    calibrated to `estimator.sensitivity`, or use `privatize`.

    Args:
        estimator: the robust mean.
        normalize_by: public divisor; the leading size of the gradients by default.
        axis_name: the mesh axes over which gradients are dealt out, if they themselves
            do not tell; see `dpjax.robust_grad`.

    Returns:
        A transformation whose update takes gradients with leaves (n, ...) and, as the
        keyword is_padding_example, a mask of shape (n,); it returns leaves (...).

    Raises:
        ValueError: where estimator is none, normalize_by is not positive, or update
            gets gradients without a sample axis, which it sees where it gets params.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import Winsorization
        >>> transform = aggregate(Winsorization(1.0))
        >>> state = transform.init(jnp.zeros(2))
        >>> update, _ = transform.update(jnp.array([[1.0, 0.5], [9.0, -0.5]]), state)
        >>> print(update)
        [1. 0.]
    """
    _validate.estimator(estimator)
    if normalize_by is not None:
        _validate.positive(normalize_by=normalize_by)

    def update(updates, state, params=None, *, is_padding_example=None, **extra_args):
        del extra_args
        _validate.per_sample(updates, params)
        mean = estimator(
            updates, is_padding_example, normalize_by=normalize_by, axis_name=axis_name
        )
        return mean, state

    return optax.GradientTransformationExtraArgs(_init_empty, update)


class PrivatizeState(NamedTuple):
    """State of `privatize`: the key of the next draws."""

    key: Key


def privatize(
    estimator: Estimator,
    *,
    noise_multiplier: Scalar,
    key: Key,
    normalize_by: Scalar | None = None,
    relation: NeighboringRelation = REPLACE_ONE,
    axis_name: AxisName | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation from per-sample gradients to their private mean.

    The robust mean plus Gaussian noise of standard deviation noise_multiplier times the
    estimator's l2 sensitivity. It goes first in a chain: what comes after it, such as
    momentum, adam or schedules, is post-processing and costs no privacy.

    Args:
        estimator: the robust mean; its sensitivity must be finite.
        noise_multiplier: stddev / l2 sensitivity under `relation`, non-negative. See
            `dpjax.accounting.noise_multiplier`.
        key: a typed key. It lives in the state; each update draws from a fresh one.
        normalize_by: public divisor; the leading size of the gradients by default. For
            Poisson batches the expected batch size.
        relation: REPLACE_ONE, or ADD_OR_REMOVE_ONE.
        axis_name: the mesh axes over which gradients are dealt out, if they themselves
            do not tell; see `dpjax.robust_grad`.

    Returns:
        A transformation whose update takes gradients with leaves (n, ...) and, as the
        keyword is_padding_example, a mask of shape (n,); it returns leaves (...), in
        float32 for half-precision gradients. Its state is a pytree of arrays.

    Raises:
        ValueError: where an argument is out of its range, the estimator has no finite
            sensitivity, or update gets gradients without a sample axis; or where the
            key is known to vary over devices of axis_name, or gradients over devices of
            another axis than the key.

    Privacy:
        One update is a Gaussian mechanism with stddev / sensitivity = noise_multiplier
        under `relation`, for every input, NaN and infinities included; T updates on the
        same data compose to `gaussian_epsilon(noise_multiplier, delta, sensitivity=1,
        num_releases=T)`. On several devices too: the noise is that of the mean over all
        rows, and every device draws the same from the same key.

    Pitfalls:
        * What stands before it in a chain must not mix samples. `optax
          .clip_by_global_norm` and `optax.clip_by_block_rms` do: they scale all rows by
          a norm of all of them, so that one record moves every row, and the noise is
          many times too small (30 times, in one trial). It goes first; what else is
          done to a sample belongs in the loss or in the estimator.
        * One optimizer is for one run: `init` starts with the same key each time, and
          two runs on the same data with the same noise are not private together.
        * `optax.masked(privatize(...), mask)` is a leak: leaves that are masked out
          pass raw per-sample gradients through. Put `optax.masked` after `privatize`.
        * `optax.MultiSteps` around it would take the mean over samples before it, and
          is refused. `optax.apply_every` after it adds up several noisy means of
          smaller batches: account for every one of them.
        * `optax.inject_hyperparams(privatize, static_args=("estimator", "key",
          "relation"))` makes noise_multiplier a schedule.
        * Inside `jax.shard_map` every device must hold the same key. Where JAX is told
          check_vma=False nobody can see whether it does.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from dpjax.estimators import Truncation
        >>> optimizer = optax.chain(
        ...     privatize(Truncation(1.0), noise_multiplier=1.0, key=jax.random.key(0)),
        ...     optax.sgd(0.1, momentum=0.9))
        >>> params = jnp.zeros(3)
        >>> state = optimizer.init(params)
        >>> updates, state = optimizer.update(jnp.ones((8, 3)), state, params)
        >>> print(updates.shape)
        (3,)

    Reference:
        Balle, Wang (2018), "Improving the Gaussian mechanism"; Dong, Roth, Su (2022),
        "Gaussian differential privacy", Corollary 3.3, for T updates.
    """
    _validate.estimator(estimator)
    _validate.non_negative(noise_multiplier=noise_multiplier)
    _validate.typed_key(key)
    if normalize_by is not None:
        _validate.positive(normalize_by=normalize_by)
    _validate.require(
        not _is_infinite(estimator.sensitivity(2**20, 1, relation).l2),
        "estimator",
        estimator,
        "one with a finite sensitivity",
    )

    def init(params):
        del params
        return PrivatizeState(key)

    def update(updates, state, params=None, *, is_padding_example=None, **extra_args):
        del extra_args
        _validate.per_sample(updates, params)
        mean = estimator(
            updates, is_padding_example, normalize_by=normalize_by, axis_name=axis_name
        )
        num_rows = _validate.leading_size(updates, "updates")
        num_rows *= num_shares(row_axes(updates, axis_name))
        num_coordinates = sum(leaf.size for leaf in jax.tree.leaves(mean))
        # A mask, or a divisor of its own, is what batches of varying size have.
        if normalize_by is None and is_padding_example is None:
            sensitivity = estimator.sensitivity(num_rows, num_coordinates, relation)
        else:
            divisor = num_rows if normalize_by is None else normalize_by
            sensitivity = estimator.sampled_sensitivity(
                divisor, num_coordinates, relation
            )
        next_key, noise_key = jax.random.split(state.key)
        stddev = noise_multiplier * sensitivity.l2
        return gaussian(noise_key, mean, stddev=stddev), PrivatizeState(next_key)

    return optax.GradientTransformationExtraArgs(init, update)


def _init_empty(params):
    del params
    return optax.EmptyState()


def _is_infinite(value: Scalar) -> bool:
    return _validate.is_concrete(value) and bool(value == float("inf"))
