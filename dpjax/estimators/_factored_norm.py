"""Sums of factored samples with other l2 norms, the norms found from their factors.

The square of a norm is the sum of those of leaves: |a|^2 |d|^2 of an outer product,
that of its rows for a table. Then a sample is multiplied by one number, and samples are
summed leaf by leaf, without any of them being written out.

A sample is plain where all its numbers are finite, no square overflows, and what
squares lose by underflow is nothing beside the limit. Any other is measured in units: a
factor is first multiplied by a power of two that brings its largest entry near one, and
the exponents are kept apart. So neither squares nor their products over- or underflow,
and no huge entry meets a tiny weight. NaN and infinities count as zero, in a factor as
in an array. A product of finite entries that is beyond the largest float counts as the
number that it is.

Whether a sample is plain, and its weight, depend on its own numbers alone: what it adds
is the same number whatever the others are. They choose the order of a block's sum at
most, and its bound holds for any (see `_slabs`).

The computed norm may be too small by `NORM_ERROR`, as that of an array: the product of
two sums of squares has the errors of both, no more than one sum of 2^48 terms has as
long as each factor has 2^24 entries or fewer.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._sharding import varying, varying_axes
from dpjax._types import PyTree
from dpjax.estimators._entries import as_float
from dpjax.estimators._factored_leaves import Leaf, OuterProducts
from dpjax.estimators._factors import FactoredSamples, Terms
from dpjax.estimators._made_once import made_once
from dpjax.estimators._safe_norm import (
    exponent_of,
    never_nan,
    power_of_two,
    scaled_squared_norm,
    squared_norm,
    sum_by_rows,
)

NOTHING = -1000  # the exponent of what is zero
FAR = 104  # norms are computed up to 2^FAR and a little: beyond every limit, and finite


def with_lengths(
    samples: FactoredSamples,
    length_fn: Callable[..., jax.Array],
    parameters: tuple[PyTree, ...],
    counts: jax.Array | None,
    *,
    gain: Any = 1.0,
) -> tuple[Terms, jax.Array]:
    """Returns samples with other lengths as terms of sums, and the norms that they had.

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
    samples = made_once(samples)  # what is measured is what is summed
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

    parts = samples.parts
    squares = [_squares(part.numbers, dtype) for part in parts]
    total = jax.tree.reduce_associative(jnp.add, list(map(math.prod, squares)))
    are_plain = _are_plain(squares, total, parameters[0])
    weights, _, plain_norms = shrinking(total, 1)
    are_plain, weights = made_once((are_plain, jnp.where(are_plain, weights, 1)))
    places = _places(parts)

    def plain():
        ones = jnp.ones((len(weights), max(places) + 1, 3), dtype)
        ones = varying(ones, varying_axes(weights))
        whole = jnp.broadcast_to(weights[:, None, None], ones[..., :1].shape)
        return jnp.concatenate([ones, whole], axis=2), weights, plain_norms

    def measured():
        def one(i):
            row = FactoredSamples(parts).rows(i, 1).leaves
            scales, norm = _scales(_groups(row, places, dtype), shrinking, dtype)
            return scales, jnp.ones((), dtype), norm

        # One after the other: numbers in units are not held for all of them.
        found = jax.lax.map(one, jnp.arange(len(weights)))
        return jax.tree.map(partial(jax.vmap(jnp.where), are_plain), plain(), found)

    scales, weights, norms = jax.lax.cond(_all(are_plain), plain, measured)
    # What is summed by a product of matrices has its weight at once, where it is plain.
    parts = [x.weighted(weights) if x.is_product else x for x in parts]
    rows = FactoredSamples((parts, scales, are_plain))
    return Terms(rows, partial(_add, places)), norms


def _places(parts: list[Leaf]) -> list[int]:
    """Returns which group each leaf is in: an outer product in one of its own."""
    pairs = [k for k, part in enumerate(parts) if isinstance(part, OuterProducts)]
    return [pairs.index(k) if k in pairs else len(pairs) for k in range(len(parts))]


def _groups(
    row: list[Leaf], places: list[int], dtype: Any
) -> list[tuple[list[jax.Array], list[jax.Array]]]:
    """Returns both factors of every group of one sample; the left one may be one."""
    one = jnp.ones(1, dtype)
    groups = []
    for place in range(max(places) + 1):
        numbers = [x.numbers for x, at in zip(row, places, strict=True) if at == place]
        left = [x for *left, _ in numbers for x in left] or [one]
        groups.append((left, [right for *_, right in numbers]))
    return groups


def _add(
    places: list[int],
    sums: list[jax.Array],
    rows: FactoredSamples,
    in_turn: int | None,
) -> list[jax.Array]:
    """Adds samples to sums: see `Terms.add`."""
    parts, scales, are_plain = rows.leaves
    at = [i for i, part in enumerate(parts) if part.is_product]
    products, rest = [parts[i] for i in at], [scales[:, places[i], :3] for i in at]
    found = dict(zip(at, _sums_of_products(products, rest, are_plain), strict=True))

    def add(i, total):
        if i in found:
            return total + found[i]
        left_unit, unit, _, weight = jnp.unstack(scales[:, places[i]], axis=1)
        return parts[i].in_units(left_unit, unit, weight).add(total, in_turn)

    return [add(i, total) for i, total in enumerate(sums)]


@jax.custom_jvp
def _sums_of_products(
    products: list[Any], scales: list[jax.Array], are_plain: jax.Array
) -> list[jax.Array]:
    """Returns the sum of n rows for every leaf, a product of matrices.

    Where all rows are plain their scales are one, and none is copied. Else the sums are
    made anew, row by row. That is no condition: in a batch, of blocks or of means, it
    would be one for all, and a record must not change how the sums of others round.
    """

    def anew(i, sums):
        row = FactoredSamples((products, scales)).rows(jnp.maximum(i - 1, 0), 1).leaves
        pairs = zip(sums, _products_in_units(*row), strict=True)
        return [jnp.where(i == 0, 0, total + x) for total, x in pairs]

    sums = [x.product() for x in products]
    steps = jnp.where(are_plain.all(), 0, len(are_plain) + 1)
    return jax.lax.fori_loop(0, steps, anew, sums)


@_sums_of_products.defjvp
def _sums_of_products_jvp(primals, tangents):
    _, tangent = jax.jvp(_products_in_units, primals[:2], tangents[:2])
    return _sums_of_products(*primals), tangent


def _products_in_units(products, scales):
    pairs = zip(products, scales, strict=True)
    return [x.in_units(*jnp.unstack(scale, axis=1)).product() for x, scale in pairs]


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


def _scales(
    groups: list[tuple[list[jax.Array], list[jax.Array]]],
    shrinking: Callable[..., tuple[jax.Array, jax.Array, jax.Array]],
    dtype: Any,
) -> tuple[jax.Array, jax.Array]:
    """Returns units and a weight for every group of a sample, and the sample's norm.

    Args:
        groups: k of them, whose norm is the product of the norms of both factors. Each
            factor has a unit, and the group a weight, twice: shape (k, 4). The last
            one is for leaves that are not weighted yet.
        shrinking: see `with_lengths`.
        dtype: of norms.
    """
    exponents, squares = _measured([x for group in groups for x in group], dtype)
    units = power_of_two(-exponents, dtype).reshape(-1, 2)
    squares, exponents = squares[::2] * squares[1::2], exponents[::2] + exponents[1::2]
    largest = jnp.where(squares > 0, exponents, NOTHING).max()
    norms = squares * power_of_two(2 * (exponents - largest), dtype)
    unit = power_of_two(jnp.minimum(largest, FAR), dtype)
    weight, is_long, norm = shrinking(never_nan(sum_by_rows(norms)), unit)
    weights = weight * power_of_two(exponents - jnp.where(is_long, largest, 0), dtype)
    return jnp.column_stack([units, weights, weights]), norm


def _measured(lists: list[list[jax.Array]], dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Returns exponents e of the norms of lists of arrays, and their squares by 2^2e.

    These lie in [1, 4), or near it where 2^-e would be no float; or are zero. One has
    the exponent zero.
    """
    found = [scaled_squared_norm(arrays, dtype) for arrays in lists]
    units, squares = (jnp.stack(x) for x in zip(*found, strict=True))
    scale = 1 - exponent_of(units)
    exponents = jnp.clip((exponent_of(squares) - 1) // 2 + scale, -125, 126)
    return exponents, squares * power_of_two(2 * (scale - exponents), dtype)


@jax.custom_batching.custom_vmap
def _all(conditions: jax.Array) -> jax.Array:
    """Returns whether all are true: under vmap one answer for the whole batch.

    A condition that differs within a batch of means becomes a selection, which computes
    both sides: only where any of them needs it.
    """
    return conditions.all()


@_all.def_vmap
def _(axis_size, in_batched, conditions):
    del axis_size, in_batched
    return _all(conditions), False
