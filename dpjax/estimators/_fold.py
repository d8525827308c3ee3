"""The fold: a mean of bounded influences in one pass, with a proven sensitivity.

In a float32 sum, replacing one term changes how every later addition rounds: the sum
may move by far more than the term. The fold bounds that in two steps.

1. Up to `block_length` influences are added as floats, to the sum of a block. A record
   is in one block, so its replacement changes the rounding of that short sum only.
2. A block's sum is split into a few integer digits and a small rest (`_digits`). Digits
   add exactly, in any order, for every microbatch size and number of devices; the
   rounding of added rests is far below what a record moves.

Sharded rows: each device folds its own, and a psum adds the digits. No block has rows
of two devices, and all devices have equally many rows, hence blocks of one length and
the same digits. So the bound for one replaced record does not depend on the number of
devices; only the numbers of blocks and of rows per divisor count all of them.

Samples come through `Rows.read`, a few at a time: slices of an array, or gradients that
are computed when they are read and never stored.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._sharding import num_shares, psum, zeros
from dpjax._tree import by_row, like, num_coordinates
from dpjax._types import PyTree, Scalar
from dpjax._validate import is_concrete, require
from dpjax.estimators._digits import Digits
from dpjax.estimators._entries import as_float
from dpjax.estimators._rows import Rows, influence_shape

FEW_ROWS = 4096  # up to so many rows any divisor is allowed, such as 1 for their sum
MANY_ROWS = 2**24  # stands for a traced divisor


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
    """Returns the sum of influences divided by `normalize_by`, and the aux of all rows.

    Args:
        influence: maps one sample to a pytree of floats within [-limit, limit].
        limit: the bound of every coordinate; None where there is none (`Mean`).
        rows: the samples.
        normalize_by: the public divisor.
        microbatch_size: how many samples are processed at once; None chooses.
    """
    normalize_by = proven_divisor(rows.num_rows_in_all, normalize_by)
    longest = longest_block(normalize_by)

    def run(plan: _Plan, shape: PyTree) -> tuple[PyTree, PyTree]:
        digits = _digits(plan, shape, limit, rows, normalize_by)
        all_count = plan.is_exact and rows.is_padding_example is None
        span = None if all_count else Span(0, rows.num_rows)
        add = partial(_add_span, influence, rows, plan, digits)
        total, aux = add(span, digits.zeros(shape), _no_aux(rows))
        return digits.mean(psum(total, rows.axes)), aux

    return _by_platform(run, influence, rows, rows.num_rows, longest, microbatch_size)


def group_means(
    influence: Callable[[PyTree], PyTree],
    limit: Scalar | None,
    rows: Rows,
    *,
    sizes: np.ndarray,
    microbatch_size: int | None,
) -> tuple[PyTree, PyTree]:
    """Returns the mean influence of every group, leaves (G, ...), and the aux of rows.

    Args:
        influence: as for `fold_mean`.
        limit: as for `fold_mean`.
        rows: the samples.
        sizes: the number of rows of each group, shape (G,). Groups are consecutive
            ranges of the rows of all devices.
        microbatch_size: as for `fold_mean`.
    """
    device = jax.lax.axis_index(rows.axes) if rows.axes else 0
    first, starts, stops = (
        jnp.asarray(x)[device] if rows.axes else jnp.asarray(x[0])
        for x in _groups_by_device(sizes, rows)
    )

    def run(plan: _Plan, shape: PyTree) -> tuple[PyTree, PyTree]:
        every = _digits(plan, shape, limit, rows, jnp.asarray(sizes))

        def group(aux, place):
            index, span = place
            digits = every.of_group(index)
            add = partial(_add_span, influence, rows, plan, digits)
            total, aux = add(span, digits.zeros(shape), aux)
            return aux, total if rows.axes else digits.mean(total)

        indices = first + jnp.arange(len(starts))
        aux, found = jax.lax.scan(group, _no_aux(rows), (indices, Span(starts, stops)))
        if not rows.axes:
            return found, aux
        # A device has found the digits of those groups that it has rows of.
        total = jax.tree.map(
            lambda x: jax.lax.dynamic_update_slice_in_dim(
                zeros(x, (len(sizes), *x.shape[1:])), x, first, 0
            ),
            found,
        )
        mean = jax.vmap(lambda index, total: every.of_group(index).mean(total))
        return mean(jnp.arange(len(sizes)), psum(total, rows.axes)), aux

    most = min(int(sizes.max()), rows.num_rows)
    longest = block_length(MANY_ROWS)
    return _by_platform(run, influence, rows, most, longest, microbatch_size)


def block_length(normalize_by: float) -> int:
    """Returns how many influences a block adds as floats.

    A block of K adds K^2 2^-25 of the sensitivity: 0.2 per cent at 256, for few
    records; 0.01 at 64, for many, where rounding the float32 mean costs more than that.
    Beyond 2^27 that rounding is ten times what a record moves, and longer blocks keep
    the number of block sums below where digits no longer add exactly.
    """
    return 64 if FEW_ROWS < normalize_by <= 2**27 else 256


def longest_block(normalize_by: Scalar) -> int:
    """Returns `block_length` of a divisor that may be traced."""
    return block_length(float(normalize_by) if is_concrete(normalize_by) else MANY_ROWS)


def check_rows_per_divisor(num_rows: int, normalize_by: Scalar) -> None:
    """Refuses divisors too small for the bound on rounding to hold."""
    if is_concrete(normalize_by):
        require(
            float(normalize_by) >= _least_divisor(num_rows),
            "normalize_by",
            normalize_by,
            f"at least {_least_divisor(num_rows):.0f} for a batch of {num_rows} rows "
            "(the rounding slack inside sensitivity() is proven up to there)",
        )


def proven_divisor(num_rows: int, normalize_by: Scalar) -> Scalar:
    """Returns the divisor; a traced one is raised to where the bound on rounding holds.

    A traced divisor cannot be refused. Raising it is safe: the sensitivity falls with
    the divisor, so that `sensitivity(normalize_by)` is still a bound.
    """
    least = _least_divisor(num_rows)
    if is_concrete(normalize_by) or least == 0:
        check_rows_per_divisor(num_rows, normalize_by)
        return normalize_by
    # Half precision, and a float32 too, may round n / 1.125 down.
    divisor = as_float(jnp.asarray(normalize_by))
    above = np.nextafter(np.float32(least), np.float32(np.inf))
    return jnp.maximum(divisor, like(above, divisor))


def _least_divisor(num_rows: int) -> float:
    """Returns n / 1.125: the mean then stays within 9/8 of the limit."""
    return 0.0 if num_rows <= 1.125 * FEW_ROWS else num_rows / 1.125


class _Plan(NamedTuple):
    """How rows fall into blocks of `length` rows, of which `lanes` are summed at once.

    No block is longer than `longest`. `unroll` steps of a block are unrolled.
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
        """Many accumulators for a small model, one for a large one.

        A lane is an accumulator; several are faster as long as all fit into the first
        cache, 2^15 floats. From 2^13 coordinates on there is one, and XLA fuses the
        additions of four unrolled rows.
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
        # A divisor of the length: a remainder would be compiled once more.
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
    """Returns each device's first group, and where its k groups start and stop there.

    Shapes (devices,), (devices, k) and (devices, k), where k is the largest number of
    groups that a device has rows of; others have groups without rows of theirs.
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
    """Returns `run(plan, shape)` with the platform's plan and an influence's shape."""
    shape = influence_shape(influence, rows)
    args = num_rows, max(num_coordinates(shape), 1), longest, microbatch_size
    # CPU: a few samples at a time are added to accumulators, without a reduction over
    # the sample axis. Elsewhere: many at once, and one parallel reduction.
    return jax.lax.platform_dependent(
        cpu=lambda: run(_Plan.sequential(*args), shape),
        default=lambda: run(_Plan.parallel(*args), shape),
    )


def _digits(plan, shape, limit, rows, normalize_by):
    num_sums = plan.lanes * plan.num_blocks * num_shares(rows.axes)
    return Digits.of(num_sums, plan.length, shape, limit, normalize_by)


def _no_aux(rows):
    """Returns zeros that will hold the aux of all rows."""
    _, aux = jax.eval_shape(lambda: rows.read(0, 1))
    return jax.tree.map(lambda x: zeros(x, (rows.num_rows, *x.shape[1:])), aux)


def _add_span(influence, rows, plan, digits, span, total, aux):
    """Adds the influences of a span to digits, by blocks, and fills in its aux."""

    def block(carry, index):
        total, aux = carry
        sums, aux = _block_sum(influence, rows, span, plan, index, aux)
        return (digits.add(total, sums), aux), None

    blocks = jnp.arange(plan.num_blocks)
    return jax.lax.scan(jax.checkpoint(block), (total, aux), blocks)[0]


def _block_sum(influence, rows, span, plan, index, aux):
    """Sums the influences of `lanes` blocks of `length` rows: leaves (lanes, ...).

    `span` is None where no row is left out and blocks cover the rows exactly.
    """
    first = index * (plan.lanes * plan.length) + (0 if span is None else span.start)

    @partial(jax.checkpoint, static_argnums=1)
    def slab(start, size, aux):
        # The last slab may reach past the end: it is shifted back, and those of its
        # rows that are already counted are left out.
        inside = start if span is None else jnp.minimum(start, rows.num_rows - size)
        samples, new = rows.read(inside, size)
        aux = jax.tree.map(
            lambda old, x: jax.lax.dynamic_update_slice_in_dim(old, x, inside, 0),
            aux,
            new,
        )
        values = by_row(influence, size)(samples)
        if span is None:
            return values, aux
        row = inside + jnp.arange(size)
        counts = (row >= start) & (row < span.stop)
        if rows.is_padding_example is not None:
            padding = rows.is_padding_example
            counts &= ~jax.lax.dynamic_slice_in_dim(padding, inside, size)

        def keep(x):
            return jnp.where(counts.reshape(size, *(1,) * (x.ndim - 1)), x, 0)

        return jax.tree.map(keep, values), aux

    if not plan.one_by_one:
        values, aux = slab(first, plan.length * plan.lanes, aux)
        by_lane = jax.tree.map(
            lambda x: x.reshape(plan.length, plan.lanes, *x.shape[1:]), values
        )
        return jax.tree.map(lambda x: x.sum(axis=0), by_lane), aux

    def add(step, carry):
        sums, aux = carry
        values, aux = slab(first + step * plan.lanes, plan.lanes, aux)
        return jax.tree.map(jnp.add, sums, values), aux

    shape = jax.eval_shape(
        lambda: by_row(influence, plan.lanes)(rows.read(0, plan.lanes)[0])
    )
    none = jax.tree.map(zeros, shape)
    return jax.lax.fori_loop(0, plan.length, add, (none, aux), unroll=plan.unroll)
