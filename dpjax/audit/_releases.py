"""Many releases of two data sets, drawn together."""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._types import Key, PyTree

Release = Callable[[Key, PyTree], PyTree]  # a key and a data set -> what is released
Statistic = Callable[[PyTree], jax.Array]  # a release -> a scalar

# About how many numbers the releases of one chunk may read and write.
_CHUNK_SIZE = 2**22
_LARGEST_BATCH = 10_000

_REAL = (jnp.floating, jnp.integer, jnp.bool_)


def draw(
    release: Release,
    statistic: Statistic | None,
    data: PyTree,
    neighbor: PyTree,
    key: Key,
    num_each: int,
    batch_size: int | None,
) -> list[np.ndarray]:
    """Returns releases of the data and of the neighbor as rows, (num_each, d) each.

    Where there is a statistic the rows hold it alone. Compiled once for both data sets,
    which are not copied for each release.
    """
    data, neighbor = as_pair(data, neighbor)
    leaves = jax.eval_shape(partial(_release_one, release, statistic), key, data)
    _check_leaves(leaves, statistic)
    if batch_size is None:
        size = sum(math.prod(x.shape) for x in jax.tree.leaves((data, leaves)))
        batch_size = min(max(_CHUNK_SIZE // max(size, 1), 1), _LARGEST_BATCH)
    num_chunks = -(-num_each // batch_size)
    batch_size = -(-num_each // num_chunks)  # as even as can be

    rows, shape = [], (num_chunks, batch_size)
    for side_key, side in zip(jax.random.split(key), (data, neighbor), strict=True):
        parts = [
            np.asarray(x)
            for x in _release_all(release, statistic, shape, side_key, side)
        ]
        parts = [_sortable(x).reshape(num_chunks * batch_size, -1) for x in parts]
        rows.append(np.concatenate(parts, axis=1)[:num_each])
    return rows


def draw_on_host(
    release: Release,
    statistic: Statistic | None,
    data: PyTree,
    neighbor: PyTree,
    key: Key,
    num_each: int,
) -> list[np.ndarray]:
    """Returns what `draw` does, of a release that cannot be traced."""

    def row(key: Key, side: PyTree) -> np.ndarray:
        leaves = [np.asarray(x) for x in _release_one(release, statistic, key, side)]
        _check_leaves(leaves, statistic)
        return np.concatenate([_sortable(x).reshape(-1) for x in leaves])

    return [
        np.stack([row(one, side) for one in jax.random.split(side_key, num_each)])
        for side_key, side in zip(
            jax.random.split(key), as_pair(data, neighbor), strict=True
        )
    ]


def _check_leaves(leaves: list, statistic: Statistic | None) -> None:
    _validate.require(
        sum(math.prod(x.shape) for x in leaves) > 0
        and all(any(jnp.issubdtype(x.dtype, kind) for kind in _REAL) for x in leaves),
        "what release returns" if statistic is None else "what statistic returns",
        leaves,
        "real numbers, at least one",
    )
    _validate.require(
        statistic is None or [x.shape for x in leaves] == [()],
        "what statistic returns",
        leaves,
        "a scalar",
    )


def _sortable(x: np.ndarray) -> np.ndarray:
    # Types of one or two bytes all fit into float32, which NumPy can sort.
    return x.astype(np.float32) if x.itemsize < 4 else x


def as_pair(data: PyTree, neighbor: PyTree) -> tuple[PyTree, PyTree]:
    """Returns both as trees of arrays; they must agree in structure and shapes."""
    data, neighbor = (jax.tree.map(jnp.asarray, tree) for tree in (data, neighbor))
    kinds = [
        jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", tree)
        for tree in (data, neighbor)
    ]
    _validate.require(
        kinds[0] == kinds[1], "neighbor", kinds[1], f"of the data's kind {kinds[0]}"
    )
    return data, neighbor


def _release_one(
    release: Release, statistic: Statistic | None, key: Key, data: PyTree
) -> list[jax.Array]:
    out = release(key, data)
    return jax.tree.leaves(out if statistic is None else statistic(out))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _release_all(
    release: Release,
    statistic: Statistic | None,
    shape: tuple[int, int],
    key: Key,
    data: PyTree,
) -> list[jax.Array]:
    """Releases in chunks, one a row of keys of this shape."""
    one = partial(_release_one, release, statistic)
    return jax.lax.map(
        lambda keys: jax.vmap(one, (0, None))(keys, data), jax.random.split(key, shape)
    )
