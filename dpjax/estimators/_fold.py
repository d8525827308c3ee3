"""The fold: a mean of bounded influences in one pass, with sums that are safe.

A float32 sum of many terms may move by far more than one term does when one term is
replaced: every later addition rounds differently. The fold prevents that in two steps.

1. At most `block_length` influences are added as plain floats. A replaced record
   changes one block only, so its rounding counts once, and a block is short.
2. A block's sum is written as a few integer digits, and the digits are added. Sums of
   integers are exact, so they are the same in any order, for every microbatch size,
   and on any number of devices.

Samples come through `Rows.read`, a few at a time: a materialised array, or gradients
that are computed when they are asked for and never stored.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._tree import by_row
from dpjax._types import PyTree, Scalar
from dpjax._validate import is_concrete, require

FEW_ROWS = 4096  # any divisor may stand over this many rows: sums of a batch are legal
MANY_ROWS = 2**24  # assumed of a number of rows that is traced


class Rows(NamedTuple):
    """Samples that are made a few at a time.

    Attributes:
        read: `read(start, size)` returns `(samples, records)` for rows `start` to
            `start + size - 1`; leaves have leading axis `size`, which is static.
            `records` is what the caller wants back for each row, or `()`.
        num_rows: how many rows there are, padding included.
        is_padding_example: shape (num_rows,), true where a row counts for nothing.
    """

    read: Callable[[Scalar, int], tuple[PyTree, PyTree]]
    num_rows: int
    is_padding_example: jax.Array | None = None


class Span(NamedTuple):
    """Rows `start` to `stop - 1`; at most `size` of them, which is static."""

    start: Scalar
    stop: Scalar
    size: int


def fold_mean(
    influence: Callable[[PyTree], PyTree],
    limit: Scalar | None,
    rows: Rows,
    *,
    normalize_by: Scalar,
    microbatch_size: int | None,
    span: Span | None = None,
    records: PyTree | None = None,
) -> tuple[PyTree, PyTree]:
    """Returns the sum of influences divided by `normalize_by`, and the records.

    Args:
        influence: maps one sample to a pytree of floats within [-limit, limit].
        limit: the bound of every coordinate; None where there is none (`Mean`).
        rows: where the samples come from.
        normalize_by: the public divisor.
        microbatch_size: how many samples are processed at once; None chooses.
        span: the rows to fold; all by default.
        records: storage for the records of all rows, from `empty_records`.
    """
    folds_all = span is None
    span = Span(0, rows.num_rows, rows.num_rows) if span is None else span
    records = empty_records(rows) if records is None else records
    check_rows_per_divisor(span.size, normalize_by)
    sample, _ = jax.eval_shape(lambda: rows.read(0, 1))
    sample = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), sample)
    shape = jax.eval_shape(influence, sample)
    size = max(num_coordinates(shape), 1)

    longest = block_length(
        float(normalize_by) if is_concrete(normalize_by) else MANY_ROWS
    )

    def run(plan: _Plan) -> tuple[PyTree, PyTree]:
        digits = _Digits.of(plan, shape, limit, normalize_by)
        all_count = folds_all and plan.is_exact and rows.is_padding_example is None

        def block(carry, index):
            total, records = carry
            sums, records = _block_sum(
                influence, rows, None if all_count else span, plan, index, records
            )
            return (digits.add(total, sums), records), None

        (total, filled), _ = jax.lax.scan(
            jax.checkpoint(block),
            (digits.zeros(shape), records),
            jnp.arange(plan.num_blocks),
        )
        return digits.mean(total), filled

    # CPU: a few samples at a time go straight into the accumulators, no reduction over
    # the sample axis. Elsewhere: many at once, and one parallel reduction.
    return jax.lax.platform_dependent(
        cpu=lambda: run(_Plan.sequential(span.size, size, longest, microbatch_size)),
        default=lambda: run(_Plan.parallel(span.size, size, longest, microbatch_size)),
    )


def block_length(normalize_by: float) -> int:
    """Returns how many influences are added as floats before they turn into digits.

    K of them cost K^2 2^-25 of the sensitivity in slack: 0.2 per cent at 256, which is
    what few records can afford; 0.01 at 64, since with many records the rounding of the
    float32 mean itself needs the room.
    """
    return 256 if normalize_by <= FEW_ROWS else 64


def empty_records(rows: Rows) -> PyTree:
    """Returns zeros that will hold the records of all rows."""
    _, records = jax.eval_shape(lambda: rows.read(0, 1))
    return jax.tree.map(
        lambda x: jnp.zeros((rows.num_rows, *x.shape[1:]), x.dtype), records
    )


def num_coordinates(tree: PyTree) -> int:
    """Returns the number of entries in all leaves together."""
    return sum(math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(tree))


def check_rows_per_divisor(num_rows: int, normalize_by: Scalar) -> None:
    """Refuses divisors so small that the proven rounding slack would not hold."""
    if is_concrete(normalize_by):
        most = 1.125 * max(float(normalize_by), FEW_ROWS)
        require(
            num_rows <= most,
            "normalize_by",
            normalize_by,
            f"at least {num_rows / 1.125:.0f} for a batch of {num_rows} rows (the "
            "rounding slack inside sensitivity() is proven up to there)",
        )


class _Plan(NamedTuple):
    """How rows fall into blocks: `lanes` blocks side by side, each `length` rows.

    No block is longer than `longest`. `unroll` steps of a block are written out.
    """

    lanes: int
    length: int
    num_blocks: int
    num_rows: int
    one_by_one: bool
    unroll: int = 1

    @classmethod
    def sequential(
        cls,
        num_rows: int,
        num_coordinates: int,
        longest: int,
        microbatch_size: int | None,
    ):
        """Lanes that fill 2^15 floats for a small model, four rows a step for a large.

        A lane is an accumulator, and rows side by side are worth it while all lanes
        stay in the first cache. From 2^13 coordinates on, rows come one after the
        other into one accumulator: what is added up is fused across the rows that are
        written out, and the cores share what is not.
        """
        is_large = num_coordinates > 2**13
        if microbatch_size is None:
            microbatch_size = 4 if is_large else min(2**15 // num_coordinates, 512)
        in_turn = min(microbatch_size, 4) if is_large else 1
        lanes = min(-(-microbatch_size // in_turn), num_rows, 1024)
        return cls._of(num_rows, lanes, longest, in_turn)

    @classmethod
    def _of(cls, num_rows: int, lanes: int, longest: int, in_turn: int):
        steps = -(-num_rows // lanes)
        lanes = -(-num_rows // steps)
        num_blocks = -(-steps // longest)
        length = -(-steps // num_blocks)
        # A divisor: what is left over would be compiled once more.
        unroll = max(x for x in range(1, in_turn + 1) if length % x == 0)
        return cls(lanes, length, num_blocks, num_rows, True, unroll)

    @classmethod
    def parallel(
        cls,
        num_rows: int,
        num_coordinates: int,
        longest: int,
        microbatch_size: int | None,
    ):
        """As many rows at once as 2^26 floats (256 MiB) hold, 4,096 at most."""
        if microbatch_size is None:
            microbatch_size = min(max(2**26 // num_coordinates, 1), 4096)
        if min(microbatch_size, num_rows) < longest:
            return cls._of(num_rows, min(microbatch_size, num_rows), longest, 1)
        lanes = min(microbatch_size, num_rows) // longest
        num_blocks = -(-num_rows // (lanes * longest))
        length = -(-num_rows // (lanes * num_blocks))
        return cls(lanes, length, num_blocks, num_rows, False)

    @property
    def is_exact(self) -> bool:
        return self.lanes * self.length * self.num_blocks == self.num_rows


def _block_sum(influence, rows, span, plan, index, records):
    """Sums the influences of block `index`: leaves (lanes, ...), `length` rows each.

    `span` is None where every row counts and the blocks cover them without a rest.
    """
    first = index * (plan.lanes * plan.length) + (0 if span is None else span.start)

    @partial(jax.checkpoint, static_argnums=1)
    def slab(start, size, records):
        # The last slab may reach past the end: it is moved back inside, and the rows
        # that were already counted are left out.
        inside = start if span is None else jnp.minimum(start, rows.num_rows - size)
        samples, new = rows.read(inside, size)
        records = jax.tree.map(
            lambda old, x: jax.lax.dynamic_update_slice_in_dim(old, x, inside, 0),
            records,
            new,
        )
        values = by_row(influence, size)(samples)
        if span is None:
            return values, records
        row = inside + jnp.arange(size)
        counts = (row >= start) & (row < span.stop)
        if rows.is_padding_example is not None:
            padding = rows.is_padding_example
            counts &= ~jax.lax.dynamic_slice_in_dim(padding, inside, size)

        def keep(x):
            return jnp.where(counts.reshape(size, *(1,) * (x.ndim - 1)), x, 0)

        return jax.tree.map(keep, values), records

    if not plan.one_by_one:
        values, records = slab(first, plan.length * plan.lanes, records)
        by_lane = jax.tree.map(
            lambda x: x.reshape(plan.length, plan.lanes, *x.shape[1:]), values
        )
        return jax.tree.map(lambda x: x.sum(axis=0), by_lane), records

    def add(step, carry):
        sums, records = carry
        values, records = slab(first + step * plan.lanes, plan.lanes, records)
        return jax.tree.map(jnp.add, sums, values), records

    sample, _ = jax.eval_shape(lambda: rows.read(0, plan.lanes))
    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype),
        jax.eval_shape(by_row(influence, plan.lanes), sample),
    )
    return jax.lax.fori_loop(0, plan.length, add, (zeros, records), unroll=plan.unroll)


class _Digits(NamedTuple):
    """Writes block sums as integer digits in a float, so that they add exactly.

    A sum x stands as x / normalize_by = (d0 + d1/base + d2/base^2) / unit. Each digit
    is an integer so small that the digits of all blocks add up within the float's
    mantissa. `unit` and `base` are powers of two: the only rounding of the mean is the
    last one, to the float that is returned.
    """

    unit: jax.Array | None  # None where influences are unbounded: then plain sums
    base: float
    num_digits: int
    normalize_by: Scalar

    @classmethod
    def of(cls, plan: _Plan, shape: PyTree, limit, normalize_by):
        if limit is None:
            return cls(None, 1.0, 1, normalize_by)
        nmant = min(int(jnp.finfo(x.dtype).nmant) for x in jax.tree.leaves(shape))
        layout = digit_layout(plan.lanes * plan.num_blocks, nmant)
        # The largest power of two with |x / normalize_by| unit <= 2^high_bits.
        limit, divisor = (
            jnp.asarray(x).astype(jnp.float32) for x in (limit, normalize_by)
        )
        _, exponent = jnp.frexp(jax.lax.stop_gradient(limit * plan.length / divisor))
        unit = jnp.ldexp(jnp.float32(1), jnp.minimum(layout.high_bits - exponent, 126))
        return cls(unit, 2.0**layout.base_bits, layout.num_digits, normalize_by)

    def zeros(self, shape: PyTree) -> tuple[PyTree, ...]:
        """Returns digits that are all zero."""
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)
        return (zero,) * self.num_digits

    def add(self, total: tuple[PyTree, ...], sums: PyTree) -> tuple[PyTree, ...]:
        """Adds the block sums of all lanes, digit by digit."""

        def scaled(x):
            x = x / jnp.asarray(self.normalize_by).astype(x.dtype)
            return x if self.unit is None else x * self.unit.astype(x.dtype)

        digits = _split(jax.tree.map(scaled, sums), self.base, self.num_digits)
        return jax.tree.map(lambda old, x: old + x.sum(axis=0), total, digits)

    def mean(self, total: tuple[PyTree, ...]) -> PyTree:
        """Returns the number that the digits stand for."""
        if self.unit is None:
            return total[0]
        digits = list(total)
        # Carry, so that each lower digit is less than the base: exact, and then the
        # sum of the lower digits is rounded far below the last place of the first.
        for i in range(self.num_digits - 1, 0, -1):
            carry = jax.tree.map(lambda x: jnp.round(x / self.base), digits[i])
            digits[i] = jax.tree.map(lambda x, c: x - c * self.base, digits[i], carry)
            digits[i - 1] = jax.tree.map(jnp.add, digits[i - 1], carry)
        value = digits[-1]
        for digit in reversed(digits[:-1]):
            value = jax.tree.map(lambda d, low: d + low / self.base, digit, value)
        unit = self.unit
        return jax.tree.map(lambda x: x / unit.astype(x.dtype), value)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _split(scaled: PyTree, base: float, num_digits: int) -> tuple[PyTree, ...]:
    if num_digits == 1:  # a plain sum
        return (scaled,)
    digits = []
    for _ in range(num_digits):
        digits.append(jax.tree.map(jnp.round, scaled))
        scaled = jax.tree.map(lambda x, d: (x - d) * base, scaled, digits[-1])
    return tuple(digits)


@_split.defjvp
def _split_jvp(base, num_digits, primals, tangents):
    # The digits stand for the number itself, so its derivative goes to the first one.
    (tangent,) = tangents
    zeros = (jax.tree.map(jnp.zeros_like, tangent),) * (num_digits - 1)
    return _split(*primals, base, num_digits), (tangent, *zeros)


class DigitLayout(NamedTuple):
    """Bits of the first digit, bits of the base, and how many digits there are."""

    high_bits: int
    base_bits: int
    num_digits: int


def digit_layout(num_sums: int, nmant: int) -> DigitLayout:
    """Returns digits such that `num_sums` of them add exactly in `nmant` + 1 bits.

    The first digit is at most 2^high_bits, the others at most base/2 in size.
    """
    bits = max(num_sums - 1, 0).bit_length()
    require(
        bits < nmant - 1,
        "samples",
        num_sums,
        f"fewer than 2^{nmant - 1 + 6} rows (their sum could not be exact)",
    )
    high, base = nmant - bits, nmant + 1 - bits
    # As many digits as resolve 2^-(nmant + 11) of a block's bound: coordinates round
    # apart from each other, and the slack counts sqrt(d) times that.
    return DigitLayout(high, base, 1 + -(-(nmant + 11 - high) // base))
