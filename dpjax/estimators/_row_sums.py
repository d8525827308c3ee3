"""Sums of functions of rows, some rows in one pass over the sum."""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def add_rows(
    total: jax.Array,
    function: Callable[..., jax.Array],
    arrays: tuple[jax.Array, ...],
    in_turn: int | None,
) -> jax.Array:
    """Adds `function(*row)` of all rows to a sum.

    Args:
        total: the sum.
        function: of a row of each array; that of zeros is zero.
        arrays: shapes (n, ...).
        in_turn: how many rows are added in one pass over the sum, one after the other;
            None leaves the order to the compiler.
    """
    if in_turn is None:
        return total + jax.vmap(function)(*arrays).sum(axis=0)
    num_rows = len(arrays[0])
    size = min(in_turn, num_rows)

    def part(x, i):
        # The last part may reach past the end: it is shifted back, and those of its
        # rows that are already added are zeros.
        start = jnp.minimum(i * size, num_rows - size)
        x = jax.lax.dynamic_slice_in_dim(x, start, size)
        if num_rows % size == 0:
            return x
        return zero_unless(start + jnp.arange(size) >= i * size, x)

    def add(i, carry):
        # Rows are fetched a turn before, into a place of their own: else the compiler
        # has them fetched entry by entry.
        total, parts = carry
        for row in range(size):
            total = total + function(*(x[row] for x in parts))
        return total, [part(x, i + 1) for x in arrays]

    if size == num_rows:
        return add(0, (total, arrays))[0]
    first = [part(x, 0) for x in arrays]
    return jax.lax.fori_loop(0, -(-num_rows // size), add, (total, first))[0]


def zero_unless(counts: jax.Array, x: jax.Array) -> jax.Array:
    """Returns rows, zeros in the place of those that do not count."""
    return jnp.where(counts.reshape(-1, *(1,) * (x.ndim - 1)), x, 0)
