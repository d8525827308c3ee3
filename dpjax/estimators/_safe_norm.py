"""The l2 norm of a sample in floats: no square overflows, none is lost."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from dpjax._sharding import num_other_devices, varying, varying_axes
from dpjax._types import PyTree
from dpjax.estimators._entries import as_finite
from dpjax.estimators._made_once import made_once

# The computed norm may be too small by this relative error, so that a clipped sample
# may be longer than the clip norm by as much: sums of squares pass at most 6 levels of
# 256 terms (any number below 2^48 of coordinates, 2^32 where they lie on several
# devices, since two sums follow one another), those of the leaves one more level for
# each doubling of their number; half of the error of a square goes into its root; three
# roundings follow.
NORM_ERROR = 2.0**-13
ROW = 256


def scaled_norm(
    sample: PyTree, smallest: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the norm times a power of two, that power, and whether the norm is zero.

    The power is one for most samples. Squares that are all zero count as a norm of
    zero, which is one here, so that it may divide; so do squares that underflow where
    `smallest`, the least length of interest, is far larger than their roots.
    """
    dtype, leaves = smallest.dtype, jax.tree.leaves(sample)
    squares = made_once(squared_norm(leaves, dtype))  # chosen by, and chosen
    unit, squares = jax.lax.cond(
        is_plain(squares, smallest),
        lambda leaves: (varying(jnp.ones((), dtype), varying_axes(squares)), squares),
        lambda leaves: scaled_squared_norm(leaves, dtype),
        leaves,
    )
    squares = never_nan(squares)
    is_zero = ~(squares > 0)
    return jnp.sqrt(jnp.where(is_zero, 1, squares)), unit, is_zero


def never_nan(squares: jax.Array) -> jax.Array:
    """Returns infinity in the place of NaN: such a sample counts for nothing.

    There is none, unless a compiler makes it. Then no sample may pass as it is.
    """
    return jnp.where(jnp.isnan(squares), jnp.inf, squares)


def is_plain(squares: jax.Array, smallest: jax.Array) -> jax.Array:
    """Returns whether a sum of squares is right where `smallest` is of interest.

    No square has overflowed, and none that underflowed is missed: beside 2^-60, 2^40 of
    them are nothing. NaN fails both.
    """
    return (squares < 2.0**120) & ((squares > 2.0**-60) | (smallest > 2.0**-30))


def scaled_squared_norm(
    leaves: list[jax.Array], dtype: Any
) -> tuple[jax.Array, jax.Array]:
    """Returns a power of two, and the squared norm of the sample times it.

    The power stands at the largest entry, so that squares neither over- nor underflow.
    Not the entry itself: compilers turn a division into a product with 1 / 1e38, which
    is zero.
    """
    leaves = [as_finite(leaf) for leaf in leaves]
    largest = jnp.zeros((), dtype)
    for leaf in leaves:
        top = jnp.max(jnp.abs(leaf), initial=0.0).astype(dtype)
        largest = jnp.maximum(largest, top)
    unit = power_of_two(-exponent_of(largest), dtype)
    return unit, squared_norm([leaf.astype(dtype) * unit for leaf in leaves], dtype)


def squared_norm(leaves: list[jax.Array], dtype: Any) -> jax.Array:
    """Returns the sum of the squares of all entries."""
    # As a tree: one after the other, thousands of leaves err by as many roundings.
    sums = [_sum_of_squares(x).astype(dtype) for x in leaves]
    return jax.tree.reduce_associative(jnp.add, sums, identity=jnp.zeros((), dtype))


def exponent_of(x: jax.Array) -> jax.Array:
    """Returns e such that numbers x >= 0 are at most 2^e, and 2^(e - 1) or more.

    Not below -125, nor so large that 2^-e would be below the least normal float. From
    bits, as the power: `frexp` takes subnormal numbers apart too, by a long program.
    """
    info = jnp.finfo(x.dtype)
    bits = jnp.int64 if info.bits == 64 else jnp.int32
    biased = jax.lax.bitcast_convert_type(stop_gradient(x), bits) >> info.nmant
    exponent = biased.astype(jnp.int32) + info.minexp
    return jnp.clip(exponent, -125, info.maxexp - 2)


def power_of_two(exponent: jax.Array, dtype: Any) -> jax.Array:
    """Returns 2^exponent, zero below the least normal float, finite above the largest.

    From bits: a power compiles to a long program, and may be off by its last place.
    """
    info = jnp.finfo(dtype)
    bits = jnp.int64 if info.bits == 64 else jnp.int32
    biased = jnp.clip(exponent + (1 - info.minexp), 0, info.maxexp - info.minexp)
    return jax.lax.bitcast_convert_type(biased.astype(bits) << info.nmant, dtype)


def _sum_of_squares(x: jax.Array) -> jax.Array:
    # Else the compiler may square a constant, and what it is multiplied by, each by
    # itself: 1e19 times 1e-19 would have the square zero, and the constant gradient of
    # an unused parameter, zero times a large unit, that of zero times infinity.
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
        terms = jax.lax.optimization_barrier(sum_by_rows(terms))
        if terms.size <= ROW:
            return terms.sum()
    return sum_by_rows(terms.reshape(-1))


def sum_by_rows(terms: jax.Array, size: int = ROW) -> jax.Array:
    """Returns sums over the last axis, 256 terms at a time, or fewer."""
    # A flat float32 sum of d terms may err by d·2^-24: 6 times, at d = 1e8. Sums of
    # rows of 256 err by 256·2^-24 a level; the barrier keeps the compiler from
    # merging the levels into one flat sum.
    while terms.shape[-1] > size:
        rest = [(0, 0)] * (terms.ndim - 1)
        terms = jnp.pad(terms, [*rest, (0, -terms.shape[-1] % size)])
        terms = terms.reshape(*terms.shape[:-1], -1, size)
        terms = jax.lax.optimization_barrier(terms.sum(axis=-1))
    return terms.sum(axis=-1)
