"""How rows fall into blocks that are summed as floats, and slabs that are read at once.

A slab is read at once: its rows are those of `lanes` blocks, which are summed side by
side. A block has the rows of `slabs` slabs, one after the other.
"""

from typing import NamedTuple

LANES = 2**18  # numbers that sums of blocks side by side may have, on CPU
IN_TURN = 16  # rows that are added in one pass over a large sum, on CPU


class Sizes(NamedTuple):
    """Numbers that are held of a row, that are made for it, and that a sum has."""

    row: int
    made: int
    total: int


class Plan(NamedTuple):
    """How rows fall into blocks and slabs.

    Attributes:
        num_rows: of the device.
        lanes: blocks that are summed side by side.
        rows: of a slab in each of them.
        slabs: of a block.
        rounds: so many times as many blocks as lanes.
        unroll: so many slabs are added in one turn of the loop.
        in_turn: as of `FactoredSamples.add_to`.
    """

    num_rows: int
    lanes: int
    rows: int
    slabs: int
    rounds: int
    unroll: int = 1
    in_turn: int | None = None

    @property
    def size(self) -> int:
        """Rows of a slab."""
        return self.lanes * self.rows

    @property
    def block_length(self) -> int:
        """Rows of a block."""
        return self.rows * self.slabs

    @property
    def is_exact(self) -> bool:
        """Whether no row is left over."""
        return self.size * self.slabs * self.rounds == self.num_rows

    @classmethod
    def one_by_one(cls, num_rows, longest, sizes, microbatch_size):
        """On CPU, of arrays: a row is read for every lane, and added to its block.

        Several lanes are faster as long as their sums fit into the first cache, 2^15
        numbers. From sums of 2^13 on there is one, and XLA fuses the additions of four
        unrolled rows.
        """
        is_large = sizes.total > 2**13
        if microbatch_size is None:
            microbatch_size = 4 if is_large else min(2**15 // sizes.total, 512)
        unroll = min(microbatch_size, 4) if is_large else 1
        steps = -(-num_rows // min(-(-microbatch_size // unroll), num_rows, 1024))
        lanes = -(-num_rows // steps)
        rounds = -(-steps // longest)
        slabs = -(-steps // rounds)
        # A divisor of the length: a remainder would be compiled once more.
        unroll = max(x for x in range(1, unroll + 1) if slabs % x == 0)
        return cls(num_rows, lanes, 1, slabs, rounds, unroll)

    @classmethod
    def cached(cls, num_rows, longest, sizes, microbatch_size, *, is_large):
        """On CPU, of factors: as many rows as the caches hold; four, if memory does."""
        in_turn = IN_TURN if is_large else None
        if microbatch_size is None:
            # Rows that are processed all at once, in blocks that need no filling up,
            # stay where they are in the batch: nothing is copied.
            length = _length(num_rows, longest)
            blocks = num_rows // length
            is_small = num_rows * sizes.made <= 2**21 and blocks * sizes.total <= LANES
            if 2 * length > min(longest, num_rows) and is_small and not is_large:
                return cls(num_rows, blocks, length, 1, 1)
            few = min(4, 2**25 // sizes.row)
            # Several blocks at once where a sum is small, as long as caches hold them.
            blocks = min(2**12 // sizes.total, 2**18 // (sizes.row * longest))
            most = longest * max(blocks, 1)
            microbatch_size = min(max(2**21 // sizes.row, few, 1), most)
            if microbatch_size < num_rows:  # batches are powers of two, or nearly all
                microbatch_size = 2 ** (microbatch_size.bit_length() - 1)
        plan = cls._of(num_rows, longest, sizes, microbatch_size, LANES)
        return plan._replace(in_turn=in_turn)

    @classmethod
    def parallel(cls, num_rows, longest, sizes, microbatch_size):
        """Elsewhere: as many rows as 2^28 numbers (1 GiB) hold, 4,096 at most."""
        if microbatch_size is None:
            microbatch_size = min(max(2**28 // sizes.row, 1), 4096)
        return cls._of(num_rows, longest, sizes, microbatch_size, 2**22)

    @classmethod
    def _of(cls, num_rows, longest, sizes, microbatch_size, most_numbers):
        most = longest * max(most_numbers // sizes.total, 1)
        size = min(microbatch_size, num_rows, most)
        num_slabs = -(-num_rows // size)
        size = -(-num_rows // num_slabs)
        lanes = -(-size // longest)
        rows = -(-size // lanes)
        slabs = max(min(longest // size, num_slabs), 1)
        slabs = -(-num_slabs // -(-num_slabs // slabs))
        return cls(num_rows, lanes, rows, slabs, -(-num_rows // (lanes * rows * slabs)))


def _length(num_rows, longest):
    """Returns the longest block such that all blocks are equally long."""
    return next(k for k in range(min(longest, num_rows), 0, -1) if num_rows % k == 0)
