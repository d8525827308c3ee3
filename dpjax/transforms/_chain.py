"""Chains that begin with a private mean, and batches that are taken in pieces.

`chain` checks that nothing can mix samples before the private mean. `accumulate` draws
noise once for each batch of pieces.

Adding pieces rounds, and `docs/privacy/proofs/sums.md`, 1.11, bounds the errors of the
sum of K pieces by 9 max(n, 4096) K^2 u^2 of the change by one record, u = 2^-24. 2^-20
more covers underflow and the rounding of this factor.
"""

import inspect
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._keys import secret_repr
from dpjax._sharding import AxisName
from dpjax._sums.fold import Unrounded, two_sum
from dpjax._tree import like, materialized
from dpjax._types import REPLACE_ONE, Key, NeighboringRelation, PyTree, Scalar
from dpjax.estimators import AdaptiveThreshold, Estimator, Scaled
from dpjax.mechanisms._strategy import Strategy
from dpjax.transforms._privatize import BoundedMean, Piece, PrivateMean, privatize

_INJECTED = "inject_hyperparams."  # prefix of the qualified names that optax gives


def chain(*transforms: optax.GradientTransformation) -> PrivateMean:
    """Returns one transformation from `privatize` and the optax parts after it.

    Unlike `optax.chain`, it checks the order, because no transformation may use samples
    before `privatize`. If one mixes them first (`optax.clip_by_global_norm`), one
    record moves every row, and the noise is many times too small. If parameters are in
    half precision, the later transformations and their states are in float32, so that
    their dtypes do not change, as `lax.scan` requires.

    The second transformation gets the standard deviation of the noise as the keyword
    noise_stddev, for `scale_by_dp_adam`. A transformation whose update names its
    keywords, such as `optax.contrib.sam`, gets those that it names.

    Args:
        transforms: the first is `privatize`, `dp_sgd`, or such a chain. The later
            transformations post-process its private mean, without privacy cost. They
            may be wrappers of optax, such as `optax.contrib.schedule_free`.

    Returns:
        An optax transformation that takes per-example gradients with leaves (n, ...),
        and the keyword is_padding_example. Half-precision parameters get float32 steps.

    Raises:
        ValueError: If the first transformation is not a private mean, a later one is,
            or any is not an optax transformation.

    Privacy:
        The guarantee is the first transformation's, under its relation. The later
        transformations are post-processing.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> import dpjax
        >>> from dpjax.estimators import Clipping
        >>> private = dpjax.transforms.privatize(
        ...     Clipping(1.0), noise_multiplier=1.0, key=jax.random.key(0))
        >>> optimizer = dpjax.chain(private, optax.adam(0.1))
        >>> try:
        ...     dpjax.chain(optax.clip_by_global_norm(1.0), private)
        ... except ValueError as error:
        ...     print(str(error)[:52])
        transforms[0] must be privatize, dp_sgd or a chain o

    Reference:
        Dwork, Roth (2014), Proposition 2.1, post-processing.
    """
    mean, rest = next(iter(transforms), None), transforms[1:]
    for i, transform in enumerate(transforms):
        is_fine = isinstance(transform, optax.GradientTransformation)
        rule = "an optax transformation"
        _validate.require(is_fine, f"transforms[{i}]", transform, rule)
    rule = (
        "privatize, dp_sgd or a chain of these: before them, a transformation that "
        "mixes samples, such as optax.clip_by_global_norm, would break the guarantee. "
        "Put inject_hyperparams around the chain: optax.inject_hyperparams(make)(...), "
        "where make(learning_rate) returns dpjax.chain(...)"
    )
    _validate.require(isinstance(mean, PrivateMean), "transforms[0]", mean, rule)
    for i, transform in enumerate(rest, start=1):
        rule = "neither privatize nor dp_sgd: only the first gets per-example gradients"
        is_fine = not isinstance(transform, PrivateMean)
        _validate.require(is_fine, f"transforms[{i}]", transform, rule)
    mean = cast(PrivateMean, mean)
    parts = [_taking_any_keyword(part) for part in rest]

    def init(params: PyTree) -> PyTree:
        wide = _wide(params)
        return mean.init(params), *(part.init(wide) for part in parts)

    def release(updates, state, params=None, **extra_args):
        """Returns the update after all parts, the new states, and None as stddev."""
        updates, new, noise_stddev = mean.release(
            updates, state[0], params, **extra_args
        )
        states, wide = [new], _wide(params)
        passed = extra_args | {"noise_stddev": noise_stddev}
        for part, old in zip(parts, state[1:], strict=True):
            updates, new = part.update(updates, old, wide, **passed)
            states.append(new)
            passed = extra_args  # the noise of later updates has another stddev
        return updates, tuple(states), None

    def measure(updates, state, params=None, **extra_args):
        return mean.measure(updates, state[0], params, **extra_args)

    return PrivateMean.of(init, release, measure)


def dp_sgd(
    learning_rate: optax.ScalarOrSchedule,
    estimator: Estimator | AdaptiveThreshold | Scaled,
    *,
    noise_multiplier: Scalar,
    key: Key,
    normalize_by: Scalar | None = None,
    relation: NeighboringRelation = REPLACE_ONE,
    axis_name: AxisName | None = None,
    noise: Strategy | None = None,
) -> PrivateMean:
    """Returns an optimizer that privatizes per-example gradients and takes an SGD step.

    The parameters become
    params - learning_rate·(robust mean + noise_multiplier·l2 sensitivity·N(0, I)).
    With `Clipping` this is the DP-SGD of Abadi et al.

    Args:
        learning_rate: step size, or a schedule of the step.
        estimator: see `privatize`.
        noise_multiplier: stddev / l2 sensitivity under `relation`.
        key: see `privatize`.
        normalize_by: see `privatize`.
        relation: see `privatize`.
        axis_name: see `privatize`.
        noise: see `privatize`.

    Returns:
        An optax optimizer that takes per-example gradients with leaves (n, ...), and
        the keyword is_padding_example.

    Raises:
        ValueError: As for `privatize`.

    Privacy: The guarantee of `privatize` holds; the step is post-processing.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax.estimators import SmoothedTruncation
        >>> optimizer = dp_sgd(0.1, SmoothedTruncation(1.0), noise_multiplier=0.5,
        ...                    key=jax.random.key(0))
        >>> state = optimizer.init(jnp.zeros(3))
        >>> print(optimizer.update(jnp.ones((8, 3)), state)[0].shape)
        (3,)

    Reference:
        Abadi et al. (2016); Wang, Xiao, Devadas, Xu (2020), Algorithm 4.
    """
    private = privatize(
        estimator,
        noise_multiplier=noise_multiplier,
        key=key,
        normalize_by=normalize_by,
        relation=relation,
        axis_name=axis_name,
        noise=noise,
    )
    return chain(private, optax.scale_by_learning_rate(learning_rate))


def accumulate(
    optimizer: optax.GradientTransformationExtraArgs, *, num_pieces: int
) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer that takes each batch in pieces, one after the other.

    The bounded influences of all pieces are summed. After the last piece the optimizer
    gets their mean, with noise drawn once. Until then updates are zero, and the state
    of the optimizer does not change, thresholds and moments included. So `optimizer`
    takes the same step as with the whole batch, to rounding.

    Args:
        optimizer: `privatize`, `dp_sgd`, or a `dpjax.chain` with either and all later
            transformations. normalize_by is the public size of the whole batch. Or
            `optax.inject_hyperparams(make)(...)` where make returns one of these:
            schedules then count batches.
        num_pieces: number of pieces of a batch. Pad them to one shape, with masks.

    Returns:
        An optax transformation whose update takes the gradients of one piece: leaves
        (rows, ...) or a stream, and the keyword is_padding_example.

    Raises:
        ValueError: If optimizer is none of these, or num_pieces is no count; from init,
            inside another optax transformation; from update, without normalize_by, with
            many more rows in all than it says, or with `MedianOfMeans` or
            `TrimmedMean`.

    Privacy:
        The guarantee is the optimizer's, under its relation, for one release per batch.
        A record lies in one piece, so it moves the sum as it moves the mean of a whole
        batch. The noise covers rounding: it is 0.1 percent larger, and 3 more for a
        million records in a thousand pieces. The batching must draw the records of a
        batch. Between two pieces the state holds a sum without noise: save checkpoints
        between batches, or keep them as secret as the records.

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
        "made by privatize, dp_sgd, or dpjax.chain with either first; or by "
        "optax.inject_hyperparams of a function that returns one of these"
    )
    step: Any = getattr(optimizer, "update", None)
    name = getattr(step, "__qualname__", "")
    is_fine = isinstance(optimizer, PrivateMean) or name.startswith(_INJECTED)
    _validate.require(is_fine, "optimizer", optimizer, rule)
    _validate.count(num_pieces=num_pieces)

    def start(inner: PyTree, shapes: PyTree) -> PiecesState:
        return PiecesState(inner, PieceSum.zero(shapes), jnp.zeros((), jnp.int32))

    def measured(samples: PyTree, *args: PyTree, **extra_args: Any) -> BoundedMean:
        # The new state is dropped, because schedules in it count batches, not pieces.
        piece, _ = step(Piece(samples, num_pieces), *args, **extra_args)
        _validate.require(isinstance(piece, BoundedMean), "optimizer", optimizer, rule)
        return piece

    def init(params: PyTree) -> PiecesState:
        inner = optimizer.init(params)
        return start(inner, jax.eval_shape(lambda: measured(None, inner, params).value))

    def update(updates, state, params=None, **extra_args):
        """Returns zeros after adding a piece, or the step after the last piece."""
        piece = measured(updates, state.optimizer, params, **extra_args)
        total = state.total.plus(piece.value, piece.limit)

        def release() -> tuple[PyTree, PiecesState]:
            mean = piece._replace(value=total.value(piece.limit))
            steps, inner = step(mean, state.optimizer, params, **extra_args)
            return steps, start(inner, total.high)

        def wait() -> tuple[PyTree, PiecesState]:
            steps, _ = jax.eval_shape(release)
            none = jax.tree.map(jnp.zeros_like, steps)
            return none, PiecesState(state.optimizer, total, state.num_added + 1)

        return jax.lax.cond(state.num_added == num_pieces - 1, release, wait)

    return optax.GradientTransformationExtraArgs(init, update)


class PieceSum(NamedTuple):
    """Holds a sum of pieces in two floats, in units of a power of two near its limit.

    `low` is the sum of the remainders of all additions to `high`.
    """

    high: PyTree
    low: PyTree
    __repr__ = secret_repr

    @classmethod
    def zero(cls, tree: PyTree) -> "PieceSum":
        """Returns the sum of no pieces, shaped like a tree of arrays or of shapes."""
        return cls(*(jax.tree.map(jnp.zeros_like, tree) for _ in range(2)))

    def plus(self, piece: Unrounded, limit: Scalar) -> "PieceSum":
        """Returns the sum plus the mean of one more piece, within ±limit."""

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
    """Returns the power of two that scales numbers up to the limit to at most one."""
    _, exponent = jnp.frexp(like(limit, x))
    return jnp.ldexp(like(1, x), exponent)


class PiecesState(NamedTuple):
    """State of `accumulate`.

    Attributes:
        optimizer: state of the optimizer.
        total: the sum of the pieces so far. It has no noise: keep it as secret as the
            records.
        num_added: number of pieces so far.
    """

    optimizer: PyTree
    total: PieceSum
    num_added: jax.Array
    __repr__ = secret_repr


def _taking_any_keyword(
    part: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation whose update ignores keywords that it does not name."""
    if not isinstance(part, optax.GradientTransformationExtraArgs):
        return optax.with_extra_args_support(part)
    named = inspect.signature(part.update).parameters.values()
    if any(x.kind is inspect.Parameter.VAR_KEYWORD for x in named):
        return part
    names = {x.name for x in named}

    def update(updates, state, params=None, **extra_args):
        known = {name: x for name, x in extra_args.items() if name in names}
        return part.update(updates, state, params, **known)

    return optax.GradientTransformationExtraArgs(part.init, update)


def _wide(params: PyTree) -> PyTree:
    """Returns params in float32 or wider, for the parts of a chain after the mean."""

    def wide(x: Any) -> Any:
        dtype = getattr(x, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            return x
        return x.astype(jnp.float32) if dtype.itemsize < 4 else x

    return jax.tree.map(wide, params)
