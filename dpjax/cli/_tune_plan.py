"""The runs of `dpjax tune`, and the budgets of each run and its score; all public.

The budget of a run is that of `dpjax.accounting.tuning_budget`, which assumes Gaussian
noise. For a method with other noise, or one known by its epsilon and delta alone, this
budget is too large. It is then reduced until the whole search keeps its budget.
"""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import GaussianDpEvent

from dpjax import _validate
from dpjax._types import Key
from dpjax.accounting import gaussian_epsilon, tuning_budget, tuning_epsilon
from dpjax.cli._methods import find_loss
from dpjax.cli._plan import Budget, Plan, make_plan, split_budget
from dpjax.cli._ranges import together
from dpjax.cli._runs import (
    arguments_of,
    predictions_of,
    problem_of,
    rows_of,
    training_privacy,
)
from dpjax.cli._sources import held_out
from dpjax.cli._tune_settings import TuneSettings
from dpjax.datasets import Dataset
from dpjax.solvers import Solution
from dpjax.tuning import Score, clipped_loss, dp_select

# The score's share of a run's budget; for Gaussian noise a share of 1 / sigma^2.
_SCORE_SHARE = 0.1
# The smallest factor by which the epsilon of a run may be reduced.
_SMALLEST = 0.05
Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True, eq=False)
class Search:
    """A fully specified search; every entry is public.

    Attributes:
        choices: the candidates, as values of the options that are searched over.
        plans: the run of each candidate.
        mean_trials: mean number of runs.
        total: budget of the search.
        each_run: budget of a run.
        each_score: budget of a score.
        score_limit: the bound to which the loss of a record is clipped in a score.
        scored_on: the records that are used for scores.
    """

    choices: list[dict[str, Any]]
    plans: list[Plan]
    mean_trials: float
    total: Budget
    each_run: Budget
    each_score: Budget
    score_limit: float
    scored_on: Literal["holdout", "training"]

    def score(self, scored: Pair) -> Score:
        """Returns the private score on the given records."""
        loss = self.plans[0].loss_fn

        def loss_fn(params, example):
            features, target = example
            return loss.value(predictions_of(params, features[None])[0], target)

        return clipped_loss(
            loss_fn,
            jax.tree.map(jnp.asarray, scored),
            limit=self.score_limit,
            epsilon=self.each_score.epsilon,
            delta=self.each_score.delta,
            records=self.scored_on,
        )

    def price(self, trained: Dataset, scored: Pair) -> float:
        """Returns the epsilon of the search at its delta, from shapes alone."""
        look = self.score(scored).privacy
        runs = dict.fromkeys(training_privacy(plan, trained) for plan in self.plans)
        if self.scored_on == "training":
            paid = [together([run, look], len(scored[1])) for run in runs]
        else:
            paid = [*runs, look]
        return max(
            tuning_epsilon(one, self.total.delta, mean_trials=self.mean_trials)
            for one in paid
        )


def apart(data: Dataset, share: float | None) -> tuple[Dataset, Pair]:
    """Returns the records to train on, and those to score with.

    A public seed and the number of records determine the split. If share is None, both
    are all records.

    Raises:
        ValueError: If fewer than ten are held out or left.
    """
    if share is None:
        return data, data.train
    is_scored = held_out(len(data.features), share)
    trained = dataclasses.replace(
        data,
        features=data.features[~is_scored],
        targets=data.targets[~is_scored],
        weights=None if data.weights is None else data.weights[~is_scored],
    )
    return trained, (data.features[is_scored], data.targets[is_scored])


def plan_search(settings: TuneSettings, data: Dataset, *, is_named: bool) -> Search:
    """Returns the search, with defaults that depend on public sizes alone.

    Only the task, the name and the shapes of the data are used, never its values. The
    public data sets (`is_named`) take 300 steps.

    Raises:
        ValueError: If an option does not go with the method, the facts or the task, or
            the budget is too small for a run.
    """
    trained, scored = apart(data, settings.holdout)
    choices = settings.choices()
    first = settings.candidate(choices[0])
    is_classification = data.task == "classification"
    loss = find_loss(first, is_classification=is_classification)
    _, total = split_budget(
        first, len(data.features), is_classification=is_classification
    )
    run, score = _shares(total, settings)

    def search(run: Budget, score: Budget, factor: float = 1.0) -> Search:
        each = Budget(factor * run.epsilon, run.delta)
        budget: dict[str, Any] = {"epsilon": each.epsilon, "private_ranges": None}
        if total.delta > 0:
            budget["delta"] = each.delta
        return Search(
            choices=choices,
            plans=[
                make_plan(settings.candidate(one, **budget), trained, is_named=is_named)
                for one in choices
            ],
            mean_trials=settings.trials,
            total=total,
            each_run=each,
            each_score=score,
            score_limit=settings.score_limit or (2.0 if loss == "logistic" else 20.0),
            scored_on="training" if settings.holdout is None else "holdout",
        )

    def affords(one: Search) -> bool:
        price = one.price(trained, scored)
        return price <= total.epsilon * (1 - 1e-9)  # `dp_select` asks once more

    for factor in (1.0, 0.999):
        one = search(run, score, factor)
        if affords(one):
            return one
    # The deltas of runs add up if only their epsilon and delta are known.
    run, score = (
        Budget(each.epsilon, each.delta / (4 * settings.trials))
        for each in (run, score)
    )
    step = 1.2 if affords(search(run, score)) else 1 / 1.2
    factor = 1.0
    while affords(search(run, score, factor * step)) == (step > 1):
        factor *= step
        rule = f"more, for {settings.trials:g} runs of --method {settings.method}"
        is_fine = _SMALLEST < factor < 1 / _SMALLEST
        _validate.require(is_fine, "--epsilon", settings.epsilon, rule)
    low, high = sorted((factor, factor * step))
    middle = math.sqrt(low * high)
    one = search(run, score, middle)
    return one if affords(one) else search(run, score, low)


def _shares(total: Budget, settings: TuneSettings) -> tuple[Budget, Budget]:
    """Returns the budgets of a run and of a score, for Gaussian or pure noise."""
    each = tuning_budget(*total, mean_trials=settings.trials)
    shares = (1.0, 1.0)
    if settings.holdout is None:
        shares = (1 - _SCORE_SHARE, _SCORE_SHARE)
    if not isinstance(each, GaussianDpEvent):  # pure
        run, score = (Budget(share * each, 0.0) for share in shares)
        return run, score
    run, score = (
        gaussian_epsilon(
            each.noise_multiplier / math.sqrt(share), total.delta, sensitivity=1.0
        )
        for share in shares
    )
    return Budget(run, total.delta), Budget(score, total.delta)


def run_search(
    search: Search,
    data: Dataset,
    *,
    key: Key,
    holdout: float | None,
    checkpoint: Path | None,
) -> Solution:
    """Makes the runs, and releases the best: see `dpjax.tuning.dp_select`."""
    trained, scored = apart(data, holdout)
    # All runs are of one method.
    rows = jax.tree.map(jnp.asarray, rows_of(search.plans[0].method, trained))

    def train(plan: Plan, key: Key) -> Solution:
        problem = problem_of(plan.method, plan, rows)
        return plan.method.solver(*problem, **arguments_of(plan), key=key)

    return dp_select(
        train,
        search.plans,
        key=key,
        epsilon=search.total.epsilon,
        delta=search.total.delta,
        score=search.score(scored),
        mean_trials=search.mean_trials,
        checkpoint=checkpoint,
    )
