"""Leaves of samples in factored form: outer products, rows of a table, arrays.

Every sample adds one number to a coordinate of a sum: a product of two entries, an
entry of a row, an entry of an array. Rows of a table that a sample reads twice are
added up before, and what sums over many positions (tokens, pixels) is an array, which
the program that makes samples has summed. The bound on rounding rests on that (see
`fold`): of terms that are summed over samples and positions at once, those of one
sample may cancel, and then no norm bounds how their sum is rounded.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Self

import jax
import jax.numpy as jnp

from dpjax._sharding import varying, varying_axes, zeros
from dpjax._sums.norms import squared_norm_of_product, sum_of_squares
from dpjax._tree import as_finite, as_float, like, register

Influence = Callable[[jax.Array], jax.Array]
SMALL = 4096  # coordinates, such as of a bias
SAVING = 4  # factors are much smaller than a leaf by so many times, or more


@register("left", "right")
@dataclass(frozen=True)
class OuterProducts:
    """A leaf of n samples: outer products of two vectors.

    Attributes:
        left: shape (n, p).
        right: shape (n, q).
        build: returns the leaf of a matrix (p, q): its entries, in another order.

    Example:
        >>> import jax.numpy as jnp
        >>> left, right = jnp.ones((5, 2)), jnp.ones((5, 3))
        >>> OuterProducts(left, right, jnp.transpose).written_out().shape
        (5, 3, 2)
    """

    left: jax.Array
    right: jax.Array
    build: Callable[[jax.Array], jax.Array]

    @property
    def is_smaller(self) -> bool:
        """Whether factors are much smaller than the leaf."""
        p, q = self.left.shape[1], self.right.shape[1]
        return p * q >= SAVING * (p + q)

    def written_out(self) -> jax.Array:
        """Returns the leaf as an array (n, ...)."""
        return jax.vmap(lambda a, d: self.build(a[:, None] * d[None]))(
            as_float(self.left), as_float(self.right)
        )

    def zeros(self) -> jax.Array:
        """Returns a sum of no rows, before `build`."""
        return _zeros((self.left.shape[1], self.right.shape[1]), self.right)

    @property
    def numbers(self) -> tuple[jax.Array, ...]:
        """Both factors."""
        return as_float(self.left), as_float(self.right)

    def finite(self) -> "OuterProducts":
        """Returns factors in which NaN and infinities count as zero."""
        return replace(self, left=as_finite(self.left), right=as_finite(self.right))

    def squared_norm(self, inverse_unit: jax.Array) -> jax.Array:
        """Returns the square of the norm of one row times a number: not too small."""
        left, right = self.numbers
        return squared_norm_of_product(left, right * like(inverse_unit, right))

    def weighted(self, weight: jax.Array) -> "OuterProducts":
        """Returns one row times a weight."""
        left, right = self.numbers
        if left.size < right.size:
            return replace(self, left=times(left, weight))
        return replace(self, right=times(right, weight))

    def add(
        self, total: jax.Array, influence: Influence | None, in_turn: int | None
    ) -> jax.Array:
        """Adds rows to a sum, as a product of matrices, or their influences."""
        if influence is None:
            return total + _sum_of_products(*self.numbers)
        if not self.is_smaller and total.size <= SMALL:
            in_turn = None
        elif in_turn is not None and len(self.left) < in_turn:
            in_turn = 1  # a loop over a few rows has them fetched entry by entry
        return add_rows(
            total, lambda a, d: influence(a[:, None] * d[None]), self.numbers, in_turn
        )


@dataclass(frozen=True)
class _Values:
    """What leaves have in common that hold their numbers as one array."""

    values: jax.Array

    @property
    def numbers(self) -> tuple[jax.Array, ...]:
        """The array."""
        return (as_float(self.values),)

    def finite(self) -> Self:
        """Returns rows in which NaN and infinities count as zero."""
        return replace(self, values=as_finite(self.values))

    def squared_norm(self, inverse_unit: jax.Array) -> jax.Array:
        """Returns the square of the norm of one sample times a number."""
        (values,) = self.numbers
        return sum_of_squares(values * like(inverse_unit, values))


@register("places", "values")
@dataclass(frozen=True)
class TableRows(_Values):
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

    is_smaller = True

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
        """Returns the leaf as an array (n, ...)."""

        def one(places, values):
            table = jnp.zeros((self.num_rows, values.shape[1]), values.dtype)
            return self.build(scatter_add(len(places), table, places, values))

        return jax.vmap(one)(self.places, self.values)

    def zeros(self) -> jax.Array:
        """Returns a sum of no rows, before `build`."""
        return _zeros((self.num_rows, self.values.shape[2]), self.values)

    def weighted(self, weight: jax.Array) -> "TableRows":
        """Returns one sample times a weight."""
        return replace(self, values=times(self.values, weight))

    def add(
        self, total: jax.Array, influence: Influence | None, _: int | None
    ) -> jax.Array:
        """Adds rows to a sum, or their influences; that of a zero must be zero."""
        values = self.values if influence is None else influence(self.values)
        rows = values.reshape(-1, values.shape[-1])
        return scatter_add(len(values), total, self.places.reshape(-1), rows)


@register("values", "weights")
@dataclass(frozen=True)
class Arrays(_Values):
    """A leaf of n samples that is held as it is.

    Attributes:
        values: shape (n, ...).
        weights: shape (n,), what rows are multiplied by as they are added, if anything.
    """

    weights: jax.Array | None = None

    is_smaller = False

    def written_out(self) -> jax.Array:
        """Returns the leaf."""
        return self.values if self.weights is None else times(self.values, self.weights)

    def build(self, x: jax.Array) -> jax.Array:
        """Returns what a sum is of."""
        return x

    def zeros(self) -> jax.Array:
        """Returns a sum of no rows."""
        # Sharded like a row of the leaf: it may be that of a sharded parameter.
        row = zeros(self.values, (1, *self.values.shape[1:]))[0]
        return row if row.dtype == jnp.float64 else row.astype(jnp.float32)

    def weighted(self, weight: jax.Array) -> "Arrays":
        """Returns one row times a weight."""
        return Arrays(self.values, weight)

    def add(
        self, total: jax.Array, influence: Influence | None, in_turn: int | None
    ) -> jax.Array:
        """Adds rows to a sum, or their influences: to a large one, some in one pass."""
        (values,) = self.numbers
        num_rows = len(values)
        # A loop over rows is a long program: not for a small sum.
        in_turn = in_turn if self.is_large else None
        if self.weights is None and (influence is not None or num_rows == 1):
            return add_rows(total, influence or (lambda x: x), (values,), in_turn)
        weights = jnp.ones(num_rows) if self.weights is None else self.weights
        weights = like(weights, values)
        if self.is_large or num_rows == 1:
            return add_rows(total, times, (values, weights), in_turn)
        return total + _sum_of_products(weights, values)

    @property
    def is_large(self) -> bool:
        """Whether a sum has more than a few thousand coordinates."""
        return self.values.size > SMALL * len(self.values)


Leaf = OuterProducts | TableRows | Arrays


def _zeros(shape, like_this):
    is_double = like_this.dtype == jnp.float64
    zeros = jnp.zeros(shape, jnp.float64 if is_double else jnp.float32)
    return varying(zeros, varying_axes(like_this))


def times(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns rows (n, ...) times weights (n,), or one row times a number."""
    weights = like(weights, x)
    return x * weights.reshape(*weights.shape, *(1,) * (x.ndim - weights.ndim))


def _sum_of_products(x, y):
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
