"""Parameters that a loss multiplies: where, by what vectors, and the gradients.

Where a parameter is multiplied by one vector, its gradient is the outer product of that
vector and of the cotangent of the result. By several vectors, or in several places, it
is the sum of outer products: one product of matrices, over positions such as tokens.
The vectors of a convolution's kernel are patches of the image.

The norm of a matrix P = A^T D = sum_t a_t d_t^T is found from Gram matrices, as |P|^2 =
sum_ts (a_t a_s)(d_t d_s). Where positions cancel, P is short and the terms of that sum
are not, so it is raised by what rounding may hide. Let S = sum_t |a_t||d_t|, G the
computed sum, g(k) = k u / (1 - k u), m and n the roundings of an entry of either Gram
matrix, and l the levels of 32 terms that add all T^2. The norm of what is summed over
samples, the float product of A and of D times a weight w, is at most

    w (sqrt(G + g(m + n + 1 + 32 l) S^2) + g(T + 1) S),

for at most 2^12 positions; 5 per cent more covers the rounding of S. Proofs:
`docs/privacy/proofs/sums.md`, 1.5 and 1.6.
"""

import math
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._rounding import ROUNDOFF
from dpjax._sums.samples import (
    Factors,
    Influence,
    OuterProducts,
    add_rows,
    are_much_smaller,
    squared_norm_of_product,
    sum_in_levels,
    sum_of_products,
    zeros_for,
)
from dpjax._tree import as_finite, like, register
from dpjax.gradients._loss import Place

EACH = ("each", None)
MOST_POSITIONS = 2**12  # the bound on rounding is proven up to there: see above
PATCH = 1.5  # what a patch, cut from an image, costs beside a vector that is there
MOST = 2**24  # numbers of products that are made at once, each for a row
TREE = 32  # terms of a level


class Loop(NamedTuple):
    """A `scan` around a use, of whole parameters or of a slice each time."""

    length: int
    is_each: bool


class Moves(tuple):
    """Reshapes, transposes and slices of a loop, one after the other."""

    def undone(self, x: jax.Array) -> jax.Array:
        """Returns the gradient of what was moved, of that where it is used."""
        if EACH in self:  # what follows is of single slices
            i = self.index(EACH)
            return Moves(self[:i]).undone(jax.vmap(Moves(self[i + 1 :]).undone)(x))
        for kind, how in reversed(self):
            x = x.reshape(how) if kind == "reshape" else x.transpose(how)
        return x


class Image(NamedTuple):
    """A variable that holds a parameter, or a slice of it, one for one: see `Site`."""

    leaf: int
    moves: Moves = Moves()
    loops: tuple[Loop, ...] = ()


class Site(NamedTuple):
    """An equation that multiplies a parameter by vectors, or reads rows of it.

    Attributes:
        at: the place of the equation.
        result: the type of its result.
        loops: around it, from the outside in.
        sizes: how many groups and positions there are, and entries of a vector and of
            a result; of rows that are read: 1, how many, of how many, their entries.
        kind: of vectors: "vector", "patch" of an image, or "one-hot"; or "row".
        residuals: returns what is to be kept of the equation's inputs.
        factors: returns vectors (G, T, p) and cotangents (G, T, q) of all turns, of
            residuals and the result's cotangents; of rows: places (num_read,) and
            cotangents (num_read, q).
    """

    at: Place
    result: Any
    loops: tuple[Loop, ...]
    sizes: tuple[int, int, int, int]
    kind: str
    residuals: Callable[[Sequence[Any]], Any]
    factors: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]]

    def turned(self) -> "Site":
        """Returns the site of the transpose: vectors and cotangents change places."""
        groups, positions, p, q = self.sizes
        return self._replace(
            sizes=(groups, positions, q, p),
            factors=lambda *args: self.factors(*args)[::-1],
        )


def repeated(
    vectors: Callable[[jax.Array], jax.Array],
    cotangents: Callable[[jax.Array], jax.Array],
    loops: tuple[Loop, ...],
    num_groups: int,
) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """Returns the factors of a site whose loops make the same of each turn.

    Of one turn `vectors` makes (G, T, p) of residuals, and `cotangents` (G, T, q).
    Turns with a slice of the parameter each are groups, the others are positions.
    """
    depth = len(loops)
    each = [i for i, loop in enumerate(loops) if loop.is_each]
    summed = [i for i, loop in enumerate(loops) if not loop.is_each]
    order = (*each, depth, *summed, depth + 1, depth + 2)
    groups = num_groups * math.prod(loops[i].length for i in each)

    def merged(function, x):
        for _ in loops:
            function = jax.vmap(function)
        x = function(x)
        return x.transpose(order).reshape(groups, -1, x.shape[-1])

    return lambda kept, x: (merged(vectors, kept), merged(cotangents, x))


@dataclass(frozen=True)
class Product:
    """A parameter that is multiplied by vectors.

    Attributes:
        sites: where.
        order: the axes of the parameter: of groups, those that are summed over, others.
        num_groups: how many axes are of groups.
        num_summed: how many are summed over.
        shape: of the parameter where it is used.
        moves: how it came there from the parameter itself.
    """

    sites: tuple[Site, ...]
    order: tuple[int, ...]
    num_groups: int
    num_summed: int
    shape: tuple[int, ...]
    moves: Moves

    @property
    def common(self) -> Hashable:
        """Identifies products that can be added up."""
        each = tuple(x.length for x in self.sites[0].loops if x.is_each)
        kinds = self.num_groups, self.num_summed
        return self.moves, self.order, kinds, self.shape, each

    @property
    def is_outer(self) -> bool:
        """Tells whether there is one vector."""
        return self.sizes[:2] == (1, 1)

    @property
    def is_smaller(self) -> bool:
        """Tells whether to store factors: of many vectors, if they are much smaller."""
        _, positions, p, q = self.sizes
        cost = positions * (PATCH if "patch" in self.kinds else 1)
        return self.is_outer or (
            positions <= MOST_POSITIONS and are_much_smaller((cost, p), q)
        )

    @property
    def is_in_loop(self) -> bool:
        """Tells whether a `scan` adds to the gradient each time that it runs.

        After it, one product does, where its vectors are there: patches and one-hot
        vectors take too much memory.
        """
        loops = [loop for site in self.sites for loop in site.loops]
        is_there = self.kinds == {"vector"}
        return is_there and not all(loop.is_each for loop in loops)

    @property
    def kinds(self) -> set[str]:
        """Names what its vectors are: see `Site.kind`."""
        return {site.kind for site in self.sites}

    @property
    def way(self) -> str:
        """As of `LeafCheck`."""
        if self.is_outer:
            return "outer product"
        return "matrix product" if self.is_smaller else "written out"

    @property
    def why(self) -> str:
        """Says how many vectors there are, and their sizes."""
        groups, positions, p, q = self.sizes
        name, names = "vector", "vectors"
        if "patch" in self.kinds:
            name, names = "patch", "patches"
        number = f"one {name}" if self.is_outer else f"{groups * positions:,} {names}"
        text = f"multiplied by {number}"
        if "one-hot" in self.kinds:
            text += ", one-hot where its rows are read"
        return f"{text}: {p} and {q} numbers" if self.is_smaller else text

    @property
    def num_held(self) -> int:
        """Counts the numbers stored of an example."""
        groups, positions, p, q = self.sizes
        return groups * (positions * (p + q) if self.is_smaller else p * q)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Groups, positions, and the sizes of a vector and of a result."""
        groups, _, p, q = self.sites[0].sizes
        each = [loop.length for loop in self.sites[0].loops if loop.is_each]
        positions = sum(
            site.sizes[1] * math.prod(x.length for x in site.loops if not x.is_each)
            for site in self.sites
        )
        return math.prod(each) * groups, positions, p, q

    def factors(
        self, residuals: Sequence[jax.Array], cotangents: Sequence[jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Returns vectors (G, T, p) and cotangents (G, T, q) of one example."""
        return joined(self.sites, residuals, cotangents, axis=1)

    def samples(
        self, left: jax.Array, right: jax.Array
    ) -> "OuterProducts | MatrixProducts | jax.Array":
        """Returns the gradients of n examples, from their factors."""
        n, order = self.num_summed, self.order
        if not self.is_outer:
            products = MatrixProducts(left, right, self._built(order))
            return products if self.is_smaller else products.written_out()
        left, right = left[:, 0, 0], right[:, 0, 0]
        # The factor of the leading axes first, so that the sum needs no transpose.
        if (*order[n:], *order[:n]) == tuple(range(len(order))):
            return OuterProducts(right, left, self._built(range(len(order))))
        return OuterProducts(left, right, self._built(order))

    def _built(self, order):
        sizes = [self.shape[axis] for axis in order]
        inverse = np.argsort(order)
        each = [loop.length for loop in self.sites[0].loops if loop.is_each]
        depth = len(each)
        axes = (*range(depth), *(depth + k for k in inverse))
        return lambda x: self.moves.undone(x.reshape(*each, *sizes).transpose(axes))


@dataclass(frozen=True)
class WrittenOut:
    """A parameter whose gradient is made in full for each example, and why."""

    why: str
    way = "written out"


def joined(
    sites: Sequence[Site],
    residuals: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
    axis: int,
) -> tuple[jax.Array, jax.Array]:
    """Returns the factors at all sites, one after the other."""
    pairs = [
        site.factors(x, y)
        for site, x, y in zip(sites, residuals, cotangents, strict=True)
    ]
    left, right = zip(*pairs, strict=True)
    return _concatenated(left, axis), _concatenated(right, axis)


def _concatenated(arrays, axis):
    dtypes = {x.dtype for x in arrays}
    if len(dtypes) > 1:  # of indices, or of floats of which none has 64 bits
        is_index = jnp.issubdtype(arrays[0].dtype, jnp.integer)
        arrays = [x.astype(jnp.int32 if is_index else jnp.float32) for x in arrays]
    return jnp.concatenate(arrays, axis)


def product_at(
    equation: Any, operand: int, image: Image, place: Place
) -> Product | None:
    """Returns the use of a parameter in a `dot_general`; None where it is another."""
    summed, groups = equation.params["dimension_numbers"]
    matrix, vector = (equation.invars[k].aval for k in (operand, 1 - operand))
    if not is_ordinary(equation):
        return None
    (summed, of_vector), (groups, of_groups) = (
        (axes[operand], axes[1 - operand]) for axes in (summed, groups)
    )
    entries = [k for k in range(matrix.ndim) if k not in (*summed, *groups)]
    positions = [k for k in range(vector.ndim) if k not in (*of_vector, *of_groups)]

    def size(of, axes):
        return math.prod(of.shape[axis] for axis in axes)

    g, t = size(matrix, groups), size(vector, positions)
    p, q = size(matrix, summed), size(matrix, entries)
    axes = (*of_groups, *positions, *of_vector)

    def residuals(inputs):
        return inputs[1 - operand].transpose(axes).reshape(g, t, p)

    def cotangents(x):
        if operand == 0:
            return jnp.swapaxes(x.reshape(g, q, t), 1, 2)
        return x.reshape(g, t, q)

    factors = repeated(lambda x: x, cotangents, image.loops, g)
    result, sizes = equation.outvars[0].aval, (g, t, p, q)
    site = Site(place, result, image.loops, sizes, "vector", residuals, factors)
    order = (*groups, *summed, *entries)
    return Product((site,), order, len(groups), len(summed), matrix.shape, image.moves)


def convolution_at(equation: Any, image: Image, place: Place) -> Product | None:
    """Returns the use of a kernel; None where it is another."""
    params = equation.params
    if not is_ordinary(equation) or params["batch_group_count"] > 1:
        return None
    kernel, result = equation.invars[1].aval.shape, equation.outvars[0].aval
    numbers, g = params["dimension_numbers"], params["feature_group_count"]
    out, into, *space = numbers.rhs_spec
    window = tuple(kernel[axis] for axis in space)
    t, q = result.size // kernel[out], kernel[out] // g
    p = math.prod(window) * kernel[into]
    counts = [result.shape[axis] for axis in numbers.out_spec[2:]]

    def vectors(x):
        x = _patches(_channels_last(x, numbers.lhs_spec), params, window, counts)
        x = x.reshape(t, math.prod(window), g, kernel[into])
        return x.transpose(2, 0, 1, 3).reshape(g, t, p)

    def cotangents(x):
        return _channels_last(x, numbers.out_spec).reshape(t, g, q).swapaxes(0, 1)

    # The image is kept: its patches are many times as large.
    factors = repeated(vectors, cotangents, image.loops, g)
    image_of, sizes = operator.itemgetter(0), (g, t, p, q)
    site = Site(place, result, image.loops, sizes, "patch", image_of, factors)
    # Channels of the result fall into groups: two axes.
    after = [axis + (axis > out) for axis in (*space, into)]
    shape = (*kernel[:out], g, q, *kernel[out + 1 :])
    moves = Moves((*image.moves, ("reshape", kernel)))
    return Product((site,), (out, *after, out + 1), 1, len(after), shape, moves)


def _patches(x, params, window, counts):
    """Returns for each position of a convolution a window of (N, ..., C), stacked."""
    no_padding = (0, 0, 0)
    pairs = zip(params["padding"], params["lhs_dilation"], strict=True)
    edges = [(low, high, dilation - 1) for (low, high), dilation in pairs]
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), (no_padding, *edges, no_padding))
    steps = zip(counts, params["window_strides"], params["rhs_dilation"], strict=True)
    for axis, (count, stride, dilation) in enumerate(steps, start=1):
        starts = [dilation * i for i in range(window[axis - 1])]
        span = stride * (count - 1) + 1
        parts = [
            jax.lax.slice_in_dim(x, start, start + span, stride, axis)
            for start in starts
        ]
        x = jnp.stack(parts, axis=-2)
    return x


def _channels_last(x, spec):
    batch, feature, *space = spec
    return x.transpose(batch, *space, feature)


def is_ordinary(equation: Any) -> bool:
    """Tells whether operands have one type and entries, and no sharding is stated."""
    (left, right), (result,) = (
        [x.aval for x in variables] for variables in (equation.invars, equation.outvars)
    )
    is_placed = equation.params["out_sharding"] is not None
    is_same = left.dtype == right.dtype and are_of_one_kind(left, result)
    return is_same and not is_placed and 0 not in (left.size, right.size, result.size)


def are_of_one_kind(*arrays: Any) -> bool:
    """Tells whether sums of all of them are float64, or of none."""
    return len({x.dtype == jnp.float64 for x in arrays}) == 1


@register("left", "right")
@dataclass(frozen=True)
class MatrixProducts(Factors):
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
        """Tells whether factors are so small beside the leaf that Gram matrices pay."""
        return are_much_smaller(self.left.shape[2:], self.right.shape[3])

    def written_out(self) -> jax.Array:
        return jax.vmap(lambda a, d: self.build(_product(a, d)))(*self.numbers)

    def zeros(self) -> jax.Array:
        _, num_groups, _, p = self.left.shape
        return zeros_for((num_groups, p, self.right.shape[3]), self.right)

    def finite(self) -> "MatrixProducts":
        left, right = balanced(self.left, self.right)
        return replace(self, left=left, right=right)

    def squared_norm(self, inverse_unit: jax.Array) -> jax.Array:
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

        def of_example(left, right):
            product = _product(left, right)
            return product if influence is None else influence(product)

        def added(in_turn):
            return lambda total, *factors: add_rows(total, of_example, factors, in_turn)

        # One after the other on CPU, whose caches hold a product and the sum; elsewhere
        # at once, unless that takes too much memory.
        some = None if len(left) * total.size <= MOST else 1
        return jax.lax.platform_dependent(
            total, left, right, cpu=added(1), default=added(some)
        )


def _product(left, right):
    """Returns the sums of outer products over positions, shape (G, p, q)."""
    over_positions = (((1,), (1,)), ((0,), (0,)))
    precision = jax.lax.Precision.HIGHEST
    # Else the compiler may add the terms of several rows in one sum.
    return jax.lax.optimization_barrier(
        jax.lax.dot_general(left, right, over_positions, precision=precision)
    )


def squared_norm_of_matrices(
    left: jax.Array, right: jax.Array, inverse_unit: jax.Array
) -> jax.Array:
    """Returns the square of the norm of left^T right in units: not too small.

    Rounding counts, too, which the product itself will have: see above.

    Args:
        left: shape (G, T, p), `balanced` with right; the norm is of all G products.
        right: shape (G, T, q).
        inverse_unit: a number.
    """
    inverse_unit = like(inverse_unit, right)
    if left.shape[1] == 1:
        products = jax.vmap(squared_norm_of_product)(left, right * inverse_unit)
        return sum_in_levels(products)
    # Each factor gets half of the unit's exponent, and the square of the norm the rest.
    _, exponent = jnp.frexp(jax.lax.stop_gradient(inverse_unit))
    half = jnp.ldexp(jnp.ones_like(inverse_unit), exponent // 2)
    (of_left, m), (of_right, n) = _gram(left * half), _gram(right * half)
    num_positions = left.shape[1]
    terms, levels = (of_left * of_right).reshape(len(left), -1), 1
    while TREE**levels < num_positions**2:
        levels += 1
    squares = jnp.maximum(sum_in_levels(terms, TREE, TREE), 0)
    lengths = _root(jnp.einsum("gtt->gt", of_left)) * _root(
        jnp.einsum("gtt->gt", of_right)
    )
    slack = 1.05 * ROUNDOFF * (m + n + 2 + TREE * levels)
    total = sum_in_levels(lengths, TREE, TREE)
    norms = _root(squares + slack * total**2)
    norms += 1.05 * ROUNDOFF * (num_positions + 1) * total
    squares = sum_in_levels(norms**2, TREE, TREE)
    is_finite = jnp.isfinite(squares)
    rest = inverse_unit / half**2
    return jnp.where(is_finite, jnp.where(is_finite, squares, 1) * rest**2, jnp.inf)


def _gram(x: jax.Array) -> tuple[jax.Array, int]:
    """Returns x x^T, shape (G, T, T), and how many roundings a term passes at most."""
    size = x.shape[2]
    width = 2 ** -(-max(size.bit_length(), 8) // 2)  # about the root, at least 16
    num_parts = -(-size // width)
    x = jnp.pad(x, ((0, 0), (0, 0), (0, num_parts * width - size)))

    def product(part):
        over_columns = (((2,), (2,)), ((0,), (0,)))
        precision = jax.lax.Precision.HIGHEST
        x = jax.lax.dot_general(part, part, over_columns, precision=precision)
        # Else the compiler may add its terms to the total one by one. On CPU it does
        # so for products with a vector alone: T is at least two.
        return jax.lax.optimization_barrier(x)

    def add(i, total):
        part = jax.lax.dynamic_slice_in_dim(x, i * width, width, axis=2)
        return total + product(part)

    first = product(x[:, :, :width])
    return jax.lax.fori_loop(1, num_parts, add, first), width + num_parts


def _root(x: jax.Array) -> jax.Array:
    """Returns the root, of zero without a derivative."""
    is_zero = x == 0
    return jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, x)))


def balanced(left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns finite factors (..., p) and (..., q), the longer one's exponent shared.

    The product of both stays as it is, except for entries that underflow. The largest
    entries are within a factor of four, where exponents of 126 or fewer do that.
    """
    left, right = as_finite(left), as_finite(right)

    def exponent(x):
        most = jnp.abs(jax.lax.stop_gradient(x)).max(axis=-1, keepdims=True, initial=0)
        return jnp.frexp(most)[1]

    shift = jnp.clip((exponent(right) - exponent(left)) // 2, -126, 126)
    unit = jnp.ones((), left.dtype)
    return left * jnp.ldexp(unit, shift), right * jnp.ldexp(unit, -shift)
