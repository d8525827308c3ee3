"""How rows fall into microbatches, read at once, and blocks, each with a float sum.

A microbatch has `rows` rows of each of `width` blocks, whose sums are made next to each
other. A block gets rows from `microbatches` microbatches, one after the other. Then the
next `width` blocks follow: `rounds` times in all.
"""

from typing import NamedTuple

MOST_NUMBERS = 2**18  # of all sums that are made next to each other, on CPU
IN_TURN = 16  # rows that are added in one pass over a large sum, on CPU


class Sizes(NamedTuple):
    """Numbers that are held of a row, that are made for it, and that a sum has."""

    row: int
    made: int
    total: int


class Layout(NamedTuple):
    """How rows fall into microbatches and blocks.

    Attributes:
        num_rows: rows on the device.
        width: how many blocks are summed next to each other.
        rows: how many rows of one block a microbatch has.
        microbatches: how many microbatches a block is made of.
        rounds: how many times `width` blocks are summed.
        unroll: how many microbatches the loop over them adds in one iteration.
        in_turn: as in `FactoredSamples.add_to`.
    """

    num_rows: int
    width: int
    rows: int
    microbatches: int
    rounds: int
    unroll: int = 1
    in_turn: int | None = None

    @property
    def size(self) -> int:
        """Rows of a microbatch."""
        return self.width * self.rows

    @property
    def block_length(self) -> int:
        """Rows of a block."""
        return self.rows * self.microbatches

    @property
    def is_exact(self) -> bool:
        """Whether no row is left over."""
        return self.size * self.microbatches * self.rounds == self.num_rows

    @classmethod
    def one_by_one(cls, num_rows, longest, sizes, microbatch_size):
        """Returns the layout for arrays on CPU: a microbatch has one row of each block.

        Several blocks at once are faster if their sums fit into the first cache, which
        holds 2^15 numbers. A sum of more than 2^13 numbers is made alone, because XLA
        then fuses the additions of four unrolled rows.
        """
        is_large = sizes.total > 2**13
        if microbatch_size is None:
            microbatch_size = 4 if is_large else min(2**15 // sizes.total, 512)
        unroll = min(microbatch_size, 4) if is_large else 1
        steps = -(-num_rows // min(-(-microbatch_size // unroll), num_rows, 1024))
        width = -(-num_rows // steps)
        rounds = -(-steps // longest)
        microbatches = -(-steps // rounds)
        # A divisor of the length: a remainder would be compiled once more.
        unroll = max(x for x in range(1, unroll + 1) if microbatches % x == 0)
        return cls(num_rows, width, 1, microbatches, rounds, unroll)

    @classmethod
    def cached(cls, num_rows, longest, sizes, microbatch_size, *, is_large):
        """Returns the layout for factors on CPU: as many rows as the caches hold.

        They are four at least, if memory holds these.
        """
        in_turn = IN_TURN if is_large else None
        if microbatch_size is None:
            # Rows that are processed all at once, in blocks that need no filling up,
            # stay where they are in the batch: nothing is copied.
            length = _length(num_rows, longest)
            blocks = num_rows // length
            is_small = (
                num_rows * sizes.made <= 2**21 and blocks * sizes.total <= MOST_NUMBERS
            )
            if 2 * length > min(longest, num_rows) and is_small and not is_large:
                return cls(num_rows, blocks, length, 1, 1)
            few = min(4, 2**25 // sizes.row)
            # Several blocks at once where a sum is small, as long as caches hold them.
            blocks = min(2**12 // sizes.total, 2**18 // (sizes.row * longest))
            most = longest * max(blocks, 1)
            microbatch_size = min(max(2**21 // sizes.row, few, 1), most)
            if microbatch_size < num_rows:  # batches are powers of two, or nearly all
                microbatch_size = 2 ** (microbatch_size.bit_length() - 1)
        layout = cls._of(num_rows, longest, sizes, microbatch_size, MOST_NUMBERS)
        return layout._replace(in_turn=in_turn)

    @classmethod
    def parallel(cls, num_rows, longest, sizes, microbatch_size):
        """Returns the layout elsewhere, of microbatches as `memory` has them."""
        return cls._of(num_rows, longest, sizes, microbatch_size, 2**22)

    @classmethod
    def _of(cls, num_rows, longest, sizes, microbatch_size, most_numbers):
        most = longest * max(most_numbers // sizes.total, 1)
        size = min(microbatch_size, num_rows, most)
        num_microbatches = -(-num_rows // size)
        size = -(-num_rows // num_microbatches)
        width = -(-size // longest)
        rows = -(-size // width)
        microbatches = max(min(longest // size, num_microbatches), 1)
        microbatches = -(-num_microbatches // -(-num_microbatches // microbatches))
        return cls(
            num_rows,
            width,
            rows,
            microbatches,
            -(-num_rows // (width * rows * microbatches)),
        )


def _length(num_rows, longest):
    """Returns the longest block such that all blocks are equally long."""
    return next(k for k in range(min(longest, num_rows), 0, -1) if num_rows % k == 0)
