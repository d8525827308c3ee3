"""A uniform sample without replacement of a stream, in a uniformly random order.

Each record gets a random tag of 128 bits. The records with the smallest tags are the
sample, in the order of tags: all orders of independent tags are equally likely. A tag
depends only on the position of its record, or on the name of its unit (all records of a
unit share one tag), so the sample does not depend on how the stream is cut into chunks.
Two tags are equal with probability below n^2 / 2^129. Tags are as secret as noise.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from dpjax import _sharding, _validate
from dpjax._types import Key, PyTree
from dpjax.accounting import Sample


def sample(
    chunks: Iterable[PyTree], size: int, *, key: Key, mesh: Mesh | None = None
) -> tuple[PyTree, Sample]:
    """Draws records without replacement from a stream, in one pass.

    At most 2 size records and a chunk are in memory, and at least as many again while
    processes exchange records. The sample depends on the key and the numbers of
    records, not on how a stream is cut into chunks.

    Several processes draw one sample of all their streams if they pass a mesh. Each
    process streams its own records, such as the records of its own files,
    `files[jax.process_index() :: jax.process_count()]`. A record that two processes
    stream counts twice. All subsets of all records are equally likely.

    Args:
        chunks: pytrees of one structure with leaves (k, ...), k > 0, such as slices of
            `MemoryMapped`, or the arrays of the batches of `pyarrow.dataset`. With a
            mesh, the chunks of this process.
        size: the number of records to draw. If there are fewer, all are returned, in
            their order.
        key: fresh for each run, and as secret as the key of its noise; the same on all
            processes.
        mesh: the devices of all processes that draw together, such as
            jax.make_mesh((jax.device_count(),), ("records",)). All these processes must
            call. None: this process draws from its own stream.

    Returns:
        The records in a random order, with leaves (m, ...), and their `Sample`, which
        has the public numbers m = min(size, n) and n, the total. With a mesh both are
        the same on all processes.

    Raises:
        ValueError: If size is no integer of at least 1, the key is no typed key, there
            is no chunk, the leaves of a chunk have different lengths, or processes have
            different arguments or types of records, or arrays of Python objects.

    Privacy:
        Which records were drawn must stay secret. All releases from the sample may
        spend `Sample.budget` together, and `Sample.privacy` is their one guarantee: to
        spend more, draw anew, with a fresh key. Processes exchange drawn records, and
        the tags that order them, like all arrays of a mesh: on CPU over TCP,
        unencrypted.

    Example:
        >>> import jax, numpy as np
        >>> chunks = (np.arange(1000 * i, 1000 * (i + 1)) for i in range(100))
        >>> records, drawn = sample(chunks, 500, key=jax.random.key(0))
        >>> records.shape, drawn
        ((500,), Sample(num_samples=100000, sample_size=500))
        >>> epsilon, delta = drawn.budget(0.1, 1e-7)
        >>> print(f"{epsilon:.2f} {delta:.0e}")
        3.09 2e-05
    """
    _validate.count(size=size)
    _validate.typed_key(key)
    devices = () if mesh is None else _one_of_each(mesh)
    stream = iter(chunks)
    start = [*islice(stream, 1)]
    if devices:
        # The check comes before the stream is read: all processes raise, or none.
        _sharding.digests({"size": size, "key": key, "chunks": _layout(start)}, devices)
        # Each process has a key of its own, so that all tags are independent.
        key = jax.random.fold_in(key, _place(devices))
    tags, reservoir = Tags(key), Reservoir(size, np.concatenate)
    num_records, structure = 0, None
    for chunk in chain(start, stream):
        leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, chunk))
        count = _validate.leading_size(chunk, "chunks")
        numbers = np.arange(num_records, num_records + count)
        following = tags.following(count)
        reservoir.add([following, numbers, *leaves], following)
        num_records += count
    if structure is None:
        raise ValueError("chunks must be at least one, got none.")
    following, numbers, *leaves = reservoir.records()
    if devices:
        _sharding.digests({"chunks": _layout([leaves])}, devices)
        totals = [int(row[0]) for row in _gathered(np.array([num_records]), devices)]
        numbers += sum(totals[: _place(devices)])
        numbers, *leaves = _of_all(following, [numbers, *leaves], size, devices)
        num_records = sum(totals)
    if num_records <= size:
        leaves = [leaf[np.argsort(numbers)] for leaf in leaves]
    drawn = Sample(num_records, min(size, num_records))
    return jax.tree.unflatten(structure, leaves), drawn


def _layout(chunks: list[PyTree]) -> str:
    """Returns paths, types and shapes of leaves as text, for processes to compare."""
    arrays = [
        (jax.tree_util.keystr(path), np.asarray(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(chunks)
    ]
    for path, array in arrays:
        rule = "arrays without Python objects, which processes cannot exchange"
        _validate.require(not array.dtype.hasobject, "chunks", f"{path}: object", rule)
    return repr([(path, str(x.dtype), x.shape[1:]) for path, x in arrays])


def _one_of_each(mesh: Mesh) -> _sharding.Devices:
    """Returns one device of each process; () if one process has all."""
    rule = "a jax.sharding.Mesh with devices of this process"
    is_fine = isinstance(mesh, Mesh) and bool(mesh.local_devices)
    _validate.require(is_fine, "mesh", mesh, rule)
    of = {device.process_index: device for device in mesh.devices.flat}
    return _sharding.spanning(of.values())


def _place(devices: _sharding.Devices) -> int:
    """Returns the position of this process among the processes of `devices`."""
    return _sharding.processes_of(devices).index(jax.process_index())


def _of_all(
    tags: np.ndarray, columns: list[np.ndarray], size: int, devices: _sharding.Devices
) -> list[Any]:
    """Returns `columns` of the `size` rows with the smallest tags of all processes.

    The k rows of this process have random tags (k, 2), so the rows with the smallest
    tags are a uniform sample. Each process gets the same rows, in the order of tags.
    """
    # Tags are exchanged first, so that a process sends only rows that are drawn.
    every = _gathered(tags, devices)
    owners = np.repeat(np.arange(len(every)), [len(rows) for rows in every])
    drawn = order_of(np.concatenate(every))[:size]
    count = np.count_nonzero(owners[drawn] == _place(devices))
    tags, *columns = (
        np.concatenate(_gathered(x[:count], devices)) for x in (tags, *columns)
    )
    order = order_of(tags)
    return [column[order] for column in columns]


def _gathered(own: np.ndarray, devices: _sharding.Devices) -> list[np.ndarray]:
    """Returns the arrays `own` of all processes, as a list that each process gets."""
    # The exchange is in bytes, padded to one length, because JAX narrows types.
    count = np.array([len(own)], np.int64).view(np.uint8)
    counts = _sharding.rows_of_all(count, devices).view(np.int64)[:, 0].tolist()
    each = own.dtype.itemsize * int(np.prod(own.shape[1:]))  # bytes
    row = np.zeros(max(1, max(counts) * each), np.uint8)
    row[: own.nbytes] = np.ascontiguousarray(own).reshape(-1).view(np.uint8)
    return [
        x[: count * each].view(own.dtype).reshape(count, *own.shape[1:])
        for count, x in zip(counts, _sharding.rows_of_all(row, devices), strict=True)
    ]


@jax.jit
def _words(key: Key) -> jax.Array:
    return jax.random.bits(key, (8,), "uint32")


class Tags:
    """Draws tags, shape (k, 2), of consecutive records, or hashes names to tags."""

    def __init__(self, key: Key):
        words = np.asarray(_words(key))
        self._bits = np.random.Generator(np.random.Philox(key=words[:4].view("u8")))
        self._secret = words[4:].tobytes()

    def following(self, count: int) -> np.ndarray:
        """Returns the tags of the next `count` records."""
        return self._bits.integers(0, 2**64, (count, 2), np.uint64)

    def of_names(self, names: Iterable[str]) -> np.ndarray:
        """Returns the tags of names; equal names have equal tags."""
        texts = (name.encode("utf-8", "surrogatepass") for name in names)
        hashes = (hashlib.blake2b(x, key=self._secret, digest_size=16) for x in texts)
        digests = b"".join(state.digest() for state in hashes)
        return np.frombuffer(digests, np.uint64).reshape(-1, 2)


def order_of(tags: np.ndarray) -> np.ndarray:
    """Returns the indices that sort tags; equal tags keep their order."""
    return np.lexsort((tags[:, 1], tags[:, 0]))


class Reservoir:
    """Keeps the rows with the smallest tags, and at most twice as many rows in memory.

    A tag is a pair of random 64-bit words, so that these rows are a uniform sample.

    Args:
        size: the number of distinct tags to keep.
        join: concatenates the parts of a column, which take arrays of rows as index.
        each: how many rows of one tag to keep at most, the first of them.
    """

    def __init__(
        self, size: int, join: Callable[[list[Any]], Any], *, each: int = 1
    ) -> None:
        self._size, self._each, self._join = size, each, join
        self._limit: np.uint64 | None = None  # larger tags cannot be in the sample
        self._parts: list[list[Any]] = []  # the first column is the tags
        self._num_rows = 0

    def add(self, columns: Sequence[Any], tags: np.ndarray) -> None:
        """Adds k rows with tags (k, 2), except rows with tags above a full sample's."""
        part = [tags, *columns]
        if self._limit is not None:
            rows = np.flatnonzero(tags[:, 0] <= self._limit)
            part = [column[rows] for column in part]
        self._parts.append(part)
        self._num_rows += len(part[0])
        if self._num_rows > 2 * self._size * self._each:
            self.records()

    def all(self) -> list[Any]:
        """Returns the columns in the order of the stream, of at most `size` rows."""
        _, *columns = zip(*self._parts, strict=True)
        return [self._join([*parts]) for parts in columns]

    def records(self) -> list[Any]:
        """Returns the columns of the sample so far, in the order of tags."""
        tags = np.concatenate([part[0] for part in self._parts])
        order = order_of(tags)
        tags = tags[order]
        is_first = np.ones(len(tags), bool)
        is_first[1:] = (tags[1:] != tags[:-1]).any(axis=1)
        # `place` numbers the distinct tags, and `rank` the rows of each tag.
        place = np.cumsum(is_first) - 1
        rank = np.arange(len(tags)) - np.flatnonzero(is_first)[place]
        is_kept = (place < self._size) & (rank < self._each)
        tags, rows = tags[is_kept], order[is_kept]
        if len(place) and place[-1] >= self._size - 1:
            self._limit = tags[-1, 0]
        _, *columns = zip(*self._parts, strict=True)
        chosen = [self._join([*parts])[rows] for parts in columns]
        self._parts, self._num_rows = [[tags, *chosen]], len(tags)
        return chosen
