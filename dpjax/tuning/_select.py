"""Private selection: the best of a random number of private runs."""

import contextlib
import dataclasses
import math
import os
from typing import Any

import jax
from dp_accounting import ComposedDpEvent, UnsupportedDpEvent

from dpjax import _validate
from dpjax._rounding import rounded_up
from dpjax._store import Store, opened
from dpjax._types import REPLACE_ONE, Key, PyTree
from dpjax.accounting import PrivacyGuarantee
from dpjax.accounting._events import samples_of
from dpjax.accounting._tuning import TrialCount, TrialDistribution, mixture_epsilon
from dpjax.solvers import Solution
from dpjax.tuning._runs import Runs, TrainFn
from dpjax.tuning._scores import Score
from dpjax.tuning._search import Progress, draw_count


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
    num_parallel: int = 1,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Solution:
    """Releases the best of a random number of private runs.

    Each run trains with a candidate that is drawn uniformly, and is scored privately.
    `accounting.tuning_budget` is the budget of a run.

    Args:
        train_fn: `train_fn(candidate, key)` returns the `Solution` of a private solver,
            whose guarantee is static.
        candidates: hyperparameters, models, or other first arguments of train_fn: a
            list or tuple; or a pytree of arrays of shape (N, ...), whose rows are
            candidates.
        key: a typed key. Run t, from 1, uses `fold_in(key, t)`.
        epsilon: privacy of the whole search, positive and finite.
        delta: privacy of the whole search, in [0, 1).
        score: a private score of released parameters: `clipped_loss`, `accuracy`, or
            your own `Score`.
        mean_trials: the mean of the number of runs; see `accounting.tuning_epsilon`.
        distribution: distribution of the number of runs; see there. "poisson" and
            "binomial" may make no run at all.
        default: public parameters, released if no run is made.
        privacy: the guarantee of every run, for a train_fn that cannot be traced. By
            default the guarantees of the candidates come from tracing, without a run.
        num_parallel: number of runs at a time: under one `vmap` for arrays, in threads
            for a list (a context such as `jax.enable_x64` does not reach them). The
            last runs of a group may be made and discarded.
        checkpoint: a folder for this search only, or None. A search that was killed
            continues there by the same call, and repeats no run; a finished one returns
            the same release. The folder is as SECRET as the data, and only its owner
            can read it: it holds the number of runs, and noise.

    Returns:
        A `Solution`: the params and stats of the best run, the index of its candidate
        (-1 for the default) and its score, without the number of runs.

    Raises:
        ValueError: Before any run, if an argument is out of its range, there is no
            candidate, a run has no finite epsilon, the search costs more than epsilon,
            or the checkpoint is of another search. After a run, if its guarantee is not
            `privacy`. Never because of the values of the data.

    Privacy:
        (epsilon', delta)-DP for the returned epsilon' <= epsilon, under the relation of
        the runs: `accounting.tuning_epsilon` of a run, and where the guarantees of
        candidates differ, that of the largest delta of any at every epsilon. With a
        score on a holdout it is the larger of the costs of a run and a score, because
        between neighbors only one of the two changes its distribution. A score of NaN
        counts as worst; ties are broken at random. Candidates must not depend on
        private data.

        The number of runs must stay secret. It can be inferred from the running time of
        a search, its memory, its logs, its cache of compiled programs, output of
        train_fn, and the dates of files that are written at the end: hide them from
        those who get the release (Papernot and Steinke, 2022).

    Example:
        >>> import jax, numpy as np
        >>> from dpjax import accounting, losses, solvers, tuning
        >>> from dpjax.estimators import Clipping
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(4_000, 2)).astype(np.float32)
        >>> y = x @ np.float32([1.0, -2.0])
        >>> each = accounting.tuning_budget(2.0, 1e-5, mean_trials=5)
        >>> cost = accounting.gaussian_epsilon(
        ...     each.noise_multiplier, 1e-5, sensitivity=1.0)
        >>> def train(rate, key):
        ...     return solvers.dp_gradient_descent(
        ...         losses.squared, np.zeros(2, np.float32), (x[:3_000], y[:3_000]),
        ...         key=key, epsilon=cost, delta=1e-5, estimator=Clipping(3.0),
        ...         learning_rate=rate, num_steps=10)
        >>> score = tuning.clipped_loss(
        ...     losses.squared, (x[3_000:], y[3_000:]), limit=4.0, epsilon=cost,
        ...     delta=1e-5)
        >>> solution = dp_select(
        ...     train, np.float32([1e-3, 1e-2, 0.3]), key=jax.random.key(0),
        ...     epsilon=2.0, delta=1e-5, score=score, mean_trials=5)
        >>> print(solution.stats["candidate"], solution.privacy.epsilon <= 2.0)
        2 True

    Reference:
        Papernot, Steinke (2022); Liu, Talwar (2019); Koskela, Redberg, Wang (2024): see
        `accounting.tuning_epsilon`.
    """
    _validate.typed_key(key)
    _validate.positive(epsilon=epsilon)
    _validate.delta(delta)
    _validate.count(num_parallel=num_parallel)
    _validate.require(isinstance(score, Score), "score", score, "a Score")
    law = TrialCount(distribution, mean_trials)
    rule = f"given where {distribution} may make no run"
    _validate.require(law.is_truncated or default is not None, "default", default, rule)
    runs = Runs(train_fn, candidates, score)
    rule = "None with a checkpoint, which identifies a search by tracing it"
    _validate.require(checkpoint is None or privacy is None, "privacy", privacy, rule)
    guarantees = runs.guarantees(key) if privacy is None else [privacy]
    released = _released_guarantee(guarantees, score, epsilon, delta, law)
    opening = contextlib.nullcontext()
    if checkpoint is not None:
        opening = opened(checkpoint, runs.identity(key, law, num_parallel))
    with opening as store:
        progress = _search(runs, law, key, num_parallel, privacy, store)
    best = {"candidate": progress.candidate, "score": progress.score}
    if progress.candidate < 0:
        return Solution(default, released, best)
    params, stats = runs.restored(progress)
    return Solution(params, released, stats | best)


def _search(
    runs: Runs,
    law: TrialCount,
    key: Key,
    num_parallel: int,
    known: PrivacyGuarantee | None,
    store: Store | None,
) -> Progress:
    if store is None or store.step is None:
        progress = Progress(draw_count(law, jax.random.fold_in(key, 0)))
        if store is not None:  # saved before any key is used
            store.save(0, progress.arrays())
    else:
        progress = Progress.of(store.latest())
    while progress.num_done < progress.num_runs:
        first = progress.num_done + 1
        turns = range(first, first + num_parallel)
        for index, solution, score in runs.made(key, turns):
            if progress.num_done == progress.num_runs:
                break
            if known is not None:
                rule = "the guarantee of every run, or one with more epsilon and delta"
                is_fine = _is_covered(solution.privacy, known)
                _validate.require(is_fine, "privacy", known, rule)
            released = (solution.params, solution.stats)
            progress = progress.with_run(index, score, released)
            place = 0 if runs.is_stacked else index
            runs.treedefs.setdefault(place, jax.tree.structure(released))
        if store is not None:
            store.save(progress.num_done, progress.arrays())
    return progress


def _is_covered(released: PrivacyGuarantee, known: PrivacyGuarantee) -> bool:
    """Returns whether the accounted guarantee covers that of a run.

    Another event of the same epsilon may have a larger profile: epsilon and delta are
    enough only if the event is the same, or is not used. Runs on one drawn sample are
    not independent.
    """
    if samples_of(released.dp_event):
        return False
    is_less = released.epsilon <= known.epsilon and released.delta <= known.delta
    is_read = not isinstance(known.dp_event, UnsupportedDpEvent)
    is_same = released.dp_event == known.dp_event
    return released.relation == known.relation and is_less and (is_same or not is_read)


def _released_guarantee(
    guarantees: list[PrivacyGuarantee],
    score: Score,
    epsilon: float,
    delta: float,
    law: TrialCount,
) -> PrivacyGuarantee:
    """Returns the guarantee of the search; raises if it is above the budget."""
    relation = score.privacy.relation
    for released in (*guarantees, score.privacy):
        _validate.require(
            math.isfinite(released.epsilon),
            "the epsilon of a run or a score",
            released.epsilon,
            "finite: the best of runs without privacy is not private",
        )
        rule = f"that of the score, {relation}"
        is_fine = released.relation is relation
        _validate.require(is_fine, "the relation of a run", released.relation, rule)
    rule = "REPLACE_ONE: a record that is added may move others into it"
    is_fine = relation is REPLACE_ONE or score.records == "training"
    _validate.require(is_fine, "the relation of a score on a holdout", relation, rule)
    distinct = list(dict.fromkeys(guarantees))
    if score.records == "training":
        price = mixture_epsilon([_both(x, score.privacy) for x in distinct], delta, law)
    else:
        prices = (mixture_epsilon(x, delta, law) for x in (distinct, [score.privacy]))
        price = max(prices)
    rule = (
        f"at least {rounded_up(price, 6)}, the cost of the search at delta = {delta}: "
        "accounting.tuning_budget is the budget of a run and its score"
    )
    _validate.require(price <= epsilon, "epsilon", epsilon, rule)
    stated = PrivacyGuarantee.of(
        price, delta, dp_event=UnsupportedDpEvent(), relation=relation
    )
    words = f" It covers the choice among about {law.mean:g} private runs."
    if len(distinct) > 1:
        words += " Candidates cost different amounts, of which the largest counts."
    return dataclasses.replace(stated, description=stated.description + words)


def _both(first: PrivacyGuarantee, second: PrivacyGuarantee) -> PrivacyGuarantee:
    """Returns the guarantee of a run and a score of the same records."""
    events: Any = (first.dp_event, second.dp_event)  # a tuple, which can be hashed
    return PrivacyGuarantee.of(
        math.nextafter(first.epsilon + second.epsilon, math.inf),
        math.nextafter(first.delta + second.delta, math.inf),
        dp_event=ComposedDpEvent(events),
        relation=first.relation,
    )
