"""Streams of samples, computed from rows when needed, and the sizes of microbatches.

Rows are read in microbatches, and added in blocks, each with a float sum: `Layout`. On
a GPU or TPU the memory bounds the size of a microbatch (`memory`), and so does the size
of the sums of its blocks: 2^22 numbers together, or a single block. The size depends
only on shapes and on the device, hence on public facts. It changes how a mean is
rounded; `sensitivity()` bounds that for every size.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._sharding import num_shares
from dpjax._sums.samples import FactoredSamples
from dpjax._tree import materialized
from dpjax._types import PyTree, Scalar

MOST_NUMBERS = 2**18  # bounds the numbers in all sums of concurrent blocks, on CPU
IN_TURN = 16  # rows that are added in one pass over a large sum, on CPU
MakeFactored = Callable[[PyTree], tuple[FactoredSamples, PyTree]]


REFUSED = (
    "a stream of samples takes no arithmetic, and passes no jit, scan or vmap, because "
    "it holds the parameters and records from which samples are made. Make it inside "
    "the compiled function, and hand it to an estimator, aggregate, or privatize in "
    "the first place of a chain: scale their mean, and take the norm of that"
)


@dataclass(frozen=True, repr=False)
class SampleStream(np.lib.mixins.NDArrayOperatorsMixin):
    """Samples that are computed from rows when they are needed, a few at a time.

    `streamed_grad` returns the gradients of a batch as a stream. In a pytree a stream
    is a leaf, so that a function mapped over gradients never gets parameters or records
    instead: arithmetic with a stream raises `ValueError`.

    Attributes:
        make_samples: `make_samples(shared, some_rows)` returns `(samples, aux)`, both
            with the leading axis of some_rows; aux is a further output, or `()`.
        shared: pytree that all samples depend on, such as parameters.
        rows: pytree, leaves of shape (n, ...), such as a batch.
        microbatch_size: number of samples computed at once; None chooses.
        make_factored: `make_factored(shared, rows)` returns a function of some rows
            that returns `(samples, aux)` with `FactoredSamples`, for estimators that
            compute norms and sums from factors; None if no samples have factors.
        is_padding_example: shape (n,), true for rows to leave out; None keeps all.
        axes: the Manual mesh axes over which rows are sharded evenly, `()` if none;
            set by the estimator.
    """

    make_samples: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]
    shared: PyTree
    rows: PyTree
    microbatch_size: int | None = None
    make_factored: Callable[[PyTree, PyTree], MakeFactored] | None = None
    is_padding_example: jax.Array | None = None
    axes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, samples: PyTree, is_padding_example: jax.Array | None = None
    ) -> "SampleStream":
        """Returns arrays of samples, or a stream, as a stream with the mask.

        A pytree with a stream as its only leaf counts as this stream, because some
        optimizers, such as `flax.nnx.Optimizer`, pass gradients in a container.
        """
        leaves = jax.tree.leaves(samples)
        is_stream = len(leaves) == 1 and isinstance(leaves[0], cls)
        stream = leaves[0] if is_stream else cls(_themselves, (), samples)
        if is_padding_example is not None:
            rule = "None beside a stream that has a mask"
            is_fine = stream.is_padding_example is None
            _validate.require(is_fine, "is_padding_example", is_padding_example, rule)
            stream = replace(stream, is_padding_example=is_padding_example)
        _validate.mask(stream.is_padding_example, stream.num_rows)
        return stream

    def __repr__(self) -> str:
        """Returns a text without numbers, because rows are records."""
        return f"<{REFUSED}>"

    def __array_ufunc__(self, *args: Any, **options: Any) -> Any:
        """Raises `ValueError`, because operators, NumPy and JAX call this method."""
        raise ValueError(REFUSED)

    __array__ = __array_ufunc__
    __jax_array__ = property(__array_ufunc__)

    def __getattr__(self, name: str) -> Any:
        """Raises `AttributeError` for any other attribute, as of an array."""
        raise AttributeError(f"no {name}: {REFUSED}")

    def __contains__(self, name: object) -> bool:
        """Returns False, because Flax's `TrainState` asks gradients for leaf names."""
        return False

    @property
    def num_rows(self) -> int:
        """Returns the number of rows on this device, padding included."""
        return _validate.leading_size(self.rows, "samples")

    @property
    def num_rows_in_all(self) -> int:
        """Returns the number of rows on all devices."""
        return self.num_rows * num_shares(self.axes)

    def reader(self) -> Callable[[Scalar, int], tuple[FactoredSamples, PyTree]]:
        """Returns read(start, size), which computes samples and aux of `size` rows.

        They are rows `start` to `start + size - 1`; size is static. `make_factored` is
        traced here, once.
        """
        factored = self.make_factored
        make = self._made if factored is None else factored(self.shared, self.rows)

        def read(start: Scalar, size: int) -> tuple[FactoredSamples, PyTree]:
            if size == self.num_rows:
                return make(self.rows)
            slice_rows = jax.lax.dynamic_slice_in_dim
            return make(jax.tree.map(lambda x: slice_rows(x, start, size), self.rows))

        return read

    def call(self, function: Callable[..., PyTree], *args: PyTree) -> PyTree:
        """Returns function(stream, *args), compiled if the rows are the samples."""
        if self.make_samples is not _themselves:
            return function(self, *args)
        sizes = self.microbatch_size, self.axes
        return _call(function, sizes, self.rows, self.is_padding_example, *args)

    def written_out(self) -> "SampleStream":
        """Returns the stream without factors: all samples are arrays."""
        return replace(self, make_factored=None)

    def has_small_factors(self) -> bool:
        """Returns whether factors of any leaf are much smaller than the leaf."""
        if self.make_factored is None:
            return False
        return jax.eval_shape(lambda: self.reader()(0, 1)[0]).has_small_factors

    def read_all(self) -> tuple[PyTree, PyTree]:
        """Returns all samples, as arrays, and all aux."""

        def of_row(row):
            some = self.make_samples(self.shared, jax.tree.map(lambda x: x[None], row))
            return jax.tree.map(lambda x: x[0], some)

        if (size := self.microbatch_size) is None:
            samples, aux = self.make_samples(self.shared, self.rows)
        else:
            samples, aux = jax.lax.map(of_row, self.rows, batch_size=size)
        return materialized(samples), aux

    def num_coordinates(self) -> int:
        """Returns the number of entries of one sample, all leaves together."""

        def on_no_mesh(x, *size):  # drops shardings, which one row cannot have
            shape = (*size, *np.shape(x)[len(size) :])
            return jax.ShapeDtypeStruct(shape, jnp.result_type(x))

        shared = jax.tree.map(on_no_mesh, self.shared)
        row = jax.tree.map(lambda x: on_no_mesh(x, 1), self.rows)
        samples, _ = jax.eval_shape(self.make_samples, shared, row)
        return sum(x.size for x in jax.tree.leaves(samples))

    def _made(self, rows):
        samples, aux = self.make_samples(self.shared, rows)
        _validate.real(samples=samples)
        return FactoredSamples(samples), aux


def _themselves(shared: PyTree, rows: PyTree) -> tuple[PyTree, PyTree]:
    del shared
    return rows, ()


@partial(jax.jit, static_argnums=(0, 1))
def _call(function, sizes, rows, mask, *args):
    microbatch_size, axes = sizes
    stream = SampleStream(_themselves, (), rows, microbatch_size, None, mask, axes)
    return function(stream, *args)


class Sizes(NamedTuple):
    """Counts of numbers: held for a row, computed for a row, and in a sum."""

    row: int
    made: int
    total: int


class Layout(NamedTuple):
    """Divides rows into microbatches and blocks.

    A microbatch has `rows` rows for each of `width` blocks, which are summed side by
    side. A block gets rows from `microbatches` consecutive microbatches. Then the next
    `width` blocks follow, for `rounds` rounds.

    Attributes:
        num_rows: number of rows on the device.
        unroll: number of microbatches that one iteration of the loop adds.
        in_turn: see `FactoredSamples.add_to`.
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
        return self.width * self.rows

    @property
    def block_length(self) -> int:
        return self.rows * self.microbatches

    @property
    def is_exact(self) -> bool:
        """Returns whether the microbatches hold exactly num_rows rows."""
        return self.size * self.microbatches * self.rounds == self.num_rows

    @classmethod
    def one_by_one(cls, num_rows, longest, sizes, microbatch_size):
        """Returns the layout for arrays on CPU: a microbatch has one row of each block.

        Several blocks side by side are faster if their sums fit into the first cache of
        2^15 numbers. Larger sums than 2^13 numbers are computed one by one, because XLA
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
        # unroll divides microbatches, because a remainder would be compiled again.
        unroll = max(x for x in range(1, unroll + 1) if microbatches % x == 0)
        return cls(num_rows, width, 1, microbatches, rounds, unroll)

    @classmethod
    def cached(cls, num_rows, longest, sizes, microbatch_size, *, is_large):
        """Returns the layout for factors on CPU: as many rows as the caches hold."""
        in_turn = IN_TURN if is_large else None
        if microbatch_size is None:
            # If all rows are processed at once, in blocks without padding, the batch is
            # read in place and nothing is copied.
            length = _length(num_rows, longest)
            blocks = num_rows // length
            is_small = (
                num_rows * sizes.made <= 2**21 and blocks * sizes.total <= MOST_NUMBERS
            )
            if 2 * length > min(longest, num_rows) and is_small and not is_large:
                return cls(num_rows, blocks, length, 1, 1)
            few = min(4, 2**25 // sizes.row)  # at least four rows, if memory holds them
            # Several blocks side by side, if a sum is small and the caches hold them.
            blocks = min(2**12 // sizes.total, 2**18 // (sizes.row * longest))
            most = longest * max(blocks, 1)
            microbatch_size = min(max(2**21 // sizes.row, few, 1), most)
            if microbatch_size < num_rows:  # nearly all batch sizes are powers of two
                microbatch_size = 2 ** (microbatch_size.bit_length() - 1)
        layout = cls._of(num_rows, longest, sizes, microbatch_size, MOST_NUMBERS)
        return layout._replace(in_turn=in_turn)

    @classmethod
    def parallel(cls, num_rows, longest, sizes, microbatch_size):
        """Returns the layout for GPU and TPU, where memory bounds microbatch_size."""
        return cls._of(num_rows, longest, sizes, microbatch_size, 2**22)

    @classmethod
    def _of(cls, num_rows, longest, sizes, microbatch_size, most_numbers):
        """Returns a layout with equal microbatches of about microbatch_size rows.

        The sums of blocks side by side have at most most_numbers numbers, unless a
        single sum has more.
        """
        most = longest * max(most_numbers // sizes.total, 1)
        size = min(microbatch_size, num_rows, most)
        num_microbatches = -(-num_rows // size)
        size = -(-num_rows // num_microbatches)
        width = -(-size // longest)
        rows = -(-size // width)
        microbatches = max(min(longest // size, num_microbatches), 1)
        microbatches = -(-num_microbatches // -(-num_microbatches // microbatches))
        rounds = -(-num_rows // (width * rows * microbatches))
        return cls(num_rows, width, rows, microbatches, rounds)


def _length(num_rows, longest):
    """Returns the largest divisor of num_rows that is at most `longest`."""
    return next(k for k in range(min(longest, num_rows), 0, -1) if num_rows % k == 0)
