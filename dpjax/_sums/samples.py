"""The samples of a microbatch: how their leaves are added, and their norms computed.

A gradient with respect to the kernel of a dense layer is the outer product of two
vectors; a gradient with respect to a table of embeddings is zero except for a few rows.
Norms and sums of such leaves are computed from factors. All other leaves are arrays.

A sample adds exactly one number to a coordinate of a sum: a product of two entries, an
entry of a row, or an entry of an array. If it reads a row of a table twice (`tables`),
or has outer products at many positions, these are added up first, for each sample
alone. The bound on rounding needs this (see `fold`): in a sum over samples and
positions at once, terms of one sample may cancel, and the norm of this sample would not
bound the rounding error that they cause.

A norm is measured in a unit: a public or released number of its order, such as the clip
norm, so that squares of entries are of the order of one. A sample with a norm of 2^63
units or more counts as zero, as NaN does, because its squares overflow, or nearly so.
Heavy tails never reach that, since units are at least 1e-12.

Squares that underflow make no norm too small: `docs/privacy/proofs/sums.md`, 1.5.
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
SMALL = 4096  # a leaf of at most so many coordinates is small, such as a bias
SAVING = 4  # factors are much smaller if a leaf has this many times their entries

# The computed norm may be too small by this relative error, so that a clipped sample
# may exceed the clip norm by as much: `docs/privacy/proofs/sums.md`, 1.5. The proof
# allows sums of up to 1,024 squares, or 6 levels of 256 (below 2^48 entries). On
# several devices it allows 4 levels (below 2^32 entries), and then a term for each
# device and axis, 512 at most. Doubling the number of leaves adds one level.
NORM_ERROR = 2.0**-13
FLAT, ROW = 1024, 256
LOST = 2.0**-126  # the largest loss of a square that underflows
LONGEST = 2.0**63  # in units: samples of this norm or more count as zero
MANY = 64  # more leaves than this are slow to compile, and stacked if of one shape


class Leaf(abc.ABC):
    """A leaf of n samples, in one of four forms."""

    build: Callable[[jax.Array], jax.Array]  # reshapes a sum to the leaf of a sample

    @property
    def is_smaller(self) -> bool:
        """Returns whether factors are much smaller than the leaf."""
        return False

    @property
    @abc.abstractmethod
    def numbers(self) -> tuple[jax.Array, ...]:
        """Returns all arrays that hold numbers, not indices of a table."""

    @abc.abstractmethod
    def written_out(self) -> jax.Array:
        """Returns the leaf as an array (n, ...)."""

    @abc.abstractmethod
    def finite(self) -> Self:
        """Returns rows with NaN and infinities set to zero."""

    @abc.abstractmethod
    def squared_norm(self, inverse_unit: jax.Array) -> jax.Array:
        """Returns |row·inverse_unit|^2 for one row; `NORM_ERROR` bounds its error."""

    @abc.abstractmethod
    def weighted(self, weight: jax.Array) -> Self:
        """Returns one row times a weight."""

    @abc.abstractmethod
    def zeros(self) -> jax.Array:
        """Returns the zeros to which rows are added, before `build`."""

    @abc.abstractmethod
    def add(
        self, total: jax.Array, influence: Influence | None, in_turn: int | None
    ) -> jax.Array:
        """Adds rows, or their influences, to total: see `FactoredSamples.add_to`."""


@register("leaves")
@dataclass(frozen=True)
class FactoredSamples:
    """Samples: a pytree of arrays (n, ...) and of instances of `Leaf`.

    The program computes about `work` numbers for a sample.
    """

    leaves: PyTree
    work: int = 1

    @property
    def parts(self) -> list[Leaf]:
        leaves = jax.tree.leaves(self.leaves, is_leaf=_is_leaf)
        return [leaf if _is_leaf(leaf) else Arrays(leaf) for leaf in leaves]

    def with_parts(self, parts: list[Any]) -> "FactoredSamples":
        """Returns samples with the leaves `parts`; arrays are allowed."""
        return FactoredSamples(self._unflatten(parts), self.work)

    def stacked(self) -> "FactoredSamples":
        """Returns samples in which many small arrays of one shape are stacked."""
        stacked = Stacked.of(self.leaves)
        is_same = not any(group[1:] for group in stacked.groups)
        return self if is_same else FactoredSamples(stacked, self.work)

    def written_out(self) -> PyTree:
        return self._unflatten([part.written_out() for part in self.parts])

    def zeros(self) -> list[jax.Array]:
        return [part.zeros() for part in self.parts]

    def add_to(
        self, sums: list[jax.Array], influence: Influence | None, in_turn: int | None
    ) -> list[jax.Array]:
        """Returns `sums`, an array for each leaf, plus all samples or their influences.

        An influence is a function of each row that maps zero to zero; None adds the
        rows themselves. in_turn is the number of rows that are added one after the
        other in one pass over a large sum; None leaves the order to the compiler.
        """
        pairs = zip(sums, self.parts, strict=True)
        return [part.add(x, influence, in_turn) for x, part in pairs]

    def build(self, sums: list[jax.Array]) -> PyTree:
        """Reshapes sums to the pytree of a sample."""
        pairs = zip(self.parts, sums, strict=True)
        return self._unflatten([part.build(x) for part, x in pairs])

    def _unflatten(self, leaves):
        structure = jax.tree.structure(self.leaves, is_leaf=_is_leaf)
        return jax.tree.unflatten(structure, leaves)

    @property
    def dtype(self) -> Any:
        """Returns float64 if a leaf has it, else float32."""
        dtypes = [x.dtype for part in self.parts for x in part.numbers]
        return max(dtypes, key=lambda dtype: dtype.itemsize)

    def finite(self) -> "FactoredSamples":
        return self.with_parts([part.finite() for part in self.parts])

    def squared_norm(self, inverse_unit: jax.Array) -> jax.Array:
        """Returns |sample·inverse_unit|^2, over all leaves, for one finite sample.

        The unit, such as the clip norm, brings squares of entries to the order of one.
        """
        dtype = self.dtype
        # A sequential sum of thousands of leaves rounds thousands of times; a tree of
        # sums rounds each number only a few times.
        squares = [part.squared_norm(inverse_unit).astype(dtype) for part in self.parts]
        return jax.tree.reduce_associative(
            jnp.add, squares, identity=jnp.zeros((), dtype)
        )

    def weighted(self, weight: jax.Array) -> "FactoredSamples":
        return self.with_parts([part.weighted(weight) for part in self.parts])

    def blocks(self, count: int) -> "FactoredSamples":
        """Divides samples into `count` equal blocks, along a new first axis."""
        return jax.tree.map(
            lambda x: x.reshape(count, len(x) // count, *x.shape[1:]), self
        )

    def padded(self, size: int) -> "FactoredSamples":
        """Appends zeros, up to `size` samples."""

        def pad(x):
            more = size - len(x)
            return jnp.pad(x, [(0, more)] + [(0, 0)] * (x.ndim - 1)) if more else x

        return jax.tree.map(pad, self)

    def zero_unless(self, counts: jax.Array) -> "FactoredSamples":
        """Sets samples to zero where `counts` is false."""
        return jax.tree.map(lambda x: zero_unless(counts, x), self)

    @property
    def num_rows(self) -> int:
        return len(jax.tree.leaves(self.leaves)[0])

    @property
    def row_size(self) -> int:
        """Returns about how many numbers are computed and stored for a sample."""
        return self.work + sum(x.size // len(x) for x in jax.tree.leaves(self.leaves))


@register("leaves")
@dataclass(frozen=True)
class Stacked:
    """A pytree of samples, or of their sum, in which small arrays are stacked by shape.

    The compiler then sees a few arrays instead of thousands: stacks (..., m, *shape),
    and leaves that are not stacked. `groups` has the indices of the leaves of each.
    """

    leaves: list[Any]
    groups: tuple[tuple[int, ...], ...]
    structure: Any

    @classmethod
    def of(cls, tree: PyTree) -> "Stacked":
        """Returns a `Stacked`, in which over 64 leaves of one shape are one array.

        XLA compiles thousands of small arrays slowly. Smaller groups stay as they are.
        """
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


def unstacked(tree: PyTree) -> PyTree:
    """Returns a tree, such as a mean, with small arrays no longer stacked in one."""

    def each(node):
        if not isinstance(node, Stacked):
            return node
        leaves = {}
        for x, group in zip(node.leaves, node.groups, strict=True):
            rows = [y[0] for y in split(x, [1] * len(x))] if group[1:] else [x]
            leaves.update(zip(group, rows, strict=True))
        return node.structure.unflatten(leaves[i] for i in range(len(leaves)))

    return jax.tree.map(each, tree, is_leaf=lambda x: isinstance(x, Stacked))


def _kind(x: Any) -> Any:
    """Returns a key that is equal for leaves to be stacked, None for other leaves."""
    if isinstance(x, Leaf) or x.size > SMALL * len(x) or num_other_devices(x) > 1:
        return None
    return x.shape, x.dtype, varying_axes(x)


def _is_leaf(x: Any) -> bool:
    return isinstance(x, Leaf)


@dataclass(frozen=True)
class Factors(Leaf):
    """The base class of leaves with two factors."""

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
    """A leaf of n samples: outer products of vectors `left` (n, p) and `right` (n, q).

    `build` reshapes a matrix (p, q) to the leaf; it may reorder entries.
    """

    @property
    def is_smaller(self) -> bool:
        return are_much_smaller((1, self.left.shape[1]), self.right.shape[1])

    def written_out(self) -> jax.Array:
        return jax.vmap(lambda a, d: self.build(a[:, None] * d[None]))(*self.numbers)

    def zeros(self) -> jax.Array:
        return zeros_for((self.left.shape[1], self.right.shape[1]), self.right)

    def finite(self) -> "OuterProducts":
        return replace(self, left=as_finite(self.left), right=as_finite(self.right))

    def squared_norm(self, inverse_unit: jax.Array) -> jax.Array:
        left, right = self.numbers
        return squared_norm_of_product(left, right * like(inverse_unit, right))

    def add(self, total, influence, in_turn) -> jax.Array:
        """Returns the sum `total`, (p, q), plus n outer products or their influences.

        An influence is a bounded function of each entry; None adds the products, as one
        matrix product. One pass over total adds in_turn products; None: XLA decides.
        """
        if influence is None:
            return total + sum_of_products(*self.numbers)
        if not self.is_smaller and total.size <= SMALL:
            in_turn = None
        elif in_turn is not None and len(self.left) < in_turn:
            in_turn = 1  # in a loop over a few rows, XLA would fetch entry by entry
        return add_rows(
            total, lambda a, d: influence(a[:, None] * d[None]), self.numbers, in_turn
        )


def are_much_smaller(left: tuple[float, ...], q: int) -> bool:
    """Tells if factors left = (T, p) and (T, q) are far smaller than a leaf (p, q)."""
    num_positions, p = left
    return p * q >= SAVING * num_positions * (p + q)


@dataclass(frozen=True)
class Values(Leaf):
    """The base class of leaves with all numbers in one array."""

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
    """A leaf of n samples that is an array (n, ...), without factors.

    Rows are multiplied by `weights` (n,), if given, as they are added.
    """

    weights: jax.Array | None = None

    def written_out(self) -> jax.Array:
        return self.values if self.weights is None else times(self.values, self.weights)

    def build(self, x: jax.Array) -> jax.Array:
        return x

    def zeros(self) -> jax.Array:
        # Sharded like a row of the leaf, as of a gradient by a sharded parameter.
        return as_float(zeros(self.values, (1, *self.values.shape[1:]))[0])

    def weighted(self, weight: jax.Array) -> "Arrays":
        return Arrays(self.values, weight)

    def add(self, total, influence, in_turn) -> jax.Array:
        """Returns the sum `total` plus n samples times weights, or their influences.

        `influence` bounds a sample. One pass adds in_turn samples; None: XLA decides.
        """
        (values,) = self.numbers
        num_rows = len(values)
        # A loop over rows makes a long program, which does not pay for a small sum.
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
        return self.values.size > SMALL * len(self.values)


def zeros_for(shape: tuple[int, ...], like_this: jax.Array) -> jax.Array:
    """Returns zeros in float32 or float64, sharded like a row of `like_this`."""
    is_double = like_this.dtype == jnp.float64
    zeros = jnp.zeros(shape, jnp.float64 if is_double else jnp.float32)
    return varying(zeros, varying_axes(like_this))


def times(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns rows (n, ...) times weights (n,), or one row times a number."""
    weights = like(weights, x)
    return x * weights.reshape(*weights.shape, *(1,) * (x.ndim - weights.ndim))


def sum_of_products(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the sum over n of the outer products of rows."""
    # Without the barrier the compiler may move a constant to the other factor or out of
    # the product: if this overflows, a zero there gives NaN.
    x, y = jax.lax.optimization_barrier((x, y))
    over_rows = (((0,), (0,)), ((), ()))
    return jax.lax.dot_general(x, y, over_rows, precision=jax.lax.Precision.HIGHEST)


def add_rows(
    total: jax.Array,
    function: Callable[..., jax.Array],
    arrays: tuple[jax.Array, ...],
    in_turn: int | None,
) -> jax.Array:
    """Returns total + the sum of `function(*row)` over the n rows of arrays (n, ...).

    The function maps zeros to zeros. in_turn is the number of rows that are added one
    after the other in a pass over a large total; None leaves the order to XLA.
    """
    if in_turn is None:
        return total + jax.vmap(function)(*arrays).sum(axis=0)
    num_rows = len(arrays[0])
    size = min(in_turn, num_rows)

    def part(x, i):
        # A part that reaches past the end starts earlier; rows added before are zero.
        start = jnp.minimum(i * size, num_rows - size)
        x = jax.lax.dynamic_slice_in_dim(x, start, size)
        if num_rows % size == 0:
            return x
        return zero_unless(start + jnp.arange(size) >= i * size, x)

    def add(i, carry):
        # The next rows are fetched one iteration ahead into a buffer of their own,
        # because the compiler would otherwise fetch them entry by entry.
        total, parts = carry
        for row in range(size):
            total = total + function(*(x[row] for x in parts))
        return total, [part(x, i + 1) for x in arrays]

    if size == num_rows:
        return add(0, (total, arrays))[0]
    first = [part(x, 0) for x in arrays]
    return jax.lax.fori_loop(0, -(-num_rows // size), add, (total, first))[0]


def zero_unless(counts: jax.Array, x: jax.Array) -> jax.Array:
    """Sets rows of x to zero where `counts` is false."""
    return jnp.where(counts.reshape(-1, *(1,) * (x.ndim - 1)), x, 0)


def squared_norm_of_product(left: jax.Array, right: jax.Array) -> jax.Array:
    """Returns |left|^2 |right|^2 or slightly more, though squares may underflow."""
    left, right = (sum_of_squares(x) + x.size * LOST for x in (left, right))
    # Where a factor overflows, the derivative by the other factor would be infinite.
    is_finite = jnp.isfinite(left) & jnp.isfinite(right)
    left, right = (jnp.where(is_finite, x, 1) for x in (left, right))
    return jnp.where(is_finite, left * right, jnp.inf)


@jax.custom_jvp
def sum_of_squares(x: jax.Array) -> jax.Array:
    """Returns the squared l2 norm of x, to clip samples, or infinity on overflow."""
    # Without the barrier the compiler may square the two factors of x separately: for
    # 1e19 and 1e-19, the square 1e-38 of the second factor could be flushed to zero.
    x = jax.lax.optimization_barrier(x)
    terms = x * x
    num_parts = num_other_devices(x)
    if num_parts > 1 and x.ndim > 0:
        # An axis that is sharded over devices is split into a part for each device, so
        # that each row of 256 terms lies on one device.
        parts = [num_parts if n % num_parts == 0 else 1 for n in x.shape]
        lengths = [n // m for n, m in zip(x.shape, parts, strict=True)]
        pairs = zip(parts, lengths, strict=True)
        terms = terms.reshape([n for pair in pairs for n in pair])
        order = [*range(0, 2 * x.ndim, 2), *range(1, 2 * x.ndim, 2)]
        terms = terms.transpose(order).reshape(*parts, math.prod(lengths))
        # Sums axis by axis keep the terms on their devices: nothing is gathered.
        for _ in range(x.ndim + 1):
            terms = jax.lax.optimization_barrier(sum_in_levels(terms, ROW))
        return terms
    return sum_in_levels(terms.reshape(-1))


@sum_of_squares.defjvp
def _sum_of_squares_jvp(primals, tangents):
    # Large x are dropped, so that derivatives stay finite where squares overflow: the
    # weight of such a sample is zero, hence constant.
    (x,), (tangent,) = primals, tangents
    x_or_zero = jnp.where(jnp.abs(x) < 2 * LONGEST, x, 0)
    return sum_of_squares(x), 2 * jnp.sum(x_or_zero * tangent)


def sum_in_levels(terms: jax.Array, flat: int = FLAT, row: int = ROW) -> jax.Array:
    """Returns sums over the last axis, more exact than `sum` if over `flat` terms."""
    # A flat float32 sum of d terms may have a relative error of d·2^-24, which is 6 for
    # d = 1e8. Each level of rows of 256 adds 256·2^-24 only; the barrier keeps the
    # compiler from merging the levels into one flat sum.
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
    """Returns the weight of one sample, weight_fn(norm), and its norm in units."""
    # `squares` is the squared l2 norm over the unit's square, infinity where it
    # overflows. The norm is infinite and the weight zero from 2^63 units on.
    is_measured = squares < LONGEST**2
    is_positive = is_measured & (squares > 0)
    root = jnp.sqrt(jnp.where(is_positive, squares, 1))
    norm = jnp.where(is_positive, root, 0)
    weight = jnp.where(is_measured, weight_fn(norm), 0)
    return weight, jnp.where(is_measured, norm, jnp.inf)
