"""A search on its way: how many runs it makes, and what is known after some of them."""

import hashlib
import itertools
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._store import Arrays
from dpjax._trial_counts import TrialCount
from dpjax._types import Key, PyTree

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

    @classmethod
    def of(cls, arrays: Arrays) -> "Progress":
        """Returns what `arrays` has told."""
        leaves = tuple(arrays[f"leaf{i}"] for i in range(len(arrays) - 2))
        num_runs, num_done, candidate = arrays["numbers"].tolist()
        return cls(num_runs, num_done, candidate, arrays["score"].item(), leaves)

    def arrays(self) -> Arrays:
        """Returns all of it, to be kept."""
        return {
            "numbers": np.array([self.num_runs, self.num_done, self.candidate]),
            "score": np.array(self.score),
            **{f"leaf{i}": leaf for i, leaf in enumerate(self.leaves)},
        }

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


def digest(parts: Iterable[bytes]) -> str:
    """Returns what tells some parts of a search from others."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()
