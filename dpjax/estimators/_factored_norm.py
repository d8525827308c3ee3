"""Sums of factored samples with other l2 norms, the norms found from their factors.

The square of a norm is the sum of those of leaves: |a|^2 |d|^2 of an outer product,
that of its rows for a table. Then a sample is multiplied by one number, and samples are
summed leaf by leaf, without any of them being written out.

Squares are those of the numbers as they are where a slab is plain: all its numbers are
finite, no square overflows, and what squares lose by underflow is nothing beside the
limit. In any other slab a factor is first multiplied by a power of two that brings its
largest entry near one, and the exponents are kept apart: neither squares nor their
products over- or underflow, and no huge entry meets a tiny weight. NaN and infinities
count as zero, in a factor as in an array. A product of finite entries that is beyond
the largest float counts as the number that it is. Only squares and powers are found in
two ways: all slabs are summed by one program, with powers of one where they are plain.

The computed norm may be too small by `NORM_ERROR`, as that of an array: the product of
two sums of squares has the errors of both, no more than one sum of 2^48 terms has as
long as each factor has 2^24 entries or fewer.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._sharding import varying, varying_axes
from dpjax._types import PyTree
from dpjax.estimators._entries import as_finite, as_float
from dpjax.estimators._factors import Add, FactoredSamples, OuterProducts
from dpjax.estimators._safe_norm import (
    exponent_of,
    is_plain,
    power_of_two,
    squared_norm,
    sum_by_rows,
)

NOTHING = -1000  # the exponent of what is zero
FAR = 104  # norms are computed up to 2^FAR and a little: beyond every limit, and finite


def adds_lengths(
    samples: FactoredSamples,
    length_fn: Callable[..., jax.Array],
    parameters: tuple[PyTree, ...],
    counts: jax.Array | None,
    *,
    gain: Any = 1.0,
) -> tuple[Add, jax.Array]:
    """Returns what adds samples with other lengths to sums, and their norms (n,).

    Args:
        samples: n of them.
        length_fn: `length_fn(norm, *parameters)`, the length that a sample is to have.
            It stays as it is where that is its norm or more.
        parameters: of length_fn; the first is of the order of the length of long ones.
        counts: shape (n,), false for rows to leave out; None where all count.
        gain: what samples are multiplied by, once they have their lengths.
    """
    dtypes = {as_float(x).dtype for x in samples.numbers}
    dtype = max(dtypes, key=lambda dtype: dtype.itemsize)
    parameters = jax.tree.map(lambda x: jnp.asarray(x).astype(dtype), parameters)

    def factor(squares, unit):
        """Returns the length over sqrt(squares) where long, who is, and the norm."""
        is_zero = ~(squares > 0)
        root = jnp.sqrt(jnp.where(is_zero, 1, squares))
        norm = root * unit
        length = length_fn(norm, *parameters)
        is_long = ~(is_zero | (length >= norm))
        weights = jnp.where(is_long, length / root, 1) * jnp.asarray(gain, dtype)
        return weights, is_long, jnp.where(is_zero, 0, norm)

    parts = samples.parts
    # An outer product has a norm of its own, from two; all other leaves share one.
    pairs = [k for k, part in enumerate(parts) if isinstance(part, OuterProducts)]
    rest = [k for k, part in enumerate(parts) if not isinstance(part, OuterProducts)]
    groups = [[x] for k in pairs for x in parts[k].numbers]
    if rest:
        groups.append([x for k in rest for x in parts[k].numbers])
    num_factors = 2 * len(pairs)
    units, squares, exponents = _squared_norms(groups, num_factors, parameters[0])

    def norm(squares, exponents):
        """Returns both of all leaves together."""
        largest = jnp.where(squares > 0, exponents, NOTHING).max()
        squares = squares * power_of_two(2 * (exponents - largest), dtype)
        return sum_by_rows(squares), largest

    left, right, other = slice(0, num_factors, 2), slice(1, num_factors, 2), num_factors
    squares = jnp.concatenate([squares[left] * squares[right], squares[other:]])
    exponents = jnp.concatenate([exponents[left] + exponents[right], exponents[other:]])
    squares, largest = jax.vmap(norm, in_axes=1)(squares, exponents)
    unit = power_of_two(jnp.minimum(largest, FAR), dtype)
    weights, is_long, norms = factor(squares, unit)
    if counts is not None:
        weights = jnp.where(counts, weights, 0)
    exponents = exponents - jnp.where(is_long, largest, 0)[None]
    weights = weights[None] * power_of_two(exponents, dtype)
    # What a leaf's numbers are multiplied by first, and then its rows.
    by: dict[int, tuple[jax.Array, ...]]
    by = {k: (units[-1], weights[-1]) for k in rest}
    for i, k in enumerate(pairs):
        by[k] = units[2 * i], units[2 * i + 1], weights[i]
    factors = [by[k] for k in range(len(parts))]

    def add(sums, start, size, in_turn):
        some = FactoredSamples((samples.leaves, factors)).rows(start, size)
        leaves, by = some.leaves
        triples = zip(sums, FactoredSamples(leaves).parts, by, strict=True)
        return [part.add(x, *each, in_turn=in_turn) for x, part, each in triples]

    return add, norms


def _squared_norms(
    groups: list[list[jax.Array]], num_factors: int, smallest: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns units, squared norms and exponents, each of shape (groups, n).

    Units are powers of two, norms those of finite numbers multiplied by them, exponents
    the powers that undo them.

    Args:
        groups: of arrays (n, ...), whose norms are found together.
        num_factors: so many groups, the first ones, are one factor of a product each.
        smallest: the least length of interest.
    """
    dtype = smallest.dtype
    groups = [[as_float(x) for x in group] for group in groups]

    def squared_norms(groups):
        return jnp.stack(
            [jax.vmap(lambda xs: squared_norm(xs, dtype))(group) for group in groups]
        )

    squares = squared_norms(groups)

    def as_they_are():
        ones = varying(jnp.ones_like(squares), varying_axes(squares))
        return ones, squares, ones.astype(jnp.int32) - 1

    def in_units():
        finite = [[as_finite(x) for x in group] for group in groups]
        exponents = exponent_of(jnp.stack([_largest(xs, dtype) for xs in finite]))
        units = power_of_two(-exponents, dtype)
        scaled = [
            [jax.vmap(lambda x, by: x * by)(x.astype(dtype), unit) for x in group]
            for group, unit in zip(finite, units, strict=True)
        ]
        return units, squared_norms(scaled), exponents

    # Squares below 2^-126 are lost, of 2^22 entries 2^-104 at most; times the square of
    # the other factor's norm that is 2^-23 of the square of the limit.
    most = jnp.minimum(2.0**60, 2.0**80 * jnp.minimum(smallest, 1) ** 2)
    are_plain = (
        (smallest > 2.0**-50)
        & (squares[:num_factors] < most).all()
        & is_plain(squares[num_factors:], smallest).all()
    )
    return jax.lax.cond(are_plain, as_they_are, in_units)


def _largest(group: list[jax.Array], dtype: Any) -> jax.Array:
    """Returns the largest size of an entry of each of n rows of finite numbers."""
    tops = [
        jnp.max(jnp.abs(x), axis=tuple(range(1, x.ndim)), initial=0.0).astype(dtype)
        for x in group
    ]
    return jax.tree.reduce(jnp.maximum, tops)
