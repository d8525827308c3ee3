"""Leaves of samples in factored form: products, rows of a table, arrays.

Every sample adds one number to a coordinate of a sum: a product of two entries, an
entry of a row, an entry of an array. Rows of a table that a sample reads twice are
added up before, and so are outer products over many positions (tokens, time), a sample
at a time, or by the program that makes samples. The bound on rounding rests on that
(see `fold`): of terms that are summed over samples and positions at once, those of one
sample may cancel, and then no norm bounds how their sum is rounded.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Self

import jax
import jax.numpy as jnp

from dpjax._sharding import zeros
from dpjax._sums.addition import (
    add_rows,
    scatter_add,
    sum_of_products,
    times,
    zeros_for,
)
from dpjax._sums.norms import (
    balanced,
    squared_norm_of_matrices,
    squared_norm_of_product,
    sum_of_squares,
)
from dpjax._tree import as_finite, as_float, like, register

Influence = Callable[[jax.Array], jax.Array]
SMALL = 4096  # coordinates, such as of a bias
MOST = 2**24  # numbers of products that are made at once, each for a row
SAVING = 4  # factors are much smaller than a leaf by so many times, or more


@dataclass(frozen=True)
class _Factors:
    """What leaves have in common that hold two factors."""

    left: jax.Array
    right: jax.Array
    build: Callable[[jax.Array], jax.Array]

    @property
    def numbers(self) -> tuple[jax.Array, ...]:
        """Both factors."""
        return as_float(self.left), as_float(self.right)

    def weighted(self, weight: jax.Array) -> Self:
        """Returns one row times a weight."""
        left, right = self.numbers
        if left.size < right.size:
            return replace(self, left=times(left, weight))
        return replace(self, right=times(right, weight))


@register("left", "right")
@dataclass(frozen=True)
class OuterProducts(_Factors):
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
        return zeros_for((self.left.shape[1], self.right.shape[1]), self.right)

    def finite(self) -> "OuterProducts":
        """Returns factors in which NaN and infinities count as zero."""
        return replace(self, left=as_finite(self.left), right=as_finite(self.right))

    def squared_norm(self, inverse_unit: jax.Array) -> jax.Array:
        """Returns the square of the norm of one row times a number: not too small."""
        left, right = self.numbers
        return squared_norm_of_product(left, right * like(inverse_unit, right))

    def add(
        self, total: jax.Array, influence: Influence | None, in_turn: int | None
    ) -> jax.Array:
        """Adds rows to a sum, as a product of matrices, or their influences."""
        if influence is None:
            return total + sum_of_products(*self.numbers)
        if not self.is_smaller and total.size <= SMALL:
            in_turn = None
        elif in_turn is not None and len(self.left) < in_turn:
            in_turn = 1  # a loop over a few rows has them fetched entry by entry
        return add_rows(
            total, lambda a, d: influence(a[:, None] * d[None]), self.numbers, in_turn
        )


@register("left", "right")
@dataclass(frozen=True)
class MatrixProducts(_Factors):
    """A leaf of n samples: sums of outer products over T positions, for G groups.

    Attributes:
        left: shape (n, G, T, p).
        right: shape (n, G, T, q).
        build: returns the leaf of an array (G, p, q): its entries, in another order.

    Example:
        >>> import jax.numpy as jnp
        >>> left, right = jnp.ones((5, 1, 4, 2)), jnp.ones((5, 1, 4, 3))
        >>> print(MatrixProducts(left, right, jnp.ravel).written_out()[0])
        [4. 4. 4. 4. 4. 4.]
    """

    @property
    def is_smaller(self) -> bool:
        """Whether factors are much smaller than the leaf, and Gram matrices pay."""
        return are_much_smaller(self.left.shape[2:], self.right.shape[3])

    def written_out(self) -> jax.Array:
        """Returns the leaf as an array (n, ...)."""
        return jax.vmap(lambda a, d: self.build(_product(a, d)))(*self.numbers)

    def zeros(self) -> jax.Array:
        """Returns a sum of no rows, before `build`."""
        _, num_groups, _, p = self.left.shape
        return zeros_for((num_groups, p, self.right.shape[3]), self.right)

    def finite(self) -> "MatrixProducts":
        """Returns balanced factors in which NaN and infinities count as zero."""
        left, right = balanced(self.left, self.right)
        return replace(self, left=left, right=right)

    def squared_norm(self, inverse_unit: jax.Array) -> jax.Array:
        """Returns the square of the norm of one balanced row times a number."""
        left, right = self.numbers
        return squared_norm_of_matrices(left, right, inverse_unit)

    def add(
        self, total: jax.Array, influence: Influence | None, in_turn: int | None
    ) -> jax.Array:
        """Adds rows to a sum, or their influences: a product for each row.

        One product over rows and positions would round by terms that cancel in each
        row. If there is one position, no term cancels.
        """
        left, right = self.numbers
        if left.shape[2] == 1 and influence is None:
            add = jax.vmap(sum_of_products, in_axes=1)
            return total + add(left[:, :, 0], right[:, :, 0])

        def one(left, right):
            product = _product(left, right)
            return product if influence is None else influence(product)

        def added(in_turn):
            return lambda total, *factors: add_rows(total, one, factors, in_turn)

        some = None if len(left) * total.size <= MOST else 1
        return jax.lax.platform_dependent(
            total, left, right, cpu=added(1), default=added(some)
        )


def are_much_smaller(left: tuple[int, ...], q: int) -> bool:
    """Returns whether factors (..., T, p) and (..., T, q) are, than (..., p, q)."""
    num_positions, p = left
    return p * q >= SAVING * num_positions * (p + q)


def _product(left, right):
    """Returns the sums of outer products over positions, shape (G, p, q)."""
    over_positions = (((1,), (1,)), ((0,), (0,)))
    precision = jax.lax.Precision.HIGHEST
    # Else the compiler may add the terms of several rows in one sum.
    return jax.lax.optimization_barrier(
        jax.lax.dot_general(left, right, over_positions, precision=precision)
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
        return zeros_for((self.num_rows, self.values.shape[2]), self.values)

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
        return total + sum_of_products(weights, values)

    @property
    def is_large(self) -> bool:
        """Whether a sum has more than a few thousand coordinates."""
        return self.values.size > SMALL * len(self.values)


Leaf = OuterProducts | MatrixProducts | TableRows | Arrays
