"""Leaves of samples with a few nonzero rows, such as gradients of embeddings."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce

import jax
import jax.numpy as jnp

from dpjax._sums.samples import Values, times, zeros_for
from dpjax._tree import as_finite, as_float, register


@register("places", "values")
@dataclass(frozen=True)
class TableRows(Values):
    """A leaf of n samples: tables of zeros, except for a few rows.

    The rows are `values` (n, t, q), zero where a place is outside of the table. Their
    indices are `places` (n, t), none twice, of a dtype that represents num_rows.
    `build` reshapes a table (num_rows, q) to the leaf; it may reorder entries.
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
        """Returns n gradients by a table, such as embeddings: a few rows of each.

        Row `values[i, j]`, (q,), has index `places[i, j]` in the table of gradient i;
        rows of one index are added up, as norms need, and rows outside become zero.
        `build` maps a table (num_rows, q) to the parameter's shape.
        """
        if places.dtype.itemsize < 4:  # 8 or 16 bits may not represent num_rows
            places = places.astype(jnp.int32)
        is_inside = (places >= 0) & (places < num_rows)
        values = jnp.where(is_inside[..., None], as_float(values), 0)
        size = places.shape[1]
        order = jnp.arange(size, dtype=places.dtype)

        # For each row, goal is the index of the first row at the same place.
        def once(places, values):
            """Returns a gradient's rows of a table, with each index at most once.

            Rows of one index are added up in the first, as norms need; the index of
            later rows becomes `num_rows`, which is skipped.
            """
            if size**2 <= num_rows:  # compares all pairs
                is_same = places[:, None] == places[None]
                goal = jnp.where(is_same, order[:, None], size)
                # A CPU would write a minimum over more than 32 rows to memory first.
                goal = [goal[i : i + 32].min(axis=0) for i in range(0, size, 32)]
                goal = reduce(jnp.minimum, goal)
            else:
                first = jnp.full(num_rows, size, places.dtype)
                first = first.at[places].min(order, mode="drop")
                goal = first.at[places].get(mode="fill", fill_value=size)
            # Most rows are the first at their place and stay; the other rows are added.
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

    def add(self, total, influence, in_turn) -> jax.Array:
        del in_turn
        values = self.values if influence is None else influence(self.values)
        rows = values.reshape(-1, values.shape[-1])
        return scatter_add(len(values), total, self.places.reshape(-1), rows)


def scatter_add(
    most: int, table: jax.Array, places: jax.Array, rows: jax.Array
) -> jax.Array:
    """Returns a table (N, q) plus rows (m, q) at indices `places`, if in the table.

    A GPU adds in a different order in each run, so that all sums would round anew, not
    only those with a replaced record, beyond the sensitivity. There, rows are split in
    two digits, which add exactly in any order. At most `most` rows share an index.
    """
    in_any_order = partial(_scatter_digits, most)
    return jax.lax.platform_dependent(
        table, places, rows, cpu=_scatter, default=in_any_order
    )


def _scatter(table, places, rows):
    return table.at[places].add(rows, mode="drop")


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _scatter_digits(most, table, places, rows):
    """Returns table (N, q) plus rows (m, q) at `places`, on GPUs, alike in any order.

    At most `most` = 2^b rows share an index; errors are 2^(2b - nmant - 24) max |row|.
    """
    nmant = jnp.finfo(rows.dtype).nmant
    bits = max(most - 1, 0).bit_length()
    # The digits at one place add up to at most 2^(nmant + 1), so their sum is exact.
    _, exponent = jnp.frexp(jnp.abs(as_finite(rows)).max(initial=0))
    # The unit and its inverse must be floats; larger rows have no finite norm.
    exponent = jnp.clip(exponent, -90, 126)
    unit = jnp.ones((), rows.dtype)
    scaled = rows * jnp.ldexp(unit, -exponent) * 2.0 ** (nmant - bits)
    high = jnp.round(scaled)
    low = jnp.round((scaled - high) * 2.0 ** (nmant + 1 - bits))
    zeros = jnp.zeros_like(table)
    high, low = _scatter(zeros, places, high), _scatter(zeros, places, low)
    # Without the barrier the compiler scatters one digit into the sums of the other.
    high, low = jax.lax.optimization_barrier((high, low))
    total = high + low * 2.0 ** (bits - nmant - 1)
    return table + total * 2.0 ** (bits - nmant) * jnp.ldexp(unit, exponent)


@_scatter_digits.defjvp
def _scatter_digits_jvp(most, primals, tangents):
    # The derivative ignores the digits, because their sum equals the rows.
    table, _, rows = tangents
    return _scatter_digits(most, *primals), _scatter(table, primals[1], rows)
