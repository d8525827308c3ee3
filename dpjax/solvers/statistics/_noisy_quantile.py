"""Quantiles of magnitudes from a noisy histogram: scales without hyperparameters."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax._rounding import ROUNDED_UP
from dpjax._types import Key, Scalar
from dpjax.mechanisms._additive import gaussian_of_padded, padded

# Bins [2^j, 2^(j+1)); the first also has all below 1e-6, the last all above 1e13.
_FIRST, _LAST = -20, 43
_NUM_BINS = _LAST - _FIRST + 1
_MOST_RECORDS = 2.0**24  # integers up to here are exact in float32
# The least count, in stddevs of its noise, of a bin that is known to hold records: an
# empty one has it once in 50,000 runs. Next to such bins the second is enough.
_SIGNIFICANT, _LIKELY = 5.0, 2.5
_HIDDEN = 2.0  # stddevs that a bin may hold more than its noisy count
_LEAST_INDEX = 1.5  # of a tail, so that its mean is finite


def noisy_quantile(
    key: Key,
    magnitudes: jax.Array,
    *,
    num_above: Scalar,
    share_above: Scalar = 0.0,
    noise_multiplier: Scalar,
) -> jax.Array:
    """Releases a number that about `num_above` magnitudes exceed.

    Records are counted in bins of a factor of two. The highest bin whose noisy count is
    significant ends the data. From there down noisy counts are added until they reach
    `num_above`, and within that bin the number is interpolated. If the noise hides
    `num_above` records, the number is the end of the data.

    Args:
        key: a typed key.
        magnitudes: shape (n,), zero or above. NaN counts as zero.
        num_above: how many records may be larger; public or released.
        share_above: the share of records that may also be larger, of those in all bins
            but the first.
        noise_multiplier: stddev of the counts' noise over their l2 sensitivity.

    Returns:
        A scalar; 1 if no bin is significant, as for standardised data.

    Privacy:
        A Gaussian mechanism of the noise multiplier under replace-one: replacing a
        record moves two counts by 1, sqrt(2) in the l2 norm. Counts are exact.
    """
    # Three programs: the long ones are the same for any number of records.
    counts, stddevs = _counts(magnitudes, noise_multiplier)
    noisy = gaussian_of_padded(key, counts, stddevs)
    return _quantile(magnitudes.dtype, noisy, stddevs, (num_above, share_above))


@jax.jit
def magnitudes(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns absolute values, zeros where the weight is zero."""
    return jnp.where(weights > 0, jnp.abs(values), 0.0)


@jax.jit
def _counts(
    magnitudes: jax.Array, noise_multiplier: Scalar
) -> tuple[jax.Array, jax.Array]:
    """Returns how many records lie in each bin, padded, and the stddevs of noise."""
    known = jnp.nan_to_num(magnitudes, posinf=jnp.finfo(magnitudes.dtype).max)
    exponents = jnp.frexp(jnp.abs(known))[1].astype("int32") - 1
    bins = jnp.clip(jnp.where(known == 0, _FIRST, exponents), _FIRST, _LAST) - _FIRST
    counts = jnp.zeros(_NUM_BINS, "int32").at[bins].add(1)
    counts = jnp.minimum(counts, int(_MOST_RECORDS)).astype("float32")
    stddev = 2**0.5 * ROUNDED_UP * jnp.asarray(noise_multiplier, "float32")
    entries = padded(counts)
    return entries, jnp.full_like(entries, stddev)


@partial(jax.jit, static_argnums=0)
def _quantile(
    dtype: jax.typing.DTypeLike,
    noisy: jax.Array,
    stddevs: jax.Array,
    above: tuple[Scalar, Scalar],
) -> jax.Array:
    """Returns the quantile, from noisy counts."""
    return _histogram(noisy, stddevs).quantile(*above).astype(dtype)


def noisy_size_histogram(
    key: Key, magnitudes: jax.Array, noise_multiplier: Scalar, *, num_skipped: int = 0
) -> "SizeHistogram":
    """Releases the counts of all bins; arguments and privacy as of `noisy_quantile`.

    So many bins that seem to be empty do not end the data where one beyond does not.
    """
    counts, stddevs = _counts(magnitudes, noise_multiplier)
    return _histogram(gaussian_of_padded(key, counts, stddevs), stddevs, num_skipped)


@partial(jax.jit, static_argnums=2)
def _histogram(
    noisy: jax.Array, stddevs: jax.Array, num_skipped: int = 0
) -> "SizeHistogram":
    return SizeHistogram.of(noisy[:_NUM_BINS], stddevs[0], num_skipped)


class SizeHistogram(NamedTuple):
    """Released counts of records in bins of a factor of two, and where they end.

    Attributes:
        noisy: the counts with noise, in ascending order of bins.
        stddev: of their noise.
        top: the highest bin that is known to hold records, -1 if there is none.
        above: the noisy number of records in a bin and those above it, up to the top.
    """

    noisy: jax.Array
    stddev: jax.Array
    top: jax.Array
    above: jax.Array

    @classmethod
    def of(
        cls, noisy: jax.Array, stddev: jax.Array, num_skipped: int = 0
    ) -> "SizeHistogram":
        """Returns the histogram of noisy counts; see `noisy_size_histogram`."""
        index = jnp.arange(noisy.size, dtype="int32")
        stands_out = noisy > _SIGNIFICANT * stddev
        top = jnp.max(jnp.where(stands_out, index, -1))
        likely = (index <= top) | (noisy > _LIKELY * stddev)
        for _ in range(num_skipped):
            likely = likely | jnp.append(likely[1:], False)
        end = jnp.min(jnp.where(likely, noisy.size, index))  # the first empty bin
        top = jnp.where(top < 0, -1, end - 1)
        counted = jnp.where(index <= top, noisy, 0.0)
        # Sums of rows of a table: cumulative ones take long to compile.
        above = jnp.sum(jnp.triu(jnp.broadcast_to(counted, (noisy.size,) * 2)), axis=1)
        return cls(noisy, stddev, top, above)

    def quantile(self, num_above: Scalar, share_above: Scalar = 0.0) -> jax.Array:
        """Returns what `noisy_quantile` does, in float32."""
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

        It begins where the top bin does. The next bin is assumed to hold two standard
        deviations more than its noisy count.
        """
        top = jnp.maximum(self.top, 0)
        beyond = self.noisy[jnp.minimum(top + 1, self.noisy.size - 1)]
        number = jnp.maximum(self.above[top], self.stddev)
        beyond = jnp.maximum(beyond, 0.0) + _HIDDEN * self.stddev
        index = jnp.log2(number / jnp.minimum(beyond, number))
        size = jnp.exp2((_FIRST + top).astype("float32"))
        return size, number, jnp.maximum(index, _LEAST_INDEX)

    def sum_of_squares(self, low: Scalar, high: Scalar) -> jax.Array:
        """Returns about the sum of the squares of clip(x, low, high) - low.

        It has the dtype of the bounds.
        """
        low, high = jnp.asarray(low), jnp.asarray(high)
        dtype = high.dtype
        low, high = low.astype("float32"), high.astype("float32")
        index = jnp.arange(self.noisy.size, dtype="int32")
        counts = jnp.where(index <= self.top, jnp.maximum(self.noisy, 0.0), 0.0)
        middles = jnp.exp2((_FIRST + index).astype("float32") + 0.5)
        squares = (jnp.clip(middles, low, high) - low) ** 2
        return jnp.sum(counts * squares).astype(dtype)
