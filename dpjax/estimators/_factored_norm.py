"""Sums of factored samples with other l2 norms, the norms found from their factors.

The square of a norm is the sum of those of leaves: |a|^2 |d|^2 of an outer product,
that of its rows for a table. Then a sample is multiplied by one number, and samples are
summed leaf by leaf, without any of them being written out.

That is done where a slab is plain: all its numbers are finite, no square overflows, and
what squares lose by underflow is nothing beside the limit. Any other slab goes sample
by sample. There a factor is first multiplied by a power of two that brings its largest
entry near one, and the exponents are kept apart: neither squares nor their products
over- or underflow, and no huge entry meets a tiny weight. NaN and infinities count as
zero, in a factor as in an array. A product of finite entries that is beyond the largest
float counts as the number that it is.

The computed norm may be too small by `NORM_ERROR`, as that of an array: the product of
two sums of squares has the errors of both, no more than one sum of 2^48 terms has as
long as each factor has 2^24 entries or fewer.
"""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from dpjax._tree import like
from dpjax._types import PyTree
from dpjax.estimators._entries import as_finite, as_float
from dpjax.estimators._factors import Add, FactoredSamples, Leaf, OuterProducts
from dpjax.estimators._safe_norm import (
    is_plain,
    power_of_two,
    scaled_squared_norm,
    squared_norm,
)

NOTHING = -1000  # the exponent of what is zero
FAR = 104  # norms are computed up to 2^FAR and a little: beyond every limit, and finite


def adds_lengths(
    samples: FactoredSamples,
    length_fn: Callable[..., jax.Array],
    parameters: tuple[PyTree, ...],
    counts: jax.Array | None,
) -> Add:
    """Returns what adds samples with other lengths to sums.

    Args:
        samples: n of them.
        length_fn: `length_fn(norm, *parameters)`, the length that a sample is to have.
            It stays as it is where that is its norm or more.
        parameters: of length_fn; the first is of the order of the length of long ones.
        counts: shape (n,), false for rows to leave out; None where all count.
    """
    dtypes = {as_float(x).dtype for x in samples.numbers}
    dtype = max(dtypes, key=lambda dtype: dtype.itemsize)
    parameters = jax.tree.map(lambda x: jnp.asarray(x).astype(dtype), parameters)

    def factor(squares, unit):
        """Returns the length over sqrt(squares), where long, and whether it is."""
        is_zero = ~(squares > 0)
        root = jnp.sqrt(jnp.where(is_zero, 1, squares))
        norm = root * unit
        length = length_fn(norm, *parameters)
        is_long = ~(is_zero | (length >= norm))
        return jnp.where(is_long, length / root, 1), is_long

    squares, are_plain = _squared_norms(samples.parts, parameters[0])
    weights, _ = factor(squares, 1)
    if counts is None:
        counts = jnp.ones_like(weights, bool)
    weights = jnp.where(counts, weights, 0)

    def add(sums, start, size, in_turn):
        everything = FactoredSamples((samples.leaves, weights, counts))
        leaves, some_weights, some_counts = everything.rows(start, size).leaves
        some = FactoredSamples(leaves)

        def at_once(sums):
            pairs = zip(sums, some.parts, strict=True)
            return [part.add(x, some_weights, in_turn) for x, part in pairs]

        def one(i, sums):
            units = _in_units(some.rows(i, 1).parts, parameters[0])
            largest = jax.tree.reduce(
                jnp.maximum, [jnp.where(s > 0, e, NOTHING) for _, s, e in units]
            )
            squares = _total(
                [s * power_of_two(2 * (e - largest), dtype) for _, s, e in units]
            )
            unit = power_of_two(jnp.minimum(largest, FAR), dtype)
            weight, is_long = factor(squares, unit)
            weight = jnp.where(some_counts[i], weight, 0)
            sums = list(sums)
            for group, _, exponent in units:
                exponent = jnp.where(is_long, exponent - largest, exponent)
                by = weight * power_of_two(exponent, dtype)
                for k, part in group.items():
                    part = part.times(by[None])
                    sums[k] = part.add_influences(sums[k], lambda x: x, 1)
            return sums

        return jax.lax.cond(
            are_plain,
            at_once,
            lambda sums: jax.lax.fori_loop(0, size, one, sums),
            sums,
        )

    return add


def _squared_norms(
    parts: list[Leaf], smallest: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the squared norms of n samples, and whether all of them are plain."""

    def squares(arrays):
        return jax.vmap(lambda xs: squared_norm(xs, smallest.dtype))(arrays)

    found, others, are_plain = [], [], smallest > 2.0**-50
    # Squares below 2^-126 are lost, of 2^22 entries 2^-104 at most; times the square of
    # the other factor's norm that is 2^-23 of the square of the limit.
    most = jnp.minimum(2.0**60, 2.0**80 * jnp.minimum(smallest, 1) ** 2)
    for part in parts:
        if isinstance(part, OuterProducts):
            left, right = (squares([as_float(x)]) for x in (part.left, part.right))
            found.append(left * right)
            are_plain &= ((left < most) & (right < most)).all()
        else:
            others.append(as_float(part.values))
    if others:
        found.append(squares(others))
        are_plain &= is_plain(found[-1], smallest).all()
    total = _total(found)
    return total, are_plain & jnp.isfinite(total).all()


def _in_units(
    parts: list[Leaf], smallest: jax.Array
) -> list[tuple[dict[int, Leaf], jax.Array, jax.Array]]:
    """Returns one sample's leaves by their places, finite and in units, in groups.

    Each group with its squared norm, and the exponent of 2 that undoes its unit.
    """

    def in_unit(arrays):
        unit, squares = scaled_squared_norm(arrays, smallest.dtype)
        arrays = [as_finite(x) * like(unit, x) for x in arrays]
        _, exponent = jnp.frexp(stop_gradient(unit))
        return arrays, squares, 1 - exponent

    found, others = [], {}
    for k, part in enumerate(parts):
        if not isinstance(part, OuterProducts):
            others[k] = part
            continue
        ([left], s_left, e_left), ([right], s_right, e_right) = (
            in_unit([as_float(x)]) for x in (part.left, part.right)
        )
        part = OuterProducts(left, right, part.build)
        found.append(({k: part}, s_left * s_right, e_left + e_right))
    if others:
        values, squares, exponent = in_unit(
            [as_float(x.values) for x in others.values()]
        )
        pairs = zip(others.items(), values, strict=True)
        group = {k: replace(part, values=x) for (k, part), x in pairs}
        found.append((group, squares, exponent))
    return found


def _total(found: list[jax.Array]) -> jax.Array:
    # As a tree: one after the other, thousands of leaves err by as many roundings.
    return jax.tree.reduce_associative(jnp.add, found)
