"""Sums of factored samples with other l2 norms, the norms found from their factors.

The square of a norm is the sum of those of leaves: |a|^2 |d|^2 of an outer product,
that of its rows for a table. Then a sample is multiplied by one number, and samples are
summed leaf by leaf, without any of them being written out.

A sample is plain where all its numbers are finite, no square overflows, and what
squares lose by underflow is nothing beside the limit. Where all samples are, a leaf's
sum is one product. Else samples are added one after the other, each as finite numbers,
and one that is not plain in units: a factor is first multiplied by a power of two that
brings its largest entry near one, and the exponents are kept apart. So neither squares
nor their products over- or underflow, and no huge entry meets a tiny weight. NaN and
infinities count as zero, in a factor as in an array. A product of finite entries that
is beyond the largest float counts as the number that it is.

Whether a sample is plain, and its weight, depend on its own numbers alone: what it adds
is the same number whatever the others are. They choose the order of a sum at most, and
its bound holds for any (see `_slabs`).

The computed norm may be too small by `NORM_ERROR`, as that of an array: the product of
two sums of squares has the errors of both, no more than one sum of 2^48 terms has as
long as each factor has 2^24 entries or fewer.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._types import PyTree
from dpjax.estimators._entries import as_finite, as_float
from dpjax.estimators._factors import Add, FactoredSamples, Leaf, OuterProducts, times
from dpjax.estimators._safe_norm import (
    exponent_of,
    power_of_two,
    scaled_squared_norm,
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
) -> tuple[Add, Callable[[], jax.Array]]:
    """Returns what adds samples with other lengths to sums, and what finds their norms.

    Args:
        samples: n of them.
        length_fn: `length_fn(norm, *parameters)`, the length that a sample is to have.
            It stays as it is where that is its norm or more.
        parameters: of length_fn; the first is of the order of the length of long ones.
        counts: shape (n,), false for rows to leave out; None where all count.
        gain: what samples are multiplied by, once they have their lengths.
    """
    if counts is not None:  # what is left out must not choose the order either
        samples = samples.zero_unless(counts)
    dtypes = {as_float(x).dtype for x in samples.numbers}
    dtype = max(dtypes, key=lambda dtype: dtype.itemsize)
    parameters = jax.tree.map(lambda x: jnp.asarray(x).astype(dtype), parameters)

    def shrinking(squares, unit):
        """Returns the length over sqrt(squares) where long, who is, and the norm."""
        is_zero = ~(squares > 0)
        root = jnp.sqrt(jnp.where(is_zero, 1, squares))
        norm = root * unit
        length = length_fn(norm, *parameters)
        is_long = ~(is_zero | (length >= norm))
        weights = jnp.where(is_long, length / root, 1) * jnp.asarray(gain, dtype)
        return weights, is_long, jnp.where(is_zero, 0, norm)

    squares = [_squares(part.numbers, dtype) for part in samples.parts]
    total = jax.tree.reduce_associative(jnp.add, list(map(math.prod, squares)))
    are_plain = _are_plain(squares, total, parameters[0])
    weights, _, plain_norms = shrinking(total, 1)
    # The barrier keeps them from being computed twice, in two ways.
    weights = jax.lax.optimization_barrier(jnp.where(are_plain, weights, 1))
    parts = [part.weighted(weights) for part in samples.parts]

    def add(sums, start, size, in_turn):
        some = FactoredSamples((parts, are_plain)).rows(start, size)

        def at_once(sums):
            pairs = zip(sums, some.leaves[0], strict=True)
            return [part.add(x, in_turn) for x, part in pairs]

        def one_by_one(sums):
            return jax.lax.fori_loop(0, size, add_one, sums)

        def add_one(i, sums):
            parts, is_plain = some.rows(i, 1).leaves
            parts, _ = _in_units(parts, shrinking, ~is_plain, dtype)
            return [part.add(x, None) for x, part in zip(sums, parts, strict=True)]

        # A condition that differs within a batch of means becomes a selection, which
        # computes both sides: only where any of them needs it, and each takes its own.
        def apart(sums):
            return jax.lax.cond(some.leaves[1].all(), at_once, one_by_one, sums)

        return jax.lax.cond(_all(some.leaves[1]), at_once, apart, sums)

    def norms():
        def norm(i):
            some, is_plain = FactoredSamples((parts, are_plain)).rows(i, 1).leaves
            return _in_units(some, shrinking, ~is_plain, dtype)[1]

        def one_by_one():
            found = jax.lax.map(norm, jnp.arange(len(are_plain)))
            return jnp.where(are_plain, plain_norms, found)

        return jax.lax.cond(_all(are_plain), lambda: plain_norms, one_by_one)

    return add, norms


@jax.custom_batching.custom_vmap
def _all(conditions: jax.Array) -> jax.Array:
    """Returns whether all are true: under vmap one answer for the whole batch."""
    return conditions.all()


@_all.def_vmap
def _(axis_size, in_batched, conditions):
    del axis_size, in_batched
    return _all(conditions), False


def _squares(numbers: tuple[jax.Array, ...], dtype: Any) -> list[jax.Array]:
    """Returns the squared norms of n rows of each array, shapes (n,)."""
    return [jax.vmap(lambda x: squared_norm([x], dtype))(x) for x in numbers]


def _are_plain(
    squares: list[list[jax.Array]], total: jax.Array, smallest: jax.Array
) -> jax.Array:
    """Returns which of n samples are plain, where `smallest` is a length of interest.

    Squares below 2^-126 are lost, of 2^22 entries 2^-104 at most; times the square of
    the other factor's norm that is 2^-23 of the square of the limit.
    """
    most = jnp.minimum(2.0**60, 2.0**80 * jnp.minimum(smallest, 1) ** 2)
    largest = jax.tree.reduce(jnp.maximum, squares)  # NaN, where one is
    return (largest < most) & (total < 2.0**120) & (smallest > 2.0**-30)


def _in_units(
    parts: list[Leaf],
    shrinking: Callable[..., tuple[jax.Array, jax.Array, jax.Array]],
    needs_units: jax.Array,
    dtype: Any,
) -> tuple[list[Leaf], jax.Array]:
    """Returns leaves of one sample as finite numbers, shortened if it needs units.

    And the norm that it had then.

    Args:
        parts: the leaves, of a single row.
        shrinking: see `adds_lengths`.
        needs_units: shape (1,); if not, the sample is shortened already.
        dtype: of norms.
    """
    # An outer product has a norm of its own, from two. All other leaves share one, and
    # a second norm of one.
    pairs = [k for k, part in enumerate(parts) if isinstance(part, OuterProducts)]
    rest = [k for k in range(len(parts)) if k not in pairs]
    groups = [[x] for k in pairs for x in parts[k].numbers]
    groups += [[x for k in rest for x in parts[k].numbers], [jnp.ones(1, dtype)]]
    exponents, squares = _measured(groups, dtype)
    units = power_of_two(-exponents, dtype)
    squares, exponents = squares[::2] * squares[1::2], exponents[::2] + exponents[1::2]
    largest = jnp.where(squares > 0, exponents, NOTHING).max()
    norms = squares * power_of_two(2 * (exponents - largest), dtype)
    unit = power_of_two(jnp.minimum(largest, FAR), dtype)
    shrink, is_long, norm = shrinking(sum_by_rows(norms), unit)
    shrink = shrink * power_of_two(exponents - jnp.where(is_long, largest, 0), dtype)
    units, shrink = (jnp.where(needs_units, x, 1) for x in (units, shrink))
    # What numbers are multiplied by first, and then the rows of a leaf.
    found = {}
    for i, k in [*enumerate(pairs), *((len(pairs), k) for k in rest)]:
        numbers = [
            times(as_finite(x), units[2 * i + j, None])
            for j, x in enumerate(parts[k].numbers)
        ]
        found[k] = parts[k].with_numbers(*numbers).weighted(shrink[i, None])
    return [found[k] for k in range(len(parts))], norm


def _measured(groups: list[list[jax.Array]], dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Returns exponents e of the norms of groups, and squared norms times 2^-2e.

    These lie in [1, 4), or near it where 2^-e would be no float; or are zero. One has
    the exponent zero.
    """
    # Not in scales of 2^80 and 2^-80: the compiler squares a constant that numbers are
    # multiplied by, and the numbers, each by itself.
    found = [scaled_squared_norm(group, dtype) for group in groups]
    units, squares = (jnp.stack(x) for x in zip(*found, strict=True))
    scale = 1 - exponent_of(units)
    exponents = jnp.clip((exponent_of(squares) - 1) // 2 + scale, -125, 126)
    return exponents, squares * power_of_two(2 * (scale - exponents), dtype)
