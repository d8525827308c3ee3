"""How a loss uses its parameters: which gradients are products, or rows of a table.

Where a parameter is multiplied by one vector, its gradient is the outer product of that
vector and of the cotangent of the result. By several vectors, or in several places, it
is the sum of outer products: one product of matrices. Where the parameter is a table of
which rows are looked up, the gradient is zero but for those rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._sums.leaves import (
    MatrixProducts,
    OuterProducts,
    TableRows,
    are_much_smaller,
)
from dpjax.gradients._program import Place

EACH = ("each", None)
MOST_POSITIONS = 2**12  # the bound on rounding is proven up to there (`norms`)


class Loop(NamedTuple):
    """A `scan` around a use, of whole parameters or of a slice each time."""

    length: int
    is_each: bool


@dataclass(frozen=True)
class Site:
    """An equation that multiplies a parameter by vectors.

    Attributes:
        at: the place of the equation.
        result: the type of its result.
        loops: around it, from the outside in.
        operand: which operand the parameter is.
        vectors: the axes of the other operand: of groups, positions and entries.
        sizes: how many of each there are, and of entries of a result.
    """

    at: Place
    result: Any
    loops: tuple[Loop, ...]
    operand: int
    vectors: tuple[int, ...]
    sizes: tuple[int, int, int, int]

    def kept(self, inputs: Sequence[Any]) -> jax.Array:
        """Returns what is to be kept of the equation's inputs: vectors (G, T, p)."""
        return inputs[1 - self.operand].transpose(self.vectors).reshape(self.sizes[:3])

    def factors(
        self, kept: jax.Array, cotangents: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns vectors (G, T, p) and cotangents (G, T, q) of all turns."""
        groups, positions, _, q = self.sizes
        depth = len(self.loops)
        rest = (q, positions) if self.operand == 0 else (positions, q)
        cotangents = cotangents.reshape(*cotangents.shape[:depth], groups, *rest)
        if self.operand == 0:
            cotangents = jnp.swapaxes(cotangents, -1, -2)
        each = [i for i, loop in enumerate(self.loops) if loop.is_each]
        others = [i for i, loop in enumerate(self.loops) if not loop.is_each]
        order = (*each, depth, *others, depth + 1, depth + 2)
        groups *= math.prod(self.loops[i].length for i in each)

        def merged(x):
            return x.transpose(order).reshape(groups, -1, x.shape[-1])

        return merged(kept), merged(cotangents)


@dataclass(frozen=True)
class Product:
    """A parameter that is multiplied by vectors.

    Attributes:
        sites: where.
        order: the axes of the parameter: of groups, those that are summed over, others.
        num_groups: how many axes are of groups.
        num_summed: how many are summed over.
        shape: of the parameter where it is used.
        moves: how it came there from the parameter itself.
    """

    sites: tuple[Site, ...]
    order: tuple[int, ...]
    num_groups: int
    num_summed: int
    shape: tuple[int, ...]
    moves: "Moves"

    @property
    def is_outer(self) -> bool:
        """Whether there is one vector."""
        return self.sizes[:2] == (1, 1)

    @property
    def is_smaller(self) -> bool:
        """Whether factors are held: of many vectors, if they are much smaller."""
        _, positions, p, q = self.sizes
        return self.is_outer or (
            positions <= MOST_POSITIONS and are_much_smaller((positions, p), q)
        )

    @property
    def is_in_loop(self) -> bool:
        """Whether a `scan` adds to the gradient each time that it runs."""
        loops = [loop for site in self.sites for loop in site.loops]
        return not all(loop.is_each for loop in loops)

    @property
    def way(self) -> str:
        """As of `LeafCheck`."""
        if self.is_outer:
            return "outer product"
        return "matrix product" if self.is_smaller else "written out"

    @property
    def why(self) -> str:
        """How many vectors, and their sizes."""
        groups, positions, p, q = self.sizes
        number = "one vector" if self.is_outer else f"{groups * positions:,} vectors"
        said = f"multiplied by {number}"
        return f"{said}: {p} and {q} numbers" if self.is_smaller else said

    @property
    def num_held(self) -> int:
        """How many numbers of an example are held."""
        groups, positions, p, q = self.sizes
        return groups * (positions * (p + q) if self.is_smaller else p * q)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Groups, positions, and the sizes of a vector and of a result."""
        groups, _, p, q = self.sites[0].sizes
        each = [loop.length for loop in self.sites[0].loops if loop.is_each]
        positions = sum(
            site.sizes[1] * math.prod(x.length for x in site.loops if not x.is_each)
            for site in self.sites
        )
        return math.prod(each) * groups, positions, p, q

    def factors(
        self, kept: Sequence[jax.Array], cotangents: Sequence[jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Returns vectors (G, T, p) and cotangents (G, T, q) of one example."""
        pairs = [
            site.factors(x, y)
            for site, x, y in zip(self.sites, kept, cotangents, strict=True)
        ]
        left, right = (
            jnp.concatenate(each, axis=1) for each in zip(*pairs, strict=True)
        )
        return left, right

    def samples(
        self, left: jax.Array, right: jax.Array
    ) -> OuterProducts | MatrixProducts | jax.Array:
        """Returns the gradients of n examples, from their factors."""
        n, order = self.num_summed, self.order
        if not self.is_outer:
            products = MatrixProducts(left, right, self._built(order))
            return products if self.is_smaller else products.written_out()
        left, right = left[:, 0, 0], right[:, 0, 0]
        if (*order[n:], *order[:n]) == tuple(range(len(order))):
            return OuterProducts(right, left, self._built(range(len(order))))
        return OuterProducts(left, right, self._built(order))

    def _built(self, order):
        sizes = [self.shape[axis] for axis in order]
        inverse = np.argsort(order)
        each = [loop.length for loop in self.sites[0].loops if loop.is_each]
        depth = len(each)
        axes = (*range(depth), *(depth + k for k in inverse))
        return lambda x: self.moves.undone(x.reshape(*each, *sizes).transpose(axes))


@dataclass(frozen=True)
class Lookup:
    """A parameter of which a few rows are read.

    Attributes:
        at: the place of the equation.
        result: the type of its result.
        rows: axes of the result that stand for the rows that are read.
        entries: the other axes of the result.
        num_read: how many rows are read.
        shape: of the parameter where it is used.
        is_clipped: whether places outside of it stand for the nearest one inside.
        moves: how it came there from the parameter itself.
    """

    at: Place
    result: Any
    rows: tuple[int, ...]
    entries: tuple[int, ...]
    num_read: int
    shape: tuple[int, ...]
    is_clipped: bool
    moves: "Moves"

    way = "table rows"
    loops = ()

    @property
    def sites(self) -> tuple["Lookup"]:
        """Itself: there is one."""
        return (self,)

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

    def factors(
        self, kept: Sequence[jax.Array], cotangents: Sequence[jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Returns places (num_read,) and cotangents of rows, (num_read, q)."""
        ((places,), (x,)) = kept, cotangents
        rows = x.transpose(*self.rows, *self.entries)
        return places, rows.reshape(self.num_read, -1)

    def samples(self, places: jax.Array, values: jax.Array) -> TableRows:
        """Returns the gradients of n examples, from their factors."""

        def build(table):
            return self.moves.undone(table.reshape(self.shape))

        return TableRows.of(places, values, num_rows=self.shape[0], build=build)


@dataclass(frozen=True)
class WrittenOut:
    """A parameter whose gradient is made in full for each example, and why."""

    why: str
    way = "written out"


Use = Product | Lookup | WrittenOut


class Moves(tuple):
    """Reshapes, transposes and slices of a loop, one after the other."""

    def undone(self, x: jax.Array) -> jax.Array:
        """Returns the gradient of what was moved, of that where it is used."""
        if EACH in self:  # what follows is of single slices
            i = self.index(EACH)
            return Moves(self[:i]).undone(jax.vmap(Moves(self[i + 1 :]).undone)(x))
        for kind, how in reversed(self):
            x = x.reshape(how) if kind == "reshape" else x.transpose(how)
        return x
