"""Medians, and bounds that few records exceed, by bisection with noisy counts.

A bisection is finer than bins of a factor of two.

What its counts cost: `docs/privacy/proofs/counts.md`, 7.3.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax._rounding import ROUNDED_UP
from dpjax._types import Key, Scalar
from dpjax.mechanisms import gaussian
from dpjax.solvers.statistics._noisy_quantile import noisy_quantile

# The bound is from 2^-20 to 2^44; its exponent is exact to an eighth.
_FIRST, _LAST, _NUM_HALVINGS = -20.0, 44.0, 9
# Records above the bound, in stddevs of the noise of a count: at the last steps, and
# before, where noise alone exceeds it once in 300,000 times.
_ABOVE, _CLEARLY_ABOVE, _NUM_LAST = 3.0, 4.5, 3
# If this share of the records above half the bound is above it, a Pareto tail has index
# 1.6.
_MOST_SHARE, _CLEAR = 1 / 3, 2.0
_NUM_MEDIAN_HALVINGS = 20
_WITHIN, _RANGE = 0.25, 4.0  # see `median_and_bound`
_MOST_RECORDS = 2**24  # integers up to here are exact in float32


def num_above(noise_multiplier: float) -> float:
    """Returns r: about r to 1.5 r records exceed a `noisy_bound`."""
    return _ABOVE * math.sqrt(_NUM_HALVINGS) * noise_multiplier


def noisy_bound(
    key: Key, magnitudes: jax.Array, *, noise_multiplier: float, least: float = 0.0
) -> jax.Array:
    """Releases a bound that about `num_above(noise_multiplier)` records exceed.

    Its exponent of 2 is found by bisection: if the noisy number of records above the
    middle is larger than requested, the bound is above the middle. An error where there
    are no records makes the bound too large, so that intervals are wider but cover.

    Args:
        key: a typed key.
        magnitudes: shape (n,), zero or above. NaN counts as zero.
        noise_multiplier: of all counts together.
        least: how many records are to exceed it, if noise would let fewer.

    Privacy:
        A Gaussian mechanism of the noise multiplier under replace-one, of 9 adaptive
        counts. Replacing a record moves each by at most 1. Counts are exact.
    """
    stddev = math.sqrt(_NUM_HALVINGS) * ROUNDED_UP * noise_multiplier
    return _bound(key, magnitudes, stddev, least)


@jax.jit
def _bound(key: Key, magnitudes: jax.Array, stddev: Scalar, least: Scalar) -> jax.Array:
    dtype = magnitudes.dtype
    stddev, least = jnp.asarray(stddev, "float32"), jnp.asarray(least, "float32")

    def halve(step, state):
        middle, half = state
        is_above = magnitudes > jnp.exp2(middle).astype(dtype)
        count = jnp.minimum(jnp.sum(is_above.astype("int32")), _MOST_RECORDS)
        noisy = gaussian(
            jax.random.fold_in(key, step), count.astype("float32"), stddev=stddev
        )
        is_last = step >= _NUM_HALVINGS - _NUM_LAST
        requested = stddev * jnp.where(is_last, _ABOVE, _CLEARLY_ABOVE)
        requested = jnp.maximum(requested, least)
        return middle + jnp.where(noisy > requested, half, -half), half / 2

    start = jnp.float32((_FIRST + _LAST) / 2), jnp.float32((_LAST - _FIRST) / 4)
    middle, half = jax.lax.fori_loop(0, _NUM_HALVINGS, halve, start)
    return jnp.exp2(middle + half).astype(dtype)  # in its upper half


class Excess(NamedTuple):
    """Estimates how much magnitudes exceed a bound, from released counts.

    Attributes:
        ratio: the sum of (x - C)+ over the sum of clip(x, C / 2, C) - C / 2.
        error: its standard error, from the noise of the counts.
        is_heavy: whether the tail is too heavy for a ratio, beyond doubt by noise.
    """

    ratio: jax.Array
    error: jax.Array
    is_heavy: jax.Array


def noisy_excess(
    key: Key, magnitudes: jax.Array, bound: jax.Array, *, noise_multiplier: float
) -> Excess:
    """Releases how much magnitudes exceed a bound, for a Pareto tail from its half on.

    If a share r of those above C / 2 is above C, the index is log2(1 / r), and the mean
    of (x - C)+ is 2 r / (1 - 2 r) times that of clip(x, C / 2, C) - C / 2.

    Args:
        key: a typed key.
        magnitudes: shape (n,), zero or above. NaN counts as zero.
        bound: C, public or released.
        noise_multiplier: of both counts.

    Privacy:
        A Gaussian mechanism of the noise multiplier under replace-one, of the numbers
        of magnitudes in (C / 2, C] and above C. Replacing a record moves both by at
        most 1. Counts are exact.
    """
    return _excess(key, magnitudes, bound, math.sqrt(2) * ROUNDED_UP * noise_multiplier)


@jax.jit
def _excess(key: Key, x: jax.Array, bound: jax.Array, stddev: Scalar) -> Excess:
    stddev = jnp.asarray(stddev, "float32")
    is_above = jnp.stack([(x > bound / 2) & ~(x > bound), x > bound])
    counts = jnp.minimum(jnp.sum(is_above.astype("int32"), axis=1), _MOST_RECORDS)
    between, above = gaussian(key, counts.astype("float32"), stddev=stddev)
    total = jnp.maximum(between + above, _CLEAR * stddev)
    share = jnp.clip(above / total, 0.0, 1.0)
    noise = stddev / total * jnp.sqrt(1 - 2 * share + 2 * share**2)
    share_cut = jnp.minimum(share, _MOST_SHARE)
    ratio = 2 * share_cut / (1 - 2 * share_cut)
    error = 2 * noise / (1 - 2 * share_cut) ** 2
    is_heavy = share - _CLEAR * noise > _MOST_SHARE
    return Excess(ratio.astype(x.dtype), error.astype(x.dtype), is_heavy)


def noisy_median(
    key: Key,
    values: jax.Array,
    weights: jax.Array,
    *,
    bound: Scalar,
    noise_multiplier: Scalar,
) -> jax.Array:
    """Releases the median of values within ±bound, by bisection.

    Args:
        key: a typed key.
        values: finite, shape (n,); or (n, d), with a median of every column.
        weights: shape (n,); records of weight zero do not count, all others once.
        bound: public or released, () or (d,).
        noise_multiplier: of all counts together.

    Privacy:
        A Gaussian mechanism of the noise multiplier under replace-one, of 20 adaptive
        counts for a column: the number of records above a middle, less that of those
        below it. Replacing a record moves each by at most 2. Counts are exact.
    """
    num_counts = _NUM_MEDIAN_HALVINGS * math.prod(values.shape[1:])
    stddev = 2 * math.sqrt(num_counts) * ROUNDED_UP * noise_multiplier
    return _median(key, values, weights, bound, stddev)


def median_and_bound(
    keys: tuple[Key, Key],
    values: jax.Array,
    weights: jax.Array,
    *,
    size_multiplier: float,
    multiplier: float,
) -> tuple[jax.Array, jax.Array]:
    """Releases medians, and the bounds within which they are searched.

    A bound is four times the 75 per cent quantile of the absolute values.

    Args:
        keys: of the bounds, and of the medians.
        values: shape (n,) or (n, d), see `noisy_median`.
        weights: shape (n,), see there.
        size_multiplier: the noise multiplier of all bounds together.
        multiplier: that of all medians.

    Privacy:
        Two Gaussian mechanisms of those multipliers. Bounds of d columns are d releases
        of sqrt(d) times theirs.
    """
    quantile = partial(noisy_quantile, num_above=0.0, share_above=_WITHIN)
    absolute = jnp.abs(values)
    if values.ndim == 1:
        size = quantile(keys[0], absolute, noise_multiplier=size_multiplier)
    else:
        d = values.shape[1]
        quantile = partial(quantile, noise_multiplier=size_multiplier * math.sqrt(d))
        size = jax.vmap(quantile, (0, 1))(jax.random.split(keys[0], d), absolute)
    bound = _RANGE * size
    center = noisy_median(
        keys[1], values, weights, bound=bound, noise_multiplier=multiplier
    )
    return center, bound


@jax.jit
def _median(
    key: Key, values: jax.Array, weights: jax.Array, bound: Scalar, stddev: Scalar
) -> jax.Array:
    def halve(step: Any, state: tuple[jax.Array, jax.Array]) -> Any:
        middle, half = state
        signs = jnp.where(is_counted, jnp.sign(values - middle[None]), 0.0)
        count = jnp.sum(signs.astype("int32"), axis=0)
        count = jnp.clip(count, -_MOST_RECORDS, _MOST_RECORDS).astype("float32")
        noisy = gaussian(jax.random.fold_in(key, step), count, stddev=stddev)
        half = half / 2
        return middle + jnp.sign(noisy).astype(half.dtype) * half, half

    is_counted = jnp.expand_dims(weights > 0, tuple(range(1, values.ndim)))
    zeros = jnp.zeros(values.shape[1:], values.dtype)
    start = zeros, jnp.broadcast_to(jnp.asarray(bound, values.dtype), zeros.shape)
    return jax.lax.fori_loop(0, _NUM_MEDIAN_HALVINGS, halve, start)[0]
