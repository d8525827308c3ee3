"""Records by number, and those of memory-mapped arrays."""

import dataclasses
from functools import cached_property, partial
from typing import Any, Protocol

import jax
import numpy as np

from dpjax import _validate
from dpjax._tree import narrowed
from dpjax._types import PyTree

Rows = int | slice | np.ndarray


class Records(Protocol):
    """Records by number, 0 to len - 1, such as a random-access source of Grain."""

    def __len__(self) -> int:
        """Returns n, which is public."""
        ...

    def __getitem__(self, rows: Any) -> PyTree:
        """Returns one record, or those of a slice or an array: leaves (rows, ...)."""
        ...


@dataclasses.dataclass(frozen=True)
class MemoryMapped:
    """Memory-mapped arrays in .npy files.

    Numbers are read in the type that JAX has for that of their file: without
    `jax_enable_x64` integers beyond int32 or uint32 become the nearest one, and numbers
    beyond float32 infinite. Store identifiers that are larger as smaller ones.

    Attributes:
        files: pytree of paths; each file has shape (n, ...).

    Raises:
        ValueError: If an array has another type than real numbers or booleans, or if
            the arrays have different lengths.

    Example:
        >>> import tempfile, numpy as np
        >>> file = tempfile.mkdtemp() + "/squares.npy"
        >>> np.save(file, np.arange(5.0) ** 2)
        >>> source = MemoryMapped({"square": file})
        >>> len(source), source[3:]
        (5, {'square': array([ 9., 16.], dtype=float32)})
    """

    files: PyTree

    def __post_init__(self):
        arrays = self._arrays
        for path, array in zip(
            jax.tree.leaves(self.files), jax.tree.leaves(arrays), strict=True
        ):
            rule = "arrays of real numbers or booleans"
            is_fine = array.dtype.kind in "fiub"
            _validate.require(is_fine, "files", f"{path} of {array.dtype}", rule)
        _validate.leading_size(arrays, "files")

    @cached_property
    def _arrays(self) -> PyTree:
        return jax.tree.map(partial(np.load, mmap_mode="r"), self.files)

    def __len__(self) -> int:
        """See `Records`."""
        return len(jax.tree.leaves(self._arrays)[0])

    def __getitem__(self, rows: Rows) -> PyTree:
        """See `Records`."""
        read = jax.tree.map(lambda x: np.asarray(x[rows]), self._arrays)
        return jax.tree.map(narrowed, read)
