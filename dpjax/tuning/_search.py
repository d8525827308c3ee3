"""A search on its way: how many runs it makes, and a folder that outlives a process."""

import contextlib
import hashlib
import io
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _files, _validate
from dpjax._trial_counts import TrialCount
from dpjax._types import Key, PyTree

_FILE = "search.npz"
_BITS, _BLOCK = 128, 1_024


class Progress(NamedTuple):
    """What a search knows after some of its runs. All of it is SECRET.

    Attributes:
        num_runs: how many there are, drawn once.
        num_done: how many have been made.
        candidate: of the best, or -1.
        score: of the best.
        leaves: of what it released.
    """

    num_runs: int
    num_done: int = 0
    candidate: int = -1
    score: float = -np.inf
    leaves: tuple[np.ndarray, ...] = ()

    def with_run(self, candidate: int, score: float, released: PyTree) -> "Progress":
        """Counts one more run, which is kept where it is better than all before.

        NaN is as bad as can be. Of runs that tie the first is kept, which is one of
        them at random, as all are drawn alike.
        """
        score = -np.inf if np.isnan(score) else score
        if self.candidate >= 0 and score <= self.score:
            return self._replace(num_done=self.num_done + 1)
        leaves = tuple(np.asarray(leaf) for leaf in jax.tree.leaves(released))
        return Progress(self.num_runs, self.num_done + 1, candidate, score, leaves)


def draw_count(law: TrialCount, key: Key) -> int:
    """Draws K, each value with its probability but for a relative error of 1e-12.

    128 random bits are compared with sums of probabilities that are rounded to as many.
    What these leave over, less than 1e-12 in all, is drawn again.
    """
    for attempt in range(1_000):
        bits = np.asarray(_random_bits(key, attempt))
        left = int.from_bytes(bits.tobytes(), "little")
        for start in itertools.count(0, _BLOCK):
            probs = law.prob(np.arange(start, start + _BLOCK))
            for k, prob in enumerate(probs.tolist(), start):
                left -= int(prob * 2.0**_BITS)
                if left < 0:
                    return k
            if start > 2 * law.mean and np.all(probs < 2.0**-_BITS):
                break
    raise AssertionError("a thousand draws in a row of probability 1e-12")


@jax.jit
def _random_bits(key: Key, attempt: int) -> jax.Array:
    return jax.random.bits(jax.random.fold_in(key, attempt), (4,), jnp.uint32)


class Folder:
    """The state of one search in a folder of its own; use `opened`."""

    def __init__(self, path: Path, identity: str) -> None:
        self._path, self._identity = path / _FILE, identity

    def load(self) -> Progress | None:
        """Returns what was saved last, or None."""
        if not self._path.exists():
            return None
        with np.load(self._path, allow_pickle=False) as saved:
            _validate.require(
                str(saved["identity"]) == self._identity,
                "checkpoint",
                str(self._path.parent),
                "of the same search: with the same key, candidates, functions and "
                "their data, law, and version of jax",
            )
            leaves = tuple(saved[f"leaf{i}"] for i in range(int(saved["num_leaves"])))
            return Progress(
                int(saved["num_runs"]),
                int(saved["num_done"]),
                int(saved["candidate"]),
                float(saved["score"]),
                leaves,
            )

    def save(self, progress: Progress) -> None:
        """Writes the state whole, in place of the one before."""
        arrays: dict[str, Any] = {
            "identity": self._identity,
            "num_runs": progress.num_runs,
            "num_done": progress.num_done,
            "candidate": progress.candidate,
            "score": progress.score,
            "num_leaves": len(progress.leaves),
            **{f"leaf{i}": leaf for i, leaf in enumerate(progress.leaves)},
        }
        content = io.BytesIO()
        np.savez(content, **arrays)
        _files.write_whole(self._path, content.getvalue(), name="checkpoint")


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], identity: str) -> Iterator[Folder]:
    """Opens the folder of a search, for its owner and one process alone."""
    import fcntl  # which Windows lacks: the rest of the package works there

    folder = Path(path).absolute()
    _files.check_folder("checkpoint", folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            rule = "a folder that no other process has open"
            raise ValueError(
                f"checkpoint must be {rule}, got {str(folder)!r}"
            ) from None
        yield Folder(folder, identity)
    finally:
        os.close(descriptor)


def digest(parts: Iterator[bytes]) -> str:
    """Returns what tells one search from others."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()
