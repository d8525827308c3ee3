"""A size that few records exceed, by halving: finer than bins of a factor of two."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax._rounding import ROUNDED_UP
from dpjax._types import Key, Scalar
from dpjax.mechanisms import gaussian

# Sizes from 2^-20 to 2^44 are searched, to an eighth of a factor of two.
_FIRST, _LAST, _NUM_HALVINGS = -20.0, 44.0, 9
# Records above the bound, in stddevs of the noise of a count: at the last steps, and at
# those before, which an empty region passes once in 300,000 times.
_ABOVE, _CLEARLY_ABOVE, _NUM_LAST = 3.0, 4.5, 3
# A Pareto tail of which so many above the half are above the bound has index 1.6.
_MOST_SHARE, _CLEAR = 1 / 3, 2.0
_MOST_RECORDS = 2**24  # integers up to here are exact in float32


def num_above(noise_multiplier: float) -> float:
    """Returns how many records about exceed a `noisy_bound`, and half as many more."""
    return _ABOVE * math.sqrt(_NUM_HALVINGS) * noise_multiplier


def noisy_bound(key: Key, sizes: jax.Array, *, noise_multiplier: float) -> jax.Array:
    """Releases a bound that about `num_above(noise_multiplier)` records exceed.

    The exponents of 2 between which it lies are halved: where the noisy number of
    records above the middle is larger than asked for, the bound is above it. Where that
    errs in an empty region, the bound is too large, which costs width and no coverage.

    Args:
        key: a typed key.
        sizes: shape (n,), zero or above. NaN counts as zero.
        noise_multiplier: of all counts together.

    Privacy:
        A Gaussian mechanism of the noise multiplier under replace-one, of 9 adaptive
        counts, each of which a record that is replaced moves by at most 1. Counts are
        exact.
    """
    stddev = math.sqrt(_NUM_HALVINGS) * ROUNDED_UP * noise_multiplier
    return _halved(key, sizes, stddev)


@jax.jit
def _halved(key: Key, sizes: jax.Array, stddev: Scalar) -> jax.Array:
    dtype = sizes.dtype
    stddev = jnp.asarray(stddev, "float32")

    def halve(step, state):
        middle, half = state
        is_above = sizes > jnp.exp2(middle).astype(dtype)
        count = jnp.minimum(jnp.sum(is_above.astype("int32")), _MOST_RECORDS)
        noisy = gaussian(
            jax.random.fold_in(key, step), count.astype("float32"), stddev=stddev
        )
        is_last = step >= _NUM_HALVINGS - _NUM_LAST
        wanted = stddev * jnp.where(is_last, _ABOVE, _CLEARLY_ABOVE)
        return middle + jnp.where(noisy > wanted, half, -half), half / 2

    whole = jnp.float32((_FIRST + _LAST) / 2), jnp.float32((_LAST - _FIRST) / 4)
    middle, half = jax.lax.fori_loop(0, _NUM_HALVINGS, halve, whole)
    return jnp.exp2(middle + half).astype(dtype)  # in the upper half of what is left


class Excess(NamedTuple):
    """What sizes have beyond a bound, from released counts.

    Attributes:
        ratio: of the sum of what they have beyond it, to the sum of what they have
            from half of it on up to it.
        error: the standard error of that, by the noise of the counts.
        is_heavy: whether the tail is too heavy for a ratio, whatever the noise is.
    """

    ratio: jax.Array
    error: jax.Array
    is_heavy: jax.Array


def noisy_excess(
    key: Key, sizes: jax.Array, bound: jax.Array, *, noise_multiplier: float
) -> Excess:
    """Releases how much sizes exceed a bound: of a Pareto tail from its half on.

    If a share r of the sizes above C / 2 are above C, its index is log2(1 / r), and the
    mean of (x - C)+ is 2 r / (1 - 2 r) times that of what is cut from C / 2 to C.

    Args:
        key: a typed key.
        sizes: shape (n,), zero or above. NaN counts as zero.
        bound: C, public or released.
        noise_multiplier: of both counts.

    Privacy:
        A Gaussian mechanism of the noise multiplier under replace-one: of the numbers
        of sizes in (C / 2, C] and above C. A record that is replaced moves two of
        them by 1. Counts are exact.
    """
    return _excess(key, sizes, bound, math.sqrt(2) * ROUNDED_UP * noise_multiplier)


@jax.jit
def _excess(key: Key, sizes: jax.Array, bound: jax.Array, stddev: Scalar) -> Excess:
    stddev = jnp.asarray(stddev, "float32")
    is_above = jnp.stack([(sizes > bound / 2) & ~(sizes > bound), sizes > bound])
    counts = jnp.minimum(jnp.sum(is_above.astype("int32"), axis=1), _MOST_RECORDS)
    between, above = gaussian(key, counts.astype("float32"), stddev=stddev)
    total = jnp.maximum(between + above, _CLEAR * stddev)
    share = jnp.clip(above / total, 0.0, 1.0)
    noise = stddev / total * jnp.sqrt(1 - 2 * share + 2 * share**2)
    kept = jnp.minimum(share, _MOST_SHARE)
    ratio = 2 * kept / (1 - 2 * kept)
    error = 2 * noise / (1 - 2 * kept) ** 2
    is_heavy = share - _CLEAR * noise > _MOST_SHARE
    return Excess(ratio.astype(sizes.dtype), error.astype(sizes.dtype), is_heavy)
