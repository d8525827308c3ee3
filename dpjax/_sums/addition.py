"""How rows are added to a sum: by products, one by one, at places of a table."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from dpjax._sharding import varying, varying_axes
from dpjax._tree import as_finite, like


def zeros_for(shape: tuple[int, ...], like_this: jax.Array) -> jax.Array:
    """Returns a sum of no rows, sharded like one of them."""
    is_double = like_this.dtype == jnp.float64
    zeros = jnp.zeros(shape, jnp.float64 if is_double else jnp.float32)
    return varying(zeros, varying_axes(like_this))


def times(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns rows (n, ...) times weights (n,), or one row times a number."""
    weights = like(weights, x)
    return x * weights.reshape(*weights.shape, *(1,) * (x.ndim - weights.ndim))


def sum_of_products(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the sum over n of the outer products of rows."""
    # Else the compiler may move a constant, or a unit, from one factor to the other or
    # out of the product: where that overflows, another's zero makes it NaN.
    x, y = jax.lax.optimization_barrier((x, y))
    over_rows = (((0,), (0,)), ((), ()))
    return jax.lax.dot_general(x, y, over_rows, precision=jax.lax.Precision.HIGHEST)


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


def scatter_add(
    most: int, table: jax.Array, places: jax.Array, rows: jax.Array
) -> jax.Array:
    """Adds rows to those of a table; what has no place there is left out.

    A GPU adds in an order that is another one in each run, and floats would round
    accordingly: the sums of blocks that hold other records, too. There, rows are
    written as two digits, which add exactly in any order.

    Args:
        most: how many rows go to one place, at most.
        table: shape (N, q), float32 or float64.
        places: shape (m,).
        rows: shape (m, q).
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
    one = jnp.ones((), rows.dtype)
    scaled = rows * jnp.ldexp(one, -exponent) * 2.0 ** (nmant - bits)
    high = jnp.round(scaled)
    low = jnp.round((scaled - high) * 2.0 ** (nmant + 1 - bits))
    zeros = jnp.zeros_like(table)
    high, low = _scatter(zeros, places, high), _scatter(zeros, places, low)
    # Else the compiler adds the rows of one to what the other has come to.
    high, low = jax.lax.optimization_barrier((high, low))
    total = high + low * 2.0 ** (bits - nmant - 1)
    return table + total * 2.0 ** (bits - nmant) * jnp.ldexp(one, exponent)


@_scatter_digits.defjvp
def _scatter_digits_jvp(most, primals, tangents):
    # Digits stand for the rows themselves.
    table, _, rows = tangents
    return _scatter_digits(most, *primals), _scatter(table, primals[1], rows)


def zero_unless(counts: jax.Array, x: jax.Array) -> jax.Array:
    """Returns rows, zeros in the place of those that do not count."""
    return jnp.where(counts.reshape(-1, *(1,) * (x.ndim - 1)), x, 0)
