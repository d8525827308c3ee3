"""Samples in factored form: leaves that are known as products, and never written out.

A sample's gradient by the kernel of a dense layer is the outer product of two vectors;
that by a table of embeddings is zero but for a few rows. Norms and sums of such samples
are found from the factors. Whatever else a sample holds is an array, as it always was.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._tree import register
from dpjax._types import PyTree
from dpjax.estimators._entries import as_finite
from dpjax.estimators._factored_leaves import Arrays, Influence, Leaf
from dpjax.estimators._row_sums import zero_unless

IN_TURN = 16  # rows that are added in one pass over a sum, on CPU


@register("leaves")
@dataclass(frozen=True)
class FactoredSamples:
    """Samples of which some leaves are factored.

    Attributes:
        leaves: a pytree of arrays (n, ...), `OuterProducts` and `TableRows`.
        work: how many numbers the program makes for a sample, about.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import OuterProducts
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
        if influence is None:
            return [part.add(x, in_turn) for x, part in pairs]
        return [part.add_influences(x, influence, in_turn) for x, part in pairs]

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
        leaves = jax.tree.leaves(self.leaves, is_leaf=_is_leaf)
        return self.with_parts(
            [x.finite() if _is_leaf(x) else as_finite(x) for x in leaves]
        )

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

    def rows(self, start: Any, size: int) -> "FactoredSamples":
        """Returns samples `start` to `start + size - 1`."""

        def part(x):
            if len(x) == size:
                return x
            return jax.lax.dynamic_slice_in_dim(x, start, size)

        return jax.tree.map(part, self)

    def blocks(self, count: int) -> "FactoredSamples":
        """Returns so many blocks of equally many samples, along a new first axis."""
        return jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), self)

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
    def row_size(self) -> int:
        """How many numbers are made and held of a sample, about."""
        return self.work + sum(x.size // len(x) for x in jax.tree.leaves(self.leaves))


def _is_leaf(x: Any) -> bool:
    return isinstance(x, Leaf)
