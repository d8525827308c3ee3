"""Samples in factored form: leaves that are known as products, and never written out.

A sample's gradient by the kernel of a dense layer is the outer product of two vectors;
that by a table of embeddings is zero but for a few rows. Norms and sums of such samples
are found from the factors. Whatever else a sample holds is an array, as it always was.

Every sample adds one number to a coordinate of a sum: a product of two entries, an
entry of a row, an entry of an array. Rows of a table that a sample reads twice are
added up before, and what sums over many positions (tokens, pixels) is an array, which
the program that makes samples has summed. The bound on rounding rests on that (see
`_slabs`): of terms that are summed over samples and positions at once, those of one
sample may cancel, and then no norm bounds how their sum is rounded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._sharding import varying, varying_axes
from dpjax._tree import like, register
from dpjax._types import PyTree
from dpjax.estimators._entries import as_float
from dpjax.estimators._row_sums import add_rows, zero_unless

Influence = Callable[[jax.Array], jax.Array]
SMALL = 4096  # coordinates, such as of a bias
IN_TURN = 16  # rows that are added in one pass over a sum, on CPU
# `add(sums, start, size, in_turn)` adds so many samples to sums, one for every leaf.
Add = Callable[[list[jax.Array], Any, int, int | None], list[jax.Array]]


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

    def with_numbers(self, left: jax.Array, right: jax.Array) -> "OuterProducts":
        """Returns the same of other factors."""
        return OuterProducts(left, right, self.build)

    def weighted(self, weights: jax.Array) -> "OuterProducts":
        """Returns rows times weights, shape (n,)."""
        left, right = self.numbers
        return self.with_numbers(left, times(right, weights))

    def add(self, total: jax.Array, in_turn: int | None) -> jax.Array:
        """Adds rows to a sum."""
        del in_turn
        return total + _sum_of_products(*self.numbers)

    def add_influences(
        self, total: jax.Array, influence: Influence, in_turn: int | None
    ) -> jax.Array:
        """Adds the influences of rows, which act by coordinate, to a sum."""
        pairs = as_float(self.left), as_float(self.right)
        if in_turn is not None and len(self.left) < in_turn:
            in_turn = 1  # a loop over a few rows has them fetched entry by entry
        return add_rows(
            total, lambda a, d: influence(a[:, None] * d[None]), pairs, in_turn
        )


@register("places", "values")
@dataclass(frozen=True)
class TableRows:
    """A leaf of n samples: tables of zeros, but for a few rows.

    Attributes:
        places: shape (n, t): where rows stand; those outside of the table count for
            nothing. No place stands twice in a sample: see `of`.
        values: the rows, shape (n, t, q).
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
    values: jax.Array
    num_rows: int
    build: Callable[[jax.Array], jax.Array]

    @classmethod
    def of(
        cls,
        places: jax.Array,
        values: jax.Array,
        *,
        num_rows: int,
        build: Callable[[jax.Array], jax.Array],
    ) -> "TableRows":
        """Returns rows of which some may stand at the same place: they are added up."""
        values, size = as_float(values), places.shape[1]
        order = jnp.arange(size, dtype=places.dtype)

        def once(places, values):
            if size**2 <= num_rows:  # all pairs, which are never stored
                is_same = places[:, None] == places[None]
                goal = jnp.where(is_same, order[None], size).min(axis=1)
            else:
                first = jnp.full(num_rows, size, places.dtype)
                first = first.at[places].min(order, mode="drop")
                goal = first.at[places].get(mode="fill", fill_value=size)
            # Most rows are the first of their place and stay: few are added to others.
            is_first = goal == order
            total = jnp.where(is_first[:, None], values, 0)
            goal = jnp.where(is_first, size, goal)
            total = total.at[goal].add(values, mode="drop")
            return jnp.where(is_first, places, num_rows), total

        if size > 1:
            places, values = jax.vmap(once)(places, values)
        return cls(places, values, num_rows, build)

    def written_out(self) -> jax.Array:
        """Returns the leaf as an array (n, ...)."""

        def one(places, values):
            table = jnp.zeros((self.num_rows, values.shape[1]), values.dtype)
            return self.build(table.at[places].add(values, mode="drop"))

        return jax.vmap(one)(self.places, self.values)

    def zeros(self) -> jax.Array:
        """Returns a sum of no rows, before `build`."""
        return _zeros((self.num_rows, self.values.shape[2]), self.values)

    @property
    def numbers(self) -> tuple[jax.Array, ...]:
        """The rows."""
        return (self.values,)

    def with_numbers(self, values: jax.Array) -> "TableRows":
        """Returns the same of other rows."""
        return TableRows(self.places, values, self.num_rows, self.build)

    def weighted(self, weights: jax.Array) -> "TableRows":
        """Returns rows times weights, shape (n,)."""
        return self.with_numbers(times(self.values, weights))

    def add(self, total: jax.Array, in_turn: int | None) -> jax.Array:
        """Adds rows to a sum."""
        del in_turn
        return self._add(total, self.values)

    def add_influences(
        self, total: jax.Array, influence: Influence, _: int | None
    ) -> jax.Array:
        """Adds the influences of rows to a sum; that of a zero must be zero."""
        return self._add(total, influence(self.values))

    def _add(self, total, values):
        rows = values.reshape(-1, values.shape[-1])
        return total.at[self.places.reshape(-1)].add(rows, mode="drop")


@register("values", "weights")
@dataclass(frozen=True)
class Arrays:
    """A leaf of n samples that is held as it is.

    Attributes:
        values: shape (n, ...).
        weights: what rows are multiplied by as they are added, shape (n,); None of one.
    """

    values: jax.Array
    weights: jax.Array | None = None

    def written_out(self) -> jax.Array:
        """Returns the leaf."""
        return self.values

    def build(self, x: jax.Array) -> jax.Array:
        """Returns what a sum is of."""
        return x

    def zeros(self) -> jax.Array:
        """Returns a sum of no rows."""
        return _zeros(self.values.shape[1:], self.values)

    @property
    def numbers(self) -> tuple[jax.Array, ...]:
        """The array."""
        return (as_float(self.values),)

    def with_numbers(self, values: jax.Array) -> "Arrays":
        """Returns the same of another array."""
        return Arrays(values, self.weights)

    def weighted(self, weights: jax.Array) -> "Arrays":
        """Returns rows times weights, shape (n,): at once if they are small."""
        (values,) = self.numbers
        if self.is_large:
            before = 1 if self.weights is None else self.weights
            return Arrays(values, weights * before)
        return Arrays(times(values, weights))

    def add(self, total: jax.Array, in_turn: int | None) -> jax.Array:
        """Adds rows to a sum, some in one pass over it if they are large."""
        (values,) = self.numbers
        if self.weights is None:
            ones = jnp.ones(len(values), values.dtype)
            return total + _sum_of_products(ones, values)
        rows = values, like(self.weights, values)
        return add_rows(total, jnp.multiply, rows, in_turn)

    def add_influences(
        self, total: jax.Array, influence: Influence, in_turn: int | None
    ) -> jax.Array:
        """Adds the influences of rows to a sum."""
        # A loop over rows is a long program: not for a small sum.
        in_turn = in_turn if self.is_large else None
        return add_rows(total, influence, (self.values,), in_turn)

    @property
    def is_large(self) -> bool:
        """Whether a sum has more than a few thousand coordinates."""
        return self.values.size > SMALL * len(self.values)


Leaf = OuterProducts | TableRows | Arrays


@register("leaves")
@dataclass(frozen=True)
class FactoredSamples:
    """Samples of which some leaves are factored.

    Attributes:
        leaves: a pytree of arrays (n, ...), `OuterProducts` and `TableRows`.
        work: how many numbers the program makes for a sample, about.

    Example:
        >>> import jax.numpy as jnp
        >>> kernel = OuterProducts(jnp.ones((5, 2)), jnp.ones((5, 3)), lambda x: x)
        >>> samples = FactoredSamples({"kernel": kernel, "bias": jnp.ones((5, 3))})
        >>> samples.written_out()["kernel"].shape
        (5, 2, 3)
    """

    leaves: PyTree
    work: int = 1

    @property
    def parts(self) -> list[Leaf]:
        """All leaves; plain arrays as `Arrays`."""
        leaves = jax.tree.leaves(self.leaves, is_leaf=_is_leaf)
        return [leaf if _is_leaf(leaf) else Arrays(leaf) for leaf in leaves]

    def written_out(self) -> PyTree:
        """Returns the samples as a pytree of arrays."""
        return self._unflatten([part.written_out() for part in self.parts])

    def zeros(self) -> list[jax.Array]:
        """Returns sums of no samples, one for every leaf, before `build`."""
        return [part.zeros() for part in self.parts]

    def build(self, sums: list[jax.Array]) -> PyTree:
        """Returns sums in the shape of samples."""
        pairs = zip(self.parts, sums, strict=True)
        return self._unflatten([part.build(x) for part, x in pairs])

    def _unflatten(self, leaves):
        structure = jax.tree.structure(self.leaves, is_leaf=_is_leaf)
        return jax.tree.unflatten(structure, leaves)

    @property
    def numbers(self) -> list[jax.Array]:
        """All arrays of numbers, without those of places."""
        return [x for part in self.parts for x in part.numbers]

    def rows(self, start: Any, size: int) -> "FactoredSamples":
        """Returns samples `start` to `start + size - 1`."""

        def part(x):
            if len(x) == size:
                return x
            return jax.lax.dynamic_slice_in_dim(x, start, size)

        return jax.tree.map(part, self)

    def padded(self, size: int) -> "FactoredSamples":
        """Returns so many samples, of which the last ones are zeros."""

        def pad(x):
            more = size - len(x)
            return jnp.pad(x, [(0, more)] + [(0, 0)] * (x.ndim - 1)) if more else x

        return jax.tree.map(pad, self)

    def zero_unless(self, counts: jax.Array) -> "FactoredSamples":
        """Returns zeros in the place of samples that do not count."""
        return jax.tree.map(lambda x: zero_unless(counts, x), self)

    @property
    def is_factored(self) -> bool:
        """Whether any leaf is more than an array."""
        return any(map(_is_leaf, jax.tree.leaves(self.leaves, is_leaf=_is_leaf)))

    @property
    def has_large_arrays(self) -> bool:
        """Whether an array of a sample has more than a few thousand entries."""
        arrays = [part for part in self.parts if isinstance(part, Arrays)]
        return any(part.is_large for part in arrays)

    @property
    def row_size(self) -> int:
        """How many numbers are made and held of a sample, about."""
        return self.work + sum(x.size // len(x) for x in jax.tree.leaves(self.leaves))


def adds_influences(
    samples: FactoredSamples, influence: Influence, counts: jax.Array | None
) -> Add:
    """Returns what adds the influences of samples to sums.

    Args:
        samples: n of them.
        influence: acts by coordinate, and leaves zero as it is.
        counts: shape (n,), false for samples to leave out; None where all count.
    """
    if counts is not None:
        samples = samples.zero_unless(counts)

    def add(sums, start, size, in_turn):
        parts = zip(sums, samples.rows(start, size).parts, strict=True)
        return [part.add_influences(x, influence, in_turn) for x, part in parts]

    return add


def _zeros(shape, like_this):
    is_double = like_this.dtype == jnp.float64
    zeros = jnp.zeros(shape, jnp.float64 if is_double else jnp.float32)
    return varying(zeros, varying_axes(like_this))


def times(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns n rows times weights, shape (n,)."""
    return x * like(weights, x).reshape(-1, *(1,) * (x.ndim - 1))


def _sum_of_products(x, y):
    """Returns the sum over n of the outer products of rows."""
    over_rows = (((0,), (0,)), ((), ()))
    return jax.lax.dot_general(x, y, over_rows, precision=jax.lax.Precision.HIGHEST)


def _is_leaf(x: Any) -> bool:
    return isinstance(x, Leaf)
