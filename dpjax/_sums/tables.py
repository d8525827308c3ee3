"""Leaves of samples that are a few rows of a table, such as of embeddings."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce

import jax
import jax.numpy as jnp

from dpjax._sums.samples import Influence, Values, times, zeros_for
from dpjax._tree import as_finite, as_float, register


@register("places", "values")
@dataclass(frozen=True)
class TableRows(Values):
    """A leaf of n samples: tables of zeros, but for a few rows.

    Attributes:
        values: the rows, shape (n, t, q); zero where a place is outside of the table.
        places: shape (n, t), of a type that num_rows fits in: where rows stand. No
            place stands twice in a sample: see `of`.
        num_rows: of a table.
        build: returns the leaf of a table (num_rows, q): its entries, in another order.

    Example:
        >>> import jax.numpy as jnp
        >>> places, values = jnp.array([[2, 0, 2]]), jnp.ones((1, 3, 1))
        >>> rows = TableRows.of(places, values, num_rows=4, build=jnp.ravel)
        >>> print(rows.written_out())
        [[1. 0. 2. 0.]]
    """

    places: jax.Array
    num_rows: int
    build: Callable[[jax.Array], jax.Array]

    @property
    def is_smaller(self) -> bool:
        return True

    @classmethod
    def of(
        cls,
        places: jax.Array,
        values: jax.Array,
        *,
        num_rows: int,
        build: Callable[[jax.Array], jax.Array],
    ) -> "TableRows":
        """Returns rows, those at the same place added up, those outside as zeros."""
        if places.dtype.itemsize < 4:  # num_rows may be no number of 8 or 16 bits
            places = places.astype(jnp.int32)
        is_inside = (places >= 0) & (places < num_rows)
        values = jnp.where(is_inside[..., None], as_float(values), 0)
        size = places.shape[1]
        order = jnp.arange(size, dtype=places.dtype)

        def once(places, values):
            if size**2 <= num_rows:  # all pairs
                is_same = places[:, None] == places[None]
                goal = jnp.where(is_same, order[:, None], size)
                # More than 32 at a time would be stored first, on CPU.
                goal = [goal[i : i + 32].min(axis=0) for i in range(0, size, 32)]
                goal = reduce(jnp.minimum, goal)
            else:
                first = jnp.full(num_rows, size, places.dtype)
                first = first.at[places].min(order, mode="drop")
                goal = first.at[places].get(mode="fill", fill_value=size)
            # Most rows are the first of their place and stay: few are added to others.
            is_first = goal == order
            total = jnp.where(is_first[:, None], values, 0)
            goal = jnp.where(is_first, size, goal)
            total = scatter_add(size, total, goal, values)
            return jnp.where(is_first, places, num_rows), total

        if size > 1:
            places, values = jax.vmap(once)(places, values)
        return cls(values, places, num_rows, build)

    def written_out(self) -> jax.Array:

        def of_example(places, values):
            table = jnp.zeros((self.num_rows, values.shape[1]), values.dtype)
            return self.build(scatter_add(len(places), table, places, values))

        return jax.vmap(of_example)(self.places, self.values)

    def zeros(self) -> jax.Array:
        return zeros_for((self.num_rows, self.values.shape[2]), self.values)

    def weighted(self, weight: jax.Array) -> "TableRows":
        return replace(self, values=times(self.values, weight))

    def add(
        self, total: jax.Array, influence: Influence | None, in_turn: int | None
    ) -> jax.Array:
        del in_turn
        values = self.values if influence is None else influence(self.values)
        rows = values.reshape(-1, values.shape[-1])
        return scatter_add(len(values), total, self.places.reshape(-1), rows)


def scatter_add(
    most: int, table: jax.Array, places: jax.Array, rows: jax.Array
) -> jax.Array:
    """Adds rows to those of a table; what has no place there is left out.

    A GPU adds in an order that is another one in each run, and floats would round
    accordingly: the sums of blocks that hold other records, too. There, rows are
    written as two digits, which add exactly in any order. At most `most` of the rows
    (m, q) go to one place of a table (N, q).
    """
    in_any_order = partial(_scatter_digits, most)
    return jax.lax.platform_dependent(
        table, places, rows, cpu=_scatter, default=in_any_order
    )


def _scatter(table, places, rows):
    return table.at[places].add(rows, mode="drop")


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _scatter_digits(most, table, places, rows):
    """Adds rows, off by 2^(2b - nmant - 24) of the largest each for 2^b at a place."""
    nmant = jnp.finfo(rows.dtype).nmant
    bits = max(most - 1, 0).bit_length()
    # All digits of a place add up to 2^(nmant + 1) at most.
    _, exponent = jnp.frexp(jnp.abs(as_finite(rows)).max(initial=0))
    # The unit and its inverse are floats. What is beyond them has no finite norm.
    exponent = jnp.clip(exponent, -90, 126)
    unit = jnp.ones((), rows.dtype)
    scaled = rows * jnp.ldexp(unit, -exponent) * 2.0 ** (nmant - bits)
    high = jnp.round(scaled)
    low = jnp.round((scaled - high) * 2.0 ** (nmant + 1 - bits))
    zeros = jnp.zeros_like(table)
    high, low = _scatter(zeros, places, high), _scatter(zeros, places, low)
    # Else the compiler adds the rows of one to what the other has come to.
    high, low = jax.lax.optimization_barrier((high, low))
    total = high + low * 2.0 ** (bits - nmant - 1)
    return table + total * 2.0 ** (bits - nmant) * jnp.ldexp(unit, exponent)


@_scatter_digits.defjvp
def _scatter_digits_jvp(most, primals, tangents):
    # Digits stand for the rows themselves.
    table, _, rows = tangents
    return _scatter_digits(most, *primals), _scatter(table, primals[1], rows)
