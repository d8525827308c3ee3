"""The fold: a mean of bounded influences in one pass, with sums that are safe.

A float32 sum of many terms may move by far more than one term does when one term is
replaced: every later addition rounds differently. The fold prevents that in two steps.

1. At most `block_length` influences are added as plain floats. A replaced record
   changes one block only, so its rounding counts once, and a block is short.
2. A block's sum is written as a few integer digits and a small rest, and those are
   added. Sums of integers are exact, in any order, for every microbatch size and on
   any number of devices; what sums of rests round is far below what a record moves.

Where rows are dealt out over devices, each adds up blocks of its own rows, and the sums
of digits are added last. A block lies on one device. All devices run one program on as
many rows each, so their blocks are as long, and digits mean the same everywhere: what
is proven of a replaced record and its block does not know of devices. Only the number
of sums does, and the number of rows per divisor, which both count all devices.

Samples come through `Rows.read`, a few at a time: a materialised array, or gradients
that are computed when they are asked for and never stored.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._sharding import num_shares, psum, zeros
from dpjax._tree import by_row, float_dtype, num_coordinates
from dpjax._types import PyTree, Scalar
from dpjax._validate import is_concrete, require
from dpjax.estimators._digits import Digits

FEW_ROWS = 4096  # any divisor may stand over this many rows: sums of a batch are legal
MANY_ROWS = 2**24  # assumed of a number of rows that is traced


class Rows(NamedTuple):
    """Samples that are made a few at a time.

    Attributes:
        read: `read(start, size)` returns `(samples, records)` for rows `start` to
            `start + size - 1`; leaves have leading axis `size`, which is static.
            `records` is what the caller wants back for each row, or `()`.
        num_rows: how many rows there are, padding included; on this device, where they
            are dealt out.
        is_padding_example: shape (num_rows,), true where a row counts for nothing.
        axes: the Manual mesh axes over which rows are dealt out, as many to each
            device. `()` where all rows are here.
    """

    read: Callable[[Scalar, int], tuple[PyTree, PyTree]]
    num_rows: int
    is_padding_example: jax.Array | None = None
    axes: tuple[str, ...] = ()

    def read_all(self, microbatch_size: int | None) -> tuple[PyTree, PyTree]:
        """Returns all samples and records, made so many at once; None is all."""
        if microbatch_size is None:
            return self.read(0, self.num_rows)
        each = jax.lax.map(
            lambda row: self.read(row, 1),
            jnp.arange(self.num_rows),
            batch_size=microbatch_size,
        )
        return jax.tree.map(lambda x: x[:, 0], each)

    @property
    def num_rows_in_all(self) -> int:
        """The number of rows on all devices together."""
        return self.num_rows * num_shares(self.axes)


class Span(NamedTuple):
    """Rows `start` to `stop - 1`."""

    start: Scalar
    stop: Scalar


def fold_mean(
    influence: Callable[[PyTree], PyTree],
    limit: Scalar | None,
    rows: Rows,
    *,
    normalize_by: Scalar,
    microbatch_size: int | None,
) -> tuple[PyTree, PyTree]:
    """Returns the sum of influences divided by `normalize_by`, and the records.

    Args:
        influence: maps one sample to a pytree of floats within [-limit, limit].
        limit: the bound of every coordinate; None where there is none (`Mean`).
        rows: where the samples come from.
        normalize_by: the public divisor.
        microbatch_size: how many samples are processed at once; None chooses.
    """
    normalize_by = _proven_divisor(rows.num_rows_in_all, normalize_by)
    longest = block_length(
        float(normalize_by) if is_concrete(normalize_by) else MANY_ROWS
    )

    def run(plan: _Plan, shape: PyTree) -> tuple[PyTree, PyTree]:
        digits = _digits(plan, shape, limit, rows, normalize_by)
        all_count = plan.is_exact and rows.is_padding_example is None
        span = None if all_count else Span(0, rows.num_rows)
        add = partial(_add_span, influence, rows, plan, digits)
        total, records = add(span, digits.zeros(shape), _no_records(rows))
        return digits.mean(psum(total, rows.axes)), records

    return _by_platform(run, influence, rows, rows.num_rows, longest, microbatch_size)


def group_means(
    influence: Callable[[PyTree], PyTree],
    limit: Scalar | None,
    rows: Rows,
    *,
    sizes: np.ndarray,
    microbatch_size: int | None,
) -> tuple[PyTree, PyTree]:
    """Returns the mean influence of every group, leaves (G, ...), and the records.

    Args:
        influence: as for `fold_mean`.
        limit: as for `fold_mean`.
        rows: where the samples come from.
        sizes: how many rows each group has, shape (G,). Groups follow one another
            through the rows of all devices.
        microbatch_size: as for `fold_mean`.
    """
    device = jax.lax.axis_index(rows.axes) if rows.axes else 0
    first, starts, stops = (
        jnp.asarray(x)[device] if rows.axes else jnp.asarray(x[0])
        for x in _groups_by_device(sizes, rows)
    )

    def run(plan: _Plan, shape: PyTree) -> tuple[PyTree, PyTree]:
        every = _digits(plan, shape, limit, rows, jnp.asarray(sizes))

        def group(records, place):
            index, span = place
            digits = every.of_group(index)
            add = partial(_add_span, influence, rows, plan, digits)
            total, records = add(span, digits.zeros(shape), records)
            return records, total if rows.axes else digits.mean(total)

        indices = first + jnp.arange(len(starts))
        records, found = jax.lax.scan(
            group, _no_records(rows), (indices, Span(starts, stops))
        )
        if not rows.axes:
            return found, records
        # Each device has the digits of those groups of which it has rows.
        total = jax.tree.map(
            lambda x: jax.lax.dynamic_update_slice_in_dim(
                zeros(x, (len(sizes), *x.shape[1:])), x, first, 0
            ),
            found,
        )
        mean = jax.vmap(lambda index, total: every.of_group(index).mean(total))
        return mean(jnp.arange(len(sizes)), psum(total, rows.axes)), records

    most = min(int(sizes.max()), rows.num_rows)
    longest = block_length(MANY_ROWS)
    return _by_platform(run, influence, rows, most, longest, microbatch_size)


def block_length(normalize_by: float) -> int:
    """Returns how many influences are added as floats before they turn into digits.

    K of them cost K^2 2^-25 of the sensitivity in slack: 0.2 per cent at 256, which is
    what few records can afford; 0.01 at 64, since with many records the rounding of the
    float32 mean itself needs the room. With more than 2^27 that rounding is ten times
    what a record moves, and longer blocks keep the sums few enough to be exact.
    """
    return 64 if FEW_ROWS < normalize_by <= 2**27 else 256


def check_rows_per_divisor(num_rows: int, normalize_by: Scalar) -> None:
    """Refuses divisors so small that the proven rounding slack would not hold."""
    if is_concrete(normalize_by):
        require(
            float(normalize_by) >= _least_divisor(num_rows),
            "normalize_by",
            normalize_by,
            f"at least {_least_divisor(num_rows):.0f} for a batch of {num_rows} rows "
            "(the rounding slack inside sensitivity() is proven up to there)",
        )


def _proven_divisor(num_rows: int, normalize_by: Scalar) -> Scalar:
    """Returns the divisor, a traced one raised to where the slack is proven.

    A smaller divisor cannot be refused where its value is not at hand. A larger one has
    the smaller sensitivity, so what `sensitivity(normalize_by)` says still covers it.
    """
    least = _least_divisor(num_rows)
    if is_concrete(normalize_by) or least == 0:
        check_rows_per_divisor(num_rows, normalize_by)
        return normalize_by
    divisor = jnp.asarray(normalize_by)
    return jnp.maximum(divisor.astype(float_dtype(divisor)), least)


def _least_divisor(num_rows: int) -> float:
    """The mean of 9/8 as many rows as the divisor stays within 9/8 of the limit."""
    return 0.0 if num_rows <= 1.125 * FEW_ROWS else num_rows / 1.125


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


def _groups_by_device(sizes, rows):
    """Returns the first group that each device looks at, and the spans of all of them.

    Shapes (devices,), (devices, k) and (devices, k): k groups for each, as many as any
    device has rows of. A span holds the device's own rows of a group, or none.
    """
    stops = np.cumsum(sizes)
    offsets = np.arange(0, rows.num_rows_in_all, rows.num_rows)
    first = np.searchsorted(stops, offsets, side="right")
    last = np.searchsorted(stops, offsets + rows.num_rows, side="left")
    most = (last - first).max() + 1
    first = np.minimum(first, len(sizes) - most)
    groups = first[:, None] + np.arange(most)
    return first, *(
        np.clip(x[groups] - offsets[:, None], 0, rows.num_rows)
        for x in (stops - sizes, stops)
    )


def _by_platform(run, influence, rows, num_rows, longest, microbatch_size):
    """Returns `run(plan, shape)`: the platform's plan, the shape of an influence."""

    def one():
        samples, _ = rows.read(0, 1)
        return influence(jax.tree.map(lambda x: jax.lax.squeeze(x, [0]), samples))

    shape = jax.eval_shape(one)
    args = num_rows, max(num_coordinates(shape), 1), longest, microbatch_size
    # CPU: a few samples at a time go straight into the accumulators, no reduction over
    # the sample axis. Elsewhere: many at once, and one parallel reduction.
    return jax.lax.platform_dependent(
        cpu=lambda: run(_Plan.sequential(*args), shape),
        default=lambda: run(_Plan.parallel(*args), shape),
    )


def _digits(plan, shape, limit, rows, normalize_by):
    num_sums = plan.lanes * plan.num_blocks * num_shares(rows.axes)
    return Digits.of(num_sums, plan.length, shape, limit, normalize_by)


def _no_records(rows):
    """Returns zeros that will hold the records of all rows."""
    _, records = jax.eval_shape(lambda: rows.read(0, 1))
    return jax.tree.map(lambda x: zeros(x, (rows.num_rows, *x.shape[1:])), records)


def _add_span(influence, rows, plan, digits, span, total, records):
    """Adds the influences of a span, by blocks, to digits; and fills in records."""

    def block(carry, index):
        total, records = carry
        sums, records = _block_sum(influence, rows, span, plan, index, records)
        return (digits.add(total, sums), records), None

    blocks = jnp.arange(plan.num_blocks)
    return jax.lax.scan(jax.checkpoint(block), (total, records), blocks)[0]


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

    shape = jax.eval_shape(
        lambda: by_row(influence, plan.lanes)(rows.read(0, plan.lanes)[0])
    )
    none = jax.tree.map(zeros, shape)
    return jax.lax.fori_loop(0, plan.length, add, (none, records), unroll=plan.unroll)
