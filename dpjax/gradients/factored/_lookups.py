"""Tables of which a loss reads a few rows: gradients are zero but for those rows.

Of a table that is multiplied as well, such as an embedding that is the output layer
too, the rows count as products with one-hot vectors.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._sums.tables import TableRows
from dpjax.gradients._loss import Place
from dpjax.gradients.factored._products import Moves, Site, joined

LARGE = 4  # a table is worth its trouble where it has so many times the rows read


@dataclass(frozen=True)
class Reading:
    """An equation that reads rows of a parameter.

    Attributes:
        at: the place of the equation.
        result: the type of its result.
        rows: axes of the result that stand for the rows that are read.
        entries: the other axes of the result.
        num_read: how many rows are read.
        num_rows: of the table.
        is_clipped: whether places outside of it stand for the nearest one inside.
    """

    at: Place
    result: Any
    rows: tuple[int, ...]
    entries: tuple[int, ...]
    num_read: int
    num_rows: int
    is_clipped: bool

    loops = ()

    def residuals(self, inputs: Sequence[Any]) -> jax.Array:
        """Returns the places of rows; those outside of the table are its length."""
        starts, size = inputs[1], self.num_rows
        places = starts[..., 0].reshape(-1) if starts.ndim else starts[None]
        nearest = jnp.clip(places, 0, size - 1)
        if self.is_clipped:
            return nearest
        return jnp.where(places == nearest, places, size)

    def factors(
        self, residuals: jax.Array, cotangents: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns places (num_read,) and cotangents of rows, (num_read, q)."""
        rows = cotangents.transpose(*self.rows, *self.entries)
        return residuals, rows.reshape(self.num_read, -1)


@dataclass(frozen=True)
class OneHot(Site):
    """Rows that are read, as products of a table with one-hot vectors."""

    reading: Reading

    @classmethod
    def of(cls, reading: Reading) -> Self:
        """Returns that of rows of a table with two axes."""
        num_rows, num_read = reading.num_rows, reading.num_read
        width = math.prod(reading.result.shape) // num_read
        sizes = 1, num_read, num_rows, width
        return cls(reading.at, reading.result, (), sizes, reading)

    @property
    def kind(self) -> str:
        return "one-hot"

    def residuals(self, inputs: Sequence[Any]) -> jax.Array:
        return self.reading.residuals(inputs)

    def factors(
        self, residuals: jax.Array, cotangents: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns one-hot vectors, zero for places outside, and cotangents of rows."""
        places, rows = self.reading.factors(residuals, cotangents)
        return jax.nn.one_hot(places, self.sizes[2], dtype=rows.dtype)[None], rows[None]


@dataclass(frozen=True)
class Lookup:
    """A parameter of which a few rows are read.

    Attributes:
        sites: where.
        shape: of the parameter where it is used.
        moves: how it came there from the parameter itself.
    """

    sites: tuple[Reading, ...]
    shape: tuple[int, ...]
    moves: Moves

    way = "table rows"

    @property
    def common(self) -> Hashable:
        """Identifies look-ups that can be joined."""
        return self.moves, self.shape

    @property
    def is_smaller(self) -> bool:
        """Tells whether the rows are few beside those of the table."""
        return self.shape[0] >= LARGE * self.num_read

    @property
    def num_read(self) -> int:
        """Counts the rows that are read."""
        return sum(site.num_read for site in self.sites)

    @property
    def why(self) -> str:
        """Says how many rows are read, of how many."""
        return f"{self.num_read:,} of {self.shape[0]:,} rows are read"

    @property
    def num_held(self) -> int:
        """Counts the numbers stored of an example, places of rows included."""
        return self.num_read * (1 + math.prod(self.shape[1:]))

    def factors(
        self, residuals: Sequence[jax.Array], cotangents: Sequence[jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Returns places (num_read,) and cotangents of rows, (num_read, q)."""
        return joined(self.sites, residuals, cotangents, axis=0)

    def samples(self, places: jax.Array, values: jax.Array) -> TableRows:
        """Returns the gradients of n examples, from their factors."""

        def build(table):
            return self.moves.undone(table.reshape(self.shape))

        return TableRows.of(places, values, num_rows=self.shape[0], build=build)


def lookup_at(equation: Any, moves: Moves, place: Place) -> Lookup | None:
    """Returns the use of a table of which a `gather` reads rows, None for others."""
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
        return None
    size = table.shape[0]
    site = Reading(place, result, rows, entries, num_read, size, is_clipped)
    return Lookup((site,), table.shape, moves)


def slice_at(equation: Any, moves: Moves, place: Place) -> Lookup | None:
    """Returns a look-up of one row, by a single number; None for other slices."""
    table = equation.invars[0].aval
    is_by_row = equation.params["slice_sizes"] == (1, *table.shape[1:])
    if not is_by_row or table.shape[0] < LARGE:
        return None
    entries, result = tuple(range(1, table.ndim)), equation.outvars[0].aval
    site = Reading(place, result, (0,), entries, 1, table.shape[0], True)
    return Lookup((site,), table.shape, moves)
