"""Many small leaves of samples as one array: the program does not grow with them."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._sharding import num_other_devices
from dpjax._types import PyTree
from dpjax.estimators._entries import as_float
from dpjax.estimators._factored_leaves import SMALL, Leaf
from dpjax.estimators._factors import FactoredSamples
from dpjax.estimators._rows import Rows

AT_ONCE = 32
MANY = 64  # small leaves; fewer are compiled as fast by themselves


def joined(rows: Rows) -> tuple[Rows, Callable[[PyTree], PyTree]]:
    """Returns rows whose many small arrays are one, and the way back for a mean.

    A loop that carries thousands of sums takes minutes to compile. For influences that
    act on each coordinate, or on the norm of all, nothing but that changes. Arrays that
    may lie on several devices stay apart, because joining would move them.
    """
    row, _ = jax.eval_shape(lambda: rows.factored(0, 1))
    leaves, structure = _flat(row.leaves)
    at = [i for i, x in enumerate(leaves) if _is_small(x)]
    if len(at) <= MANY:
        return rows, lambda mean: mean
    shapes = [leaves[i].shape[1:] for i in at]
    dtypes = [jax.eval_shape(as_float, leaves[i]).dtype for i in at]

    def join(samples: PyTree) -> PyTree:
        some, _ = _flat(samples)
        vectors: dict[str, list[jax.Array]] = {}
        for i, dtype in zip(at, dtypes, strict=True):
            x = as_float(some[i])
            vectors.setdefault(dtype.name, []).append(x.reshape(len(x), -1))
        rest = [x for i, x in enumerate(some) if i not in small]
        return rest, {name: _concatenated(xs) for name, xs in vectors.items()}

    def apart(mean: PyTree) -> PyTree:
        rest, vectors = mean
        rest, found = iter(rest), {}
        starts = dict.fromkeys(vectors, 0)
        for i, shape, dtype in zip(at, shapes, dtypes, strict=True):
            start, stop = starts[dtype.name], starts[dtype.name] + math.prod(shape)
            found[i] = vectors[dtype.name][start:stop].reshape(shape)
            starts[dtype.name] = stop
        ordered = [found[i] if i in small else next(rest) for i in range(len(leaves))]
        return structure.unflatten(ordered)

    def read(start, size):
        samples, aux = rows.read(start, size)
        return join(samples), aux

    def read_factored(start, size):
        samples, aux = rows.factored(start, size)
        return FactoredSamples(join(samples.leaves), samples.work), aux

    small = set(at)
    is_factored = rows.read_factored is not None
    return (
        rows._replace(read=read, read_factored=read_factored if is_factored else None),
        apart,
    )


def _concatenated(arrays: list[jax.Array]) -> jax.Array:
    # Compiling one concatenation takes a time that grows with the square of its parts.
    while len(arrays) > 1:
        parts = [arrays[i : i + AT_ONCE] for i in range(0, len(arrays), AT_ONCE)]
        arrays = [jnp.concatenate(part, axis=1) for part in parts]
        arrays = jax.lax.optimization_barrier(arrays)
    return arrays[0]


def _flat(samples: PyTree) -> tuple[list[Any], Any]:
    return jax.tree.flatten(samples, is_leaf=lambda x: isinstance(x, Leaf))


def _is_small(leaf: Any) -> bool:
    if isinstance(leaf, Leaf) or num_other_devices(leaf) > 1:
        return False
    return leaf.size <= SMALL
