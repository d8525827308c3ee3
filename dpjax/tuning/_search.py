"""The state of a search: its number of runs, and the best run so far."""

import hashlib
import itertools
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._store import Arrays
from dpjax._types import Key, PyTree
from dpjax.accounting._tuning import TrialCount

_BITS, _BLOCK = 128, 1_024


class Progress(NamedTuple):
    """The state of a search after some of its runs. All of it is SECRET.

    Attributes:
        num_runs: number of runs in all, drawn once.
        num_done: number of runs so far.
        candidate: index of the best candidate, or -1.
        score: score of the best run.
        leaves: leaves of the release of the best run.
    """

    num_runs: int
    num_done: int = 0
    candidate: int = -1
    score: float = -np.inf
    leaves: tuple[np.ndarray, ...] = ()

    @classmethod
    def of(cls, arrays: Arrays) -> "Progress":
        """Returns the state from its `arrays`."""
        leaves = tuple(arrays[f"leaf{i}"] for i in range(len(arrays) - 2))
        num_runs, num_done, candidate = arrays["numbers"].tolist()
        return cls(num_runs, num_done, candidate, arrays["score"].item(), leaves)

    def arrays(self) -> Arrays:
        """Returns the state as named arrays, for a checkpoint."""
        return {
            "numbers": np.array([self.num_runs, self.num_done, self.candidate]),
            "score": np.array(self.score),
            **{f"leaf{i}": leaf for i, leaf in enumerate(self.leaves)},
        }

    def with_run(self, candidate: int, score: float, released: PyTree) -> "Progress":
        """Counts one more run, and keeps it if it is better than all before.

        NaN is the worst score. The first of tied runs is kept, which is a random one of
        them, because all runs have the same distribution.
        """
        score = -np.inf if np.isnan(score) else score
        if self.candidate >= 0 and score <= self.score:
            return self._replace(num_done=self.num_done + 1)
        leaves = tuple(np.asarray(leaf) for leaf in jax.tree.leaves(released))
        return Progress(self.num_runs, self.num_done + 1, candidate, score, leaves)


def draw_count(law: TrialCount, key: Key) -> int:
    """Draws K, each value with its probability up to a relative error of 1e-12.

    128 random bits are compared with sums of probabilities, rounded to 128 bits. Bits
    beyond these sums, with probability below 1e-12, are drawn again.
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
    """Returns a digest of a sequence of byte strings."""
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()
