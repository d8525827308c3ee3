"""Private selection: the best of a random number of private runs."""

import contextlib
import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import ComposedDpEvent, UnsupportedDpEvent

from dpjax import _validate
from dpjax._rounding import rounded_up
from dpjax._sharding import digests
from dpjax._store import Arrays, Store, opened
from dpjax._types import REPLACE_ONE, Key, PyTree, Scalar
from dpjax.accounting import PrivacyGuarantee
from dpjax.accounting._events import samples_of
from dpjax.accounting._tuning import TrialCount, TrialDistribution, mixture_epsilon
from dpjax.gradients._loss import constants
from dpjax.solvers import Solution
from dpjax.tuning._scores import Score

TrainFn = Callable[[Any, Key], Solution]

_BITS, _BLOCK = 128, 1_024


def dp_select(
    train_fn: TrainFn,
    candidates: Any,
    *,
    key: Key,
    epsilon: float,
    delta: float,
    score: Score,
    mean_trials: float,
    distribution: TrialDistribution = "geometric",
    default: PyTree | None = None,
    privacy: PrivacyGuarantee | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Solution:
    """Releases the best of a random number of private runs.

    A run trains with a random candidate; `accounting.tuning_budget` is its budget.

    Args:
        train_fn: `train_fn(candidate, key)` returns released params and their guarantee
            in a `Solution`; the guarantee is static.
        candidates: public first arguments of train_fn: a list or tuple; or a pytree of
            arrays of shape (N, ...), with a candidate in each row.
        key: a typed key.
        epsilon: privacy of the whole search, positive and finite.
        delta: privacy of the whole search, in [0, 1).
        score: `clipped_loss`, or your own `Score`.
        mean_trials: the mean of the number of runs.
        distribution: the law of the number of runs, as in `accounting.tuning_epsilon`.
        default: public params, released if no run is made.
        privacy: the guarantee of every run, for a train_fn that cannot be traced.
        checkpoint: a folder for this search only, as SECRET as the data, or None. The
            same call continues a search that was killed.

    Returns:
        A `Solution` of the best run, with its candidate (-1: the default) and score.

    Raises:
        ValueError: If an argument is out of its range, the search costs more than
            epsilon, the checkpoint is of another search, or a run exceeds `privacy`.

    Privacy:
        (epsilon', delta)-DP for the returned epsilon' <= epsilon, under the relation of
        the runs: the cost if every run had the largest delta of any candidate at every
        epsilon, or the cost of a score on a holdout, if that is more. Keep the number
        of runs secret: hide a search's time, memory, logs, programs and dates of files.

    Example:
        >>> from dpjax import solvers, tuning
        >>> from dpjax.estimators import Clipping
        >>> x = jax.random.normal(jax.random.key(1), (4_000, 1)) + 1.0
        >>> share = {"epsilon": 0.8, "delta": 1e-6}
        >>> train = lambda norm, key: solvers.dp_mean(
        ...     x[1_000:], key=key, estimator=Clipping(norm), **share)
        >>> score = tuning.clipped_loss(
        ...     lambda mean, x: ((mean - x) ** 2).sum(), x[:1_000], limit=9.0, **share)
        >>> best = dp_select(train, [0.01, 3.0], key=jax.random.key(0), score=score,
        ...                  epsilon=2.0, delta=1e-5, mean_trials=5)
        >>> best.stats["candidate"], best.privacy.epsilon <= 2.0
        (1, True)

    Reference:
        As for `accounting.tuning_epsilon`.
    """
    _validate.typed_key(key)
    _validate.positive(epsilon=epsilon)
    _validate.delta(delta)
    _validate.require(isinstance(score, Score), "score", score, "a dpjax.tuning.Score")
    law = TrialCount(distribution, mean_trials)
    rule = f"given with distribution {distribution!r}, which may make no run"
    _validate.require(law.is_truncated or default is not None, "default", default, rule)
    runs = Runs(train_fn, candidates, score)
    rule = "None with a checkpoint, for which the runs are traced"
    _validate.require(checkpoint is None or privacy is None, "privacy", privacy, rule)
    guarantees = [privacy] if privacy else runs.guarantees(key, checkpoint is not None)
    released = _released_guarantee(guarantees, score, epsilon, delta, law)
    opening = contextlib.nullcontext()
    if checkpoint is not None:
        opening = opened(checkpoint, runs.identity(key, law))
    with opening as store:
        progress = _search(runs, law, key, privacy, store)
    best = {"candidate": progress.candidate, "score": progress.score}
    if progress.candidate < 0:
        return Solution(default, released, best)
    params, stats = runs.restored(progress)
    return Solution(params, released, stats | best)


def _released_guarantee(
    guarantees: list[PrivacyGuarantee], score: Score, epsilon, delta, law: TrialCount
) -> PrivacyGuarantee:
    """Returns the guarantee of a search; raises if it costs more than its budget."""
    # `guarantees` are of runs with each candidate; `law` is that of the number of runs.
    relation = score.privacy.relation
    for released in (*guarantees, score.privacy):
        rule = "finite: the best of runs without privacy is not private"
        name, epsilon_of_it = "the epsilon of a run or a score", released.epsilon
        _validate.require(math.isfinite(epsilon_of_it), name, epsilon_of_it, rule)
        rule = f"{relation.name}, as in score.privacy: both need one relation"
        is_fine = released.relation is relation
        _validate.require(is_fine, "the relation of a run", released.relation, rule)
    rule = "REPLACE_ONE: an added record may move other records into the holdout"
    is_fine = relation is REPLACE_ONE or score.records == "training"
    _validate.require(is_fine, "the relation of a score on a holdout", relation, rule)
    distinct = list(dict.fromkeys(guarantees))
    # A record of a holdout changes either the run or its score, so the larger cost
    # counts; a record of training data may change both.
    if score.records == "training":
        price = mixture_epsilon([_both(x, score.privacy) for x in distinct], delta, law)
    else:
        prices = (mixture_epsilon(x, delta, law) for x in (distinct, [score.privacy]))
        price = max(prices)
    rule = (
        f"at least {rounded_up(price, 6)}, the cost of the search at delta = {delta}: "
        "take the budget of a run and its score from accounting.tuning_budget"
    )
    _validate.require(price <= epsilon, "epsilon", epsilon, rule)
    unknown = {"dp_event": UnsupportedDpEvent(), "relation": relation}
    stated = PrivacyGuarantee.of(price, delta, **unknown)
    words = f" It covers the choice among about {law.mean:g} private runs."
    if len(distinct) > 1:
        words += " Candidates cost different amounts, of which the largest counts."
    return dataclasses.replace(stated, description=stated.description + words)


def _both(first: PrivacyGuarantee, second: PrivacyGuarantee) -> PrivacyGuarantee:
    """Returns the guarantee of a run and its score together, on the same records."""
    events: Any = (first.dp_event, second.dp_event)  # a tuple, which can be hashed
    return PrivacyGuarantee.of(
        math.nextafter(first.epsilon + second.epsilon, math.inf),
        math.nextafter(first.delta + second.delta, math.inf),
        dp_event=ComposedDpEvent(events),
        relation=first.relation,
    )


class Progress(NamedTuple):
    """The best run of a search so far, and the numbers of runs. All of it is SECRET."""

    num_runs: int  # in all, drawn once
    num_done: int = 0
    candidate: int = -1  # index of the best candidate
    score: float = -np.inf  # of the best run
    leaves: tuple[np.ndarray, ...] = ()  # of the params and stats of the best run

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
        """Returns the state after one more run, which may be the best one so far."""
        # `released` are the params and stats of the run.
        # NaN is the worst score. The first of tied runs wins: it is a random one of
        # them, because all runs have the same distribution.
        score = -np.inf if np.isnan(score) else score
        if self.candidate >= 0 and score <= self.score:
            return self._replace(num_done=self.num_done + 1)
        leaves = tuple(np.asarray(leaf) for leaf in jax.tree.leaves(released))
        return Progress(self.num_runs, self.num_done + 1, candidate, score, leaves)


def draw_count(law: TrialCount, key: Key) -> int:
    """Draws the number of runs from its law, up to relative errors of 1e-12."""
    # 128 random bits are compared with sums of probabilities, rounded to 128 bits. Bits
    # beyond these sums, with probability below 1e-12, are drawn again.
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
    raise AssertionError("no count in 1,000 draws, a bug of dpjax: please report it")


@jax.jit
def _random_bits(key: Key, attempt: int) -> jax.Array:
    return jax.random.bits(jax.random.fold_in(key, attempt), (4,), jnp.uint32)


@partial(jax.jit, static_argnums=0)
def _draw(size: int, key: Key, number: Any) -> tuple[jax.Array, Key]:
    """Returns the index of the candidate of a run, by its number, and the run's key."""
    index_key, run_key = jax.random.split(jax.random.fold_in(key, number))
    return jax.random.randint(index_key, (), 0, size), run_key


@dataclasses.dataclass
class Runs:
    """Trains and scores candidates for `dp_select`, one candidate in each run."""

    train_fn: TrainFn
    candidates: Any
    score: Score
    treedefs: dict[int, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks and counts the candidates; converts rows of arrays to JAX arrays."""
        is_fine = callable(self.train_fn)
        _validate.require(is_fine, "train_fn", self.train_fn, "a function")
        if self.is_stacked:
            self.size = _validate.leading_size(self.candidates, "candidates")
            self.candidates = jax.tree.map(jnp.asarray, self.candidates)
        else:
            self.size = len(self.candidates)
            is_fine = self.size > 0
            _validate.require(is_fine, "candidates", self.candidates, "at least one")

    @property
    def is_stacked(self) -> bool:
        """Tells whether candidates are rows of arrays."""
        return not isinstance(self.candidates, list | tuple) or (
            hasattr(self.candidates, "_fields")  # a NamedTuple of arrays
        )

    def run_of(self, index: Any, key: Key) -> tuple[Solution, Scalar]:
        """Trains with the candidate at `index`; returns a `Solution` and its score."""
        train_key, score_key = jax.random.split(key)
        if self.is_stacked:
            candidate = jax.tree.map(lambda leaf: leaf[index], self.candidates)
        else:
            candidate = self.candidates[index]
        solution = self.train_fn(candidate, train_key)
        is_fine, rule = isinstance(solution, Solution), "a dpjax.solvers.Solution"
        _validate.require(is_fine, "what train_fn returns", type(solution), rule)
        return solution, jnp.asarray(self.score.fn(solution.params, score_key))

    def traced(self) -> Iterator[tuple[Callable, tuple]]:
        """Yields the function of a run and its inputs, for each kind of candidate."""
        if self.is_stacked:
            yield self.run_of, (jnp.int32(0),)
        else:
            for i in range(self.size):
                yield lambda key, i=i: self.run_of(i, key), ()

    def guarantees(self, key: Key, is_saved: bool) -> list[PrivacyGuarantee]:
        """Returns the guarantees of runs, to know the cost of a search before it."""
        # Runs are only traced: one for each candidate of a list, one for all of a stack
        # of arrays. `is_saved` tells that the search has a checkpoint, for an error.
        results = []
        for i, (run, inputs) in enumerate(self.traced()):
            try:
                solution, value = jax.eval_shape(run, *inputs, key)
            except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as why:
                given = "without checkpoint" if is_saved else "the guarantee of a run"
                values = "Give candidates as a list, whose values are not traced."
                advice = values if self.is_stacked else f"Else give privacy, {given}."
                raise ValueError(
                    "train_fn and score.fn must be traceable by JAX, got "
                    f"{type(why).__name__}. {advice}"
                ) from why
            _validate.require(value.shape == (), "score.fn(...)", value, "a scalar")
            results.append(solution.privacy)
            self.treedefs[i] = jax.tree.structure((solution.params, solution.stats))
        return results

    def identity(self, key: Key, law: TrialCount) -> dict[str, str]:
        """Returns texts that identify a search: its settings, key, program and data."""
        # A checkpoint with any other text is rejected. The text of a program lacks its
        # large constants, such as data.
        programs = [jax.make_jaxpr(run)(*inputs, key) for run, inputs in self.traced()]
        parts = [(str(program), [*constants(program)]) for program in programs]
        numbers = repr((law, self.size, jax.__version__))
        return {
            "law, number of candidates or version of jax": numbers,
            **digests({"key": key, "function or data": parts}, ()),
        }

    def restored(self, progress: Progress) -> tuple[PyTree, dict]:
        """Returns the params and stats of the best run."""
        treedef = self.treedefs[0 if self.is_stacked else progress.candidate]
        return jax.tree.unflatten(treedef, map(jnp.asarray, progress.leaves))


def _search(
    runs: Runs, law: TrialCount, key: Key, known, store: Store | None
) -> Progress:
    """Trains a number of candidates drawn from `law`; returns the best run by score."""
    # `Progress` also counts the runs, numbered from 1; `key` and a run's number
    # determine its candidate. `known` is the guarantee of every run that the caller
    # states, and is compared with that of each; None: tracing gave it. A search
    # continues from its checkpoint `store`, if any.
    if store is not None and store.step is not None:
        progress = Progress.of(store.latest())
    else:
        progress = Progress(draw_count(law, jax.random.fold_in(key, 0)))
        if store is not None:  # saved before any run
            store.save(0, progress.arrays())
    while progress.num_done < progress.num_runs:
        index, run_key = _draw(runs.size, key, progress.num_done + 1)
        solution, score = runs.run_of(int(index), run_key)
        if known is not None:
            rule = "the guarantee of every run, or one with more epsilon and delta"
            is_fine = _is_covered(solution.privacy, known)
            _validate.require(is_fine, "privacy", known, rule)
        released = (solution.params, solution.stats)
        progress = progress.with_run(int(index), float(score), released)
        place = 0 if runs.is_stacked else int(index)
        runs.treedefs.setdefault(place, jax.tree.structure(released))
        if store is not None:
            store.save(progress.num_done, progress.arrays())
    return progress


def _is_covered(released: PrivacyGuarantee, known: PrivacyGuarantee) -> bool:
    """Returns whether a run costs no more than `known`, which was accounted for."""
    if samples_of(released.dp_event):  # runs on one drawn sample are not independent
        return False
    # Another event of the same epsilon may have a larger profile: epsilon and delta are
    # enough only if the event is the same, or is not used.
    is_less = released.epsilon <= known.epsilon and released.delta <= known.delta
    is_read = not isinstance(known.dp_event, UnsupportedDpEvent)
    is_same = released.dp_event == known.dp_event
    return released.relation == known.relation and is_less and (is_same or not is_read)
