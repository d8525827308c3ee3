"""Samples that are made a few at a time, and those few, in factored form.

A sample's gradient by the kernel of a dense layer is the outer product of two vectors;
that by a table of embeddings is zero but for a few rows. Norms and sums of such samples
are found from the factors. Whatever else a sample holds is an array, as it always was.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._sharding import num_other_devices, num_shares, varying_axes
from dpjax._sums.addition import zero_unless
from dpjax._sums.leaves import SMALL, Arrays, Influence, Leaf
from dpjax._tree import materialized, register, split, stack
from dpjax._types import PyTree, Scalar

MANY = 64  # leaves of one shape, of which a compiler should see fewer


@register("leaves")
@dataclass(frozen=True)
class FactoredSamples:
    """Samples of which some leaves are factored.

    Attributes:
        leaves: a pytree of arrays (n, ...), `OuterProducts` and `TableRows`.
        work: how many numbers the program makes for a sample, about.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax._sums.leaves import OuterProducts
        >>> kernel = OuterProducts(jnp.ones((5, 2)), jnp.ones((5, 3)), lambda x: x)
        >>> samples = FactoredSamples({"kernel": kernel, "bias": jnp.ones((5, 3))})
        >>> samples.written_out()["kernel"].shape
        (5, 2, 3)
    """

    leaves: PyTree
    work: int = 1

    @property
    def parts(self) -> list[Leaf]:
        """All leaves; plain arrays as `Arrays`."""
        leaves = jax.tree.leaves(self.leaves, is_leaf=_is_leaf)
        return [leaf if _is_leaf(leaf) else Arrays(leaf) for leaf in leaves]

    def with_parts(self, parts: list[Any]) -> "FactoredSamples":
        """Returns samples with other leaves, of which some may be arrays."""
        return FactoredSamples(self._unflatten(parts), self.work)

    def stacked(self) -> "FactoredSamples":
        """Returns samples with small arrays of one shape stacked, if they are many."""
        stacked = Stacked.of(self.leaves)
        is_same = not any(group[1:] for group in stacked.groups)
        return self if is_same else FactoredSamples(stacked, self.work)

    def written_out(self) -> PyTree:
        """Returns the samples as a pytree of arrays."""
        return self._unflatten([part.written_out() for part in self.parts])

    def zeros(self) -> list[jax.Array]:
        """Returns sums of no samples, one for every leaf, before `build`."""
        return [part.zeros() for part in self.parts]

    def add_to(
        self, sums: list[jax.Array], influence: Influence | None, in_turn: int | None
    ) -> list[jax.Array]:
        """Adds samples to sums, or their influences.

        Args:
            sums: one for every leaf, as `zeros` returns them.
            influence: acts by coordinate, and leaves zero as it is; None adds samples.
            in_turn: how many rows are added in one pass over a large sum, one after the
                other; None leaves the order to the compiler.
        """
        pairs = zip(sums, self.parts, strict=True)
        return [part.add(x, influence, in_turn) for x, part in pairs]

    def build(self, sums: list[jax.Array]) -> PyTree:
        """Returns sums in the shape of samples."""
        pairs = zip(self.parts, sums, strict=True)
        return self._unflatten([part.build(x) for part, x in pairs])

    def _unflatten(self, leaves):
        structure = jax.tree.structure(self.leaves, is_leaf=_is_leaf)
        return jax.tree.unflatten(structure, leaves)

    @property
    def numbers(self) -> list[jax.Array]:
        """All arrays of numbers, without those of places."""
        return [x for part in self.parts for x in part.numbers]

    @property
    def dtype(self) -> Any:
        """float64 where a leaf has it, else float32."""
        return max((x.dtype for x in self.numbers), key=lambda dtype: dtype.itemsize)

    def finite(self) -> "FactoredSamples":
        """Returns samples in which NaN and infinities count as zero."""
        return self.with_parts([part.finite() for part in self.parts])

    def squared_norm(self, inverse_unit: jax.Array) -> jax.Array:
        """Returns the square of the norm of one finite sample times a number."""
        dtype = self.dtype
        # As a tree: one after the other, thousands of leaves err by as many roundings.
        squares = [part.squared_norm(inverse_unit).astype(dtype) for part in self.parts]
        return jax.tree.reduce_associative(
            jnp.add, squares, identity=jnp.zeros((), dtype)
        )

    def weighted(self, weight: jax.Array) -> "FactoredSamples":
        """Returns one finite sample times a weight."""
        return self.with_parts([part.weighted(weight) for part in self.parts])

    def blocks(self, count: int) -> "FactoredSamples":
        """Returns so many blocks of equally many samples, along a new first axis."""
        return jax.tree.map(
            lambda x: x.reshape(count, len(x) // count, *x.shape[1:]), self
        )

    def padded(self, size: int) -> "FactoredSamples":
        """Returns so many samples, of which the last ones are zeros."""

        def pad(x):
            more = size - len(x)
            return jnp.pad(x, [(0, more)] + [(0, 0)] * (x.ndim - 1)) if more else x

        return jax.tree.map(pad, self)

    def zero_unless(self, counts: jax.Array) -> "FactoredSamples":
        """Returns zeros in the place of samples that do not count."""
        return jax.tree.map(lambda x: zero_unless(counts, x), self)

    @property
    def has_small_factors(self) -> bool:
        """Whether the factors of any leaf are much smaller than the leaf."""
        return any(part.is_smaller for part in self.parts)

    @property
    def has_large_arrays(self) -> bool:
        """Whether an array of a sample has more than a few thousand entries."""
        arrays = [part for part in self.parts if isinstance(part, Arrays)]
        return any(part.is_large for part in arrays)

    @property
    def num_rows(self) -> int:
        """The number of samples."""
        return len(jax.tree.leaves(self.leaves)[0])

    @property
    def row_size(self) -> int:
        """How many numbers are made and held of a sample, about."""
        return self.work + sum(x.size // len(x) for x in jax.tree.leaves(self.leaves))


@register("leaves")
@dataclass(frozen=True)
class Stacked:
    """A pytree of samples, or of their sum, in which small arrays are stacked by shape.

    Thousands of leaves are then a few for the compiler.

    Attributes:
        leaves: stacks (..., m, *shape), or one leaf each that is as it was.
        groups: the indices of the leaves in each; static.
        structure: of the pytree; static.
    """

    leaves: list[Any]
    groups: tuple[tuple[int, ...], ...]
    structure: Any

    @classmethod
    def of(cls, tree: PyTree) -> "Stacked":
        """Returns samples with leaves of more than `MANY` of one shape stacked."""
        leaves, structure = jax.tree.flatten(
            tree, is_leaf=lambda x: isinstance(x, Leaf)
        )
        groups: dict[Any, list[int]] = {}
        for i, x in enumerate(leaves):
            groups.setdefault(_kind(x) or i, []).append(i)
        found = [
            part
            for group in groups.values()
            for part in ([group] if len(group) > MANY else [[i] for i in group])
        ]
        stacks = [
            stack([leaves[i] for i in group], 1) if group[1:] else leaves[group[0]]
            for group in found
        ]
        return cls(stacks, tuple(map(tuple, found)), structure)

    def unstacked(self) -> PyTree:
        """Returns the sum of samples as the pytree that it was."""
        leaves = {}
        for x, group in zip(self.leaves, self.groups, strict=True):
            rows = [y[0] for y in split(x, [1] * len(x))] if group[1:] else [x]
            leaves.update(zip(group, rows, strict=True))
        return self.structure.unflatten(leaves[i] for i in range(len(leaves)))


def unstacked(tree: PyTree) -> PyTree:
    """Returns the pytree of a sum without stacks."""
    return jax.tree.map(
        lambda x: x.unstacked() if isinstance(x, Stacked) else x,
        tree,
        is_leaf=lambda x: isinstance(x, Stacked),
    )


def _kind(x: Any) -> Any:
    """Returns what leaves that may be stacked have in common, None for others."""
    if isinstance(x, Leaf) or x.size > SMALL * len(x) or num_other_devices(x) > 1:
        return None
    return x.shape, x.dtype, varying_axes(x)


MakeFactored = Callable[[PyTree], tuple[FactoredSamples, PyTree]]


@register("shared", "rows", "is_padding_example")
@dataclass(frozen=True)
class SampleStream:
    """Samples that are computed from rows when they are needed, a few at a time.

    An estimator takes it in place of a pytree of samples. `streamed_grad` returns one:
    the gradients of a batch.

    Attributes:
        make_samples: `make_samples(shared, some_rows)` returns `(samples, aux)`, both
            with the leading axis of some_rows; aux is whatever is wanted back for each
            row, or `()`.
        shared: pytree that all samples depend on, such as parameters.
        rows: pytree, leaves of shape (n, ...), such as a batch.
        microbatch_size: how many are made at once; None chooses.
        make_factored: `make_factored(shared, rows)` returns a function of some rows, as
            make_samples but with samples as `FactoredSamples`, for estimators that take
            norms and sums from factors; None where there are none.
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
        """Returns arrays of samples as a stream, and a stream as it is, with the mask.

        A pytree with a stream as its only leaf is that stream: an optimizer that wants
        gradients in a container, such as `flax.nnx.Optimizer`, hands that on.

        Raises:
            ValueError: if there are two masks, or a mask of another shape than (n,).
        """
        leaves = jax.tree.leaves(samples, is_leaf=lambda x: isinstance(x, cls))
        is_stream = len(leaves) == 1 and isinstance(leaves[0], cls)
        stream = leaves[0] if is_stream else cls(_themselves, (), samples)
        if is_padding_example is not None:
            _validate.require(
                stream.is_padding_example is None,
                "is_padding_example",
                is_padding_example,
                "None beside a stream that has a mask",
            )
            stream = replace(stream, is_padding_example=is_padding_example)
        _validate.mask(stream.is_padding_example, stream.num_rows)
        return stream

    def __contains__(self, name: object) -> bool:
        """Returns False: Flax's `TrainState` asks gradients for leaves by name."""
        return False

    @property
    def holds_samples(self) -> bool:
        """Whether samples are arrays that are there, and nothing has to be made."""
        return self.make_samples is _themselves

    @property
    def num_rows(self) -> int:
        """Number of rows, padding included; inside `jax.shard_map` on this device."""
        return _validate.leading_size(self.rows, "samples")

    @property
    def num_rows_in_all(self) -> int:
        """The number of rows on all devices."""
        return self.num_rows * num_shares(self.axes)

    def reader(self) -> Callable[[Scalar, int], tuple[FactoredSamples, PyTree]]:
        """Returns a function that makes the samples and aux of some rows.

        `read(start, size)` is of rows `start` to `start + size - 1`; size is static.
        What makes factored samples is traced here, and never again.
        """
        if self.make_factored is None:
            make = self._made
        else:
            make = self.make_factored(self.shared, self.rows)
        return lambda start, size: make(self._some(start, size))

    def written_out(self) -> "SampleStream":
        """Returns the stream without factors: all samples are arrays."""
        return replace(self, make_factored=None)

    def has_small_factors(self) -> bool:
        """Returns whether a leaf of samples is much smaller in factored form."""
        if self.make_factored is None:
            return False
        return jax.eval_shape(lambda: self.reader()(0, 1)[0]).has_small_factors

    def read_all(self) -> tuple[PyTree, PyTree]:
        """Returns all samples, as arrays, and all aux."""
        if self.microbatch_size is None:
            samples, aux = self.make_samples(self.shared, self.rows)
        else:
            samples, aux = jax.lax.map(
                lambda row: jax.tree.map(lambda x: x[0], self._made_of_one(row)),
                self.rows,
                batch_size=self.microbatch_size,
            )
        return materialized(samples), aux

    def num_coordinates(self) -> int:
        """Returns the number of entries of one sample, all leaves together."""

        def one(x):  # of no mesh: no row lies on several devices
            return jax.ShapeDtypeStruct((1, *np.shape(x)[1:]), jnp.result_type(x))

        def whole(x):
            return jax.ShapeDtypeStruct(np.shape(x), jnp.result_type(x))

        samples, _ = jax.eval_shape(
            self.make_samples,
            jax.tree.map(whole, self.shared),
            jax.tree.map(one, self.rows),
        )
        return sum(x.size for x in jax.tree.leaves(samples))

    def _made(self, rows):
        samples, aux = self.make_samples(self.shared, rows)
        _validate.real(samples=samples)
        return FactoredSamples(samples), aux

    def _made_of_one(self, row):
        return self.make_samples(self.shared, jax.tree.map(lambda x: x[None], row))

    def _some(self, start, size):
        if size == self.num_rows:
            return self.rows
        part = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=size)
        return jax.tree.map(part, self.rows)


def _themselves(shared: PyTree, rows: PyTree) -> tuple[PyTree, PyTree]:
    del shared
    return rows, ()


def _is_leaf(x: Any) -> bool:
    return isinstance(x, Leaf)
