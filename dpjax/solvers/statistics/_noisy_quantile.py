"""Quantiles from noisy counts: of a histogram of exponents, or of a bisection.

A histogram is one release for quantiles of all sizes, to a factor of two. Bisection is
finer: it costs one release for each of its steps. Both add Gaussian noise, so that they
compose exactly with other Gaussian releases; the choices of `_quantile` do not.

`docs/privacy/proofs/counts.md`, 7.3, proves the sensitivity of the counts.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax._rounding import ROUNDED_UP
from dpjax._types import Key, Scalar
from dpjax.mechanisms import gaussian
from dpjax.mechanisms._additive import gaussian_of_padded, padded

# Bins are [2^j, 2^(j+1)). The first also has numbers below 1e-6, the last above 1e13.
_FIRST, _LAST = -20, 43
# Replaces a quantile in the first bin, from which no size follows, by 1.
one_if_zero = jax.jit(lambda x: jnp.where(x <= 2.0 ** (_FIRST + 1), 1.0, x))
_NUM_BINS = _LAST - _FIRST + 1
MOST_RECORDS = 2**24  # integers up to here are exact in float32
# A bin is known to hold records if its count exceeds the first of these in stddevs of
# its noise: an empty bin does so once in 50,000 runs. Next to such bins the second is
# enough. If the number of records tells that some are above all such bins, they are in
# the bin, or the two or four neighboring bins, whose sum exceeds its noise most, if by
# the third: sums of empty bins do so in one of 160 runs.
_SIGNIFICANT, _LIKELY, _VISIBLE = 5.0, 2.5, 4.0
_HIDDEN = 2.0  # stddevs by which a bin may exceed its noisy count
_LEAST_INDEX = 1.5  # of a Pareto tail, so that its mean is finite

# A bound by bisection is from 2^-20 to 2^44; its exponent is exact to an eighth.
_LOWEST, _HIGHEST, _NUM_HALVINGS = -20.0, 44.0, 9
# The number of records above the bound, in stddevs of the noise of a count: at the last
# steps, and before, where noise alone exceeds it once in 300,000 times.
_ABOVE, _CLEARLY_ABOVE, _NUM_LAST = 3.0, 4.5, 3
# The share of the records above C / 2 that are above C: at most, in a Pareto tail of
# index 1.3; the largest that an error counts; and its spread before it is counted.
MOST_SHARE, _LARGEST_SHARE, _SPREAD = 0.4, 0.47, 0.1
_CLEAR = 2.0  # stddevs by which records in (C / 2, C] stand out, or there may be a gap
NUM_MEDIAN_HALVINGS = 20
_WITHIN, _RANGE = 0.25, 4.0  # see `median_and_bound`


def noisy_quantile(
    key: Key,
    magnitudes: jax.Array,  # private, shape (n,)
    *,
    num_above: Scalar = 0.0,  # records that exceed the result
    share_above: Scalar = 0.0,  # plus a share of the records not about zero
    noise_multiplier: Scalar,  # stddev / l2 sensitivity
) -> jax.Array:
    """Releases a number that about `num_above` of the magnitudes (n,) exceed.

    It serves as clip norm or scale. Records are counted in bins of a factor of two; NaN
    counts as zero. Noisy counts are added from the highest significant bin down until
    they reach `num_above` plus the share, and the number is interpolated within that
    bin. It is 1 if no bin is significant, as for standardized data, and about 1e-6 if
    only that of zeros is, and noise hides where the other records are.

    Privacy:
        A Gaussian mechanism of the noise multiplier under replace-one: replacing a
        record moves two counts by 1, sqrt(2) in the l2 norm. Counts are exact.
    """
    seen = noisy_size_histogram(key, magnitudes, noise_multiplier)
    return seen.quantile(num_above, share_above).astype(magnitudes.dtype)


@jax.jit
def magnitudes(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns absolute values, and zeros for records of weight zero."""
    return jnp.where(weights > 0, jnp.abs(values), 0.0)


@jax.jit
def _counts(
    magnitudes: jax.Array, noise_multiplier: Scalar
) -> tuple[jax.Array, jax.Array]:
    """Returns counts of magnitudes (n,) in bins [2^j, 2^(j+1)), and stddevs of noise.

    Both are padded with zeros for `gaussian_of_padded`, which adds the noise.
    """
    known = jnp.nan_to_num(magnitudes, posinf=jnp.finfo(magnitudes.dtype).max)
    exponents = jnp.frexp(jnp.abs(known))[1].astype("int32") - 1
    bins = jnp.clip(jnp.where(known == 0, _FIRST, exponents), _FIRST, _LAST) - _FIRST
    counts = jnp.zeros(_NUM_BINS, "int32").at[bins].add(1)
    counts = jnp.minimum(counts, MOST_RECORDS).astype("float32")
    stddev = 2**0.5 * ROUNDED_UP * jnp.asarray(noise_multiplier, "float32")
    entries = padded(counts)
    return entries, jnp.full_like(entries, stddev)


def noisy_size_histogram(
    key: Key, magnitudes: jax.Array, noise_multiplier: Scalar, *, num_skipped: int = 0
) -> "SizeHistogram":
    """Releases noisy counts of magnitudes (n,) in bins of a factor of two.

    Several quantiles follow from them. Bins above the last count that stands out of the
    noise are assumed to hold data up to the first that seems empty. `num_skipped` such
    bins are passed over, because large magnitudes are few and have gaps.
    """
    # Of three programs, the long one for noise is compiled once for all n.
    counts, stddevs = _counts(magnitudes, noise_multiplier)
    noisy = gaussian_of_padded(key, counts, stddevs)
    num_samples = jnp.float32(min(magnitudes.size, MOST_RECORDS))
    return SizeHistogram.of(noisy, stddevs, num_samples, num_skipped)


class SizeHistogram(NamedTuple):
    """Holds released counts of records in bins of a factor of two."""

    noisy: jax.Array  # counts with noise, in ascending order of bins
    stddev: jax.Array  # of the noise
    top: jax.Array  # the highest bin that is known to hold records, -1 if unknown
    above: jax.Array  # noisy number of records from a bin up to the top

    @classmethod
    @partial(jax.jit, static_argnums=(0, 4))
    def of(
        cls, noisy: jax.Array, stddevs: jax.Array, num_samples: Scalar, num_skipped: int
    ) -> "SizeHistogram":
        """Returns a histogram from released counts and the stddevs of their noise."""
        # Both are padded, as from `_counts`.
        noisy, stddev = noisy[:_NUM_BINS], stddevs[0]
        index = jnp.arange(noisy.size, dtype="int32")
        stands_out = noisy > _SIGNIFICANT * stddev
        top = jnp.max(jnp.where(stands_out, index, -1))
        # The number of records is public, so the counts up to the top tell how many are
        # above it. The first bin holds zeros, from which no size follows.
        num_above = num_samples - jnp.sum(jnp.where(index <= top, noisy, 0.0))
        is_hidden = num_above > _LIKELY * stddev * jnp.sqrt(jnp.float32(top + 1))
        higher = jnp.where((index > top) & (index > 0), noisy, 0.0)
        two = higher.at[1:].add(higher[:-1])  # neighboring bins, and four of them
        sums = jnp.stack([higher, two / 2**0.5, two.at[2:].add(two[:-2]) / 2])
        is_hidden &= jnp.max(sums) > _VISIBLE * stddev
        top = jnp.where(is_hidden, jax.lax.argmax(sums.max(axis=0), 0, jnp.int32), top)
        likely = (index <= top) | (noisy > _LIKELY * stddev)
        for _ in range(num_skipped):
            likely = likely | jnp.append(likely[1:], False)
        end = jnp.min(jnp.where(likely, noisy.size, index))  # the first empty bin
        top = jnp.where(top < 0, -1, end - 1)
        counted = jnp.where(index <= top, noisy, 0.0)
        # The rows of a table are summed, because cumulative sums take long to compile.
        above = jnp.sum(jnp.triu(jnp.broadcast_to(counted, (noisy.size,) * 2)), axis=1)
        return cls(noisy, stddev, top, above)

    @jax.jit
    def quantile(self, num_above: Scalar, share_above: Scalar = 0.0) -> jax.Array:
        """Returns a number that about `num_above` of the counted records exceed.

        `share_above` of the records not about zero are added to `num_above`. The number
        is 1 if noise hides all bins. It is a clip norm or scale, as `noisy_quantile`.
        """
        num_above, share_above = jnp.float32(num_above), jnp.float32(share_above)
        index = jnp.arange(self.noisy.size, dtype="int32")
        counted = jnp.where(index <= self.top, self.noisy, 0.0)
        requested = num_above + share_above * self.above[1]
        is_reached = (self.above >= requested) & (index <= self.top)
        place = jnp.max(jnp.where(is_reached, index, 0))
        missing = requested - (self.above[place] - counted[place])
        share = jnp.clip(missing / jnp.maximum(counted[place], 1.0), 0.0, 1.0)
        size = jnp.exp2((_FIRST + 1 + place).astype("float32") - share)
        return jnp.where(self.top < 0, 1.0, size)

    def tail(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns s, c and index of a Pareto tail: c (s / x)^index records exceed x.

        The tail begins at the top bin, and tells how far layers of a mean must reach.
        The next bin is assumed to exceed its noisy count by two standard deviations.
        """
        top = jnp.maximum(self.top, 0)
        beyond = self.noisy[jnp.minimum(top + 1, self.noisy.size - 1)]
        number = jnp.maximum(self.above[top], self.stddev)
        beyond = jnp.maximum(beyond, 0.0) + _HIDDEN * self.stddev
        index = jnp.log2(number / jnp.minimum(beyond, number))
        size = jnp.exp2((_FIRST + top).astype("float32"))
        return size, number, jnp.maximum(index, _LEAST_INDEX)

    def sum_of_squares(self, low: Scalar, high: Scalar) -> jax.Array:
        """Estimates the sum of (clip(x, low, high) - low)^2 over the magnitudes x."""
        # Variances of clipped means need it. A size counts as the middle of its bin.
        low, high = jnp.asarray(low), jnp.asarray(high)
        dtype = high.dtype
        low, high = low.astype("float32"), high.astype("float32")
        index = jnp.arange(self.noisy.size, dtype="int32")
        counts = jnp.where(index <= self.top, jnp.maximum(self.noisy, 0.0), 0.0)
        middles = jnp.exp2((_FIRST + index).astype("float32") + 0.5)
        squares = (jnp.clip(middles, low, high) - low) ** 2
        return jnp.sum(counts * squares).astype(dtype)


def num_above(noise_multiplier: float) -> float:
    """Returns r: about r to 1.5 r records exceed a `noisy_bound`."""
    return _ABOVE * math.sqrt(_NUM_HALVINGS) * noise_multiplier


def noisy_bound(
    key: Key, magnitudes: jax.Array, *, noise_multiplier: float, least: Scalar = 0.0
) -> jax.Array:
    """Releases a bound that few of the magnitudes (n,) exceed, as a clip norm.

    As many exceed it as a count needs to be clear of the noise (`num_above`), or about
    `least`, if that is more. Noise may make it too large where there are no records:
    confidence intervals are then wider, but cover.

    Privacy:
        A Gaussian mechanism of the noise multiplier under replace-one, of 9 adaptive
        counts. Replacing a record moves each by at most 1. Counts are exact.
    """
    stddev = math.sqrt(_NUM_HALVINGS) * ROUNDED_UP * noise_multiplier
    return _bound(key, magnitudes, stddev, least)


@jax.jit
def _bound(key: Key, magnitudes: jax.Array, stddev: Scalar, least: Scalar) -> jax.Array:
    """Releases a bound that few magnitudes (n,) exceed, by bisecting its exponent."""
    # `stddev` is for the noise of a count. About `least` or more magnitudes exceed it.
    dtype = magnitudes.dtype
    stddev, least = jnp.asarray(stddev, "float32"), jnp.asarray(least, "float32")

    def above(middle: jax.Array) -> jax.Array:
        return jnp.sum((magnitudes > jnp.exp2(middle).astype(dtype)).astype("int32"))

    # The exponent of 2 is above the middle if enough records are.
    def is_higher(noisy: jax.Array, step: Any) -> jax.Array:
        is_last = step >= _NUM_HALVINGS - _NUM_LAST
        requested = stddev * jnp.where(is_last, _ABOVE, _CLEARLY_ABOVE)
        return noisy > jnp.maximum(requested, least)

    start = jnp.float32((_LOWEST + _HIGHEST) / 2), jnp.float32((_HIGHEST - _LOWEST) / 4)
    middle, half = bisected(key, start, above, is_higher, _NUM_HALVINGS, stddev)
    return jnp.exp2(middle + half).astype(dtype)  # within the upper half


def bisected(
    key: Key,
    start: tuple[jax.Array, jax.Array],  # the first middle, and the first step
    counts_at: Callable[[jax.Array], jax.Array],  # integers that depend on the data
    is_higher: Callable[[jax.Array, Any], jax.Array],
    num_steps: int,  # public
    stddev: Scalar,  # of the noise of each count
) -> tuple[jax.Array, jax.Array]:
    """Returns where a bisection by noisy counts ends, and half of its last step.

    Quantiles and bounds are found with it. Each step releases `counts_at(middle)` with
    noise, and goes up where `is_higher(noisy, index of the step)` holds, else down.
    """

    def halve(step: Any, state: tuple[jax.Array, jax.Array]) -> Any:
        middle, half = state
        counts = jnp.clip(counts_at(middle), -MOST_RECORDS, MOST_RECORDS)
        step_key = jax.random.fold_in(key, step)
        noisy = gaussian(step_key, counts.astype("float32"), stddev=stddev)
        return middle + jnp.where(is_higher(noisy, step), half, -half), half / 2

    return jax.lax.fori_loop(0, num_steps, halve, start)


class Excess(NamedTuple):
    """Estimates how much magnitudes exceed a bound, from released counts."""

    ratio: jax.Array  # sum of (x - C)+ over the sum of clip(x, C / 2, C) - C / 2
    error: jax.Array  # standard error of the ratio, by noise and by chance
    share: jax.Array  # of those above C / 2, above C; no ratio beyond `MOST_SHARE`
    part: jax.Array  # of all records, above C / 2


def noisy_excess(
    key: Key,
    magnitudes: jax.Array,
    bound: jax.Array,
    *,
    noise_multiplier: float,
    usual: float,  # the share r of usual tails
    may_have_gap: bool = True,  # public
) -> Excess:
    """Releases how much magnitudes exceed a bound C, for a Pareto tail from C / 2 on.

    `Excess` has a ratio that corrects a mean of vectors clipped to C, and its error. If
    a share r of those above C / 2 is above C, the index is log2(1 / r), and the mean of
    (x - C)+ is 2 r / (1 - 2 r), the ratio, times the mean of clip(x, C / 2, C) - C / 2.
    Where counts are few, r is near the usual one, or 1 if there may be a gap up to C.

    Privacy:
        A Gaussian mechanism of the noise multiplier under replace-one, of the numbers
        of magnitudes in (C / 2, C] and above C. Replacing a record moves both by at
        most 1. Counts are exact.
    """
    stddev = math.sqrt(2) * ROUNDED_UP * noise_multiplier
    least = _CLEAR * stddev if may_have_gap else -math.inf
    return _excess(key, magnitudes, bound, stddev, usual, least)


@jax.jit
def _excess(
    key: Key, x: jax.Array, bound: jax.Array, stddev: Scalar, usual: Scalar, least: Any
) -> Excess:
    """Releases how much magnitudes x (n,) exceed `bound`: a ratio and its error."""
    # They follow from noisy counts above bound / 2 and bound, with noise of `stddev`.
    stddev = jnp.asarray(stddev, "float32")
    is_above = jnp.stack([(x > bound / 2) & ~(x > bound), x > bound])
    counts = jnp.minimum(jnp.sum(is_above.astype("int32"), axis=1), MOST_RECORDS)
    between, above = gaussian(key, counts.astype("float32"), stddev=stddev)
    total = jnp.maximum(between + above, _CLEAR * stddev)
    share = jnp.clip(above / total, 0.0, 1.0)
    noise = (stddev / total) ** 2 * (1 - 2 * share + 2 * share**2)
    variance = noise + share * (1 - share) / total
    trust = _SPREAD**2 / (_SPREAD**2 + variance)
    share = usual + trust * (share - usual)
    middle, reach = jnp.minimum(share, MOST_SHARE), 2 * jnp.sqrt(trust * variance)
    ends = jnp.stack([middle, middle - reach, middle + reach])
    ratio, low, high = 0.5 / (0.5 - jnp.clip(ends, 0.0, _LARGEST_SHARE)) - 1
    share = jnp.where(between > least, share, 1.0)
    fields = ratio, (high - low) / 4, share, total / x.size
    return Excess(*(y.astype(x.dtype) for y in fields))


def noisy_median(
    key: Key,
    values: jax.Array,  # private
    weights: jax.Array,  # (n,)
    *,
    bound: Scalar,
    noise_multiplier: Scalar,  # stddev / l2 sensitivity
) -> jax.Array:
    """Releases the median of values within ±bound, (n,), or of each column, (n, d).

    Records of weight zero do not count; all other records count once. The search is
    within the bound, which is public or released.

    Privacy:
        A Gaussian mechanism of the noise multiplier under replace-one, of 20 adaptive
        counts for a column: the number of records above a middle, less the number below
        it. Replacing a record moves each by at most 2. Counts are exact.
    """
    num_counts = NUM_MEDIAN_HALVINGS * math.prod(values.shape[1:])
    stddev = 2 * math.sqrt(num_counts) * ROUNDED_UP * noise_multiplier
    return _median(key, values, weights, bound, stddev)


def median_and_bound(
    keys: tuple[Key, Key],  # for bounds, and for medians
    values: jax.Array,
    weights: jax.Array,  # (n,); zero: does not count
    multipliers: tuple[float, float],  # noise of bounds, and of medians
) -> tuple[jax.Array, jax.Array]:  # medians, bounds
    """Releases medians of values (n,) or columns (n, d), and bounds of their search.

    Samples are clipped and scaled about such a median. A bound is four times the 75
    percent quantile of the absolute values.

    Privacy:
        Two Gaussian mechanisms under both multipliers: one for all bounds together, one
        for all medians. Bounds of d columns are d releases of sqrt(d) times their
        multiplier.
    """
    quantile = partial(noisy_quantile, share_above=_WITHIN)
    size_multiplier, multiplier = multipliers
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
    """Releases medians of values within ±bound, (n,) or (n, d), by bisection."""
    # `stddev` is for the noise of each count. Records of weight zero do not count.
    is_counted = jnp.expand_dims(weights > 0, tuple(range(1, values.ndim)))

    def excess(middle: jax.Array) -> jax.Array:
        signs = jnp.where(is_counted, jnp.sign(values - middle[None]), 0.0)
        return jnp.sum(signs.astype("int32"), axis=0)

    zeros = jnp.zeros(values.shape[1:], values.dtype)
    half = jnp.broadcast_to(jnp.asarray(bound, values.dtype), zeros.shape) / 2
    start, num_steps = (zeros, half), NUM_MEDIAN_HALVINGS
    return bisected(key, start, excess, lambda x, _: x > 0, num_steps, stddev)[0]
