"""Reads how a loss uses its parameters, from its program.

The loss of one example is traced, and its equations are read. Before its use a
parameter may pass through operations that move its entries or change their precision,
and into the program of a `jit`, a `jax.checkpoint` or a `scan`: whole, or a slice each
time. The gradient of a parameter with any other use is written out.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from dpjax.gradients._program import is_plain_jit
from dpjax.gradients.factored._uses import (
    EACH,
    Lookup,
    Loop,
    Moves,
    Product,
    Site,
    Use,
    WrittenOut,
)

# Operations that keep all entries, one for one, and give them another place.
RESHAPES = (lax.reshape_p, lax.squeeze_p, lax.broadcast_in_dim_p)
LARGE = 4  # a table is worth its trouble where it has so many times the rows read


class Image(NamedTuple):
    """A variable that holds a parameter, or a slice of it, one for one: see `Site`."""

    leaf: int
    moves: Moves = Moves()
    loops: tuple[Loop, ...] = ()


def uses(program: core.ClosedJaxpr, num_leaves: int) -> list[Use]:
    """Returns how a loss uses the first so many of its arguments.

    Args:
        program: of a loss: of one example.
        num_leaves: how many parameters there are.
    """
    found: list[list[Use]] = [[] for _ in range(num_leaves)]
    jaxpr = program.jaxpr
    images = {x: Image(i) for i, x in enumerate(jaxpr.invars[:num_leaves])}
    outputs = _read(jaxpr, images, (), found)
    _end(jaxpr.outvars, outputs, "returned", found)
    return [_only(each) for each in found]


def _only(found: list[Use]) -> Use:
    """Returns the use of a parameter, or that which several are together."""
    if not found:
        return WrittenOut("not used: zero")
    first = found[0]
    if len(found) > 1:
        products = [use for use in found if isinstance(use, Product)]
        is_sum = len(products) == len(found) and len(set(map(_kind, products))) == 1
        if not is_sum:
            return WrittenOut(f"used {len(found)} times")
        sites = tuple(site for use in products for site in use.sites)
        first = replace(products[0], sites=sites)
    if isinstance(first, Product) and not (first.is_smaller or first.is_in_loop):
        why = first.why if len(found) == 1 else f"used {len(found)} times"
        return WrittenOut(why)
    return first


def _kind(use):
    """Returns what products that can be added up have in common."""
    each = tuple(x.length for x in use.sites[0].loops if x.is_each)
    return use.moves, use.order, use.num_groups, use.num_summed, use.shape, each


def _end(variables, images, why, found):
    """Notes that images of parameters are results."""
    for x in variables:
        if isinstance(x, core.Var) and x in images:
            found[images[x].leaf].append(WrittenOut(why))


def _read(jaxpr, images, within, found):
    """Finds the uses of variables that are images of parameters, one for one."""
    images = dict(images)
    for i, equation in enumerate(jaxpr.eqns):
        place = (*within, i)
        operands = {
            k: images[x]
            for k, x in enumerate(equation.invars)
            if isinstance(x, core.Var) and x in images
        }
        if not operands:
            continue
        inner, passed = _inside(equation, operands)
        if inner is not None:
            entering = {inner.invars[k]: image for k, image in passed.items()}
            outputs = _read(inner, entering, place, found)
            if is_plain_jit(equation):
                for x, y in zip(inner.outvars, equation.outvars, strict=True):
                    if isinstance(x, core.Var) and x in outputs:
                        images[y] = outputs[x]
            else:
                why = f"returned from {equation.primitive.name}"
                _end(inner.outvars, outputs, why, found)
            operands = {k: x for k, x in operands.items() if k not in passed}
        moved = _moved(equation) if inner is None else None
        for k, image in operands.items():
            if moved is not None:
                moves = Moves((*image.moves, *moved))
                images[equation.outvars[0]] = image._replace(moves=moves)
            else:
                use = _use(equation, k, image, place, len(operands) == 1)
                found[image.leaf].append(use)
    return images


def _inside(equation, operands):
    """Returns the program in an equation, None if it has none, and images there."""
    kind, params = equation.primitive, equation.params
    if is_plain_jit(equation):
        return params["jaxpr"].jaxpr, operands
    if kind is core.primitives.remat_p:
        return params["jaxpr"], operands
    if kind is not core.primitives.scan_p or params["length"] == 0:
        return None, {}
    num_whole, length = params["num_consts"], params["length"]
    num_carried = num_whole + params["num_carry"]
    passed = {}
    for k, image in operands.items():
        moves, is_each = image.moves, k >= num_carried
        if num_whole <= k < num_carried:
            continue
        if is_each:
            moves = Moves((*moves, EACH))
        loops = (*image.loops, Loop(length, is_each))
        passed[k] = Image(image.leaf, moves, loops)
    return params["jaxpr"].jaxpr, passed


def _moved(equation):
    """Returns how an equation moves its operand's entries; None where it does more."""
    source, result = equation.invars[0].aval, equation.outvars[0].aval
    params, kind = equation.params, equation.primitive
    if kind is lax.convert_element_type_p:
        is_float = all(jnp.issubdtype(x.dtype, jnp.floating) for x in (source, result))
        is_same = _are_of_one_kind(source, result) and params["sharding"] is None
        return () if is_float and is_same else None
    if kind is lax.copy_p:
        return ()
    if kind is lax.transpose_p:
        return (("transpose", tuple(np.argsort(params["permutation"]))),)
    is_placed = params.get("sharding") is not None
    in_order = params.get("dimensions") is None or kind is lax.squeeze_p
    if kind in RESHAPES and source.size == result.size and in_order and not is_placed:
        return (("reshape", source.shape),)
    return None


def _are_of_one_kind(*arrays):
    """Whether sums of all of them are float64, or of none."""
    return len({x.dtype == jnp.float64 for x in arrays}) == 1


def _use(equation, operand, image, place, is_alone):
    kind = equation.primitive
    if kind is lax.dot_general_p and is_alone:
        return _product(equation, operand, image, place)
    if kind is lax.gather_p and operand == 0 and is_alone and not image.loops:
        return _lookup(equation, image.moves, place)
    if kind is lax.dynamic_slice_p and operand == 0 and is_alone and not image.loops:
        return _slice(equation, image.moves, place)
    if any(isinstance(x, core.Jaxpr | core.ClosedJaxpr) for x in _values(equation)):
        return WrittenOut(f"used inside {kind.name}")
    return WrittenOut(f"used by {kind.name}")


def _values(equation):
    for value in equation.params.values():
        yield from value if isinstance(value, tuple) else (value,)


def _product(equation, operand, image, place):
    summed, groups = equation.params["dimension_numbers"]
    matrix, vector = (equation.invars[k].aval for k in (operand, 1 - operand))
    result = equation.outvars[0].aval
    is_placed = equation.params["out_sharding"] is not None
    is_same = matrix.dtype == vector.dtype and _are_of_one_kind(matrix, result)
    if is_placed or not is_same or 0 in matrix.shape or 0 in vector.shape:
        return WrittenOut("used by dot_general")
    (summed, of_vector), (groups, of_groups) = (
        (axes[operand], axes[1 - operand]) for axes in (summed, groups)
    )
    others = [k for k in range(matrix.ndim) if k not in (*summed, *groups)]
    positions = [k for k in range(vector.ndim) if k not in (*of_vector, *of_groups)]

    def size(of, axes):
        return math.prod(of.shape[axis] for axis in axes)

    site = Site(
        at=place,
        result=result,
        loops=image.loops,
        operand=operand,
        vectors=(*of_groups, *positions, *of_vector),
        sizes=(
            size(matrix, groups),
            size(vector, positions),
            size(matrix, summed),
            size(matrix, others),
        ),
    )
    return Product(
        sites=(site,),
        order=(*groups, *summed, *others),
        num_groups=len(groups),
        num_summed=len(summed),
        shape=matrix.shape,
        moves=image.moves,
    )


def _lookup(equation, moves, place):
    numbers, mode = equation.params["dimension_numbers"], equation.params["mode"]
    table, result = equation.invars[0].aval, equation.outvars[0].aval
    is_clipped = mode == lax.GatherScatterMode.CLIP
    # A batch of slices has a start for every axis: clipped to whole rows they are zero.
    axes = {(0,), tuple(range(table.ndim))} if is_clipped else {(0,)}
    is_by_row = (
        set(numbers.collapsed_slice_dims) <= {0}
        and numbers.start_index_map in axes
        and not numbers.operand_batching_dims
        and equation.params["slice_sizes"] == (1, *table.shape[1:])
    )
    entries = tuple(numbers.offset_dims)
    rows = tuple(axis for axis in range(result.ndim) if axis not in entries)
    num_read = math.prod(result.shape[axis] for axis in rows)
    if not is_by_row or num_read == 0:
        return WrittenOut("used by gather")
    if table.shape[0] < LARGE * num_read:
        return WrittenOut("most of its rows are read")
    return Lookup(
        place, result, rows, entries, num_read, table.shape, is_clipped, moves
    )


def _slice(equation, moves, place):
    """A look-up of one row, by a single number."""
    table = equation.invars[0].aval
    is_by_row = equation.params["slice_sizes"] == (1, *table.shape[1:])
    if not is_by_row or table.shape[0] < LARGE:
        return WrittenOut("used by dynamic_slice")
    entries, result = tuple(range(1, table.ndim)), equation.outvars[0].aval
    return Lookup(place, result, (0,), entries, 1, table.shape, True, moves)
