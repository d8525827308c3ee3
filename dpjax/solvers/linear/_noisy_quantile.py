"""Sizes of records by a noisy histogram: the scales of an untuned model."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax._rounding import ROUNDED_UP
from dpjax._types import Key, Scalar
from dpjax.mechanisms import gaussian

# Bins [2^j, 2^(j+1)); sizes below 1e-6 count in the first, above 1e13 in the last.
_FIRST, _LAST = -20, 43
_MOST_RECORDS = 2.0**24  # integers up to here are exact in float32
# What a bin's count has to be, in stddevs of its noise, to be where the data reach to:
# an empty one passes once in 50,000 runs. Beside bins that are known to hold records a
# count is believed earlier.
_SIGNIFICANT, _LIKELY = 5.0, 2.5
_HIDDEN = 2.0  # standard deviations of what a bin may hold unseen
_LEAST_INDEX = 1.5  # of a tail: a mean, and something to see it by


def noisy_quantile(
    key: Key,
    sizes: jax.Array,
    *,
    num_above: Scalar,
    share_above: Scalar = 0.0,
    noise_multiplier: Scalar,
) -> jax.Array:
    """Releases a size that about so many records exceed.

    Records are counted in bins of a factor of two. The highest bin whose noisy count
    stands out from the noise ends the data; from there down noisy counts are added
    until they reach `num_above`, and within that bin the size is interpolated. Where
    fewer records are asked for than the noise lets see, it is the end of the data.

    Args:
        key: a typed key.
        sizes: shape (n,), zero or above. NaN counts as zero.
        num_above: how many records may be larger; public or released.
        share_above: what share of the records may be so as well, of those whose noisy
            bins have been added; sizes below 2^-19 are none of them.
        noise_multiplier: stddev of the counts' noise over their l2 sensitivity.

    Returns:
        The size, a scalar; 1 where no bin stands out, as of standardised data.

    Privacy:
        A Gaussian mechanism of the noise multiplier under replace-one: a record that is
        replaced moves two counts by 1, sqrt(2) in the l2 norm. Counts are exact.
    """
    # Two programs: the long one is the same for any number of records.
    wanted = num_above, share_above
    return _quantile(sizes.dtype, key, _counts(sizes), wanted, noise_multiplier)


@jax.jit
def _counts(sizes: jax.Array) -> jax.Array:
    """Returns how many records lie in each bin."""
    known = jnp.nan_to_num(sizes, posinf=jnp.finfo(sizes.dtype).max)
    exponents = jnp.frexp(jnp.abs(known))[1].astype("int32") - 1
    bins = jnp.clip(jnp.where(known == 0, _FIRST, exponents), _FIRST, _LAST) - _FIRST
    counts = jnp.zeros(_LAST - _FIRST + 1, "int32").at[bins].add(1)
    return jnp.minimum(counts, int(_MOST_RECORDS)).astype("float32")


@partial(jax.jit, static_argnums=0)
def _quantile(
    dtype: jax.typing.DTypeLike,
    key: Key,
    counts: jax.Array,
    wanted_above: tuple[Scalar, Scalar],
    noise_multiplier: Scalar,
) -> jax.Array:
    """Releases the size, from exact counts."""
    return (
        _released(key, counts, noise_multiplier).quantile(*wanted_above).astype(dtype)
    )


def _released(key: Key, counts: jax.Array, noise_multiplier: Scalar) -> "SizeHistogram":
    stddev = 2**0.5 * ROUNDED_UP * jnp.asarray(noise_multiplier, "float32")
    return SizeHistogram.of(gaussian(key, counts, stddev=stddev), stddev)


@jax.jit
def noisy_size_histogram(
    key: Key, sizes: jax.Array, noise_multiplier: Scalar
) -> "SizeHistogram":
    """Releases how many records are of what size; arguments as of `noisy_quantile`.

    Privacy:
        As of `noisy_quantile`, for all that is read from it.
    """
    return _released(key, _counts(sizes), noise_multiplier)


class SizeHistogram(NamedTuple):
    """Released counts of records in bins of a factor of two, and where they end.

    Attributes:
        noisy: the counts with noise, from the smallest sizes on.
        stddev: of their noise.
        top: the highest bin that holds records for all one sees, -1 where none does.
        above: the number of records in a bin and those above it, up to the top.
    """

    noisy: jax.Array
    stddev: jax.Array
    top: jax.Array
    above: jax.Array

    @classmethod
    def of(cls, noisy: jax.Array, stddev: jax.Array) -> "SizeHistogram":
        """Returns the histogram of noisy counts."""
        index = jnp.arange(noisy.size, dtype="int32")
        stands_out = noisy > _SIGNIFICANT * stddev
        top = jnp.max(jnp.where(stands_out, index, -1))
        likely = (index <= top) | (noisy > _LIKELY * stddev)
        run = jnp.cumprod(likely, dtype="int32")  # of bins that hold records
        top = jnp.where(top < 0, -1, jnp.sum(run, dtype="int32") - 1)
        kept = jnp.where(index <= top, noisy, 0.0)
        return cls(noisy, stddev, top, jnp.cumsum(kept[::-1])[::-1])

    def quantile(self, num_above: Scalar, share_above: Scalar = 0.0) -> jax.Array:
        """Returns the size that so many exceed, as of `noisy_quantile`, in float32."""
        num_above, share_above = jnp.float32(num_above), jnp.float32(share_above)
        index = jnp.arange(self.noisy.size, dtype="int32")
        kept = jnp.where(index <= self.top, self.noisy, 0.0)
        wanted = num_above + share_above * self.above[1]
        is_reached = (self.above >= wanted) & (index <= self.top)
        place = jnp.max(jnp.where(is_reached, index, 0))
        missing = wanted - (self.above[place] - kept[place])
        share = jnp.clip(missing / jnp.maximum(kept[place], 1.0), 0.0, 1.0)
        size = jnp.exp2((_FIRST + 1 + place).astype("float32") - share)
        return jnp.where(self.top < 0, 1.0, size)

    def tail(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns size, number and index of a Pareto tail: c (size / x)^index pass x.

        It begins where the top bin does, and falls to the next bin as far as noise lets
        see: to what that may hold, up to two standard deviations.
        """
        top = jnp.maximum(self.top, 0)
        beyond = self.noisy[jnp.minimum(top + 1, self.noisy.size - 1)]
        number = jnp.maximum(self.above[top], self.stddev)
        held = jnp.maximum(beyond, 0.0) + _HIDDEN * self.stddev
        index = jnp.log2(number / jnp.minimum(held, number))
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
