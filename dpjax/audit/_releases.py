"""Many releases of two data sets, drawn together."""

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Releases:
    """A source of releases; its fields are arguments of `epsilon_lower_bound`."""

    release: Release
    data: PyTree
    neighbor: PyTree
    statistic: Statistic | None
    batch_size: int | None
    vectorize: bool

    def draw(self, key: Key, num_each: int) -> list[np.ndarray]:
        """Returns releases, or statistics, of both data sets: (num_each, d) each."""
        sides = as_pair(self.data, self.neighbor)
        if self.vectorize:
            rows = partial(self._vectorized, self._chunks(key, sides[0], num_each))
        else:
            rows = partial(self._on_host, num_each)
        pairs = zip(jax.random.split(key), sides, strict=True)
        return [rows(side_key, side)[:num_each] for side_key, side in pairs]

    def _shown(self, key: Key, data: PyTree) -> list[jax.Array]:
        return _release_one(self.release, self.statistic, key, data)

    def _chunks(self, key: Key, data: PyTree, num_each: int) -> tuple[int, int]:
        """Returns the number of chunks, and of releases in each."""
        leaves = jax.eval_shape(self._shown, key, data)
        _check_leaves(leaves, self.statistic)
        batch_size = self.batch_size
        if batch_size is None:
            size = sum(math.prod(x.shape) for x in jax.tree.leaves((data, leaves)))
            batch_size = min(max(_CHUNK_SIZE // max(size, 1), 1), _LARGEST_BATCH)
        num_chunks = -(-num_each // batch_size)
        return num_chunks, -(-num_each // num_chunks)  # as even as can be

    def _vectorized(self, shape: tuple[int, int], key: Key, data: PyTree) -> np.ndarray:
        # Compiled once for both data sets, without a copy of the data for each release.
        parts = _release_all(self.release, self.statistic, shape, key, data)
        rows = [_sortable(np.asarray(x)).reshape(math.prod(shape), -1) for x in parts]
        return np.concatenate(rows, axis=1)

    def _on_host(self, num_each: int, key: Key, data: PyTree) -> np.ndarray:
        def row(key: Key) -> np.ndarray:
            leaves = [np.asarray(x) for x in self._shown(key, data)]
            _check_leaves(leaves, self.statistic)
            return np.concatenate([_sortable(x).reshape(-1) for x in leaves])

        return np.stack([row(sub_key) for sub_key in jax.random.split(key, num_each)])


def _check_leaves(leaves: list, statistic: Statistic | None) -> None:
    _validate.require(
        sum(math.prod(x.shape) for x in leaves) > 0
        and all(any(jnp.issubdtype(x.dtype, kind) for kind in _REAL) for x in leaves),
        "what release returns" if statistic is None else "what statistic returns",
        leaves,
        "real numbers, at least one",
    )
    is_fine = statistic is None or [x.shape for x in leaves] == [()]
    _validate.require(is_fine, "what statistic returns", leaves, "a scalar")


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
    """Returns releases in chunks: one for each row of keys of this shape."""
    release_one = partial(_release_one, release, statistic)
    return jax.lax.map(
        lambda keys: jax.vmap(release_one, (0, None))(keys, data),
        jax.random.split(key, shape),
    )
