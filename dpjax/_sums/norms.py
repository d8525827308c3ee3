"""Squared l2 norms of per-example gradients in units of a limit, and their weights.

A norm is measured in a unit: a public or released number of its order, such as the clip
norm. Squares of entries are then of the order of one. From 2^63 units on a sample
counts as zero, as NaN does: its squares overflow, or nearly so. Heavy tails never reach
that, since units are at least 1e-12.

Below, squares that underflow lose 2^-126 each. Beside one, that is nothing for an
array: any number below 2^48 of entries loses 2^-78. It is something for the product
|a|^2 |d|^2 of an outer product: where |a| is 2^60, entries of d at 2^-63 matter. So the
sum of squares of p entries is raised by p·2^-126 before sums are multiplied: each
factor, hence the product, is then at least the true one, and no sample passes with a
norm that is too small.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax._sharding import num_other_devices

# The computed norm may be too small by this relative error, so that a clipped sample
# may be longer than the clip norm by as much. A sum of squares is off by 1,536·2^-24:
# up to 1,024 terms, or 6 levels of 256 terms (any number below 2^48 of entries; on
# several devices 4 levels, for 2^32, and then a term for each device and axis, 512 at
# most in all). Those of both factors of a product are together off by 2,048·2^-24, if
# each has 2^24 entries or fewer. The sum over leaves has one more level for each
# doubling of their number.
# Half of the error of a square goes into its root; a few roundings follow.
NORM_ERROR = 2.0**-13
FLAT, ROW = 1024, 256
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


def _sum(terms: jax.Array, flat: int = FLAT) -> jax.Array:
    """Returns sums over the last axis, of more than `flat` terms 256 at a time."""
    # A flat float32 sum of d terms may err by d·2^-24: 6 times, at d = 1e8. Sums of
    # rows of 256 err by 256·2^-24 a level; the barrier keeps the compiler from
    # merging the levels into one flat sum.
    if terms.shape[-1] <= flat:
        return terms.sum(axis=-1)
    while terms.shape[-1] > ROW:
        rest = [(0, 0)] * (terms.ndim - 1)
        terms = jnp.pad(terms, [*rest, (0, -terms.shape[-1] % ROW)])
        terms = terms.reshape(*terms.shape[:-1], -1, ROW)
        terms = jax.lax.optimization_barrier(terms.sum(axis=-1))
    return terms.sum(axis=-1)
