"""The fold: a mean of bounded influences in one pass, with a proven sensitivity.

In a float32 sum, replacing one term changes how every later addition rounds: the sum
may change by far more than the term. The fold bounds this change in two steps.

1. Up to `block_length` influences are added as floats, to the sum of a block. A record
   is in one block, so its replacement changes the rounding of that short sum only.
2. A block's sum is split into a few integer digits and a small remainder (`Digits`).
   Digits add exactly, in any order, for every microbatch size and number of devices.
   Adding remainders rounds by far less than the influence of one record.

Each device folds its own shard, of equally many rows, in blocks of one length, and a
psum adds the digits. So the bound for one replaced record does not depend on the number
of devices; only the numbers of blocks and of rows per divisor are totals over devices.

A block's sum adds K terms to every coordinate. It may be a product of matrices, with an
unknown order of additions in each coordinate, and unknown fused operations: `sum_error`
bounds its error for the worst order, `docs/privacy/proofs/sums.md`, 1.2 and 1.3.

A mean is two floats until noise is added (`Unrounded`), and is then rounded once. All
steps of that are correctly rounded additions: `docs/privacy/proofs/sums.md`, 1.11.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._sharding import num_shares, psum, zeros
from dpjax._sums.samples import MANY, Arrays, FactoredSamples, Influence
from dpjax._sums.stream import (
    Layout,
    SampleStream,
    Sizes,
    num_bytes,
    peak_bytes,
    rows_at_once,
)
from dpjax._sums.tables import TableRows
from dpjax._tree import as_float, by_row, like, materialized, num_coordinates
from dpjax._types import PyTree, Scalar
from dpjax._validate import is_concrete, require

FEW_ROWS = 4096  # with at most this many rows, any divisor is allowed, such as 1


class Unrounded(NamedTuple):
    """A mean before it is rounded: the exact sum of two floats for each coordinate.

    `high` is the mean, rounded, and `low` the rounding error, mean - high.
    """

    high: PyTree
    low: PyTree

    @classmethod
    def of(cls, mean: PyTree) -> Self:
        """Returns a mean of floats, with low = 0."""
        return cls(mean, jax.tree.map(jnp.zeros_like, mean))

    def map(self, function: Callable[[Any], Any]) -> Self:
        """Returns the mean with a function applied to both trees."""
        return type(self)(function(self.high), function(self.low))

    def plus(self, noise: PyTree) -> PyTree:
        """Returns the exact sum with noise, rounded to the nearest float."""
        return jax.tree.map(rounded_sum, *materialized((*self, noise)))


MeanAndAux = tuple[Unrounded, PyTree]


def two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns a + b rounded, and its exact error (Knuth 1997, Section 4.2.2)."""
    high = a + b
    part = high - a
    return high, (a - (high - part)) + (b - part)


def exact_sum(terms: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Returns the sum of terms, given in decreasing order of size, as two floats."""
    high, errors = terms[-1], jnp.zeros_like(terms[-1])
    for term in reversed(terms[:-1]):
        high, error = two_sum(term, high)
        errors = errors + error
    return two_sum(high, errors)


@jax.custom_jvp
def rounded_sum(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """Returns mean a + b plus noise c, rounded once (Boldo, Melquiond 2008, Thm. 5)."""
    high, low = two_sum(b, c)
    high, rest = two_sum(a, high)
    # The remainder is rounded to odd, so that it is a tie only if the exact sum is.
    left, error = two_sum(rest, low)
    bits = jax.lax.bitcast_convert_type(left, f"int{8 * left.dtype.itemsize}")
    odd = bits + jnp.where((error > 0) == (left > 0), 1, -1).astype(bits.dtype)
    bits = jnp.where((error != 0) & (bits & 1 == 0), odd, bits)
    return high + jax.lax.bitcast_convert_type(bits, left.dtype)


@rounded_sum.defjvp
def _rounded_sum_jvp(primals, tangents):
    a, b, c = tangents
    return rounded_sum(*primals), a + b + c


class Summands(NamedTuple):
    """The terms of a sum: `prepare` makes them from the samples of a microbatch.

    An influence is a map of coordinates, zero to zero, that acts as terms are added.
    Factored leaves are multiplied out for it.
    """

    stream: SampleStream
    prepare: Callable[[FactoredSamples], FactoredSamples]
    influence: Influence | None = None


def fold_mean(
    summands: Summands, limit: Scalar | None, *, normalize_by: Scalar
) -> MeanAndAux:
    """Returns the sum of all bounded samples, divided by normalize_by, and all aux.

    Estimators compute their means by it, as two floats for each coordinate, with leaves
    perhaps stacked (`unstacked`). `summands` makes a bounded sample from each row; aux
    are other outputs, such as losses, leaves (n, ...). On several devices the sum is
    over all, and aux are of one. `limit` bounds each coordinate; None: no bound.
    """
    stream = summands.stream
    normalize_by = proven_divisor(stream.num_rows_in_all, normalize_by)
    fold = Fold(summands, limit)

    def run(layout: Layout) -> MeanAndAux:
        digits = fold.digits(layout, normalize_by)
        total, aux = fold.add(layout, digits, None, fold.no_aux())
        return digits.mean(psum(total, stream.axes)), aux

    return fold.by_platform(run, stream.num_rows, block_length(normalize_by))


def group_means(
    summands: Summands, limit: Scalar | None, *, sizes: np.ndarray
) -> tuple[PyTree, PyTree]:
    """Returns the rounded means of groups, leaves (G, ...), and the aux of all rows.

    `MedianOfMeans` needs them. `sizes`, (G,), are the groups' numbers of rows, in the
    order of the rows of all devices. `summands` makes a bounded sample from each row,
    and aux, such as losses; `limit` bounds each coordinate.
    """
    stream = summands.stream
    axes = stream.axes
    device = jax.lax.axis_index(axes) if axes else 0
    first, starts, stops = (
        jnp.asarray(x)[device] if axes else jnp.asarray(x[0])
        for x in _groups_by_device(sizes, stream)
    )
    fold = Fold(summands, limit)

    def run(layout: Layout) -> tuple[PyTree, PyTree]:
        """Returns the groups' means and all aux; `layout` divides rows into blocks."""
        every = fold.digits(layout, jnp.asarray(sizes))

        def group(aux, place):
            index, span = place
            digits = every.of_group(index)
            total, aux = fold.add(layout, digits, span, aux)
            return aux, total if axes else digits.mean(total).high

        indices = first + jnp.arange(len(starts))
        aux, sums = jax.lax.scan(group, fold.no_aux(), (indices, (starts, stops)))
        if not axes:
            return sums, aux

        # A device has digits for the groups of its own rows, and zeros for all other
        # groups, so that a psum adds the digits of every group.
        def of_all(x: jax.Array) -> jax.Array:
            none = zeros(x, (len(sizes), *x.shape[1:]))
            return jax.lax.dynamic_update_slice_in_dim(none, x, first, 0)

        total = psum(jax.tree.map(of_all, sums), axes)
        mean = jax.vmap(lambda index, total: every.of_group(index).mean(total).high)
        return mean(jnp.arange(len(sizes)), total), aux

    # All groups share the layout of the largest group; a span excludes rows beyond it.
    most = min(int(sizes.max()), stream.num_rows)
    return fold.by_platform(run, most, block_length())


def _groups_by_device(sizes, stream):
    """Returns each device's first group, and starts and stops of k groups in its rows.

    `group_means` sums these ranges. `sizes` has the groups' numbers of rows, which are
    in the order of devices and groups; each device has as many rows as `stream`. Shapes
    are (devices,), (devices, k) and (devices, k), where k is the largest number of
    groups on a device; groups without rows there have empty ranges.
    """
    stops = np.cumsum(sizes)
    offsets = np.arange(0, stream.num_rows_in_all, stream.num_rows)
    first = np.searchsorted(stops, offsets, side="right")
    last = np.searchsorted(stops, offsets + stream.num_rows, side="left")
    most = (last - first).max() + 1
    first = np.minimum(first, len(sizes) - most)
    groups = first[:, None] + np.arange(most)
    return first, *(
        np.clip(x[groups] - offsets[:, None], 0, stream.num_rows)
        for x in (stops - sizes, stops)
    )


class Digits(NamedTuple):
    """The digits of block sums, which add with negligible rounding.

    A block sum x has x / normalize_by = (d0 + d1/base + d2/base^2) / unit, exactly. All
    digits but the last are integers so small that the digits of all blocks, on all
    devices, add up within the float's mantissa: their sums are exact in any order.
    `unit` and `base` are powers of two, the same for all blocks.

    The last digit is the remainder, a float of at most base/2. Sums of remainders
    round, but `digit_layout` makes the error far smaller than one record's influence.
    No part of x is dropped, so values far below the limit keep their own precision.
    """

    unit: jax.Array | None  # None for a float sum: without a bound, or of one block
    base: float
    num_digits: int
    normalize_by: Any

    @classmethod
    def of(cls, num_sums: int, length: int, shape: PyTree, limit, normalize_by):
        """Returns the `Digits` in which `num_sums` sums of bounded terms add exactly.

        A sum is split into digits: integers, which add without rounding, and a small
        remainder. The sums, on all devices together, have at most `length` terms each,
        within ±limit (None: unbounded, so not split), and are divided by the number or
        array `normalize_by`. `shape` has the shapes and dtypes of a sum.
        """
        if limit is None:
            return cls(None, 1.0, 1, normalize_by)
        nmant = min(int(jnp.finfo(x.dtype).nmant) for x in jax.tree.leaves(shape))
        high_bits, base_bits, num_digits = digit_layout(num_sums, nmant)
        if num_digits == 1:
            return cls(None, 1.0, 1, normalize_by)
        # The largest power of two with |x / normalize_by| unit <= 2^high_bits.
        limit, divisor = (
            jnp.asarray(x).astype(jnp.float32) for x in (limit, normalize_by)
        )
        _, exponent = jnp.frexp(jax.lax.stop_gradient(limit * length / divisor))
        unit = jnp.ldexp(jnp.float32(1), jnp.minimum(high_bits - exponent, 126))
        return cls(unit, 2.0**base_bits, num_digits, normalize_by)

    def of_group(self, index: Scalar) -> "Digits":
        """Returns the digits for the divisor `normalize_by[index]`."""
        unit = None if self.unit is None else self.unit[index]
        return self._replace(unit=unit, normalize_by=self.normalize_by[index])

    def add(self, total: tuple[PyTree, ...], sums: PyTree) -> tuple[PyTree, ...]:
        """Returns `total`, a tree for each digit, plus the digits of k sums, (k, ...).

        Digits are parts of a float: integers, which add exactly, and a remainder.
        """

        def scaled(x):
            x = x / jnp.asarray(self.normalize_by).astype(x.dtype)
            return x if self.unit is None else x * self.unit.astype(x.dtype)

        if self.num_digits > 1:  # all digits must come from the same rounded sum
            sums = materialized(sums)
        digits = _split(jax.tree.map(scaled, sums), self.base, self.num_digits)
        return jax.tree.map(lambda old, x: old + x.sum(axis=0), total, digits)

    def mean(self, total: tuple[PyTree, ...]) -> Unrounded:
        """Returns the mean, as two floats, from the sum of each digit (see `add`)."""
        if (unit := self.unit) is None:
            return Unrounded.of(total[0])

        def both(digits):
            """Returns a leaf's mean from its sums of digits, in two floats (a pair)."""
            digits = list(digits)
            # Carries make each lower digit less than the base, so that terms decrease
            # in size, as `exact_sum` requires. The carries are exact.
            for i in range(self.num_digits - 1, 0, -1):
                carry = jnp.round(digits[i] / self.base)
                digits[i] = digits[i] - carry * self.base
                digits[i - 1] = digits[i - 1] + carry
            terms = [digit * self.base**-i for i, digit in enumerate(digits)]
            return [x / unit.astype(x.dtype) for x in exact_sum(terms)]

        digits_of_leaves = zip(*map(jax.tree.leaves, total), strict=True)
        trees = zip(*map(both, digits_of_leaves), strict=True)
        return Unrounded(*map(jax.tree.structure(total[0]).unflatten, trees))


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _split(scaled: PyTree, base: float, num_digits: int) -> tuple[PyTree, ...]:
    digits = []
    for _ in range(num_digits - 1):
        digits.append(jax.tree.map(jnp.round, scaled))
        scaled = jax.tree.map(lambda x, d: (x - d) * base, scaled, digits[-1])
    return (*digits, scaled)


@_split.defjvp
def _split_jvp(base, num_digits, primals, tangents):
    # The digits add up to the scaled sum, so the first digit gets the whole derivative.
    (tangent,) = tangents
    zeros = (jax.tree.map(jnp.zeros_like, tangent),) * (num_digits - 1)
    return _split(*primals, base, num_digits), (tangent, *zeros)


def digit_layout(num_sums: int, nmant: int) -> tuple[int, int, int]:
    """Returns (high_bits, base_bits, num_digits), by which `Digits` splits floats.

    A first digit is at most 2^high_bits, later digits base/2 = 2^base_bits / 2. The
    digits of `num_sums` sums then add exactly, in any order, in floats of `nmant`
    stored bits; but the last digits, which are no integers, add with an error of at
    most 2^-(nmant + 11) of the largest absolute value that a sum may have.
    """
    bits = max(num_sums - 1, 0).bit_length()
    rule = f"fewer: at most 2^{nmant - 1} blocks of rows, for sums that are exact"
    require(bits < nmant, "samples", f"{num_sums:,} blocks", rule)
    high, base = nmant - bits, nmant + 1 - bits
    if bits == 0:  # a single sum needs no addition
        return high, base, 1
    # Each of the 2^bits remainders is at most 2^-(b + 1) of a block's bound, if b bits
    # precede it. In any order, their sum errs by at most 2^(2 bits) 2^-(nmant + 1)
    # (1 + 1/3) times that: b = 11 + 2 bits is enough. (Coordinates round independently:
    # the sensitivity counts sqrt(d) times this error.)
    more = max(0, -(-(11 + 2 * bits - high) // base))
    return high, base, 2 + more


class Fold:
    """Adds the bounded samples of a stream, block by block, for `fold_mean`.

    Attributes have shapes and dtypes: `made` of a sample as it is read, `row` of
    the term that `prepare` makes of it, `aux` of its further outputs, `shape` of a sum.
    """

    def __init__(self, summands: Summands, limit: Scalar | None):
        """Traces a row: shapes and memory decide how many rows are computed at once.

        `summands` bounds samples; `limit` bounds their coordinates; None: no bound.
        """
        self.stream, self.prepare, self.influence = summands
        self.limit = limit
        self.read = self.stream.reader()

        def of_row(row: Scalar) -> tuple[FactoredSamples, FactoredSamples, PyTree]:
            made, aux = self.read(row, 1)
            summed = self.prepare(made).stacked()
            if self.influence is not None:  # `row_bytes` counts its results too
                for part in summed.parts:
                    if not isinstance(part, TableRows):
                        part.add(part.zeros(), self.influence, None)
            return made, summed, aux

        program, shapes = jax.make_jaxpr(of_row, return_shape=True)(0)
        self.made, self.row, self.aux = shapes
        self.row_bytes = peak_bytes(program.jaxpr, program.jaxpr.invars)
        self.shape = jax.eval_shape(lambda: self.row.build(self.row.zeros()))

    def by_platform(
        self, run: Callable[[Layout], PyTree], num_rows: int, longest: int
    ) -> PyTree:
        """Returns `run(layout)`, with the layout of the program's platform, CPU or GPU.

        The layout divides num_rows rows into microbatches, which are computed together,
        of a size that is fast there, and blocks of at most `longest` rows for a sum.
        """
        made, stream = self.made, self.stream
        work = made.work if stream.is_padding_example is None else made.row_size
        sizes = Sizes(made.row_size, work, max(num_coordinates(self.shape), 1))
        args = num_rows, longest, sizes, stream.microbatch_size
        # On CPU it is fastest to add rows one by one, but a loop that carries a sum for
        # each of many leaves takes long to compile.
        is_few = len(jax.tree.leaves(self.shape)) <= MANY
        if stream.make_factored is None and is_few:
            on_cpu = Layout.one_by_one(*args)
        else:
            # A large array is one of which a sample has more than `SMALL` entries.
            is_large = self.influence is not None or any(
                isinstance(part, Arrays) and part.is_large for part in made.parts
            )
            on_cpu = Layout.cached(*args, is_large=is_large)
        num_at_once = stream.microbatch_size or rows_at_once(
            self.row_bytes, num_bytes(self.shape), num_bytes(stream.rows)
        )
        other = Layout.parallel(num_rows, longest, sizes, num_at_once)
        if on_cpu == other:
            return run(other)
        return jax.lax.platform_dependent(
            cpu=lambda: run(on_cpu), default=lambda: run(other)
        )

    def digits(self, layout: Layout, normalize_by: Scalar) -> Digits:
        num_sums = layout.width * layout.rounds * num_shares(self.stream.axes)
        args = num_sums, layout.block_length, self.shape, self.limit
        return Digits.of(*args, normalize_by)

    def no_aux(self) -> PyTree:
        """Returns zeros in the shapes of the aux of all rows, for `add` to fill."""
        num_rows = self.stream.num_rows
        return jax.tree.map(lambda x: zeros(x, (num_rows, *x.shape[1:])), self.aux)

    def add(self, layout, digits, span, aux) -> tuple[tuple[PyTree, ...], PyTree]:
        """Returns the sum of the samples of some rows, as digits, and the filled aux.

        A span (start, stop) selects the rows `start` to `stop - 1`; None selects all.
        `layout` divides rows into blocks, and `digits` splits a block's sum into
        integers that add exactly. aux, leaves (n, ...), are outputs such as losses.
        """

        def add_microbatch(first, i, carry):
            """Returns the blocks' sums and aux after adding microbatch first + i."""
            sums, aux = carry
            samples, aux = self._microbatch(layout, span, first + i, aux)

            def add(block):
                total, some = block
                return some.add_to(total, self.influence, layout.in_turn)

            blocks = sums, samples.blocks(layout.width)
            return by_row(add, layout.width)(blocks), aux

        # Checkpointed, because a derivative would store the samples and influences of
        # all blocks; now it recomputes them, a microbatch at a time.
        @jax.checkpoint
        def add_blocks(carry, index):
            """Returns (total of digits, aux) after adding the sums of more blocks."""
            total, aux = carry
            none = [
                jnp.broadcast_to(x, (layout.width, *x.shape)) for x in self.row.zeros()
            ]
            add = jax.checkpoint(partial(add_microbatch, index * layout.microbatches))
            if layout.microbatches == 1:
                sums, aux = add(0, (none, aux))
            else:
                sums, aux = jax.lax.fori_loop(
                    0, layout.microbatches, add, (none, aux), unroll=layout.unroll
                )
            sums = by_row(self.row.build, layout.width)(sums)
            return (digits.add(total, sums), aux), None

        carry = (jax.tree.map(zeros, self.shape),) * digits.num_digits, aux
        if layout.rounds == 1:
            return add_blocks(carry, 0)[0]
        return jax.lax.scan(add_blocks, carry, jnp.arange(layout.rounds))[0]

    def _microbatch(self, layout, span, number, aux):
        """Returns a microbatch of bounded samples, to be summed, and the filled aux.

        `number` counts the microbatches, of `layout.size` rows, of the span (start,
        stop), or of all rows for None. Samples of other rows and of padding are zero.
        """
        num_rows = self.stream.num_rows
        start, size = number * layout.size, min(layout.size, num_rows)
        is_whole, stop = span is None and layout.is_exact, num_rows
        if span is not None:
            start, stop = start + span[0], span[1]
        # If the last microbatch reaches past the end, it starts earlier, and rows that
        # were counted before are set to zero.
        inside = start if is_whole else jnp.minimum(start, num_rows - size)
        samples, new = self.read(inside, size)
        update = jax.lax.dynamic_update_slice_in_dim
        aux = jax.tree.map(lambda x, y: update(x, y, inside, 0), aux, new)
        samples = self.prepare(samples).stacked()
        row = inside + jnp.arange(size)
        if not is_whole:
            samples = samples.zero_unless((row >= start) & (row < stop))
        mask = self.stream.is_padding_example
        if mask is not None:
            padding = jax.lax.dynamic_slice_in_dim(mask, inside, size)
            samples = samples.zero_unless(~padding)
        return samples.padded(layout.size), aux


def block_length(normalize_by: Scalar = 0.0) -> int:
    """Returns K, the number of bounded samples that are added as floats in one block.

    Rounding then adds K^2 2^-23 / sqrt(3) of a record's contribution to a sensitivity:
    0.03 percent for K = 64, also for a traced or missing divisor, and 0.5 percent for
    divisors beyond 2^27, which need fewer, longer blocks, so that sums add exactly.
    """
    is_large = is_concrete(normalize_by) and float(normalize_by) > 2**27
    return 256 if is_large else 64


def proven_divisor(num_rows: int, normalize_by: Scalar) -> Scalar:
    """Returns the divisor of the sum of num_rows rows, raised if traced and too small.

    Beyond 4,608 rows the bound on rounding needs num_rows / 1.125. A smaller concrete
    divisor raises `ValueError`. A traced divisor cannot; to raise it is safe, because
    `sensitivity(normalize_by)` decreases in the divisor, and still is a bound.
    """
    # With n / 1.125 the mean is within 9/8 of the limit; few rows may have any divisor.
    least = 0.0 if num_rows <= 1.125 * FEW_ROWS else num_rows / 1.125
    if is_concrete(normalize_by):
        rule = (
            f"at least {np.ceil(least):.0f} for a batch of {num_rows} rows: for less, "
            "no bound on the rounding of the mean is proved"
        )
        require(float(normalize_by) >= least, "normalize_by", normalize_by, rule)
    elif least > 0:
        # The next float32 above n / 1.125, because rounding to a float may lower it.
        divisor = as_float(jnp.asarray(normalize_by))
        above = np.nextafter(np.float32(least), np.float32(np.inf))
        return jnp.maximum(divisor, like(above, divisor))
    return normalize_by
