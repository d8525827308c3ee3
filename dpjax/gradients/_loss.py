"""The loss of one example: checks, losses of users, and rewritten programs.

`evaluate` computes a traced program equation by equation, and a rule may replace some
of the equations. With it, `streamlined` makes gradients fast on XLA's CPU backend.

XLA compares an index with the length of an axis in the index's integer type. If 8 or 16
bits cannot hold the length, a row silently loses its gradient: so indices get 32 bits.
"""

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from dpjax import _validate
from dpjax._sums.stream import programs_in
from dpjax._types import LossFn, PyTree
from dpjax.gradients._convolutions import convolution
from dpjax.gradients._users import UserRecords

# The place of an equation in nested programs: its indices from the outside in.
Place = tuple[int, ...]
# `run(equation)` returns the ordinary results of these inputs, and
# `rule(place, equation, inputs, run)` the results that are wanted.
Run = Callable[[core.JaxprEqn], Sequence[Any]]
Rule = Callable[[Place, core.JaxprEqn, list[Any], Run], Sequence[Any]]
# Which operands of an operation are indices. JAX may append "-..." to its name.
INDICES = {
    "gather": slice(1, None),
    "dynamic_slice": slice(1, None),
    "dynamic_update_slice": slice(2, None),
    "scatter": slice(1, 2),
}
AT_ONCE = 64  # records of a user that are differentiated together; the others wait
MEANING = (
    "as many rows as there are examples. If these are records, one of them moves the "
    "gradients of all others, and no clipping bounds that: pass the rows in the batch, "
    "each with its own example. If they are public, nothing is wrong."
)

_BATCH_NORM = (
    "BatchNorm normalizes an example by the others of its batch, so its gradient "
    "depends on all of them, and per-sample gradients would normalize each by itself. "
    "Use GroupNorm or LayerNorm; or keep the statistics fixed and public: "
    "let loss_fn close over them (nnx.split(model, nnx.Param, ...), "
    "variables['params'], eqx.partition) and evaluate BatchNorm with them "
    "(use_running_average=True, inference=True). SpectralNorm keeps its vectors in the "
    "same place: close over them, and do not update them (update_stats=False)"
)


def trainable(params: PyTree) -> None:
    """Requires params that can get per-example gradients: real floats, no BatchNorm."""
    no_running_statistics(params)
    rule = (
        "a float array: split what is trained from the rest, as "
        "equinox.partition(model, equinox.is_inexact_array) and "
        "nnx.split(model, nnx.Param, ...) do"
    )
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        dtype = jnp.result_type(x) if is_array(x) else type(x)
        is_fine = is_array(x) and jnp.issubdtype(dtype, jnp.inexact)
        place = "params" + jax.tree_util.keystr(path)
        _validate.require(is_fine, place, dtype, rule)
    _validate.real(params=params)


def is_array(x: Any) -> bool:
    """Returns whether a leaf is an array or a number."""
    return hasattr(x, "dtype") or isinstance(x, int | float | complex)


def no_running_statistics(params: PyTree) -> None:
    """Raises `ValueError` where params hold the state of BatchNorm."""
    statistics = running_statistics(params)
    if statistics is not None:
        raise ValueError(
            f"params must hold no running statistics, got {statistics} of BatchNorm. "
            f"{_BATCH_NORM}."
        )


def running_statistics(tree: PyTree, *, in_closure: bool = False) -> str | None:
    """Returns the name of BatchNorm state in a tree, which mixes examples, or None."""
    nodes: list[Any] = []
    jax.tree.flatten(tree, is_leaf=lambda node: nodes.append(node) is not None)
    kinds = {
        ("flax", "BatchStat"): "nnx.BatchStat",
        ("equinox", "State"): "equinox.nn.State",
    }
    for node in nodes:
        if isinstance(node, Mapping) and "batch_stats" in node:
            return "Linen's collection 'batch_stats'"
        if isinstance(node, Mapping) and {*node} == {"average", "counter", "hidden"}:
            return "Haiku's moving averages"
        for kind in type(node).__mro__:
            place = kind.__module__.partition(".")[0], kind.__name__
            if place in kinds:
                return kinds[place]
    # In params a mean and var may be a model's.
    mappings = (x for x in nodes if in_closure and isinstance(x, Mapping))
    is_linen = any({*node} == {"mean", "var"} for node in mappings)
    return "Linen's 'mean' and 'var'" if is_linen else None


def loss_of_users(loss_fn: LossFn, *, has_aux: bool = False) -> LossFn:
    """Returns a loss that also accepts all records of a user, as `UserRecords`.

    The loss of a user is the mean over the user's records, and its aux has a leading
    axis of records_per_user. Any other example is passed to loss_fn.
    """

    def loss(params: PyTree, example: PyTree) -> Any:
        """Returns the loss of an example; of a user, the mean of losses."""
        if not isinstance(example, UserRecords):
            return loss_fn(params, example)
        own = partial(loss_fn, params)
        size = len(example.is_record)
        results = (
            jax.vmap(own)(example.records)
            if size <= AT_ONCE
            else jax.lax.map(jax.checkpoint(own), example.records, batch_size=AT_ONCE)
        )
        values, aux = results if has_aux else (results, ())
        value = jnp.sum(jnp.where(example.is_record, values, 0))
        value /= jnp.maximum(jnp.sum(example.is_record), 1).astype(value.dtype)
        return (value, aux) if has_aux else value

    return loss


def closed_over(loss_fn: Any) -> dict[str, Any]:
    """Returns the pytrees that `loss_fn` uses besides its arguments, by name."""
    # They may hold records or BatchNorm's state. loss_fn closes over them, or binds
    # them by `functools.partial` or as `self`. Wrappers such as `jax.jit`, which have
    # `__wrapped__`, are unwrapped first.
    bound: dict[str, Any] = {}
    while not inspect.isfunction(loss_fn) or hasattr(loss_fn, "__wrapped__"):
        if wrapped := getattr(loss_fn, "__wrapped__", None):
            loss_fn = wrapped
        elif isinstance(loss_fn, partial):
            places = {f"argument {i}": x for i, x in enumerate(loss_fn.args)}
            bound |= places | loss_fn.keywords
            loss_fn = loss_fn.func
        elif inspect.ismethod(loss_fn):
            bound["self"], loss_fn = loss_fn.__self__, loss_fn.__func__
        elif inspect.isroutine(loss_fn):  # built in
            return bound
        else:
            loss_fn = loss_fn.__call__
    # Bound arguments win over variables of the same name.
    variables, pytrees = inspect.getclosurevars(loss_fn), {}
    for name, value in {**variables.globals, **variables.nonlocals, **bound}.items():
        with suppress(Exception):  # not every dictionary is a pytree
            jax.tree.leaves(value)
            pytrees[name] = value
    return pytrees


def constants(program: core.ClosedJaxpr) -> Iterator[Any]:
    """Yields the constants of a program, and of the programs inside it."""
    yield from program.consts
    for equation in program.eqns:
        yield from (x.val for x in equation.invars if isinstance(x, core.Literal))
        for inner in programs_in(equation):
            yield from constants(inner)


def rows_held(
    loss_fn: LossFn, programs: Iterable[core.ClosedJaxpr], num_rows: int
) -> list[str]:
    """Returns a warning for each shape of arrays in a loss that have num_rows rows."""
    # An example whose loss reads such an array may depend on all records. The arrays
    # are constants of `programs`, or `closed_over` (as NumPy arrays are). Only names
    # and shapes are read. With one row, every array of one row would match.
    leaves = [
        (f"closes over {name}, with", x)
        for name, value in closed_over(loss_fn).items()
        for x in jax.tree.leaves(value)
        if isinstance(x, jax.Array | np.ndarray)
    ]
    leaves += [("holds", x) for program in programs for x in constants(program)]
    sentences: dict[Any, str] = {}
    for how, x in leaves if num_rows > 1 else ():
        if np.shape(x)[:1] == (num_rows,):
            sentence = f"loss_fn {how} an array of shape {np.shape(x)}: {MEANING}"
            sentences.setdefault(np.shape(x), sentence)
    return [*sentences.values()]


def warn_of_rows(
    loss_fn: LossFn, params: PyTree, batch: PyTree, num_rows: int, *, has_aux=False
) -> None:
    """Warns of arrays with num_rows rows that a loss reads: perhaps all records."""

    def shape(x: Any, axes: int) -> jax.ShapeDtypeStruct:  # without a mesh
        kind = jax.typeof(x)
        return jax.ShapeDtypeStruct(
            kind.shape[axes:], kind.dtype, weak_type=getattr(kind, "weak_type", False)
        )

    grad_fn = jax.grad(loss_of_users(loss_fn, has_aux=has_aux), has_aux=has_aux)
    program = jax.make_jaxpr(grad_fn)(
        jax.tree.map(lambda x: shape(x, 0), params),
        jax.tree.map(lambda x: shape(x, 1), batch),
    )
    for sentence in rows_held(loss_fn, [program], num_rows):
        warnings.warn(sentence, stacklevel=4)


def evaluate(
    program: core.ClosedJaxpr, args: Sequence[Any], rule: Rule, within: Place = ()
) -> list[Any]:
    """Returns a program's results, where `rule` may replace those of any equation."""
    # The place of an equation is (*within, index). Plain jits are inlined.
    jaxpr, given = program.jaxpr, [*program.consts, *args]
    values = dict(zip(jaxpr.constvars + jaxpr.invars, given, strict=True))

    def read(atom):
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    def wide(index):  # integers of 32 bits or more
        is_narrow = jnp.iinfo(jax.typeof(index).dtype).bits < 32
        return lax.convert_element_type(index, jnp.int32) if is_narrow else index

    def run(inputs, equation):
        kind = equation.primitive
        if not kind.multiple_results:
            return [kind.bind(*inputs, **equation.params)]
        # The parameters of such an operation may be functions, which `bind` does not
        # take: so the equation is run as a program of its own.
        used, function = as_function(jaxpr, equation)
        return function(*(values[x] for x in used))

    for i, equation in enumerate(jaxpr.eqns):
        place = (*within, i)
        inputs = [read(atom) for atom in equation.invars]
        kind = equation.primitive.name.partition("-")[0]
        indices = INDICES.get(kind, slice(0))
        inputs[indices] = map(wide, inputs[indices])
        with equation.ctx.manager:  # the settings of JAX under which it was traced
            if is_plain_jit(equation):
                results = evaluate(equation.params["jaxpr"], inputs, rule, place)
            else:
                results = rule(place, equation, inputs, partial(run, inputs))
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def as_function(
    jaxpr: core.Jaxpr, equation: core.JaxprEqn
) -> tuple[list[core.Var], Callable[..., list[Any]]]:
    """Returns an equation's input variables, and a function from values to results."""
    # `jaxpr` contains the equation. The function can be run, or differentiated.
    used = list(dict.fromkeys(x for x in equation.invars if isinstance(x, core.Var)))
    program = jaxpr.replace(
        constvars=[], invars=used, outvars=equation.outvars, eqns=[equation]
    )
    return used, core.jaxpr_as_fun(core.ClosedJaxpr(program, []))


def is_plain_jit(equation: core.JaxprEqn) -> bool:
    """Returns whether an equation is a `jit` that states no sharding."""
    if equation.primitive is not core.primitives.jit_p:
        return False
    places = equation.params["in_shardings"] + equation.params["out_shardings"]
    return not any(isinstance(x, jax.sharding.Sharding) for x in places)


def streamlined(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Returns the same function, rewritten so that XLA computes it fast and correctly.

    On CPU, convolutions, also those of derivatives, are replaced by `_convolutions`.
    The gradient of a dense layer, a transposed outer product, is computed in its final
    order, so that XLA fuses it into the next operation. Indices of fewer than 32 bits
    are widened: XLA may lose a gradient by them.
    """
    return lambda *args: traced(function, *args)(*args)


def traced(function: Callable[..., PyTree], *args: PyTree) -> Callable[..., PyTree]:
    """Returns the function, rewritten as by `streamlined`, for arguments like args."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    refuse_collectives(closed.jaxpr)

    def rewritten(*args: PyTree) -> PyTree:
        """Returns the function's results, where `rule` replaces slow operations."""
        factors = {}  # the factors of each outer product, by its variable

        def inside(value):
            """Returns a program inside an equation, rewritten, and any other value."""
            if not isinstance(value, core.ClosedJaxpr | core.Jaxpr):
                return value
            is_closed = isinstance(value, core.ClosedJaxpr)
            program = value if is_closed else core.ClosedJaxpr(value, [])
            # The jit holds the constants of the program, which a `Jaxpr` cannot have.
            function = jax.jit(lambda *args: evaluate(program, args, rule))
            program = jax.make_jaxpr(function)(*program.in_avals)
            return program if is_closed else program.jaxpr

        def rule(place, equation, inputs, run):
            """Returns an equation's results, by a faster operation if there is one."""
            kind, params = equation.primitive, equation.params
            is_placed = params.get("out_sharding") is not None
            if kind is lax.conv_general_dilated_p:
                return [convolution(*inputs, **params)]
            if any(map(_convolves, programs_in(equation))):
                return run(equation.replace(params=jax.tree.map(inside, params)))
            if kind is lax.dot_general_p and not is_placed:
                types = [x.aval for x in (*equation.invars, *equation.outvars)]
                is_of_one_type = len({x.dtype for x in types}) == 1
                if [x.ndim for x in types] == [1, 1, 2] and is_of_one_type:
                    factors[equation.outvars[0]] = inputs
                    return [jnp.outer(*inputs)]
            if kind is lax.transpose_p and params["permutation"] == (1, 0):
                (x,) = equation.invars
                if isinstance(x, core.Var) and x in factors:  # a literal has no hash
                    return [jnp.outer(*reversed(factors[x]))]
            return run(equation)

        results = evaluate(closed, jax.tree.leaves(args), rule)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return rewritten


def _convolves(program: core.ClosedJaxpr) -> bool:
    """Returns whether a program has a convolution."""
    return any(
        equation.primitive is lax.conv_general_dilated_p
        or any(map(_convolves, programs_in(equation)))
        for equation in program.jaxpr.eqns
    )


def refuse_collectives(jaxpr: core.Jaxpr, own: frozenset[Any] = frozenset()) -> None:
    """Raises `ValueError` if a gradient's program reads values of other devices."""
    # Such a gradient depends on more than its example. Collectives over the axes `own`
    # of a `jax.shard_map` inside the loss are allowed: its devices share one example.
    rule = (
        "the loss of one example, without collectives over mesh axes (JAX adds one to "
        "a derivative by an array that loss_fn closes over and that is the same on all "
        "devices: put such an array into params or the batch)"
    )
    for equation in jaxpr.eqns:
        params, kind = equation.params, equation.primitive.name
        axes = params.get("axes", params.get("axis_name"))
        axes = axes if isinstance(axes, tuple | list) else (axes,)
        # Positions are integers; pvary and axis_index send nothing.
        named = {x for x in axes if not isinstance(x, int | np.integer | None)} - own
        is_fine = not named or kind in ("pvary", "axis_index")
        operation = f"a gradient with {kind} over {sorted(map(str, named))}"
        _validate.require(is_fine, "loss_fn", operation, rule)
        for program in programs_in(equation):
            refuse_collectives(program.jaxpr, own | set(params.get("manual_axes", ())))
