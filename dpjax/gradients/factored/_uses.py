"""How a loss uses its parameters: which gradients are products of two vectors.

The loss of one example is traced, and its program read. Where the only use of a
parameter is a product with one vector, its gradient is the outer product of that vector
and of the cotangent of the result; where it is a look-up of rows, the gradient is zero
but for those rows. Before that a parameter may pass through operations that move its
entries or change their precision. Any other gradient is written out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from dpjax._sums.leaves import OuterProducts, TableRows
from dpjax.gradients._program import Place, is_plain_jit

# Operations that keep all entries, one for one, and give them another place.
RESHAPES = (lax.reshape_p, lax.squeeze_p, lax.broadcast_in_dim_p)
LARGE = 4  # a table is worth its trouble where it has so many times the rows read


@dataclass(frozen=True)
class Product:
    """A parameter that is multiplied by one vector.

    Attributes:
        at: the place of the equation.
        operand: which operand the parameter is.
        order: the axes of the parameter, those that are summed over first.
        num_summed: how many are.
        vector: the axes of the other operand, those that are summed over first.
        shape: of the parameter where it is used.
        moves: how it came there from the parameter itself.
    """

    at: Place
    operand: int
    order: tuple[int, ...]
    num_summed: int
    vector: tuple[int, ...]
    shape: tuple[int, ...]
    moves: "Moves"

    way = "outer product"

    @property
    def why(self) -> str:
        """The sizes of both vectors."""
        return "multiplied by one vector: {} and {} numbers".format(*self.sizes)

    @property
    def num_held(self) -> int:
        """How many numbers of an example are held."""
        return sum(self.sizes)

    @property
    def sizes(self) -> tuple[int, int]:
        """Of the vector, and of the result."""
        sizes = [self.shape[axis] for axis in self.order]
        n = self.num_summed
        return math.prod(sizes[:n]), math.prod(sizes[n:])

    def kept(self, inputs: Sequence[Any]) -> jax.Array:
        """Returns what is to be kept of the equation's inputs."""
        return inputs[1 - self.operand].transpose(self.vector).reshape(-1)

    def cotangent(self, x: jax.Array) -> jax.Array:
        """Returns the cotangent of the equation's result as a vector."""
        return x.reshape(-1)

    def samples(self, kept: jax.Array, cotangents: jax.Array) -> OuterProducts:
        """Returns the gradients of n examples, from what is kept of them."""
        n, order = self.num_summed, self.order
        if (*order[n:], *order[:n]) == tuple(range(len(order))):
            return OuterProducts(cotangents, kept, self._built(range(len(order))))
        return OuterProducts(kept, cotangents, self._built(order))

    def _built(self, order):
        sizes = [self.shape[axis] for axis in order]
        inverse = np.argsort(order)
        return lambda x: self.moves.undone(x.reshape(sizes).transpose(inverse))


@dataclass(frozen=True)
class Lookup:
    """A parameter of which a few rows are read.

    Attributes:
        at: the place of the equation.
        rows: axes of the result that stand for the rows that are read.
        entries: the other axes of the result.
        num_read: how many rows are read.
        shape: of the parameter where it is used.
        is_clipped: whether places outside of it stand for the nearest one inside.
        moves: how it came there from the parameter itself.
    """

    at: Place
    rows: tuple[int, ...]
    entries: tuple[int, ...]
    num_read: int
    shape: tuple[int, ...]
    is_clipped: bool
    moves: "Moves"

    way = "table rows"

    @property
    def why(self) -> str:
        """How many rows are read, of how many."""
        return f"{self.num_read:,} of {self.shape[0]:,} rows are read"

    @property
    def num_held(self) -> int:
        """How many numbers of an example are held, places of rows included."""
        return self.num_read * (1 + math.prod(self.shape[1:]))

    def kept(self, inputs: Sequence[Any]) -> jax.Array:
        """Returns the places of rows; those outside of the table are its length."""
        starts, size = inputs[1], self.shape[0]
        places = starts[..., 0].reshape(-1) if starts.ndim else starts[None]
        nearest = jnp.clip(places, 0, size - 1)
        if self.is_clipped:
            return nearest
        return jnp.where(places == nearest, places, size)

    def cotangent(self, x: jax.Array) -> jax.Array:
        """Returns the cotangents of rows, shape (num_read, q)."""
        return x.transpose(*self.rows, *self.entries).reshape(self.num_read, -1)

    def samples(self, kept: jax.Array, cotangents: jax.Array) -> TableRows:
        """Returns the gradients of n examples, from what is kept of them."""

        def build(table):
            return self.moves.undone(table.reshape(self.shape))

        return TableRows.of(kept, cotangents, num_rows=self.shape[0], build=build)


@dataclass(frozen=True)
class WrittenOut:
    """A parameter whose gradient is made in full for each example, and why."""

    why: str
    way = "written out"


Use = Product | Lookup | WrittenOut


class Moves(tuple):
    """Reshapes and transposes, one after the other."""

    def undone(self, x: jax.Array) -> jax.Array:
        """Returns the gradient of what was moved, of that where it is used."""
        for kind, how in reversed(self):
            x = x.reshape(how) if kind == "reshape" else x.transpose(how)
        return x


def uses(program: core.ClosedJaxpr, num_leaves: int) -> list[Use]:
    """Returns how a loss uses the first so many of its arguments.

    Args:
        program: of a loss: of one example.
        num_leaves: how many parameters there are.
    """
    found: list[list[Use]] = [[] for _ in range(num_leaves)]
    jaxpr = program.jaxpr
    images = {x: (i, Moves()) for i, x in enumerate(jaxpr.invars[:num_leaves])}
    _read(jaxpr, images, (), found)
    return [_only(each) for each in found]


def _only(found: list[Use]) -> Use:
    if not found:
        return WrittenOut("not used: zero")
    if len(found) > 1:
        return WrittenOut(f"used {len(found)} times")
    return found[0]


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
        if is_plain_jit(equation):
            inner = equation.params["jaxpr"].jaxpr
            passed = {inner.invars[k]: image for k, image in operands.items()}
            outputs = _read(inner, passed, place, found)
            for x, y in zip(inner.outvars, equation.outvars, strict=True):
                if isinstance(x, core.Var) and x in outputs:
                    images[y] = outputs[x]
            continue
        moved = _moved(equation)
        for k, (leaf, moves) in operands.items():
            if moved is not None:
                images[equation.outvars[0]] = leaf, Moves((*moves, *moved))
            else:
                alone = len(operands) == 1
                found[leaf].append(_use(equation, k, moves, place, alone))
    if not within:
        for x in jaxpr.outvars:
            if isinstance(x, core.Var) and x in images:
                found[images[x][0]].append(WrittenOut("returned"))
    return images


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


def _use(equation, operand, moves, place, is_alone):
    kind = equation.primitive
    if kind is lax.dot_general_p and is_alone:
        return _product(equation, operand, moves, place)
    if kind is lax.gather_p and operand == 0 and is_alone:
        return _lookup(equation, moves, place)
    if kind is lax.dynamic_slice_p and operand == 0 and is_alone:
        return _slice(equation, moves, place)
    if any(isinstance(x, core.Jaxpr | core.ClosedJaxpr) for x in _values(equation)):
        return WrittenOut(f"used inside {kind.name}")
    return WrittenOut(f"used by {kind.name}")


def _values(equation):
    for value in equation.params.values():
        yield from value if isinstance(value, tuple) else (value,)


def _product(equation, operand, moves, place):
    summed, shared = equation.params["dimension_numbers"]
    matrix, vector = (equation.invars[k].aval for k in (operand, 1 - operand))
    is_placed = equation.params["out_sharding"] is not None
    is_same = matrix.dtype == vector.dtype and _are_of_one_kind(
        matrix, equation.outvars[0].aval
    )
    summed, other = summed[operand], summed[1 - operand]
    num_vectors = math.prod(
        n for axis, n in enumerate(vector.shape) if axis not in other
    )
    if any(shared) or is_placed or not is_same:
        return WrittenOut("used by dot_general")
    if num_vectors != 1:
        return WrittenOut(f"multiplied by {num_vectors:,} vectors")
    return Product(
        at=place,
        operand=operand,
        order=(*summed, *(k for k in range(matrix.ndim) if k not in summed)),
        num_summed=len(summed),
        vector=(*other, *(k for k in range(vector.ndim) if k not in other)),
        shape=matrix.shape,
        moves=moves,
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
    return Lookup(place, rows, entries, num_read, table.shape, is_clipped, moves)


def _slice(equation, moves, place):
    """A look-up of one row, by a single number."""
    table = equation.invars[0].aval
    is_by_row = equation.params["slice_sizes"] == (1, *table.shape[1:])
    if not is_by_row or table.shape[0] < LARGE:
        return WrittenOut("used by dynamic_slice")
    entries = tuple(range(1, table.ndim))
    return Lookup(place, (0,), entries, 1, table.shape, True, moves)
