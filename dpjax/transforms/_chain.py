"""Chains that begin with a private mean, so that nothing can mix samples before it."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Self, cast

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._keys import secret_repr
from dpjax._sums.exact import Unrounded
from dpjax._types import Key, PyTree, Scalar


class Piece(NamedTuple):
    """Asks update for the `BoundedMean` of a piece of a batch, in place of samples.

    Attributes:
        samples: pytree, leaves (rows, ...), or a stream; None asks for shapes.
        num_pieces: number of pieces of the batch.
    """

    samples: PyTree
    num_pieces: int


class BoundedMean(NamedTuple):
    """Holds the mean of bounded samples before its noise is added.

    Attributes:
        value: the mean, which is NOT private. It is rounded only if its noise is
            calibrated to the smooth sensitivity.
        noise: the arguments of its noise, such as stddev.
        limit: the bound of a sum of pieces; None for a whole batch.
    """

    value: Unrounded | PyTree
    noise: dict[str, PyTree]
    limit: Scalar | None
    __repr__ = secret_repr


class KeyState(NamedTuple):
    """Holds the key of a transformation's next draws.

    After restoring a checkpoint replace the key, or the next update repeats its noise.
    """

    key: Key
    __repr__ = secret_repr

    @classmethod
    def of(cls, key: Key) -> Self:
        """Returns the state with a copy of a key, so that the state may be donated.

        A copy would hide from `jax.debug_key_reuse` that another run uses the same key.
        So under that setting the state has the key itself.
        """
        return cls(key if jax.debug_key_reuse.value else jnp.copy(key))


class PrivateMean(optax.GradientTransformationExtraArgs):
    """Maps per-example gradients to a private mean, as an optax transformation.

    Attributes:
        release: like update, but also returns the standard deviation of the noise in
            the mean: a number, or a pytree prefix of the mean. It is None if it is not
            public, or the noise depends on earlier noise. `release` also accepts a
            `BoundedMean` from `measure` in place of samples.
        measure: returns a `BoundedMean`, without noise. If the samples are None, it
            shows only shapes. `update` with a `Piece` calls it, and keeps the state.
    """

    release: Callable[..., tuple[PyTree, PyTree, PyTree | None]]
    measure: Callable[..., BoundedMean]

    @classmethod
    def of(
        cls,
        init: optax.TransformInitFn,
        release: Callable[..., tuple[PyTree, PyTree, PyTree | None]],
        measure: Callable[..., BoundedMean],
    ) -> Self:
        """Returns the transformation that these functions make up."""

        def update(updates, state, params=None, **extra_args) -> tuple[Any, PyTree]:
            if isinstance(updates, Piece):
                samples, extra_args["num_pieces"] = updates
                return measure(samples, state, params, **extra_args), state
            return release(updates, state, params, **extra_args)[:2]

        made = cls(init, update)
        made.release, made.measure = release, measure
        return made


def chain(*transforms: optax.GradientTransformation) -> PrivateMean:
    """Returns one transformation from `privatize` and the optax parts after it.

    Unlike `optax.chain`, it checks the order, because no transformation may use samples
    before `privatize`. If one mixes them first (`optax.clip_by_global_norm`), one
    record moves every row, and the noise is many times too small. If parameters are in
    half precision, the later transformations and their states are in float32, so that
    their dtypes do not change, as `lax.scan` requires.

    The second transformation gets the standard deviation of the noise as the keyword
    noise_stddev, for `scale_by_dp_adam`.

    Args:
        transforms: the first is `privatize`, `dp_sgd`, or such a chain. The later
            transformations post-process its private mean, without privacy cost. They
            may be wrappers of optax, such as `optax.contrib.schedule_free`.

    Returns:
        An optax transformation that takes per-example gradients with leaves (n, ...),
        and the keyword is_padding_example. Updates are float32 if parameters are in
        half precision.

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
        "privatize, dp_sgd or a chain of them: a transformation before it would see "
        "samples, and one that mixes them (as optax.clip_by_global_norm) breaks the "
        "guarantee. optax.inject_hyperparams goes around the whole chain, as "
        "optax.inject_hyperparams(make)(learning_rate=...) of a function "
        "make(learning_rate) that returns dpjax.chain(...)"
    )
    _validate.require(isinstance(mean, PrivateMean), "transforms[0]", mean, rule)
    for i, transform in enumerate(rest, start=1):
        rule = "post-processing of a mean: the first transformation has left no samples"
        is_fine = not isinstance(transform, PrivateMean)
        _validate.require(is_fine, f"transforms[{i}]", transform, rule)
    mean = cast(PrivateMean, mean)
    parts = [optax.with_extra_args_support(part) for part in rest]

    def init(params: PyTree) -> PyTree:
        wide = _wide(params)
        return mean.init(params), *(part.init(wide) for part in parts)

    def release(updates, state, params=None, **extra_args):
        """Returns what the other parts make of the private mean, and the states."""
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


_REFUSED = {
    "MultiSteps": "it would average over samples before they are bounded. Give one "
    "update the whole batch, as a stream of dpjax.gradients.streamed_grad, or put "
    "dpjax.transforms.accumulate around the optimizer, which takes pieces.",
    "apply_if_finite": "it would skip updates by the values of private samples. It is "
    "not needed: releases are finite, whatever the samples.",
}
# Wrappers of optax that pass samples on unchanged.
_PASS_PIECES = ("inject_hyperparams", "with_extra_args_support")


def refuse_wrappers(tree: PyTree) -> None:
    """Raises `ValueError` if an optax wrapper around a private mean would break it.

    `tree` holds the parameters of `init`, or the updates of `update`.
    """
    is_masked = False

    def look(node: Any) -> bool:
        nonlocal is_masked
        is_masked |= isinstance(node, optax.MaskedNode)
        return is_masked

    jax.tree.flatten(tree, is_leaf=look)
    if is_masked:
        raise ValueError(
            "optax.masked must not stand around privatize, aggregate or dp_sgd: leaves "
            "that are masked out would pass raw per-sample gradients through. Put it "
            "after privatize, but leave frozen parameters out of params: after it they "
            "still share the clip norm. For separate bounds of groups of leaves use "
            "dpjax.estimators.Grouped."
        )
    # apply_if_finite leaves no trace in the values: only the call stack shows it.
    frame, is_in_pieces, part = sys._getframe(1), False, None
    while frame is not None:
        module = str(frame.f_globals.get("__name__")).split(".")[0]
        if module not in ("optax", "dpjax"):
            return
        wrapper = frame.f_code.co_qualname.split(".")[0]
        if wrapper in _REFUSED:
            raise ValueError(
                f"optax.{wrapper} must not stand around privatize, aggregate or "
                f"dp_sgd: {_REFUSED[wrapper]}"
            )
        if module == "optax" and is_in_pieces and wrapper != "with_extra_args_support":
            raise ValueError(
                f"optax.{wrapper} must not stand around accumulate: it would step, and "
                "count a step in its schedules, with every piece. Put it inside, as "
                "accumulate(dpjax.chain(private, ...), ...), or "
                "accumulate(optax.inject_hyperparams(make)(...), ...) of a function "
                "make that returns dpjax.chain."
            )
        if wrapper == "accumulate" and part is not None:
            raise ValueError(
                f"optax.{part} must not stand inside accumulate: only dpjax.chain "
                "knows the pieces of a batch. Let make return one, in "
                "accumulate(optax.inject_hyperparams(make)(...), ...)."
            )
        is_in_pieces |= wrapper == "accumulate"
        if module == "optax" and wrapper not in _PASS_PIECES:
            part = wrapper
        frame = frame.f_back


def _wide(params: PyTree) -> PyTree:
    """Returns parameters, with float32 in place of half precision."""

    def wide(x: Any) -> Any:
        dtype = getattr(x, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            return x
        return x.astype(jnp.float32) if dtype.itemsize < 4 else x

    return jax.tree.map(wide, params)


def require_params(params: Any) -> None:
    """Requires that params were given, which are optional in an optax update."""
    rule = "given to update, as optax asks"
    _validate.require(params is not None, "params", params, rule)


def require_samples(updates: PyTree, params: PyTree) -> None:
    """Requires leaves (n, ...) of updates for leaves (...) of params, if given."""
    are_arrays = all(hasattr(x, "shape") for x in jax.tree.leaves(updates))
    if are_arrays and jax.tree.structure(updates) == jax.tree.structure(params):
        shapes = [x.shape for x in jax.tree.leaves(updates)]
        wanted = [jnp.shape(x) for x in jax.tree.leaves(params)]
        rule = (
            f"per-sample gradients, of shapes (n, ...) for params of shapes {wanted}; "
            "no mean or sum of them, as jax.grad of a batch and optax.MultiSteps make"
        )
        is_fine = [shape[1:] for shape in shapes] == wanted
        _validate.require(is_fine, "updates", shapes, rule)
