"""Attacks on all that one run releases: the likelihood ratio of its transcript.

Two data sets go through one program, side by side. Where it adds Gaussian noise, both
get the number that the first releases, so that their next steps are the same, and the
log ratio of the densities of this number is added up. By Neyman and Pearson no other
statistic of a transcript tells more, for these two data sets. The results must be equal
to the bit, because only numbers with noise may tell the data sets apart.
"""

import dataclasses
import itertools
import threading
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.audits.case import Case
from dpjax._rounding import ROUNDED_UP
from dpjax._sums.fold import Unrounded
from dpjax._types import Key, PyTree
from dpjax.audit._lower_bound import Audit
from dpjax.mechanisms import _additive, _samplers

_MOST_RUNS, _CHUNK = 1_000, 10**6  # runs at once, and numbers that they read
_SCALAR = jax.ShapeDtypeStruct((), "float32")


@dataclasses.dataclass(frozen=True)
class Transcript(Case):
    """A case whose attack reads all numbers that got noise, not only the result."""

    def audit(self, *, key: Key, num_releases: int | None = None) -> Audit:
        """Attacks the claim by the log likelihood ratios of transcripts."""
        num_releases = self.num_releases if num_releases is None else num_releases
        draw_key, key = jax.random.split(key)
        keys = jax.random.split(draw_key, (2, num_releases // 2))
        sides = [iter(x) for x in self.log_ratios(keys)]
        case = Case(
            *(lambda key, side: next(sides[int(side)]), 0, 1, self.privacy),
            statistic=lambda ratio: ratio,
            is_gaussian=self.is_gaussian,
            vectorize=False,
        )
        return case.audit(key=key, num_releases=num_releases)

    def log_ratios(self, keys: Key) -> list[np.ndarray]:
        """Returns the ratios of both data sets' transcripts, by keys (2, n)."""
        num_read = sum(x.size for x in jax.tree.leaves(self.data))
        num_runs = max(100, min(_MOST_RUNS, _CHUNK // num_read))
        lock, total = threading.Lock(), np.zeros(num_runs)

        def add(ratio):
            with lock:  # axes are of runs, and of releases
                total[:] += np.asarray(ratio).reshape(num_runs, -1).sum(axis=1)
            return np.zeros(ratio.shape, np.float32)

        def noisy(sampler, key, value, scale):
            assert sampler is _samplers.normal, "only Gaussian noise has this ratio"
            value = value if isinstance(value, Unrounded) else Unrounded.of(value)
            z, scale = _samplers.like(sampler, key, value.high), scale * ROUNDED_UP
            both = jax.lax.all_gather(value, "side")

            def ratio(high, low, z):
                away = ((high[1] - high[0]) + (low[1] - low[0])) / scale
                return jnp.sum(jnp.where(away == 0, 0, away * z - away**2 / 2))

            ratios = jax.tree.map(ratio, both.high, both.low, z)
            place = 0 * jax.lax.axis_index("run").astype("float32")  # one for each run
            given = _SCALAR, jax.tree.reduce(jnp.add, ratios, place)
            zero = jax.pure_callback(add, *given, vmap_method="broadcast_all")
            first = jax.tree.map(lambda x: x[0], both)
            return first.plus(jax.tree.map(lambda z: scale * z + zero, z))

        release = jax.vmap(self.release, (None, 0), axis_name="side")
        runs = jax.jit(jax.vmap(release, (0, None), axis_name="run"))
        pair, found, size = (self.data, self.neighbor), ([], []), keys.shape[1]
        jax.clear_caches()  # of programs with other noise
        # Padding serves compilation alone.
        with patch.multiple(_additive, _noisy=noisy, _FEWEST_PADDED=1):
            for side, start in itertools.product((0, 1), range(0, size, num_runs)):
                total[:] = 0
                data = jax.tree.map(lambda *x: jnp.stack(x), *pair[:: 1 - 2 * side])
                chunk = keys[side, jnp.arange(start, start + num_runs) % size]
                for x in map(np.asarray, runs(chunk, data)):
                    message = "the result depends on records without noise"
                    np.testing.assert_array_equal(x[:, 0], x[:, 1], message)
                found[side].append((1 - 2 * side) * total)
        jax.clear_caches()
        return [np.concatenate(x)[:size].astype("float32") for x in found]


def transcribed(solve, data, neighbor, **options) -> Transcript:
    """Attacks all that a solver releases, by Gaussian noise alone."""

    def release(key: Key, data: PyTree) -> list[jax.Array]:
        found = solve(key, data)
        shown = found.params, found.standard_errors, found.correlations, found.stats
        return [x for x in jax.tree.leaves(shown) if isinstance(x, jax.Array)]

    privacy = jax.eval_shape(solve, jax.random.key(0), data).privacy
    return Transcript(release, data, neighbor, privacy, is_gaussian=True, **options)
