"""Streams of samples, computed from rows when needed, and the sizes of microbatches.

Rows are read in microbatches, and added in blocks, each with a float sum: `Layout`. On
a GPU or TPU the memory bounds the size of a microbatch, and so does the size of the
sums of its blocks: 2^22 numbers together, or a single block. The size depends only on
shapes and on the device, hence on public facts. It changes how a mean is rounded;
`sensitivity()` bounds that for every size.

There a microbatch has at least one row, and at most

    rows = (M - D - 8 S) / (2 R)

for the bytes M of the device, D of the rows, S of one sum and R of one row at its peak:
`docs/guides/gpu.md` says how they are counted, and why.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from dpjax import _validate
from dpjax._sharding import num_shares
from dpjax._sums.samples import FactoredSamples
from dpjax._tree import materialized, narrowed_numbers
from dpjax._types import PyTree, Scalar

MOST_NUMBERS = 2**18  # bounds the numbers in all sums of concurrent blocks, on CPU
IN_TURN = 16  # rows that are added in one pass over a large sum, on CPU
DEFAULT = 2**35  # about the three quarters of a GPU of 40 GB that JAX allocates
# Operations with results that are views of their operands, and need no memory.
VIEWS = {
    *("reshape", "squeeze", "transpose", "broadcast_in_dim"),
    *("copy", "optimization_barrier"),
}
MakeFactored = Callable[[PyTree], tuple[FactoredSamples, PyTree]]

REFUSED = (
    "a stream of samples takes no arithmetic, and cannot pass through jit, scan or "
    "vmap, because it holds the parameters and records from which samples are made. "
    "Make it inside the compiled function, and pass it to an estimator, to aggregate, "
    "or to privatize, first in a chain: scale the mean that they return, not samples"
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
        """Returns samples, arrays (n, ...) or a stream, as a stream with the mask.

        A pytree with a stream as its only leaf counts as this stream, because some
        optimizers, such as `flax.nnx.Optimizer`, pass gradients in a container.
        """
        leaves = jax.tree.leaves(samples)
        is_stream = len(leaves) == 1 and isinstance(leaves[0], cls)
        rows = samples if is_stream else narrowed_numbers(samples, "samples")
        stream = leaves[0] if is_stream else cls(_themselves, (), rows)
        if is_padding_example is not None:
            rule = "None for a stream of samples that has a mask already"
            is_fine = stream.is_padding_example is None
            _validate.require(is_fine, "is_padding_example", "another mask", rule)
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
        raise AttributeError(f"no attribute {name!r}: {REFUSED}")

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

        A mean reads microbatches with it: rows `start` to `start + size - 1`; size is
        static. Aux are further outputs, such as losses. `make_factored` is traced once.
        """

        def made(rows):
            samples, aux = self.make_samples(self.shared, rows)
            _validate.real(samples=samples)
            return FactoredSamples(samples), aux

        factored = self.make_factored
        make = made if factored is None else factored(self.shared, self.rows)

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
        samples = jax.eval_shape(lambda: self.reader()(0, 1)[0])
        return any(part.is_smaller for part in samples.parts)

    def read_all(self) -> tuple[PyTree, PyTree]:
        """Returns all samples, leaves (n, ...), and aux (losses), for trimmed means."""

        def of_row(row):
            some = self.make_samples(self.shared, jax.tree.map(lambda x: x[None], row))
            return jax.tree.map(lambda x: x[0], some)

        if (size := self.microbatch_size) is None:
            samples, aux = self.make_samples(self.shared, self.rows)
        else:
            samples, aux = jax.lax.map(of_row, self.rows, batch_size=size)
        return materialized(samples), aux

    def num_coordinates(self) -> int:
        """Returns the number of entries of a sample, on which noise depends."""

        def on_no_mesh(x, *size):  # drops shardings, which one row cannot have
            shape = (*size, *np.shape(x)[len(size) :])
            return jax.ShapeDtypeStruct(shape, jnp.result_type(x))

        shared = jax.tree.map(on_no_mesh, self.shared)
        row = jax.tree.map(lambda x: on_no_mesh(x, 1), self.rows)
        samples, _ = jax.eval_shape(self.make_samples, shared, row)
        return sum(x.size for x in jax.tree.leaves(samples))


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
    """Divides rows into microbatches, computed at once, and blocks, added as floats.

    A microbatch has `rows` rows for each of `width` blocks, which are summed side by
    side. A block gets rows from `microbatches` consecutive microbatches. Then the next
    `width` blocks follow, for `rounds` rounds.

    Attributes:
        num_rows: number of rows on the device.
        unroll: number of microbatches that one iteration of the loop adds.
        in_turn: number of rows that one pass over a large sum adds; None: XLA decides.
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

        A block, of at most `longest` rows, has one float sum. A microbatch, of about
        microbatch_size rows, is computed at once; None chooses by `sizes` (`Sizes`).
        Blocks are summed side by side if a cache of 2^15 numbers holds the sums, and
        one by one beyond 2^13 numbers, as XLA then fuses additions of four rows.
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
        """Returns the layout for factored samples on CPU, with rows that caches hold.

        Blocks of at most `longest` rows have a float sum each. About microbatch_size
        rows are computed at once; None chooses by `sizes`. is_large: sums are large.
        """
        in_turn = IN_TURN if is_large else None
        if microbatch_size is None:
            # If all rows are processed at once, in blocks without padding, the batch is
            # read in place and nothing is copied.
            few = min(longest, num_rows)
            length = next(k for k in range(few, 0, -1) if num_rows % k == 0)
            blocks = num_rows // length
            is_small = (
                num_rows * sizes.made <= 2**21 and blocks * sizes.total <= MOST_NUMBERS
            )
            if 2 * length > few and is_small and not is_large:
                return cls(num_rows, blocks, length, 1, 1)
            least = min(4, 2**25 // sizes.row)  # four rows, if memory holds them
            # Several blocks side by side, if a sum is small and the caches hold them.
            blocks = min(2**12 // sizes.total, 2**18 // (sizes.row * longest))
            most = longest * max(blocks, 1)
            microbatch_size = min(max(2**23 // sizes.row, least, 1), most)
            if microbatch_size < num_rows:  # nearly all batch sizes are powers of two
                microbatch_size = 2 ** (microbatch_size.bit_length() - 1)
        layout = cls.parallel(num_rows, longest, sizes, microbatch_size, MOST_NUMBERS)
        return layout._replace(in_turn=in_turn)

    @classmethod
    def parallel(cls, num_rows, longest, sizes, microbatch_size, most_numbers=2**22):
        """Returns the layout for GPU and TPU: equal microbatches, computed at once.

        Memory bounds microbatch_size, their number of rows. Blocks, of at most
        `longest` rows, have one float sum each. The sums of blocks side by side have at
        most most_numbers numbers, unless a single sum has more.
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


def rows_at_once(row_bytes: int, sum_bytes: int, bytes_of_rows: int) -> int:
    """Returns the formula above for R, S and D bytes."""
    devices = jax.local_devices() if jax.process_count() == 1 else []
    limits = [(x.memory_stats() or {}).get("bytes_limit") for x in devices]
    memory = min(filter(None, limits), default=DEFAULT)
    return max((memory - bytes_of_rows - 8 * sum_bytes) // (2 * max(row_bytes, 1)), 1)


def num_bytes(tree: PyTree) -> int:
    """Returns the size of all arrays of a pytree, in bytes."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def peak_bytes(jaxpr: core.Jaxpr, of_row: Sequence[core.Var]) -> int:
    """Returns the peak number of bytes of values that depend on `of_row`.

    It bounds the rows of a microbatch on a GPU. `of_row` are the arguments that hold
    one row. Arguments are not counted, nor are values that do not depend on the row,
    because all rows share them. Results stay in memory until the end.
    """
    # Maps a value to the variable that owns its memory; None if an argument owns it.
    place: dict[Any, core.Var | None] = dict.fromkeys(of_row)
    last: dict[core.Var | None, int] = {}
    steps = []
    for i, equation in enumerate(jaxpr.eqns):
        read = [x for x in equation.invars if _is_in(place, x)]
        if not read:
            continue
        made = equation.outvars
        if equation.primitive.name in VIEWS:
            pairs = zip(equation.invars, made, strict=False)
            place |= {y: place[x] for x, y in pairs if _is_in(place, x)}
            made = [x for x in made if x not in place]
        place |= {x: x for x in made}
        last |= {place[x]: i for x in (*read, *equation.outvars)}
        steps.append((i, equation, made))
    last |= {place[x]: len(jaxpr.eqns) for x in jaxpr.outvars if _is_in(place, x)}
    # Each value is freed after its last use; the peak is over the running total.
    freed = Counter()
    for x, i in last.items():
        freed[i] += 0 if x is None else _bytes(x)
    live = highest = 0
    for i, equation, made in steps:
        new = sum(map(_bytes, made))
        within = max((peak_bytes(*each) for each in _inner(equation, place)), default=0)
        # A loop stores results beside its body's memory; other programs count theirs.
        is_loop = equation.primitive.name in ("scan", "while")
        highest = max(highest, live + (new + within if is_loop else max(new, within)))
        live += new - freed[i]
    return highest


def programs_in(equation: core.JaxprEqn) -> Iterator[core.ClosedJaxpr]:
    """Yields the programs inside an equation, such as the body of a loop."""
    for value in equation.params.values():
        for program in value if isinstance(value, tuple | list) else (value,):
            if isinstance(program, core.ClosedJaxpr):  # since JAX 0.12 all are
                yield program
            elif isinstance(program, core.Jaxpr):
                yield core.ClosedJaxpr(program, [])


def _inner(equation, place):
    """Yields the programs inside an equation, and their arguments that hold a row."""
    for jaxpr in (program.jaxpr for program in programs_in(equation)):
        if equation.primitive is core.primitives.jit_p:
            pairs = zip(equation.invars, jaxpr.invars, strict=True)
            yield jaxpr, [y for x, y in pairs if _is_in(place, x)]
        else:
            yield jaxpr, jaxpr.invars


def _is_in(place, x):
    return isinstance(x, core.Var) and x in place


def _bytes(x):
    return num_bytes([x.aval]) if hasattr(x.aval, "dtype") else 0
