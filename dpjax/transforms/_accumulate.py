"""An optimizer whose batches come in pieces, with one noise for all of them.

Piece k of K gives y_k, its sum of influences over the divisor n of the whole batch, as
two floats. A replaced record lies in one piece, and moves that one alone as it moves
the mean of a whole batch, its rounding included. What else rounding adds, u = 2^-24 the
unit roundoff and L >= |y_1 + ... + y_j| the bound of all their sums, by coordinate or
in the l2 norm as the influences are bounded:

The higher floats are added exactly, with remainders of at most u L each. Those and the
lower floats of the y_k, also u L at most, are added as floats: 2 K sums of up to
2 K u L, each off by u of itself, 4 K^2 u^2 L in all, and twice that for two neighbors.

L is 9/8 max(n, 4096) times limit / n, which is what one record moves by, masked. Of
that, 9 max(n, 4096) K^2 u^2 is the share. 2^-20 is for what underflows, and for the
rounding of this share. The sum is rounded after the noise is added.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._keys import secret_repr
from dpjax._rounding import ROUNDOFF
from dpjax._sums.exact import Unrounded, two_sum
from dpjax._sums.fold import FEW_ROWS, proven_divisor
from dpjax._tree import like, materialized
from dpjax._types import PyTree, Scalar
from dpjax.estimators import Estimator
from dpjax.transforms._chain import BoundedMean, Piece, PrivateMean

_INJECTED = "inject_hyperparams."  # how the functions that optax makes there begin


def accumulate(
    optimizer: optax.GradientTransformationExtraArgs, *, num_pieces: int
) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer that takes each batch in pieces, one after the other.

    The bounded influences of all pieces are summed, and after the last one the
    optimizer gets their mean, with one noise. Until then updates are zero, and the
    optimizer's state, thresholds and moments included, stays as it is. So the step is
    that of `optimizer` with the whole batch, to rounding.

    Args:
        optimizer: `privatize`, `dp_sgd`, or `dpjax.chain` of one, with normalize_by:
            the public size of the whole batch. What follows the mean goes inside, too.
            Or `optax.inject_hyperparams(make)(...)` where make returns one of these:
            schedules then count batches.
        num_pieces: of each batch. Pad pieces to one shape, with a mask each.

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
        >>> print(update)
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

    def start(inner: PyTree, total: "PieceSum") -> PiecesState:
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


def of_batch(
    estimator: Estimator, normalize_by: Scalar | None, num_rows: int, num_pieces: int
) -> tuple[Scalar, Scalar, Scalar]:
    """Returns three numbers that a piece has to know of the whole batch.

    The divisor; the bound of the sum of all pieces by coordinate; and by what factor
    its sensitivity is larger than that of a batch in one piece. `ValueError` without a
    divisor, with too many rows for it, and for estimators that group rows.
    """
    rule = "given to privatize inside accumulate: the public size of the whole batch"
    _validate.require(normalize_by is not None, "normalize_by", normalize_by, rule)
    rule = "one that adds influences: others take no batch in pieces"
    _validate.require(not estimator.groups_by_index, "estimator", estimator, rule)
    assert normalize_by is not None
    assert estimator.limit is not None
    divisor = proven_divisor(num_rows * num_pieces, normalize_by)
    if _validate.is_concrete(normalize_by):
        most = max(float(normalize_by), FEW_ROWS)
    else:
        most = jnp.maximum(normalize_by, FEW_ROWS)
    limit = estimator.limit * (most / normalize_by)
    return divisor, limit, 1 + 2.0**-20 + 9 * most * (num_pieces * ROUNDOFF) ** 2


class PieceSum(NamedTuple):
    """A sum in two floats, in units of a power of two near its limit.

    Attributes:
        high: the sum, rounded.
        low: the remainders of its additions.
    """

    high: PyTree
    low: PyTree
    __repr__ = secret_repr

    @classmethod
    def zero(cls, tree: PyTree) -> "PieceSum":
        """Returns the sum of no pieces like a tree of arrays, or of their shapes."""
        return cls(*(jax.tree.map(jnp.zeros_like, tree) for _ in range(2)))

    def plus(self, piece: Unrounded, limit: Scalar) -> "PieceSum":
        """Returns the sum with one more piece."""

        def scaled(x: jax.Array) -> jax.Array:
            return x / _unit(limit, x)

        def rest(x: jax.Array, y: jax.Array, *lows: jax.Array) -> jax.Array:
            return sum(lows, start=two_sum(x, y)[1])

        piece = materialized(piece.map(partial(jax.tree.map, scaled)))
        return PieceSum(
            jax.tree.map(jnp.add, self.high, piece.high),
            jax.tree.map(rest, self.high, piece.high, piece.low, self.low),
        )

    def value(self, limit: Scalar) -> Unrounded:
        """Returns the sum before it is rounded."""
        units = partial(jax.tree.map, lambda x: x * _unit(limit, x))
        return Unrounded(self.high, self.low).map(units)


def _unit(limit: Scalar, x: jax.Array) -> jax.Array:
    """Returns the power of two by which numbers up to the limit are near one."""
    _, exponent = jnp.frexp(like(limit, x))
    return jnp.ldexp(like(1, x), exponent)


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
