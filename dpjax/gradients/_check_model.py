"""Checks a loss before a run: is it a loss of one example, and what does it cost?"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend import core

from dpjax import _validate
from dpjax._sums.stream import programs_in
from dpjax._types import LossFn, PyTree
from dpjax.gradients._factored import uses
from dpjax.gradients._loss import (
    closed_over,
    is_array,
    loss_of_users,
    no_running_statistics,
    rows_held,
    running_statistics,
    trainable,
)

FREEZING = (
    "All parameters in this table share the clip norm and get noise. Leave those that "
    "you freeze out of params: frozen after privatize, they keep their share."
)


@dataclass(frozen=True)
class LeafCheck:
    """Describes how the gradients with respect to one parameter are stored.

    Attributes:
        name: path of the parameter in the pytree.
        shape: its shape, or () if it is no array.
        dtype: its dtype, or its type if it is no array.
        way: "outer product", "matrix product", "table rows", "written out", or "none"
            if it has no gradient.
        num_bytes: memory that the gradient of one example takes.
        why: what the loss does with the parameter.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    way: str
    num_bytes: int
    why: str


@dataclass(frozen=True)
class ModelCheck:
    """Holds the result of `check_model`; prints as a table with the problems below it.

    The last row of the table has the memory of all gradients. A sentence below it says
    where to freeze a parameter: outside of params.

    Attributes:
        rows: one `LeafCheck` for every parameter.
        problems: sentences that each name a problem and a remedy, or empty.
    """

    rows: tuple[LeafCheck, ...]
    problems: tuple[str, ...]

    def __str__(self) -> str:
        """Returns a table with a row for each parameter, and the problems below it."""
        cells = [
            (x.name, str(x.shape), x.dtype, x.way, f"{x.num_bytes:,} B", x.why)
            for x in self.rows
        ]
        total = sum(x.num_bytes for x in self.rows)
        header = ("parameter", "shape", "dtype", "gradients", "memory", "why")
        table = [header, *cells, ("in all", "", "", "", f"{total:,} B", "")]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
        problems = [f"* {problem}" for problem in self.problems]
        return "\n".join([*lines, FREEZING, *(problems or ["no problem found"])])


def check_model(
    loss_fn: LossFn, params: PyTree, batch: PyTree, *, has_aux: bool = False
) -> ModelCheck:
    """Returns how per-example gradients are stored, and the problems of a loss.

    The loss of one example is traced, and never computed. Its gradient with respect to
    each parameter is stored in one of four ways; the mean is the same, to rounding:

    * "outer product": two vectors. An estimator that clips norms never multiplies them
      out; one that acts by coordinate does so while it adds.
    * "matrix product": the vectors that the parameter is multiplied by, and their
      cotangents. Their product is computed while it is added.
    * "table rows": only the few rows of a table that the example reads.
    * "written out": the whole gradient, for a few examples at a time.

    These problems are found:

    * an operation that `jax.vmap` cannot compute for several examples at once;
    * examples that mix: an array with the batch's leading size in the traced loss or
      its gradient, also inside `jax.jit`, `jax.checkpoint`, branches and loops; a
      collective over the batch, such as `jax.lax.pmean`; running statistics of
      BatchNorm in params, or in what loss_fn closes over or is bound to;
    * parameters that are integers, keys, complex, functions, NaN or infinite, or with
      respect to which the loss has no derivative;
    * a loss that is no real scalar, cannot be traced for one example, has no
      derivative, draws from a key which is the same for all examples, or has side
      effects, such as `jax.debug.print`.

    Args:
        loss_fn: as for `robust_grad`.
        params: pytree of arrays, or of `jax.ShapeDtypeStruct`. Values are public.
        batch: pytree, leaves of shape (n, ...), arrays or `jax.ShapeDtypeStruct`. No
            values are read.
        has_aux: whether loss_fn returns auxiliary values too.

    Returns:
        A row for every parameter, and the problems. Not every problem is found: numbers
        that were computed from the batch beforehand, arrays of another length, and
        values that a callback reads leave no trace in the program.

    Raises:
        ValueError: If leaves of batch disagree on n.

    Example:
        >>> import jax.numpy as jnp
        >>> def loss_fn(params, example):
        ...     return jnp.sum(jnp.tanh(example @ params["w"] + params["b"]))
        >>> params = {"w": jnp.zeros((20, 3)), "b": jnp.zeros(3), "n": jnp.zeros(2)}
        >>> check = check_model(loss_fn, params, jnp.zeros((5, 20)))
        >>> [(row.way, row.num_bytes) for row in check.rows]
        [('written out', 12), ('none', 0), ('outer product', 92)]
        >>> print(check.problems[0][:60])
        params['n'] has no gradient, because the loss has no derivat
    """
    batch = _validate.numbers(batch, "batch")
    num_rows = _validate.leading_size(batch, "batch")
    named, structure = jax.tree_util.tree_flatten_with_path(params)
    arrays = {i: x for i, (_, x) in enumerate(named) if is_array(x)}
    example = jax.eval_shape(lambda batch: jax.tree.map(lambda x: x[0], batch), batch)

    def loss(arrays: dict[int, Any], example: PyTree) -> Any:
        leaves = [arrays.get(i, x) for i, (_, x) in enumerate(named)]
        loss_of = loss_of_users(loss_fn, has_aux=has_aux)
        result = loss_of(structure.unflatten(leaves), example)
        return result[0] if has_aux else result

    # Collect problems; a loss that cannot be traced or differentiated is one of them.
    problems = [*_of_params(params), *_of_statistics(loss_fn)]
    uses_of, has_gradient, programs = {}, None, []
    try:
        program = jax.make_jaxpr(loss)(arrays, example)
    except Exception as why:
        problems.append(_in_words("cannot be traced for one example", why))
    else:
        uses_of = dict(zip(arrays, uses(program, len(arrays)), strict=True))
        problems += _of_program(program)
        programs.append(program)
        try:
            if _is_loss(program):
                has_gradient, gradient = _with_gradient(loss, arrays, example)
                programs.append(gradient)
        except Exception as why:
            problems.append(_in_words("has no gradient", why))
        else:
            problems += _of_rows_at_once(program, len(arrays), num_rows)
    problems += rows_held(loss_fn, programs, num_rows)

    # Describe each leaf of params, whether it is an array or not.
    rows = []
    for i, (path, x) in enumerate(named):
        name, use = jax.tree_util.keystr(path), uses_of.get(i)
        dtype = jnp.result_type(x) if i in arrays else type(x).__name__
        shape = np.shape(x) if i in arrays else ()
        way, why, num_bytes = "none", use.why if use else "not traced", 0
        if not _is_trainable(x):
            why = "not trainable"
        elif use and (has_gradient is None or i in has_gradient):
            num_held = getattr(use, "num_held", math.prod(shape))
            way, num_bytes = use.way, num_held * jnp.result_type(x).itemsize
        elif use:
            problems.append(
                f"params{name} has no gradient, because the loss has no derivative by "
                f"it ({why}): it gets noise alone. Leave it out of params."
            )
        rows.append(LeafCheck(name or "params", shape, str(dtype), way, num_bytes, why))
    return ModelCheck(tuple(rows), tuple(problems))


def _is_trainable(x: Any) -> bool:
    return is_array(x) and jnp.issubdtype(jnp.result_type(x), jnp.floating)


def _in_words(problem: str, why: Exception) -> str:
    """Returns a problem as a sentence, with the first line of the error `why`."""
    line = (str(why).splitlines() or [""])[0].rstrip(".")
    if "unbound axis name" in line:
        problem = "mixes examples by a collective, such as pmean, and " + problem
    return f"loss_fn {problem}: {type(why).__name__}: {line}."


def _of_params(params: PyTree) -> Iterator[str]:
    """Yields a problem, as text, for each leaf of params that cannot be trained."""
    try:
        no_running_statistics(params)
    except ValueError as why:
        yield str(why)
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        name = "params" + jax.tree_util.keystr(path)
        try:
            trainable(x)
        except ValueError as why:
            yield str(why).replace("params", name, 1)
            continue
        if _validate.is_concrete(x) and not np.all(jnp.isfinite(x)):
            yield (
                f"{name} holds NaN or infinite numbers: gradients are then NaN, which "
                "counts as zero, and nothing is trained. Begin with finite numbers."
            )


def _of_statistics(loss_fn: LossFn) -> Iterator[str]:
    """Yields a problem, as text, for each BatchNorm state that loss_fn closes over."""
    for name, value in closed_over(loss_fn).items():
        statistics = running_statistics(value, in_closure=True)
        if statistics is not None:
            yield (
                f"loss_fn closes over {name}, which holds {statistics} of BatchNorm: "
                "these must be fixed and public, and BatchNorm must be evaluated with "
                "them (use_running_average=True, inference=True)."
            )


def _of_program(program: core.ClosedJaxpr) -> Iterator[str]:
    """Yields the problems, as text, of a traced loss: result, keys and side effects."""
    if not _is_loss(program):
        kinds = ", ".join(x.str_short() for x in program.out_avals)
        yield f"loss_fn must return one real scalar for an example, got {kinds}."
    if _draws_alike(program.jaxpr, set()):
        yield (
            "loss_fn draws from a key that is the same for all examples, such as one "
            "that it closes over: dropout drops the same units for all. Put a key for "
            "each example into the batch, new in every step."
        )
    if program.effects:
        yield (
            "loss_fn has side effects, such as jax.debug.print or a callback: they "
            "would show single records. Remove them."
        )


def _of_rows_at_once(
    program: core.ClosedJaxpr, num_arrays: int, num_rows: int
) -> Iterator[str]:
    """Yields a problem, as text, if `jax.vmap` cannot compute a traced loss."""
    axes = [None if i < num_arrays else 0 for i in range(len(program.in_avals))]
    args = [
        jax.ShapeDtypeStruct(x.shape if axis is None else (num_rows, *x.shape), x.dtype)
        for x, axis in zip(program.in_avals, axes, strict=True)
    ]
    try:
        jax.eval_shape(jax.vmap(core.jaxpr_as_fun(program), axes), *args)
    except Exception as why:
        sentence = _in_words("cannot be computed for several examples at once", why)
        yield f"{sentence} Compute one at a time, by microbatch_size=1."


def _is_loss(program: core.ClosedJaxpr) -> bool:
    kinds = program.out_avals
    return [x.shape for x in kinds] == [()] and _is_trainable(kinds[0])


def _draws_alike(jaxpr: core.Jaxpr, fixed: set[Any]) -> bool:
    """Returns whether random bits come from a key that is the same for all examples."""
    # No argument of the loss determines such a key. `fixed` are the inputs of `jaxpr`
    # that no argument determines.
    fixed = {*fixed, *jaxpr.constvars}
    for equation in jaxpr.eqns:
        is_fixed = [isinstance(x, core.Literal) or x in fixed for x in equation.invars]
        for inner in (program.jaxpr for program in programs_in(equation)):
            # A branch or a loop's body gets only the last operands, so align the ends.
            pairs = zip(inner.invars[::-1], is_fixed[::-1], strict=False)
            if _draws_alike(inner, {x for x, is_one in pairs if is_one}):
                return True
        if equation.primitive.name == "random_bits" and all(is_fixed):
            return True
        if all(is_fixed):
            fixed.update(equation.outvars)
    return False


def _with_gradient(
    loss: Callable[..., Any], arrays: dict[int, Any], example: PyTree
) -> tuple[set[int], core.ClosedJaxpr]:
    """Returns the numbers of parameters with a gradient, and the gradient's program."""
    # `arrays` has the parameters by number; `loss(arrays, example)` is traced.
    # Parameters without a path to the loss have no gradient: `check_model` reports them
    # as problems.
    floats = {i: x for i, x in arrays.items() if _is_trainable(x)}
    fixed = {i: x for i, x in arrays.items() if i not in floats}
    reached = set()

    def watched(i: int, x: jax.Array) -> jax.Array:
        """Returns x; a backward pass that reaches it adds i to the set `reached`."""

        @jax.custom_vjp
        def same(x):
            return x

        def backward(_, cotangent):
            if isinstance(cotangent, SymbolicZero):
                return (jnp.zeros_like(x),)
            reached.add(i)
            return (cotangent,)

        same.defvjp(lambda x: (x.value, None), backward, symbolic_zeros=True)
        return same(x)

    def of_floats(floats, fixed, example):
        floats = {i: watched(i, x) for i, x in floats.items()}
        return loss({**floats, **fixed}, example)

    return reached, jax.make_jaxpr(jax.grad(of_floats))(floats, fixed, example)
