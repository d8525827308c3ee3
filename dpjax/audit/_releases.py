"""Many releases of two data sets, drawn together."""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._types import Key, PyTree

Release = Callable[[Key, PyTree], PyTree]  # a key and a data set -> a release
Statistic = Callable[[PyTree], jax.Array]  # a release -> a scalar

# The approximate number of numbers that the releases of one chunk read and write.
_CHUNK_SIZE = 2**22
_LARGEST_BATCH = 10_000

_REAL = (jnp.floating, jnp.integer, jnp.bool_)


def released(
    release, data, neighbor, statistic, vectorize: bool, key: Key, num_each: int
) -> list[np.ndarray]:
    """Returns two arrays (num_each, d): releases of the data, and of the neighbor."""
    # Each row is release(key, data) with its own key, or `statistic` of the release if
    # given, flattened to d numbers. With `vectorize` the draws are compiled for chunks
    # of keys. Attacks are fitted to these arrays, and tested on them.
    sides = as_pair(data, neighbor)
    draw = partial(_release_one, release, statistic)

    def vectorized(shape: tuple[int, int], key: Key, data: PyTree) -> np.ndarray:
        # This compiles once for both data sets, and copies no data for each release.
        parts = _release_all(release, statistic, shape, key, data)
        rows = [_sortable(np.asarray(x)).reshape(math.prod(shape), -1) for x in parts]
        return np.concatenate(rows, axis=1)

    def on_host(key: Key, data: PyTree) -> np.ndarray:
        rows = []
        for each in jax.random.split(key, num_each):
            leaves = [np.asarray(x) for x in draw(each, data)]
            _check_leaves(leaves, statistic)
            rows.append(np.concatenate([_sortable(x).reshape(-1) for x in leaves]))
        return np.stack(rows)

    rows_of = on_host
    if vectorize:
        leaves = jax.eval_shape(draw, key, sides[0])
        _check_leaves(leaves, statistic)
        size = sum(math.prod(x.shape) for x in jax.tree.leaves((sides[0], leaves)))
        batch_size = min(max(_CHUNK_SIZE // max(size, 1), 1), _LARGEST_BATCH)
        num_chunks = -(-num_each // batch_size)
        shape = num_chunks, -(-num_each // num_chunks)  # chunks of equal size
        rows_of = partial(vectorized, shape)
    pairs = zip(jax.random.split(key), sides, strict=True)
    return [rows_of(side_key, side)[:num_each] for side_key, side in pairs]


def _check_leaves(leaves: list, statistic: Statistic | None) -> None:
    name = f"what {'release' if statistic is None else 'statistic'} returns"
    is_fine = sum(math.prod(x.shape) for x in leaves) > 0
    for x in leaves:
        is_fine &= any(jnp.issubdtype(x.dtype, kind) for kind in _REAL)
    _validate.require(is_fine, name, leaves, "real numbers, at least one")
    is_fine = statistic is None or [x.shape for x in leaves] == [()]
    _validate.require(is_fine, name, leaves, "a scalar")


def _sortable(x: np.ndarray) -> np.ndarray:
    # Types of one or two bytes all fit into float32, which NumPy can sort.
    return x.astype(np.float32) if x.itemsize < 4 else x


def as_pair(data: PyTree, neighbor: PyTree) -> tuple[PyTree, PyTree]:
    """Returns an audit's two data sets as arrays; raises if shapes or dtypes differ."""
    pair = _validate.numbers(data, "data"), _validate.numbers(neighbor, "neighbor")
    data, neighbor = jax.tree.map(jnp.asarray, pair)

    def kind(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", tree)

    rule, given = f"of the shapes and dtypes of data, {kind(data)}", kind(neighbor)
    _validate.require(kind(data) == given, "neighbor", given, rule)
    return data, neighbor


def _release_one(release, statistic, key: Key, data: PyTree) -> list[jax.Array]:
    out = release(key, data)
    return jax.tree.leaves(out if statistic is None else statistic(out))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _release_all(release, statistic, shape, key: Key, data: PyTree) -> list[jax.Array]:
    """Returns one release for each key of this shape; a row of keys is a chunk."""
    draw = partial(_release_one, release, statistic)
    keys = jax.random.split(key, shape)
    return jax.lax.map(lambda keys: jax.vmap(draw, (0, None))(keys, data), keys)
