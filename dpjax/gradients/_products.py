"""Gradients of parameters that a loss multiplies by vectors, as factors.

If a parameter is multiplied by one vector, its gradient is the outer product of this
vector and the cotangent of the result. With several vectors, or in several places, the
gradient is a sum of outer products: a product of two matrices, summed over positions
such as tokens. For the kernel of a convolution, the vectors are patches of the image.

The norm of a matrix P = A^T D = sum_t a_t d_t^T is computed from Gram matrices, as
|P|^2 = sum_ts (a_t a_s)(d_t d_s). If positions cancel, |P|^2 is much smaller than the
terms of this sum, so a bound of the rounding is added: with S = sum_t |a_t||d_t|, the
computed sum G, m and n roundings of an entry of either Gram matrix, and l levels of 32
terms in the sum of all T^2, the float product of A and of D times a weight w has a norm
of at most

    w (sqrt(G + g(m + n + 1 + 32 l) S^2) + g(T + 1) S),   g(k) = k u / (1 - k u),

for at most 2^12 positions; 5 percent more covers the rounding of S. Proofs:
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
    OuterProducts,
    add_rows,
    are_much_smaller,
    squared_norm_of_product,
    sum_in_levels,
    sum_of_products,
    zeros_for,
)
from dpjax._tree import as_finite, like, register
from dpjax.gradients._convolutions import channels_last, padded, patches
from dpjax.gradients._loss import Place

EACH = ("each", None)
MOST_POSITIONS = 2**12  # the bound on rounding above is proved for at most as many
PATCH = 1.5  # cost of a patch, which is cut from an image, relative to a vector
MOST = 2**24  # entries of the products of all rows that are computed at once
TREE = 32  # terms of a level


class Loop(NamedTuple):
    """Describes a `scan` around a use; is_each if each iteration has its own slice."""

    length: int
    is_each: bool


class Moves(tuple):
    """Lists the reshapes, transposes and slices that lead from a parameter to a use."""

    def undone(self, x: jax.Array) -> jax.Array:
        """Returns the gradient before the moves, from the gradient x after them."""
        if EACH in self:  # the moves after it are of single slices
            i = self.index(EACH)
            return Moves(self[:i]).undone(jax.vmap(Moves(self[i + 1 :]).undone)(x))
        for kind, how in reversed(self):
            x = x.reshape(how) if kind == "reshape" else x.transpose(how)
        return x


class Image(NamedTuple):
    """Describes a variable with the entries of a parameter, or of a slice of it."""

    leaf: int
    moves: Moves = Moves()
    loops: tuple[Loop, ...] = ()


class Site(NamedTuple):
    """Describes an equation that multiplies a parameter by vectors, or reads its rows.

    Attributes:
        at: the place of the equation.
        result: the type of its result.
        loops: the loops around it, from the outside in.
        sizes: for products (G, T, p, q), the numbers of groups and positions, and the
            entries of a vector and of a result; for look-ups (1, rows read, rows of the
            table, entries of a row).
        kind: "vector", "patch" of an image, or "one-hot" for products; else "row".
        residuals: selects the inputs of the equation to keep for the backward pass.
        factors: maps residuals and cotangents of the result, of all iterations, to
            vectors (G, T, p) and cotangents (G, T, q), or for look-ups to places
            (num_read,) and cotangents (num_read, q).
    """

    at: Place
    result: Any
    loops: tuple[Loop, ...]
    sizes: tuple[int, int, int, int]
    kind: str
    residuals: Callable[[Sequence[Any]], Any]
    factors: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]]

    def transposed(self) -> "Site":
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
    """Returns a function that computes the factors of a gradient inside of scans."""
    # The function maps an example's residuals (inputs that were stored) and cotangents,
    # stacked over the scans `loops`, to vectors (G, T, p) and cotangents (G, T, q). For
    # one iteration `vectors` and `cotangents` do so. Iterations over slices of the
    # parameter become groups G; those of any other loop become positions T.
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

    return lambda residuals, x: (merged(vectors, residuals), merged(cotangents, x))


@dataclass(frozen=True)
class Product:
    """Describes a parameter that the equations `sites` multiply by vectors.

    `moves` lead from it to `shape`. `order` lists the axes: num_groups of groups, such
    as heads, num_summed that are summed over, then all others. For each example there
    are vectors (G, T, p) and cotangents (G, T, q), with G groups and T positions.
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
        """Returns whether each example has one vector."""
        return self.sizes[:2] == (1, 1)

    @property
    def is_smaller(self) -> bool:
        """Returns whether to store factors: of one vector always, else if small."""
        _, positions, p, q = self.sizes
        cost = positions * (PATCH if "patch" in self.kinds else 1)
        return self.is_outer or (
            positions <= MOST_POSITIONS and are_much_smaller((cost, p), q)
        )

    @property
    def is_in_loop(self) -> bool:
        """Returns whether one product after a `scan` can replace its many additions.

        It needs the vectors of all iterations: too much if they are patches or one-hot.
        """
        loops = [loop for site in self.sites for loop in site.loops]
        return self.kinds == {"vector"} and not all(loop.is_each for loop in loops)

    @property
    def kinds(self) -> set[str]:
        """Returns the kinds of its vectors: see `Site.kind`."""
        return {site.kind for site in self.sites}

    @property
    def way(self) -> str:
        """Returns the text for `LeafCheck.way`."""
        if self.is_outer:
            return "outer product"
        return "matrix product" if self.is_smaller else "written out"

    @property
    def why(self) -> str:
        """Returns a text for `check_model`'s table: number and size of the vectors."""
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
        """Returns how many numbers are stored for an example."""
        groups, positions, p, q = self.sizes
        return groups * (positions * (p + q) if self.is_smaller else p * q)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Returns (G, T, p, q): groups, positions, entries of vector and result."""
        groups, _, p, q = self.sites[0].sizes
        each = [loop.length for loop in self.sites[0].loops if loop.is_each]
        positions = sum(
            site.sizes[1] * math.prod(x.length for x in site.loops if not x.is_each)
            for site in self.sites
        )
        return math.prod(each) * groups, positions, p, q

    def factors(self, residuals, cotangents) -> tuple[jax.Array, jax.Array]:
        """Returns vectors (G, T, p) and cotangents (G, T, q) of one example."""
        return joined(self.sites, residuals, cotangents, axis=1)

    def samples(self, left, right) -> "OuterProducts | MatrixProducts | jax.Array":
        """Returns n gradients, by vectors (n, G, T, p) and cotangents (n, G, T, q)."""
        n, order = self.num_summed, self.order
        if not self.is_outer:
            products = MatrixProducts(left, right, self._built(order))
            return products if self.is_smaller else products.written_out()
        left, right = left[:, 0, 0], right[:, 0, 0]
        # Put the factor of the leading axes first, so that the sum needs no transpose.
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
    """Describes a parameter with a gradient in full for each example, and why."""

    why: str
    way = "written out"


def joined(sites, residuals, cotangents, axis: int) -> tuple[jax.Array, jax.Array]:
    """Returns an example's factors of a gradient, from all uses of the parameter."""
    # Each of `sites` is a use, an equation. `residuals` and `cotangents` have an item
    # for each: inputs that were stored, and the cotangent of the result. The factors,
    # vectors or places and cotangents, are concatenated along `axis`.
    pairs = [
        site.factors(x, y)
        for site, x, y in zip(sites, residuals, cotangents, strict=True)
    ]

    def concatenated(arrays):
        if len({x.dtype for x in arrays}) > 1:  # indices, or floats below 64 bits
            is_index = jnp.issubdtype(arrays[0].dtype, jnp.integer)
            arrays = [x.astype(jnp.int32 if is_index else jnp.float32) for x in arrays]
        return jnp.concatenate(arrays, axis)

    left, right = map(concatenated, zip(*pairs, strict=True))
    return left, right


def product_at(
    equation: Any, operand: int, image: Image, place: Place
) -> Product | None:
    """Returns the `Product` by which a `dot_general` uses a parameter, or None."""
    # Input number `operand` has the parameter's entries, moved as `image` describes,
    # and `place` finds the equation. The gradient is then stored as vectors and
    # cotangents.
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
    """Returns the `Product` by which a convolution uses its kernel, a parameter."""
    # The gradient is then stored as patches of the input and cotangents. It is stored
    # in full, for None, with batch groups, mixed dtypes or a sharding. `image` has the
    # transposes and reshapes from parameter to kernel; `place` finds the equation.
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
        x = channels_last(x, numbers.lhs_spec)
        x = padded(x, params["padding"], params["lhs_dilation"], range(1, x.ndim - 1))
        x = patches(x, window, counts, params["window_strides"], params["rhs_dilation"])
        x = x.reshape(t, math.prod(window), g, kernel[into])
        return x.transpose(2, 0, 1, 3).reshape(g, t, p)

    def cotangents(x):
        return channels_last(x, numbers.out_spec).reshape(t, g, q).swapaxes(0, 1)

    # Keep the image as residual, because its patches are many times as large.
    factors = repeated(vectors, cotangents, image.loops, g)
    image_of, sizes = operator.itemgetter(0), (g, t, p, q)
    site = Site(place, result, image.loops, sizes, "patch", image_of, factors)
    # Split the result's channels into two axes: groups, and channels of a group.
    after = [axis + (axis > out) for axis in (*space, into)]
    shape = (*kernel[:out], g, q, *kernel[out + 1 :])
    moves = Moves((*image.moves, ("reshape", kernel)))
    return Product((site,), (out, *after, out + 1), 1, len(after), shape, moves)


def is_ordinary(equation: Any) -> bool:
    """Returns whether operands have one dtype and are not empty, without a sharding."""
    (left, right), (result,) = (
        [x.aval for x in variables] for variables in (equation.invars, equation.outvars)
    )
    is_placed = equation.params["out_sharding"] is not None
    is_same = left.dtype == right.dtype and are_of_one_kind(left, result)
    return is_same and not is_placed and 0 not in (left.size, right.size, result.size)


def are_of_one_kind(*arrays: Any) -> bool:
    """Returns whether all arrays are float64, or none is."""
    return len({x.dtype == jnp.float64 for x in arrays}) == 1


@register("left", "right")
@dataclass(frozen=True)
class MatrixProducts(Factors):
    """Holds n gradients of a parameter: sums of outer products over T positions.

    The factors are `left` (n, G, T, p) and `right` (n, G, T, q), with G groups, such as
    heads, and positions such as tokens. `build` reorders (G, p, q) to the parameter.
    """

    @property
    def is_smaller(self) -> bool:
        """Returns whether factors are so much smaller than the leaf that they pay."""
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

    def add(self, total, influence, in_turn) -> jax.Array:
        """Returns `total` (G, p, q) plus n samples, or plus `influence` of each."""
        # A sample has G matrices, such as one for each group of channels. It is first
        # summed over its T positions: in one sum over samples and positions, terms that
        # cancel within a sample would add rounding errors. For T = 1 none cancel.
        # in_turn, for other kinds of leaves, is ignored.
        left, right = self.numbers
        if left.shape[2] == 1 and influence is None:
            add = jax.vmap(sum_of_products, in_axes=1)
            return total + add(left[:, :, 0], right[:, :, 0])

        def of_example(left, right):
            product = _product(left, right)
            return product if influence is None else influence(product)

        def added(in_turn):
            return lambda total, *factors: add_rows(total, of_example, factors, in_turn)

        # Add row by row on CPU, where a product and the sum fit into the caches; on
        # other platforms all at once, unless that takes too much memory.
        some = None if len(left) * total.size <= MOST else 1
        return jax.lax.platform_dependent(
            total, left, right, cpu=added(1), default=added(some)
        )


def _product(left, right):
    """Returns the sums of outer products over positions, shape (G, p, q)."""
    over_positions = (((1,), (1,)), ((0,), (0,)))
    precision = jax.lax.Precision.HIGHEST
    # Without a barrier the compiler may add the terms of several rows in one sum.
    return jax.lax.optimization_barrier(
        jax.lax.dot_general(left, right, over_positions, precision=precision)
    )


def squared_norm_of_matrices(
    left: jax.Array, right: jax.Array, inverse_unit: jax.Array
) -> jax.Array:
    """Returns an upper bound of the squared norm of left^T right, times inverse_unit^2.

    The norm is of all G products, summed over T positions, of `left` (G, T, p) and
    `right` (G, T, q), from `balanced`. The top of this file derives its rounding.
    """
    inverse_unit = like(inverse_unit, right)
    if left.shape[1] == 1:
        products = jax.vmap(squared_norm_of_product)(left, right * inverse_unit)
        return sum_in_levels(products)
    # Each factor takes half of the unit's exponent, and the squared norm the rest.
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
    # Add the bound on rounding: g(m + n + 1 + 32 l) S^2, then g(T + 1) S, see above.
    slack = 1.05 * ROUNDOFF * (m + n + 2 + TREE * levels)
    total = sum_in_levels(lengths, TREE, TREE)
    norms = _root(squares + slack * total**2)
    norms += 1.05 * ROUNDOFF * (num_positions + 1) * total
    squares = sum_in_levels(norms**2, TREE, TREE)
    is_finite = jnp.isfinite(squares)
    rest = inverse_unit / half**2
    return jnp.where(is_finite, jnp.where(is_finite, squares, 1) * rest**2, jnp.inf)


def _gram(x: jax.Array) -> tuple[jax.Array, int]:
    """Returns the Gram matrices (G, T, T) of factors x (G, T, p), to compute norms."""
    # A second result is the number of roundings of an entry, by which norms are raised.
    size = x.shape[2]
    width = 2 ** -(-max(size.bit_length(), 8) // 2)  # about the root, at least 16
    num_parts = -(-size // width)
    x = jnp.pad(x, ((0, 0), (0, 0), (0, num_parts * width - size)))

    def product(part):
        over_columns = (((2,), (2,)), ((0,), (0,)))
        precision = jax.lax.Precision.HIGHEST
        x = jax.lax.dot_general(part, part, over_columns, precision=precision)
        # Without a barrier the compiler may add its terms to the total one by one. On
        # CPU it does so only for products with a vector, but here T is at least two.
        return jax.lax.optimization_barrier(x)

    def add(i, total):
        part = jax.lax.dynamic_slice_in_dim(x, i * width, width, axis=2)
        return total + product(part)

    first = product(x[:, :, :width])
    return jax.lax.fori_loop(1, num_parts, add, first), width + num_parts


def _root(x: jax.Array) -> jax.Array:
    """Returns the square root, with the derivative zero at zero."""
    is_zero = x == 0
    return jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, x)))


def balanced(left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns finite factors (..., p) and (..., q) with similar largest entries."""
    # Their squares then do not overflow in Gram matrices. Powers of two move between
    # the factors, so their product does not change, except for entries that underflow.
    # The largest entries are within a factor of four, unless that takes an exponent
    # over 126.
    left, right = as_finite(left), as_finite(right)

    def exponent(x):
        most = jnp.abs(jax.lax.stop_gradient(x)).max(axis=-1, keepdims=True, initial=0)
        return jnp.frexp(most)[1]

    shift = jnp.clip((exponent(right) - exponent(left)) // 2, -126, 126)
    unit = jnp.ones((), left.dtype)
    return left * jnp.ldexp(unit, shift), right * jnp.ldexp(unit, -shift)
