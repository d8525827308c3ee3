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

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._sharding import varying, varying_axes
from dpjax._types import PyTree
from dpjax.estimators._entries import as_float
from dpjax.estimators._factored_leaves import Leaf
from dpjax.estimators._factors import FactoredSamples, Terms
from dpjax.estimators._safe_norm import (
    exponent_of,
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
    dtypes = {as_float(x).dtype for x in samples.numbers}
    dtype = max(dtypes, key=lambda dtype: dtype.itemsize)
    parameters = jax.tree.map(lambda x: jnp.asarray(x).astype(dtype), parameters)
    factors = _Factors.of(samples.parts)

    def shrinking(squares, unit):
        """Returns the length over sqrt(squares) where long, who is, and the norm."""
        is_zero = ~(squares > 0)
        root = jnp.sqrt(jnp.where(is_zero, 1, squares))
        norm = root * unit
        length = length_fn(norm, *parameters)
        is_long = ~(is_zero | (length >= norm))
        weights = jnp.where(is_long, length / root, 1) * jnp.asarray(gain, dtype)
        return weights, is_long, jnp.where(is_zero, 0, norm)

    squares = [jax.vmap(lambda x: squared_norm([x], dtype))(x) for x in factors.arrays]
    squares = factors.in_pairs(squares, jnp.ones(len(factors.arrays[0]), dtype))
    total = sum_by_rows(squares.prod(axis=2))
    are_plain = _are_plain(squares, total, parameters[0])
    weights, _, plain_norms = shrinking(total, 1)
    # The barrier keeps them from being computed twice, in two ways.
    weights = jax.lax.optimization_barrier(jnp.where(are_plain, weights, 1))
    is_weighted = np.array([x.is_product for x in samples.parts])

    def plain():
        units = jnp.ones((*squares.shape[:2], 2), dtype)
        units = varying(units, varying_axes(weights))
        rest = jnp.where(is_weighted, 1, weights[:, None])
        scales = jnp.concatenate([units, rest[:, :, None]], axis=2)
        return scales, weights, plain_norms

    def measured():
        def one(arrays):
            scales, norm = _scales(factors._replace(arrays=arrays), shrinking, dtype)
            return scales, jnp.ones((), dtype), norm

        # One after the other: numbers in units are not held for all of them.
        found = jax.lax.map(one, factors.arrays)
        return jax.tree.map(partial(jax.vmap(jnp.where), are_plain), plain(), found)

    scales, weights, norms = jax.lax.cond(_all(are_plain), plain, measured)
    # What is summed by a product of matrices has its weight at once, where it is plain.
    parts = [x.weighted(weights) if x.is_product else x for x in samples.parts]
    return Terms(FactoredSamples((parts, scales, are_plain)), _add), norms


class _Factors(NamedTuple):
    """The factors of leaves: some are factors of several.

    Attributes:
        arrays: of numbers.
        pairs: where those of each leaf stand, one or two.
    """

    arrays: list[jax.Array]
    pairs: list[list[int]]

    @classmethod
    def of(cls, parts: list[Leaf]) -> "_Factors":
        """Returns factors of leaves: that by a bias is one of that by its kernel."""
        numbers = [part.numbers for part in parts]
        arrays = {id(x): x for pair in numbers for x in pair}
        order = list(arrays)
        return cls(
            list(arrays.values()),
            [[order.index(id(x)) for x in pair] for pair in numbers],
        )

    def in_pairs(self, found: list[jax.Array], one: jax.Array) -> jax.Array:
        """Returns a number of each array for both factors of every leaf.

        The left one may be one.
        """
        pairs = [[one, *(found[i] for i in pair)][-2:] for pair in self.pairs]
        return jnp.stack([jnp.stack(pair, axis=-1) for pair in pairs], axis=-2)


def _add(
    sums: list[jax.Array], rows: FactoredSamples, in_turn: int | None
) -> list[jax.Array]:
    """Adds samples to sums: see `Terms.add`."""
    parts, scales, are_plain = rows.leaves
    at = [i for i, part in enumerate(parts) if part.is_product]
    products, rest = [parts[i] for i in at], [scales[:, i] for i in at]
    found = dict(zip(at, _sums_of_products(products, rest, are_plain), strict=True))
    return [
        total + found[i]
        if i in found
        else _in_units(parts[i], scales[:, i]).add(total, in_turn)
        for i, total in enumerate(sums)
    ]


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
    return [_in_units(x, scale).product() for x, scale in pairs]


def _in_units(part, scales):
    return part.in_units(*jnp.unstack(scales, axis=1))


def _are_plain(squares: jax.Array, total: jax.Array, smallest: jax.Array) -> jax.Array:
    """Returns which of n samples are plain, where `smallest` is a length of interest.

    Squares below 2^-126 are lost, of 2^22 entries 2^-104 at most; times the square of
    the other factor's norm that is 2^-23 of the square of the limit.
    """
    most = jnp.minimum(2.0**60, 2.0**80 * jnp.minimum(smallest, 1) ** 2)
    largest = squares.max(axis=(1, 2))  # NaN, where one is
    return (largest < most) & (total < 2.0**120) & (smallest > 2.0**-30)


def _scales(
    factors: _Factors,
    shrinking: Callable[..., tuple[jax.Array, jax.Array, jax.Array]],
    dtype: Any,
) -> tuple[jax.Array, jax.Array]:
    """Returns units and a weight for every leaf of a sample, and the sample's norm.

    Args:
        factors: of k leaves. Each factor has a unit, and the leaf a weight: shape
            (k, 3).
        shrinking: see `with_lengths`.
        dtype: of norms.
    """
    found = [_measured(x, dtype) for x in factors.arrays]
    exponents = factors.in_pairs([e for e, _ in found], jnp.zeros((), jnp.int32))
    squares = factors.in_pairs([square for _, square in found], jnp.ones((), dtype))
    units = power_of_two(-exponents, dtype)
    exponents, squares = exponents.sum(axis=1), squares.prod(axis=1)
    largest = jnp.where(squares > 0, exponents, NOTHING).max()
    norms = squares * power_of_two(2 * (exponents - largest), dtype)
    unit = power_of_two(jnp.minimum(largest, FAR), dtype)
    weight, is_long, norm = shrinking(sum_by_rows(norms), unit)
    weights = weight * power_of_two(exponents - jnp.where(is_long, largest, 0), dtype)
    return jnp.concatenate([units, weights[:, None]], axis=1), norm


def _measured(x: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Returns the exponent of an array's norm, and its square by 2^(2 exponent).

    That lies in [1, 4), or near it where 2^-exponent would be no float; or is zero.
    """
    # Not in scales of 2^80 and 2^-80: the compiler squares a constant that numbers are
    # multiplied by, and the numbers, each by itself.
    unit, square = scaled_squared_norm([x], dtype)
    scale = 1 - exponent_of(unit)
    exponent = jnp.clip((exponent_of(square) - 1) // 2 + scale, -125, 126)
    return exponent, square * power_of_two(2 * (scale - exponent), dtype)


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
