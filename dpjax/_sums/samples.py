"""Samples of a few rows: their leaves, and how these are added and measured.

A sample's gradient by the kernel of a dense layer is the outer product of two vectors;
that by a table of embeddings is zero but for a few rows. Norms and sums of such samples
are found from the factors. Whatever else a sample holds is an array, as it always was.

Every sample adds one number to a coordinate of a sum: a product of two entries, an
entry of a row, an entry of an array. Rows of a table that a sample reads twice are
added up before (`tables`), and so are outer products over many positions, a sample at
a time, or by the program that makes samples. The bound on rounding rests on that (see
`fold`): of terms that are summed over samples and positions at once, those of one
sample may cancel, and then no norm bounds how their sum is rounded.

A norm is measured in a unit: a public or released number of its order, such as the clip
norm. Squares of entries are then of the order of one. From 2^63 units on a sample
counts as zero, as NaN does: its squares overflow, or nearly so. Heavy tails never reach
that, since units are at least 1e-12.

Squares that underflow lose 2^-126 each, and an outer product's other factor may
multiply that: so the sum of squares of p entries is raised by p·2^-126 before sums are
multiplied, and no norm is too small. Proof: `docs/privacy/proofs/sums.md`, 1.5.
"""

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp

from dpjax._sharding import num_other_devices, varying, varying_axes, zeros
from dpjax._tree import as_finite, as_float, like, register, split, stack
from dpjax._types import PyTree

Influence = Callable[[jax.Array], jax.Array]
SMALL = 4096  # coordinates, such as of a bias
SAVING = 4  # factors are much smaller than a leaf by so many times, or more

# The computed norm may be too small by this relative error, so that a clipped sample
# may be longer than the clip norm by as much: `docs/privacy/proofs/sums.md`, 1.5. There
# a sum of squares has up to 1,024 terms, or 6 levels of 256 (below 2^48 entries); on
# several devices 4 levels, for 2^32, and then a term for each device and axis, 512 at
# most in all. The sum over leaves has one more level for each doubling of their number.
NORM_ERROR = 2.0**-13
FLAT, ROW = 1024, 256
LOST = 2.0**-126  # what a square that underflows loses, at most
LONGEST = 2.0**63  # in units: samples of this norm or more count as zero
MANY = 64  # leaves of one shape, of which a compiler should see fewer


class Leaf(abc.ABC):
    """A leaf of n samples, in one of four forms."""

    build: Callable[[jax.Array], jax.Array]  # returns the leaf, of a sum

    @property
    def is_smaller(self) -> bool:
        """Tells whether factors are much smaller than the leaf."""
        return False

    @property
    @abc.abstractmethod
    def numbers(self) -> tuple[jax.Array, ...]:
        """All arrays of numbers, without those of places."""

    @abc.abstractmethod
    def written_out(self) -> jax.Array:
        """Returns the leaf as an array (n, ...)."""

    @abc.abstractmethod
    def finite(self) -> Self:
        """Returns rows in which NaN and infinities count as zero."""

    @abc.abstractmethod
    def squared_norm(self, inverse_unit: jax.Array) -> jax.Array:
        """Returns the square of the norm of one row times a number: not too small."""

    @abc.abstractmethod
    def weighted(self, weight: jax.Array) -> Self:
        """Returns one row times a weight."""

    @abc.abstractmethod
    def zeros(self) -> jax.Array:
        """Returns a sum of no rows, before `build`."""

    @abc.abstractmethod
    def add(
        self, total: jax.Array, influence: Influence | None, in_turn: int | None
    ) -> jax.Array:
        """Adds rows to a sum, or their influences: see `FactoredSamples.add_to`."""


@register("leaves")
@dataclass(frozen=True)
class FactoredSamples:
    """Samples of which some leaves are factored.

    Attributes:
        leaves: a pytree of arrays (n, ...), `OuterProducts` and `TableRows`.
        work: how many numbers the program makes for a sample, about.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax._sums.samples import OuterProducts
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

    def with_parts(self, parts: list[Any]) -> "FactoredSamples":
        """Returns samples with other leaves, of which some may be arrays."""
        return FactoredSamples(self._unflatten(parts), self.work)

    def stacked(self) -> "FactoredSamples":
        """Returns samples with small arrays of one shape stacked, if they are many."""
        stacked = Stacked.of(self.leaves)
        is_same = not any(group[1:] for group in stacked.groups)
        return self if is_same else FactoredSamples(stacked, self.work)

    def written_out(self) -> PyTree:
        """Returns the samples as a pytree of arrays."""
        return self._unflatten([part.written_out() for part in self.parts])

    def zeros(self) -> list[jax.Array]:
        """Returns sums of no samples, one for every leaf, before `build`."""
        return [part.zeros() for part in self.parts]

    def add_to(
        self, sums: list[jax.Array], influence: Influence | None, in_turn: int | None
    ) -> list[jax.Array]:
        """Adds samples to sums, or their influences, which act by coordinate.

        The influence leaves zero as it is. in_turn is how many rows are added in one
        pass over a large sum, one after the other; None leaves it to the compiler.
        """
        pairs = zip(sums, self.parts, strict=True)
        return [part.add(x, influence, in_turn) for x, part in pairs]

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

    @property
    def dtype(self) -> Any:
        """float64 where a leaf has it, else float32."""
        return max((x.dtype for x in self.numbers), key=lambda dtype: dtype.itemsize)

    def finite(self) -> "FactoredSamples":
        """Returns samples in which NaN and infinities count as zero."""
        return self.with_parts([part.finite() for part in self.parts])

    def squared_norm(self, inverse_unit: jax.Array) -> jax.Array:
        """Returns the square of the norm of one finite sample times a number."""
        dtype = self.dtype
        # As a tree: one after the other, thousands of leaves err by as many roundings.
        squares = [part.squared_norm(inverse_unit).astype(dtype) for part in self.parts]
        return jax.tree.reduce_associative(
            jnp.add, squares, identity=jnp.zeros((), dtype)
        )

    def weighted(self, weight: jax.Array) -> "FactoredSamples":
        """Returns one finite sample times a weight."""
        return self.with_parts([part.weighted(weight) for part in self.parts])

    def blocks(self, count: int) -> "FactoredSamples":
        """Returns so many blocks of equally many samples, along a new first axis."""
        return jax.tree.map(
            lambda x: x.reshape(count, len(x) // count, *x.shape[1:]), self
        )

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
    def has_small_factors(self) -> bool:
        """Tells whether the factors of any leaf are much smaller than the leaf."""
        return any(part.is_smaller for part in self.parts)

    @property
    def has_large_arrays(self) -> bool:
        """Tells whether an array of a sample has more than a few thousand entries."""
        arrays = [part for part in self.parts if isinstance(part, Arrays)]
        return any(part.is_large for part in arrays)

    @property
    def num_rows(self) -> int:
        """The number of samples."""
        return len(jax.tree.leaves(self.leaves)[0])

    @property
    def row_size(self) -> int:
        """Counts, roughly, the numbers that a sample makes and stores."""
        return self.work + sum(x.size // len(x) for x in jax.tree.leaves(self.leaves))


@register("leaves")
@dataclass(frozen=True)
class Stacked:
    """A pytree of samples, or of their sum, in which small arrays are stacked by shape.

    Thousands of leaves are then a few for the compiler.

    Attributes:
        leaves: stacks (..., m, *shape), or one leaf each that is as it was.
        groups: the indices of the leaves in each; static.
        structure: of the pytree; static.
    """

    leaves: list[Any]
    groups: tuple[tuple[int, ...], ...]
    structure: Any

    @classmethod
    def of(cls, tree: PyTree) -> "Stacked":
        """Returns samples with leaves of more than `MANY` of one shape stacked."""
        leaves, structure = jax.tree.flatten(tree, is_leaf=_is_leaf)
        groups: dict[Any, list[int]] = {}
        for i, x in enumerate(leaves):
            groups.setdefault(_kind(x) or i, []).append(i)
        joined: list[list[int]] = []
        for group in groups.values():
            joined += [group] if len(group) > MANY else [[i] for i in group]
        stacks = [
            stack([leaves[i] for i in group], 1) if group[1:] else leaves[group[0]]
            for group in joined
        ]
        return cls(stacks, tuple(map(tuple, joined)), structure)

    def unstacked(self) -> PyTree:
        """Returns the sum of samples as the pytree that it was."""
        leaves = {}
        for x, group in zip(self.leaves, self.groups, strict=True):
            rows = [y[0] for y in split(x, [1] * len(x))] if group[1:] else [x]
            leaves.update(zip(group, rows, strict=True))
        return self.structure.unflatten(leaves[i] for i in range(len(leaves)))


def unstacked(tree: PyTree) -> PyTree:
    """Returns the pytree of a sum without stacks."""
    return jax.tree.map(
        lambda x: x.unstacked() if isinstance(x, Stacked) else x,
        tree,
        is_leaf=lambda x: isinstance(x, Stacked),
    )


def _kind(x: Any) -> Any:
    """Returns what leaves that may be stacked have in common, None for others."""
    if isinstance(x, Leaf) or x.size > SMALL * len(x) or num_other_devices(x) > 1:
        return None
    return x.shape, x.dtype, varying_axes(x)


def _is_leaf(x: Any) -> bool:
    return isinstance(x, Leaf)


@dataclass(frozen=True)
class Factors(Leaf):
    """Serves leaves that hold two factors."""

    left: jax.Array
    right: jax.Array
    build: Callable[[jax.Array], jax.Array]

    @property
    def numbers(self) -> tuple[jax.Array, ...]:
        return as_float(self.left), as_float(self.right)

    def weighted(self, weight: jax.Array) -> Self:
        left, right = self.numbers
        if left.size < right.size:
            return replace(self, left=times(left, weight))
        return replace(self, right=times(right, weight))


@register("left", "right")
@dataclass(frozen=True)
class OuterProducts(Factors):
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
        p, q = self.left.shape[1], self.right.shape[1]
        return p * q >= SAVING * (p + q)

    def written_out(self) -> jax.Array:
        return jax.vmap(lambda a, d: self.build(a[:, None] * d[None]))(
            as_float(self.left), as_float(self.right)
        )

    def zeros(self) -> jax.Array:
        return zeros_for((self.left.shape[1], self.right.shape[1]), self.right)

    def finite(self) -> "OuterProducts":
        return replace(self, left=as_finite(self.left), right=as_finite(self.right))

    def squared_norm(self, inverse_unit: jax.Array) -> jax.Array:
        left, right = self.numbers
        return squared_norm_of_product(left, right * like(inverse_unit, right))

    def add(
        self, total: jax.Array, influence: Influence | None, in_turn: int | None
    ) -> jax.Array:
        if influence is None:
            return total + sum_of_products(*self.numbers)
        if not self.is_smaller and total.size <= SMALL:
            in_turn = None
        elif in_turn is not None and len(self.left) < in_turn:
            in_turn = 1  # a loop over a few rows has them fetched entry by entry
        return add_rows(
            total, lambda a, d: influence(a[:, None] * d[None]), self.numbers, in_turn
        )


def are_much_smaller(left: tuple[float, ...], q: int) -> bool:
    """Returns whether factors (..., T, p) and (..., T, q) are, than (..., p, q)."""
    num_positions, p = left
    return p * q >= SAVING * num_positions * (p + q)


@dataclass(frozen=True)
class Values(Leaf):
    """Serves leaves that hold their numbers as one array."""

    values: jax.Array

    @property
    def numbers(self) -> tuple[jax.Array, ...]:
        return (as_float(self.values),)

    def finite(self) -> Self:
        return replace(self, values=as_finite(self.values))

    def squared_norm(self, inverse_unit: jax.Array) -> jax.Array:
        (values,) = self.numbers
        return sum_of_squares(values * like(inverse_unit, values))


@register("values", "weights")
@dataclass(frozen=True)
class Arrays(Values):
    """A leaf of n samples that is held as it is.

    Attributes:
        values: shape (n, ...).
        weights: shape (n,), what rows are multiplied by as they are added, if anything.
    """

    weights: jax.Array | None = None

    def written_out(self) -> jax.Array:
        return self.values if self.weights is None else times(self.values, self.weights)

    def build(self, x: jax.Array) -> jax.Array:
        """Returns the leaf of a sum, which is the sum itself."""
        return x

    def zeros(self) -> jax.Array:
        # Sharded like a row of the leaf: it may be that of a sharded parameter.
        row = zeros(self.values, (1, *self.values.shape[1:]))[0]
        return row if row.dtype == jnp.float64 else row.astype(jnp.float32)

    def weighted(self, weight: jax.Array) -> "Arrays":
        return Arrays(self.values, weight)

    def add(
        self, total: jax.Array, influence: Influence | None, in_turn: int | None
    ) -> jax.Array:
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
        """Tells whether a sum has more than a few thousand coordinates."""
        return self.values.size > SMALL * len(self.values)


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
    """Adds `function(*row)` of all rows of arrays (n, ...) to a sum.

    That of zeros is zero; in_turn is as in `FactoredSamples.add_to`.
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


def squared_norm_of_product(left: jax.Array, right: jax.Array) -> jax.Array:
    """Returns |left|^2 |right|^2: not too small, though squares underflow."""
    left, right = (sum_of_squares(x) + x.size * LOST for x in (left, right))
    # Where one overflows, the derivative by the other would be infinite, not zero.
    is_finite = jnp.isfinite(left) & jnp.isfinite(right)
    left, right = (jnp.where(is_finite, x, 1) for x in (left, right))
    return jnp.where(is_finite, left * right, jnp.inf)


@jax.custom_jvp
def sum_of_squares(x: jax.Array) -> jax.Array:
    """Returns the sum of the squares of all entries, infinity where it overflows."""
    # Else the compiler may square a constant, and what it is multiplied by, each by
    # itself: 1e19 times 1e-19 would have the square zero.
    x = jax.lax.optimization_barrier(x)
    terms = x * x
    num_parts = num_other_devices(x)
    if num_parts > 1 and x.ndim > 0:
        # An axis that lies on several devices falls into as many parts, which stay
        # where they are: the rows of 256 are of one device each.
        parts = [num_parts if n % num_parts == 0 else 1 for n in x.shape]
        lengths = [n // m for n, m in zip(x.shape, parts, strict=True)]
        pairs = zip(parts, lengths, strict=True)
        terms = terms.reshape([n for pair in pairs for n in pair])
        order = [*range(0, 2 * x.ndim, 2), *range(1, 2 * x.ndim, 2)]
        terms = terms.transpose(order).reshape(*parts, math.prod(lengths))
        # Then axis by axis, so that devices add up and nothing is gathered.
        for _ in range(x.ndim + 1):
            terms = jax.lax.optimization_barrier(sum_in_levels(terms, ROW))
        return terms
    return sum_in_levels(terms.reshape(-1))


@sum_of_squares.defjvp
def _sum_of_squares_jvp(primals, tangents):
    # Derivatives stay finite where squares overflow: the weight there is constant.
    (x,), (tangent,) = primals, tangents
    x_or_zero = jnp.where(jnp.abs(x) < 2 * LONGEST, x, 0)
    return sum_of_squares(x), 2 * jnp.sum(x_or_zero * tangent)


def sum_in_levels(terms: jax.Array, flat: int = FLAT, row: int = ROW) -> jax.Array:
    """Returns sums over the last axis, of more than `flat` terms `row` at a time."""
    # A flat float32 sum of d terms may err by d·2^-24: 6 times, at d = 1e8. Sums of
    # rows of 256 err by 256·2^-24 a level; the barrier keeps the compiler from
    # merging the levels into one flat sum.
    if terms.shape[-1] <= flat:
        return terms.sum(axis=-1)
    while terms.shape[-1] > row:
        rest = [(0, 0)] * (terms.ndim - 1)
        terms = jnp.pad(terms, [*rest, (0, -terms.shape[-1] % row)])
        terms = terms.reshape(*terms.shape[:-1], -1, row)
        terms = jax.lax.optimization_barrier(terms.sum(axis=-1))
    return terms.sum(axis=-1)


def weigh(
    squares: jax.Array, weight_fn: Callable[[jax.Array], jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Returns the weight of one sample, and its norm in units.

    Squares are those of its norm, infinity where they overflow. `weight_fn` is
    differentiable on [0, 2^63); beyond, the weight is zero and the norm infinite.
    """
    is_measured = squares < LONGEST**2
    is_positive = is_measured & (squares > 0)
    root = jnp.sqrt(jnp.where(is_positive, squares, 1))
    norm = jnp.where(is_positive, root, 0)
    weight = jnp.where(is_measured, weight_fn(norm), 0)
    return weight, jnp.where(is_measured, norm, jnp.inf)
