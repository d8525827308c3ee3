"""Squared l2 norms of per-example gradients in units of a limit, and their weights.

A norm is measured in a unit: a public or released number of its order, such as the clip
norm. Squares of entries are then of the order of one. From 2^63 units on a sample
counts as zero, as NaN does: its squares overflow, or nearly so. Heavy tails never reach
that, since units are at least 1e-12.

Squares that underflow lose 2^-126 each, and an outer product's other factor may
multiply that: so the sum of squares of p entries is raised by p·2^-126 before sums are
multiplied, and no norm is too small.

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
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax._rounding import ROUNDOFF
from dpjax._sharding import num_other_devices
from dpjax._tree import as_finite, like

# The computed norm may be too small by this relative error, so that a clipped sample
# may be longer than the clip norm by as much. A sum of squares is off by 1,536·2^-24:
# up to 1,024 terms, or 6 levels of 256 terms (any number below 2^48 of entries; on
# several devices 4 levels, for 2^32, and then a term for each device and axis, 512 at
# most in all). Those of both factors of a product are together off by 2,048·2^-24, if
# each has 2^24 entries or fewer. The sum over leaves has one more level for each
# doubling of their number.
# Half of the error of a square goes into its root; a few roundings follow.
NORM_ERROR = 2.0**-13
FLAT, ROW, TREE = 1024, 256, 32
LOST = 2.0**-126  # what a square that underflows loses, at most
LONGEST = 2.0**63  # in units: samples of this norm or more count as zero


def weigh(
    squares: jax.Array, weight_fn: Callable[[jax.Array], jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Returns the weight of one sample, and its norm in units.

    Args:
        squares: the square of its norm in units; infinity where that overflows.
        weight_fn: of norms, a differentiable function; norms lie in [0, 2^63).

    Returns:
        The weight is zero where the norm is 2^63 or more; the norm is infinite there.
    """
    is_measured = squares < LONGEST**2
    is_positive = is_measured & (squares > 0)
    root = jnp.sqrt(jnp.where(is_positive, squares, 1))
    norm = jnp.where(is_positive, root, 0)
    weight = jnp.where(is_measured, weight_fn(norm), 0)
    return weight, jnp.where(is_measured, norm, jnp.inf)


def squared_norm_of_product(left: jax.Array, right: jax.Array) -> jax.Array:
    """Returns |left|^2 |right|^2: not too small, though squares underflow."""
    left, right = (sum_of_squares(x) + x.size * LOST for x in (left, right))
    # Where one overflows, the derivative by the other would be infinite, not zero.
    is_finite = jnp.isfinite(left) & jnp.isfinite(right)
    left, right = (jnp.where(is_finite, x, 1) for x in (left, right))
    return jnp.where(is_finite, left * right, jnp.inf)


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
        return _sum(products)
    # Each factor gets half of the unit's exponent, and the square of the norm the rest.
    _, exponent = jnp.frexp(jax.lax.stop_gradient(inverse_unit))
    half = jnp.ldexp(jnp.ones_like(inverse_unit), exponent // 2)
    (of_left, m), (of_right, n) = _gram(left * half), _gram(right * half)
    num_positions = left.shape[1]
    terms, levels = (of_left * of_right).reshape(len(left), -1), 1
    while TREE**levels < num_positions**2:
        levels += 1
    squares = jnp.maximum(_sum(terms, TREE, TREE), 0)
    lengths = _root(jnp.einsum("gtt->gt", of_left)) * _root(
        jnp.einsum("gtt->gt", of_right)
    )
    slack = 1.05 * ROUNDOFF * (m + n + 2 + TREE * levels)
    total = _sum(lengths, TREE, TREE)
    norms = _root(squares + slack * total**2)
    norms += 1.05 * ROUNDOFF * (num_positions + 1) * total
    squares = _sum(norms**2, TREE, TREE)
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
    one = jnp.ones((), left.dtype)
    return left * jnp.ldexp(one, shift), right * jnp.ldexp(one, -shift)


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
            terms = jax.lax.optimization_barrier(_sum(terms, ROW))
        return terms
    return _sum(terms.reshape(-1))


@sum_of_squares.defjvp
def _sum_of_squares_jvp(primals, tangents):
    # Derivatives stay finite where squares overflow: the weight there is constant.
    (x,), (tangent,) = primals, tangents
    x_or_zero = jnp.where(jnp.abs(x) < 2 * LONGEST, x, 0)
    return sum_of_squares(x), 2 * jnp.sum(x_or_zero * tangent)


def _sum(terms: jax.Array, flat: int = FLAT, row: int = ROW) -> jax.Array:
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
