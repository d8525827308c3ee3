"""Leaves of samples that are products of matrices, over positions such as tokens.

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

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from dpjax._rounding import ROUNDOFF
from dpjax._sums.samples import (
    Factors,
    Influence,
    add_rows,
    are_much_smaller,
    squared_norm_of_product,
    sum_in_levels,
    sum_of_products,
    zeros_for,
)
from dpjax._tree import as_finite, like, register

MOST = 2**24  # numbers of products that are made at once, each for a row
TREE = 32  # terms of a level


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
