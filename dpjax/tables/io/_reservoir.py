"""A uniform sample without replacement of a stream, in a uniformly random order.

Each record gets a random tag of 128 bits. The records with the smallest tags are the
sample, in the order of tags: all orders of independent tags are equally likely. A tag
depends only on the position of its record, or on the name of its unit, whose records
share one tag; so the sample does not depend on how the stream is cut into chunks. Two
tags are equal with probability below n^2 / 2^129. Tags are as secret as noise.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from dpjax._types import Key


class Tags:
    """Tags of a stream's records one after the other, or of names, shape (k, 2)."""

    def __init__(self, key: Key):
        words = np.asarray(jax.random.bits(key, (8,), "uint32"))
        self._bits = np.random.Generator(np.random.Philox(key=words[:4].view("u8")))
        self._secret = words[4:].tobytes()

    def following(self, count: int) -> np.ndarray:
        """Returns the tags of the next records."""
        return self._bits.integers(0, 2**64, (count, 2), np.uint64)

    def of_names(self, names: Iterable[str]) -> np.ndarray:
        """Returns the tags of names."""
        texts = (name.encode("utf-8", "surrogatepass") for name in names)
        hashes = (hashlib.blake2b(x, key=self._secret, digest_size=16) for x in texts)
        digests = b"".join(state.digest() for state in hashes)
        return np.frombuffer(digests, np.uint64).reshape(-1, 2)


def order_of(tags: np.ndarray) -> np.ndarray:
    """Returns the order of tags; equal tags keep their order."""
    return np.lexsort((tags[:, 1], tags[:, 0]))


class Reservoir:
    """Keeps the rows of the least tags, of at most twice as many rows as it will give.

    Args:
        size: how many tags.
        join: concatenates the parts of a column, which take arrays of rows as index.
        each: the most rows of one tag that are kept, the first ones.
    """

    def __init__(
        self, size: int, join: Callable[[list[Any]], Any], *, each: int = 1
    ) -> None:
        self._size, self._each, self._join = size, each, join
        self._limit: np.uint64 | None = None  # of tags that can still be among them
        self._parts: list[list[Any]] = []  # the first column is the tags
        self._num_rows = 0

    def add(self, columns: Sequence[Any], tags: np.ndarray) -> None:
        """Adds the next rows, without those that cannot be in the sample."""
        part = [tags, *columns]
        if self._limit is not None:
            rows = np.flatnonzero(tags[:, 0] <= self._limit)
            part = [column[rows] for column in part]
        self._parts.append(part)
        self._num_rows += len(part[0])
        if self._num_rows > 2 * self._size * self._each:
            self.records()

    def all(self) -> list[Any]:
        """Returns the columns of a stream of `size` rows at most, in its order."""
        _, *columns = zip(*self._parts, strict=True)
        return [self._join([*parts]) for parts in columns]

    def records(self) -> list[Any]:
        """Returns the columns of the rows that are kept, in the order of their tags."""
        tags = np.concatenate([part[0] for part in self._parts])
        order = order_of(tags)
        tags = tags[order]
        is_first = np.ones(len(tags), bool)
        is_first[1:] = (tags[1:] != tags[:-1]).any(axis=1)
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
