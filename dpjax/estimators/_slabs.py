"""The fold of factored samples: a slab of them at a time, with the fold's own bound.

A block's sum adds K bounded terms to every coordinate, K at most the `block_length` of
`_fold`, and is then split into digits as there. Only the sum itself is another one: a
product of matrices, of which neither the order nor the use of fused operations is
known, and which need not add all coordinates in the same order.

What rounding may do to it, u the unit roundoff, y_1 to y_K the terms of one coordinate:
each is a product that is rounded once (or not at all), and passes as many additions as
its depth in the tree of sums. The sum is off by at most (1 + K u) u sum (1 + depth_i)
|y_i|. By Cauchy-Schwarz

    sum (1 + depth_i) |y_i| <= sqrt(sum_i (1 + depth_i)^2) sqrt(sum_i y_i^2).

Of all trees of K leaves the sum of squares is largest where terms are added one after
the other: depths K - 1, K - 1, K - 2, ..., 1. Squared and summed over coordinates, each
of which may have its own order, this bounds the l2 norm of the error by (1 + K u) u
sqrt(K sum (1 + depth_i)^2) times the limit of a sample's norm: `sensitivity()` counts
that (`sum_error`).

For influences by coordinate the fold's own bound holds, coordinate by coordinate: it is
that of the deepest tree.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax._sharding import num_shares, psum, zeros
from dpjax._tree import num_coordinates
from dpjax._types import PyTree, Scalar
from dpjax.estimators._digits import Digits
from dpjax.estimators._factored_leaves import Influence
from dpjax.estimators._factors import IN_TURN, FactoredSamples
from dpjax.estimators._fold import longest_block, proven_divisor
from dpjax.estimators._rows import Rows

LANES = 2**18  # numbers that sums of blocks side by side may have, on CPU


def fold_factored(
    prepare: Callable[[FactoredSamples], FactoredSamples],
    limit: Scalar,
    rows: Rows,
    *,
    normalize_by: Scalar,
    microbatch_size: int | None,
    influence: Influence | None = None,
) -> tuple[PyTree, PyTree]:
    """Returns the sum of influences divided by `normalize_by`, and the aux of all rows.

    Args:
        prepare: makes of samples what is summed. Rows to leave out are zeros; what it
            makes of them must be, too.
        limit: the bound of every coordinate of what is summed.
        rows: the samples.
        normalize_by: the public divisor.
        microbatch_size: how many samples are processed at once; None chooses.
        influence: acts by coordinate as leaves are added, and leaves zero as it is.
            Factored leaves are then added some rows in one pass over a sum, on CPU, as
            large arrays are.
    """
    normalize_by = proven_divisor(rows.num_rows_in_all, normalize_by)
    longest = longest_block(normalize_by)
    row, aux_shape = jax.eval_shape(lambda: rows.factored(0, 1))
    shape = jax.eval_shape(lambda: row.build(row.zeros()))

    def run(plan: _Plan) -> tuple[PyTree, PyTree]:
        num_sums = plan.num_slabs // plan.slabs * plan.blocks * num_shares(rows.axes)
        digits = Digits.of(num_sums, plan.block_length, shape, limit, normalize_by)
        aux = jax.tree.map(lambda x: zeros(x, (rows.num_rows, *x.shape[1:])), aux_shape)
        slab = partial(_slab, prepare, rows, plan)
        add = jax.checkpoint(partial(_add_slabs, slab, influence, plan, digits, row))
        carry = digits.zeros(shape), aux
        steps = plan.num_slabs // plan.slabs
        if steps == 1:
            total, aux = add(carry, 0)
        else:
            total, aux = jax.lax.scan(
                lambda carry, index: (add(carry, index), None), carry, jnp.arange(steps)
            )[0]
        return digits.mean(psum(total, rows.axes)), aux

    made = row.work if rows.is_padding_example is None else row.row_size
    sizes = _Sizes(row.row_size, made, max(num_coordinates(shape), 1))
    args = rows.num_rows, longest, sizes, microbatch_size
    is_large = influence is not None or row.has_large_arrays
    in_turn = IN_TURN if is_large else None
    plan, other = _Plan.cached(*args, in_turn), _Plan.parallel(*args)
    if plan == other:
        return run(plan)
    return jax.lax.platform_dependent(cpu=lambda: run(plan), default=lambda: run(other))


class _Sizes(NamedTuple):
    """Numbers that are held of a row, that are made for it, and that a sum has."""

    row: int
    made: int
    total: int


class _Plan(NamedTuple):
    """How rows fall into slabs that are processed at once, and into blocks.

    A slab holds `blocks` blocks, or a block `slabs` slabs: one of both is 1. Blocks of
    a slab are summed at once, as `lanes`, or one after the other.
    """

    num_rows: int
    size: int  # rows of a slab
    num_slabs: int
    slabs: int
    blocks: int
    are_lanes: bool
    in_turn: int | None

    @classmethod
    def cached(cls, num_rows, longest, sizes, microbatch_size, in_turn):
        """On CPU: as many rows as the caches hold; four, if memory does."""
        if microbatch_size is None:
            # Rows that are processed all at once, in blocks that need no filling up,
            # stay where they are in the batch: nothing is copied.
            length = _length(num_rows, longest)
            blocks = num_rows // length
            is_small = num_rows * sizes.made <= 2**21 and blocks * sizes.total <= LANES
            if 2 * length > min(longest, num_rows) and is_small and in_turn is None:
                return cls(num_rows, num_rows, 1, 1, blocks, blocks > 1, None)
            few = min(4, 2**25 // sizes.row)
            # Several blocks at once where a sum is small, as long as caches hold them.
            blocks = min(2**12 // sizes.total, 2**18 // (sizes.row * longest))
            most = longest * max(blocks, 1)
            microbatch_size = min(max(2**21 // sizes.row, few, 1), most)
            if microbatch_size < num_rows:  # batches are powers of two, or nearly all
                microbatch_size = 2 ** (microbatch_size.bit_length() - 1)
        return cls._of(num_rows, longest, sizes, microbatch_size, LANES, in_turn)

    @classmethod
    def parallel(cls, num_rows, longest, sizes, microbatch_size):
        """Elsewhere: as many rows as 2^28 numbers (1 GiB) hold, 4,096 at most."""
        if microbatch_size is None:
            microbatch_size = min(max(2**28 // sizes.row, 1), 4096)
        return cls._of(num_rows, longest, sizes, microbatch_size, 2**22, None)

    @classmethod
    def _of(cls, num_rows, longest, sizes, microbatch_size, lanes, in_turn):
        size = min(microbatch_size, num_rows)
        num_slabs = -(-num_rows // size)
        size = -(-num_rows // num_slabs)
        if size > longest:
            blocks = -(-size // longest)
            size = -(-size // blocks) * blocks
            are_lanes = blocks * sizes.total <= lanes
            return cls(num_rows, size, num_slabs, 1, blocks, are_lanes, in_turn)
        slabs = min(longest // size, num_slabs)
        steps = -(-num_slabs // slabs)
        slabs = -(-num_slabs // steps)
        return cls(num_rows, size, steps * slabs, slabs, 1, False, in_turn)

    @property
    def block_length(self) -> int:
        return self.size * self.slabs // self.blocks

    @property
    def is_exact(self) -> bool:
        return self.size * self.num_slabs == self.num_rows


def _length(num_rows, longest):
    """Returns the longest block such that all blocks are equally long."""
    return next(k for k in range(min(longest, num_rows), 0, -1) if num_rows % k == 0)


def _add_slabs(slab, influence, plan, digits, row, carry, index):
    """Adds the blocks of some slabs to digits, and fills in their aux."""
    total, aux = carry

    if plan.slabs == 1:
        samples, aux = slab(index, aux)
        size = plan.block_length

        def sums_of(some):
            return row.build(some.add_to(row.zeros(), influence, plan.in_turn))

        if plan.are_lanes:
            sums = jax.vmap(sums_of)(samples.blocks(plan.blocks))
            return digits.add(total, sums), aux

        def block(i, total):
            sums = sums_of(samples.rows(i * size, size))
            return digits.add(total, jax.tree.map(lambda x: x[None], sums))

        if plan.blocks == 1:
            return block(0, total), aux
        return jax.lax.fori_loop(0, plan.blocks, block, total), aux

    def add_slab(i, carry):
        sums, aux = carry
        samples, aux = slab(index * plan.slabs + i, aux)
        return samples.add_to(sums, influence, plan.in_turn), aux

    sums, aux = jax.lax.fori_loop(0, plan.slabs, add_slab, (row.zeros(), aux))
    lane = jax.tree.map(lambda x: x[None], row.build(sums))
    return digits.add(total, lane), aux


def _slab(prepare, rows, plan, index, aux):
    """Returns what is summed of a slab, and the aux with its own."""
    start, size = index * plan.size, min(plan.size, rows.num_rows)
    # The last slab may reach past the end: it is shifted back, and those of its rows
    # that are already counted are left out.
    inside = start if plan.is_exact else jnp.minimum(start, rows.num_rows - size)
    samples, new = rows.factored(inside, size)
    aux = jax.tree.map(
        lambda old, x: jax.lax.dynamic_update_slice_in_dim(old, x, inside, 0), aux, new
    )
    if not plan.is_exact:
        samples = samples.zero_unless(inside + jnp.arange(size) >= start)
    if rows.is_padding_example is not None:
        is_padding = jax.lax.dynamic_slice_in_dim(rows.is_padding_example, inside, size)
        samples = samples.zero_unless(~is_padding)
    if size < plan.size:
        samples = samples.padded(plan.size)
    return prepare(samples), aux
