"""A uniform sample without replacement of a stream, in a uniformly random order.

Each record gets a random tag of 128 bits, and the least tags are the sample, in their
order: independent tags are ordered in any way with the same probability. A tag depends
on the place of its record alone, or on the name of its unit, which has one tag for all
its records; so the sample does not depend on how the stream is cut into chunks. Two
tags are equal with a probability of less than n^2 / 2^129. Tags are as secret as noise.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from dpjax._types import Key


class Tags:
    """Tags of a stream's records one after the other, or of names."""

    def __init__(self, key: Key):
        words = np.asarray(jax.random.bits(key, (8,), "uint32"))
        self._bits = np.random.Generator(np.random.Philox(key=words[:4].view("u8")))
        self._secret = words[4:].tobytes()

    def following(self, count: int) -> np.ndarray:
        """Returns the tags of the next records, shape (count, 2)."""
        return self._bits.integers(0, 2**64, (count, 2), np.uint64)

    def of_names(self, names: Iterable[str]) -> list[bytes]:
        """Returns the tags of names, whose order is that of bytes."""
        return [
            hashlib.blake2b(
                name.encode("utf-8", "surrogatepass"), key=self._secret, digest_size=16
            ).digest()
            for name in names
        ]


def as_numbers(tags: Iterable[bytes]) -> np.ndarray:
    """Returns tags in the form of `Tags.following`, in the same order."""
    pairs = np.frombuffer(b"".join(tags), ">u8").reshape(-1, 2)
    return pairs.astype(np.uint64)


def places_of(tags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the place of each of some ordered tags, and its rank among equal ones.

    Example:
        >>> place, rank = places_of(np.array([[1, 7], [2, 0], [2, 0], [2, 3]]))
        >>> place.tolist(), rank.tolist()
        ([0, 1, 1, 2], [0, 0, 1, 0])
    """
    is_first = np.ones(len(tags), bool)
    is_first[1:] = (tags[1:] != tags[:-1]).any(axis=1)
    place = np.cumsum(is_first) - 1
    return place, np.arange(len(tags)) - np.flatnonzero(is_first)[place]


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
        """Takes the next rows in, or those that may be kept."""
        part = [tags, *columns]
        if self._limit is not None:
            rows = np.flatnonzero(tags[:, 0] <= self._limit)
            part = [column[rows] for column in part]
        self._parts.append(part)
        self._num_rows += len(part[0])
        if self._num_rows > 2 * self._size * self._each:
            self._compact()

    def kept(self) -> tuple[list[Any], np.ndarray]:
        """Returns columns and tags of the rows that are kept, by their tags' order."""
        self._compact()
        tags, *columns = self._parts[0]
        return columns, tags

    def _compact(self) -> None:
        tags = np.concatenate([part[0] for part in self._parts])
        order = np.lexsort((tags[:, 1], tags[:, 0]))  # of one tag the first come first
        tags = tags[order]
        place, rank = places_of(tags)
        is_kept = (place < self._size) & (rank < self._each)
        tags, rows = tags[is_kept], order[is_kept]
        if len(place) and place[-1] >= self._size - 1:
            self._limit = tags[-1, 0]
        _, *columns = zip(*self._parts, strict=True)
        self._parts = [[tags, *(self._join([*parts])[rows] for parts in columns)]]
        self._num_rows = len(tags)
