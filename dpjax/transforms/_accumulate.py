"""An optimizer whose batches come in pieces, with one noise for all of them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._keys import secret_repr
from dpjax._types import PyTree
from dpjax.transforms._chain import BoundedMean, Piece, PrivateMean
from dpjax.transforms._pieces import PieceSum

_INJECTED = "inject_hyperparams."  # how the functions that optax makes there begin


class PiecesState(NamedTuple):
    """State of `accumulate`.

    Attributes:
        optimizer: state of the optimizer.
        total: the sum of the pieces so far. It has no noise: keep it as secret as the
            records.
        num_added: how many pieces it has.
    """

    optimizer: PyTree
    total: PieceSum
    num_added: jax.Array
    __repr__ = secret_repr


def accumulate(
    optimizer: optax.GradientTransformationExtraArgs, *, num_pieces: int
) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer that takes each batch in pieces, one after the other.

    The bounded influences of all pieces are summed, and after the last one the
    optimizer gets their mean, with one noise. Until then updates are zero, and the
    optimizer's state, thresholds and moments included, stays as it is. So the step is
    that of `optimizer` with the whole batch, to rounding. `optax.MultiSteps` would
    average over samples before they are clipped.

    Args:
        optimizer: `privatize`, `dp_sgd`, or `dpjax.chain` of one, with normalize_by:
            the public size of the whole batch. What follows the mean goes inside, too:
            an adam after `accumulate` would step with each zero. Or
            `optax.inject_hyperparams(make)(...)` where make returns one of these:
            schedules then count batches.
        num_pieces: of each batch. Pad pieces to one shape, with a mask each, so that
            nothing compiles twice.

    Returns:
        An optax transformation whose update takes the gradients of one piece: leaves
        (rows, ...) or a stream, and the keyword is_padding_example.

    Raises:
        ValueError: If optimizer is none of these, or num_pieces no count; from init,
            inside another optax transformation; from update, without normalize_by, with
            many more rows in all than it says, or with `MedianOfMeans` and
            `TrimmedMean`.

    Privacy:
        That of the optimizer under its relation, for one release a batch. A record lies
        in one piece, so it moves the sum as it moves the mean of a whole batch. What
        rounding adds is in the noise: 0.1 per cent, and 3 more for a million records
        in a thousand pieces. Which records a batch has must be drawn by the batching.

        Between two pieces the state holds a sum without noise: save checkpoints between
        batches, or keep them as secret as the records.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> import dpjax
        >>> from dpjax.estimators import Clipping
        >>> from dpjax.transforms import accumulate, privatize
        >>> private = privatize(Clipping(1.0), noise_multiplier=0.0, normalize_by=4,
        ...                     key=jax.random.key(0))
        >>> optimizer = accumulate(dpjax.chain(private, optax.sgd(1.0)), num_pieces=2)
        >>> state = optimizer.init(jnp.float32(0.0))
        >>> for piece in jnp.array([[0.5, -9.0], [0.25, 0.5]]):
        ...     update, state = optimizer.update(piece, state)
        ...     print(update)
        0.0
        -0.0625

    Reference:
        Abadi et al. (2016), "Deep learning with differential privacy", Section 3.1.
    """
    rule = (
        "privatize, dp_sgd or dpjax.chain of one, a mean with noise; or "
        "optax.inject_hyperparams of a function that returns one"
    )
    step: Any = getattr(optimizer, "update", None)
    name = getattr(step, "__qualname__", "")
    is_fine = isinstance(optimizer, PrivateMean) or name.startswith(_INJECTED)
    _validate.require(is_fine, "optimizer", optimizer, rule)
    _validate.count(num_pieces=num_pieces)

    def start(inner: PyTree, total: PieceSum) -> PiecesState:
        return PiecesState(inner, total, jnp.zeros((), jnp.int32))

    def measured(samples: PyTree, *args: PyTree, **extra_args: Any) -> BoundedMean:
        # The state stays as it was: schedules in it count batches.
        piece, _ = step(Piece(samples, num_pieces), *args, **extra_args)
        _validate.require(isinstance(piece, BoundedMean), "optimizer", optimizer, rule)
        return piece

    def init(params: PyTree) -> PiecesState:
        inner = optimizer.init(params)
        shapes = jax.eval_shape(lambda: measured(None, inner, params).value)
        return start(inner, PieceSum.zero(shapes))

    def update(updates, state, params=None, **extra_args):
        piece = measured(updates, state.optimizer, params, **extra_args)
        total = state.total.plus(piece.value, piece.limit)

        def release() -> tuple[PyTree, PiecesState]:
            mean = piece._replace(value=total.value(piece.limit))
            steps, inner = step(mean, state.optimizer, params, **extra_args)
            return steps, start(inner, PieceSum.zero(total.high))

        def wait() -> tuple[PyTree, PiecesState]:
            steps, _ = jax.eval_shape(release)
            none = jax.tree.map(jnp.zeros_like, steps)
            return none, PiecesState(state.optimizer, total, state.num_added + 1)

        return jax.lax.cond(state.num_added == num_pieces - 1, release, wait)

    return optax.GradientTransformationExtraArgs(init, update)
