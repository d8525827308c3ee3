"""Order statistics of many columns, by counting instead of sorting.

The key of a float is its bits as an integer, flipped for negative floats so that keys
have the order of the floats. The key of x_(r+1) is the largest integer with at most r
keys below it. It is found bit by bit, from the highest bit on, with one pass over the
keys for each bit. The work depends on shapes alone, never on values. If samples are
sharded, devices send only counts, which a psum adds, and the ends of the order.

The middle sum follows from the two ends of the window, ties or not:

    x_(m+1) + ... + x_(n-m) = sum_i clip(x_i, x_(m+1), x_(n-m)) - m (x_(m+1) + x_(n-m)).

Terms are rounded to multiples of a power of two q and added as integers, so that the
sum is the same in any order and on any number of devices. With G the largest magnitude
in the window, 2^30 <= G/q < 2^31 (2^62 and 2^63 in float64), but q is at least 2^-126
(2^-1022). A term errs by at most q/2 <= 2^-31 G, hence N = n - 2m terms by 2^-7 u N G,
u = 2^-24. Converting the integers to one float adds u times the sum and 2^-11 u N G.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._rounding import LARGEST
from dpjax._sharding import from_all, num_shares, psum, varying, varying_axes
from dpjax._sums.fold import two_sum

# A CPU processes columns of this many numbers at a time, which fit into its cache.
_BLOCK = 2**18
_WORD = 32


class OrderStatistics(NamedTuple):
    """The order statistics that the trimmed mean and its sensitivity need.

    `low` has x_(m+1), ..., x_(1), and `high` has x_(n-m), ..., x_(n), shape (m + 1, d);
    `middle_sum` is x_(m+1) + ... + x_(n-m), shape (d,).
    """

    low: jax.Array
    high: jax.Array
    middle_sum: jax.Array


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def order_statistics(
    samples: jax.Array, trim_count: int, axes: tuple[str, ...] = ()
) -> OrderStatistics:
    """Returns the m + 1 smallest and largest of each column, and the sum of the middle.

    They are for trimmed means of samples, floats (n, d), with m = trim_count and 2m <
    n. NaN counts as zero, and all samples are clipped to ±1e30. If rows are sharded
    over the Manual mesh axes `axes`, `samples` are one device's rows, and the result is
    replicated. The derivative gathers the samples of all devices.
    """
    ends = partial(_ends, m=trim_count, axes=axes)
    low, high, middle_sum = _by_columns(ends, samples)
    return OrderStatistics(low.T[::-1], high.T, middle_sum)


@order_statistics.defjvp
def _order_statistics_jvp(trim_count, axes, primals, tangents):
    """Returns the order statistics and their tangents, as JAX's forward mode asks."""
    (samples,), (tangent,) = primals, tangents
    statistics = order_statistics(samples, trim_count, axes)
    low, high = statistics.low[0], statistics.high[0]
    rates = _middle_rates(samples, tangent, low, high, trim_count, axes)
    # Each end has the derivative of the sample that it equals: sort tangents by key.
    keys, tangent = (
        from_all(x, axes).reshape(-1, *x.shape[1:])
        for x in (_finite(_key(samples)), _finite_rate(samples, tangent))
    )
    ordered = jnp.take_along_axis(tangent, jnp.argsort(keys, axis=0), axis=0)
    ends = ordered[trim_count::-1], ordered[len(keys) - trim_count - 1 :]
    return statistics, OrderStatistics(*ends, middle_sum=rates[2])


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def middle(
    samples: jax.Array, trim_count: int, axes: tuple[str, ...] = ()
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns x_(m+1), x_(n-m) and x_(m+1) + ... + x_(n-m) of each column, (d,) each.

    x_(1) <= ... <= x_(n) is a column of the samples (n, d), with rows sharded over the
    mesh axes `axes`, and m = trim_count. The sum divided by n - 2m is a trimmed mean;
    the derivative of the sum needs its ends. For samples see `order_statistics`.
    """

    def of_columns(x):
        keys = _finite(_key(x))
        last = x.shape[1] * num_shares(axes) - trim_count - 1
        low, high = _select(keys, (trim_count, last), axes)
        middle_sum = _middle_sum(keys, low, high, trim_count, axes)
        return _float(low), _float(high), middle_sum

    return _by_columns(of_columns, samples)


@middle.defjvp
def _middle_jvp(trim_count, axes, primals, tangents):
    (samples,), (tangent,) = primals, tangents
    low, high, total = middle(samples, trim_count, axes)
    rates = _middle_rates(samples, tangent, low, high, trim_count, axes)
    return (low, high, total), rates


def median(samples: jax.Array) -> jax.Array:
    """Returns the median of each column of samples, floats of shape (n, d)."""
    low, high, _ = middle(samples, (len(samples) - 1) // 2)
    return low if len(samples) % 2 else 0.5 * low + 0.5 * high


def _by_columns(function: Callable[[jax.Array], Any], samples: jax.Array) -> Any:
    """Returns function(samples.T) of samples (n, d), by blocks of columns on CPU."""
    # Counts along an axis that is contiguous in memory run at the memory's speed.
    columns = samples.T
    num_columns, num_samples = columns.shape
    size = max(_BLOCK // num_samples, 1)
    if num_columns <= size:
        return function(columns)

    def by_blocks():
        """Returns the results of all columns, of as many at once as a cache holds."""
        blocks = jnp.pad(columns, ((0, -num_columns % size), (0, 0)))
        results = jax.lax.map(function, blocks.reshape(-1, size, num_samples))
        return jax.tree.map(lambda x: jnp.concatenate(x)[:num_columns], results)

    return jax.lax.platform_dependent(cpu=by_blocks, default=lambda: function(columns))


def _ends(x, m, axes):
    """Returns the m + 1 lowest and the m + 1 highest of each row, and the middle sum.

    `order_statistics` takes them. x is (d, n), or a device's part, if n is sharded over
    `axes`. Ends (d, m + 1) increase; the middle sum (d,) is x_(m+1) + ... + x_(n-m).
    """
    keys, n = _finite(_key(x)), x.shape[1] * num_shares(axes)
    # Sorting all samples was faster from m = 0.22 n to 0.32 n on, measured for n = 100
    # to 100,000. Sharded samples are never gathered, hence never sorted.
    if not axes and 7 * m >= 2 * (n - 32):
        ordered = jnp.sort(keys, axis=1)
        lows, highs = ordered[:, : m + 1], ordered[:, n - m - 1 :]
        low, high = lows[:, -1], highs[:, 0]
    else:
        low, high = _select(keys, (m, n - m - 1), axes)
        lows = jnp.sort(_gather_all(keys, keys < low[:, None], m, low, axes), axis=1)
        highs = jnp.sort(_gather_all(keys, keys > high[:, None], m, high, axes), axis=1)
        lows = jnp.concatenate([lows, low[:, None]], axis=1)
        highs = jnp.concatenate([high[:, None], highs], axis=1)
    return _float(lows), _float(highs), _middle_sum(keys, low, high, m, axes)


def _key(x):
    """Returns integers in the order of the floats; -0.0 is below 0.0."""
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"int{8 * x.dtype.itemsize}"))
    return _flipped(bits)


def _float(keys):
    dtype = jnp.dtype(f"float{8 * keys.dtype.itemsize}")
    return jax.lax.bitcast_convert_type(_flipped(keys), dtype)


def _flipped(bits):
    info = jnp.iinfo(bits.dtype)
    return bits ^ ((bits >> (info.bits - 1)) & info.max)


def _finite(keys):
    """Returns keys (`_key`) clipped to the keys of ±1e30, with zero's key for NaN."""
    info = jnp.finfo(f"float{8 * keys.dtype.itemsize}")
    infinite, largest = (
        int(np.array(x, info.dtype).view(keys.dtype)) for x in (np.inf, LARGEST)
    )
    # Inverting all bits of the key of x gives the key of -x.
    is_nan = (keys > infinite) | (keys < ~infinite)
    return jnp.clip(jnp.where(is_nan, 0, keys), ~largest, largest)


def _select(keys, ranks, axes):
    """Returns the entries of two ranks, from 0, in rows of keys (d, n): (d,) each."""
    info = jnp.iinfo(keys.dtype)
    bits = (1 << np.arange(info.bits, dtype=np.int64)[::-1]).astype(keys.dtype)

    # A bit of the result is set if at most `rank` keys lie below the result with it.
    def step(lower, bit):
        pivots = [x ^ bit for x in lower]
        below = _sums([(keys < x[:, None]).astype(jnp.int32) for x in pivots], axes)
        lower = [
            jnp.where(count <= rank, higher, x)
            for count, rank, higher, x in zip(below, ranks, pivots, lower, strict=True)
        ]
        return lower, None

    lowest = jnp.full(len(keys), info.min, keys.dtype)
    lowest = varying(lowest, varying_axes(keys) - set(axes))
    return jax.lax.scan(step, [lowest, lowest], bits)[0]


def _sums(terms, axes):
    """Returns the sums of arrays (d, n) along axis 1, in one pass, over all devices."""
    sums = jax.lax.reduce(
        tuple(terms),
        tuple(np.zeros((), x.dtype) for x in terms),
        lambda x, y: tuple(a + b for a, b in zip(x, y, strict=True)),
        (1,),
    )
    return psum(sums, axes)


def _gather_all(keys, is_chosen, size, fill, axes):
    """Returns each row's chosen keys of all devices, (d, size), followed by `fill`.

    It is `_gather` of keys (d, n) with n sharded over `axes`, () if they are not.
    """
    chosen = _gather(keys, is_chosen, size, fill)
    if not axes:
        return chosen
    # Each device places its keys behind the keys of earlier devices, zeros elsewhere.
    counts = from_all(is_chosen.sum(axis=1), axes)
    is_before = jnp.arange(len(counts)) < jax.lax.axis_index(axes)
    before = jnp.where(is_before[:, None], counts, 0).sum(axis=0)
    place = jnp.arange(size)[None] - before[:, None]
    is_own = (place >= 0) & (place < is_chosen.sum(axis=1)[:, None])
    moved = jnp.take_along_axis(chosen, place, axis=1, mode="clip")
    moved = psum(jnp.where(is_own, moved, 0), axes)
    is_any = jnp.arange(size)[None] < counts.sum(axis=0)[:, None]
    return jnp.where(is_any, moved, fill[:, None])


def _gather(keys, is_chosen, size, fill):
    """Returns each row's keys where is_chosen, shape (d, size), followed by `fill`.

    `_ends` sorts only these. Shapes are (d, n) for keys and is_chosen, and (d,) for
    fill. Choices are packed into words of 32 bits. The j-th chosen key is found by
    bisection over words, by the number chosen before a word, then over its bits.
    """
    num_columns, n = keys.shape
    num_words = -(-n // _WORD)
    bits = jnp.pad(is_chosen, ((0, 0), (0, -n % _WORD)))
    bits = bits.reshape(num_columns, num_words, _WORD)
    place = jnp.left_shift(jnp.uint32(1), jnp.arange(_WORD, dtype=jnp.uint32))
    words = jnp.where(bits, place, 0).sum(axis=2, dtype=jnp.uint32)
    counts = _count_bits(words)
    until = jnp.cumsum(counts, axis=1, dtype=jnp.int32)
    before = until - counts

    def at(x, index):
        return jnp.take_along_axis(x, index, axis=1, mode="clip")

    strides = 2 ** np.arange((num_words - 1).bit_length(), dtype=np.int32)[::-1]
    rank = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (num_columns, size))

    def step(index, stride):
        higher = index + stride
        is_before = (higher < num_words) & (at(before, higher) <= rank)
        return jnp.where(is_before, higher, index), None

    first = varying(jnp.zeros_like(rank), varying_axes(words))
    index, _ = jax.lax.scan(step, first, strides)
    word, left = at(words, index), rank - at(before, index)
    index = index * _WORD
    for half in (16, 8, 4, 2, 1):
        lower = _count_bits(word & np.uint32(2**half - 1))
        is_above = left >= lower
        left = jnp.where(is_above, left - lower, left)
        word = jnp.where(is_above, word >> half, word)
        index = jnp.where(is_above, index + half, index)
    return jnp.where(rank < until[:, -1:], at(keys, index), fill[:, None])


def _count_bits(words):
    return jax.lax.population_count(words).astype(jnp.int32)


def _middle_sum(keys, low, high, m, axes):
    """Returns x_(m+1) + ... + x_(n-m) for each row of keys, the same in any order.

    Keys (d, n) are integers in the order of the samples; low and high, (d,), are those
    of x_(m+1) and x_(n-m). Terms are rounded to multiples of a power of two, and added
    as integers on all devices.
    """
    n, limits = keys.shape[1] * num_shares(axes), jnp.iinfo(keys.dtype)
    info = jnp.finfo(_float(low).dtype)
    largest = jnp.maximum(jnp.abs(_float(low)), jnp.abs(_float(high)))
    # G < 2^(e + 1 - bias), where e is the exponent field of G; `exponent` becomes the
    # exponent field of 1/q.
    bias = info.maxexp - 1
    exponent = _key(largest) >> info.nmant
    exponent = jnp.minimum(2 * bias + limits.bits - 2 - exponent, 2 * bias - 1)

    def power(exponent):
        return _float(exponent << info.nmant)

    def multiple(key):
        return jnp.round(_float(key) * power(exponent)[:, None]).astype(key.dtype)

    # Sums of multiples would overflow; of digits of b bits they do not: n 2^b <= 2^31.
    b = limits.bits - 1 - (n - 1).bit_length()
    shifts = list(range(0, limits.bits, b))

    def digits(key):
        x = multiple(key)
        return [(x >> s) & (2**b - 1) for s in shifts[:-1]] + [x >> shifts[-1]]

    clipped = jnp.clip(keys, low[:, None], high[:, None])
    sums = _sums(digits(clipped), axes)
    ends = zip(digits(low[:, None]), digits(high[:, None]), strict=True)
    sums = [x - m * (y + z)[:, 0] for x, (y, z) in zip(sums, ends, strict=True)]
    parts = []
    for x, s in zip(sums, shifts, strict=True):
        lower = jax.lax.rem(x, jnp.full_like(x, 2 ** (limits.bits // 2)))
        parts += [part.astype(info.dtype) * 2.0**s for part in (lower, x - lower)]
    return _sum_in_two_floats(jnp.stack(parts)) * power(2 * bias - exponent)


def _middle_rates(samples, tangent, low, high, trim_count, axes):
    """Returns, for JVP rules, tangents (d,) of x_(m+1), x_(n-m) and the middle sum.

    low and high are x_(m+1) and x_(n-m); samples and their tangent have shape (n, d).
    Samples that equal an end share its derivative and its weight in the sum equally.
    """
    last = len(samples) * num_shares(axes) - trim_count
    keys, low, high = _finite(_key(samples)), _key(low), _key(high)
    tangent = _finite_rate(samples, tangent)
    is_inside = (keys > low[None]) & (keys < high[None])
    terms = keys <= low[None], is_inside, jnp.where(is_inside, tangent, 0)
    num_low, num_inside, middle_rate = psum([x.sum(axis=0) for x in terms], axes)
    kept_low = jnp.minimum(num_low, last) - trim_count
    kept_high = last - trim_count - num_inside - kept_low
    low_rate, high_rate = (_rate(keys, x, tangent, axes) for x in (low, high))
    middle_rate += kept_low.astype(tangent.dtype) * low_rate
    middle_rate += kept_high.astype(tangent.dtype) * high_rate
    return low_rate, high_rate, middle_rate


def _finite_rate(samples, tangent):
    return jnp.where(jnp.abs(samples) <= LARGEST, tangent, 0)


def _rate(keys, values, tangent, axes):
    """Returns the derivative of an order statistic, as a mean over tied samples."""
    is_equal = keys == values[None]
    ties, rate = is_equal.sum(axis=0), jnp.where(is_equal, tangent, 0).sum(axis=0)
    ties, rate = psum((ties, rate), axes)
    return rate / jnp.maximum(ties.astype(tangent.dtype), 1)


def _sum_in_two_floats(x: jax.Array) -> jax.Array:
    """Returns the sum of x over axis 0, up to one rounding and errors of second order.

    `_middle_sum` adds digits with it. A tree adds pairs, and a second sum has the exact
    rounding errors: its error is less than 2^11 u^2 times the sum of magnitudes, in up
    to 24 levels.
    """
    rest = jnp.zeros_like(x)
    while len(x) > 1:
        half = len(x) // 2
        total, lost = two_sum(x[:half], x[half : 2 * half])
        lost += rest[:half] + rest[half : 2 * half]
        x = jnp.concatenate([total, x[2 * half :]])
        rest = jnp.concatenate([lost, rest[2 * half :]])
    return x[0] + rest[0]
