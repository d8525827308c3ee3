"""Plans models from public facts, fits them, and scores them on other records."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from dpjax import _validate, losses, solvers
from dpjax._types import ArrayLike, Key, PyTree
from dpjax.accounting import PrivacyGuarantee, Sampling, noise_multiplier
from dpjax.datasets import Dataset
from dpjax.gradients._users import UserRecords
from dpjax.losses import LinearLoss
from dpjax.losses._residual_losses import named
from dpjax.solvers import Curves, Execution, Solution, dp_linear_model
from dpjax.solvers.additive._curves import knots_of
from dpjax.solvers.linear._model import checked, noise_of
from dpjax.solvers.statistics._noisy_mean import one_gaussian
from dpjax.tables.cli._release import RunFolder
from dpjax.tables.cli._schema import Schema
from dpjax.tables.cli._settings import FOR_AMOUNTS, LossName, Settings, chosen_loss
from dpjax.tables.cli._terminal import OnStep
from dpjax.tables.models._scores import private_scores
from dpjax.tables.models._terms import MEANS, Link, bending_features

_TWEEDIE = 1.5  # the default, halfway between counts (1) and amounts (2)
_CLASSES = "logistic", "softmax"
_LONG = 1_000_000  # numbers in a table whose training takes longer than compiling
# Solvers take no infinite epsilon. At this one, the noise is below every other error,
# even in releases with a thousandth of the budget.
NO_PRIVACY = 1e12
# The loss functions by the names that --loss takes.
_LOSSES: dict[LossName, LinearLoss] = {
    "logistic": losses.logistic,
    "squared": losses.squared,
    "huber": named("huber"),  # its threshold is released
    "poisson": losses.log_link(1.0),
    "gamma": losses.log_link(2.0),
    "tweedie": losses.log_link(_TWEEDIE),
}


class Budget(NamedTuple):
    """A privacy budget."""

    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A training before it runs: loss, budget and arguments; every entry is public."""

    loss: LossName
    loss_fn: LinearLoss  # for targets in units of their scale
    budget: Budget  # of the training, for one record or unit
    unit_size: int  # rows of a unit; 1 without units
    arguments: Mapping[str, Any]  # of the solver; it is additive if one is `smooth`

    @property
    def method(self) -> str:
        """The name of the private model."""
        return f"DP {'additive' if self.arguments.get('smooth') else 'linear'} model"


def make_plan(
    settings: Settings,
    data: Dataset,
    budget: Budget,
    schema: Schema | None = None,
    unit_size: int = 1,  # rows of a unit of privacy
) -> Plan:
    """Returns the plan of a training: its loss, its budget and the solver's arguments.

    Defaults depend on public facts alone, which are the task, the name, a file's schema
    and the shapes of `data`, so that the guarantee is known before a value is used.
    """
    is_classification = data.task == "classification"
    link: Link = "logit" if is_classification else "identity"
    loss = chosen_loss(settings, link if schema is None else schema.link)
    num_classes = 0 if schema is None else len(schema.classes)
    unfit = (*FOR_AMOUNTS, "softmax") if is_classification else _CLASSES
    allowed = ", ".join(name for name in get_args(LossName) if name not in unfit)
    kind = "class" if is_classification else "number"
    rule = f"one of {allowed} for {data.name}, whose target is a {kind}"
    _validate.require(num_classes > 0 or loss not in unfit, "--loss", loss, rule)
    num_samples, num_features = data.features.shape
    arguments: dict[str, Any] = {}
    if settings.intervals:
        rule = "left out if the schema has no column beside the target"
        _validate.require(num_features > 1, "--intervals", True, rule)
        arguments["intervals"] = True
    if settings.max_features is not None:
        arguments["max_features"] = settings.max_features
    loss_fn = losses.softmax(num_classes) if num_classes else _LOSSES[loss]
    if settings.power is not None:
        loss_fn = losses.log_link(settings.power)
    plan = Plan(
        loss=loss,
        loss_fn=loss_fn,
        budget=budget,
        unit_size=unit_size,
        arguments=arguments,
    )
    if settings.may_bend:
        # The columns have curves if the sizes and the budget allow knots.
        bending = list(bending_features(data.schema))
        multiplier = unit_size * noise_multiplier(*budget, Sampling(num_steps=1))
        sizes = num_samples, num_features, len(bending)
        if knots_of(plan.loss_fn, *sizes, multiplier):
            arguments["smooth"] = bending
    return plan


class Score(NamedTuple):
    """Scores of a method on the test records, without any privacy."""

    method: str
    privacy: PrivacyGuarantee  # for the training records
    risk: float  # the mean loss
    quality: float  # area under the ROC curve for classification, else R2
    score: float  # accuracy for classification, else mean absolute error


def fit(plan: Plan, rows: tuple[Any, ...], *, key: Key, **options: Any) -> Solution:
    """Returns a fitted linear model, or an additive one if the plan has curves.

    `rows` are features (n, d) with a last column of ones, targets (n,), and weights and
    exposures (n,) or None, as shares of their public maximum. A record without exposure
    gets weight zero, because it was not observed. `options` go to the solver
    (`dp_linear_model` or `dp_additive_model`), which spends the plan's budget.
    """
    features, targets, weights, exposures = rows
    offsets = None
    if exposures is not None:
        is_seen = exposures > 0
        offsets = jnp.log(jnp.where(is_seen, exposures, 1.0))
        weights = jnp.where(is_seen, 1.0 if weights is None else weights, 0.0)
    records: Any = features, targets
    if plan.unit_size > 1:
        # Units are users whose places are all records: those empty have weight zero.
        both = records, (offsets, weights)
        records, (offsets, weights) = jax.tree.map(
            lambda x: x.reshape(-1, plan.unit_size, *x.shape[1:]), both
        )
        is_record: Any = np.ones(records[1].shape, bool)
        records = UserRecords(records, is_record)
    is_additive = "smooth" in plan.arguments
    solution = (solvers.dp_additive_model if is_additive else dp_linear_model)(
        *(plan.loss_fn, records),
        key=key,
        intercept=-1,
        offsets=offsets,
        weights=weights,
        **plan.budget._asdict(),
        **plan.arguments,
        **options,
    )
    if not is_additive:
        return solution
    stats: dict[str, Any] = {"num_curves": len(plan.arguments["smooth"])}
    stats["num_knots"] = len(solution.params.knots)
    return dataclasses.replace(solution, stats=solution.stats | stats)


def rows_of(data: Dataset) -> tuple[np.ndarray | None, ...]:
    """Returns training features and targets, and weights and exposures or None."""
    return *data.train, data.weights, data.exposures


def training_privacy(plan: Plan, data: Dataset) -> PrivacyGuarantee:
    """Returns the guarantee of `train_private` before it runs, from shapes alone.

    What the solver would refuse is refused here, before anything is charged.
    """
    arguments = {"intervals": False, "max_features": None} | dict(plan.arguments)
    arguments.pop("smooth", None)

    def features(rows: jax.Array, targets: jax.Array) -> jax.Array:
        return checked(plan.loss_fn, (rows, targets), -1, **arguments).features

    num_samples, num_columns = jax.eval_shape(features, *data.train).shape
    is_choosing = (arguments["max_features"] or num_columns) < num_columns - 1
    unit = "record" if plan.unit_size == 1 else "user"  # `plan_training` names it
    sizes = num_samples, plan.unit_size, unit
    return noise_of(*plan.budget, None, sizes, is_choosing)[1]


def train_private(
    plan: Plan,
    data: Dataset,
    *,
    key: Key,
    on_step: OnStep,  # moves a bar; takes a name, the steps done, and all steps
    run_folder: RunFolder | None = None,  # of --checkpoint
) -> Solution:
    """Releases the planned model, fitted to the training records, and its guarantee.

    The solver's `Solution` has both, and statistics that were released. With a
    `run_folder`, the solver saves its states there, and resumes from them.
    """
    name, num_shown = plan.method, 0

    def watch(step, params):
        # Calls may come out of order, and must not wait for the device.
        nonlocal num_shown
        num_shown += 1
        on_step(name, num_shown, None)

    on_step(name, 0, None)
    checkpoint = run_folder and solvers.Checkpoint(run_folder.states, 10)
    # JAX keeps no compiled program that calls back, so short runs have no bar of steps.
    is_short = data.features.size < _LONG and checkpoint is None
    execution = Execution(callback=None if is_short else watch, checkpoint=checkpoint)
    # Rows are NumPy arrays: the solver then owns the device's copy, and can free it.
    solution = fit(plan, rows_of(data), key=key, execution=execution)
    jax.block_until_ready(solution.params)
    jax.effects_barrier()  # waits for all calls of watch
    num_steps = int(solution.stats.get("num_steps", 1))
    on_step(name, num_steps, num_steps)
    return solution


def compare(
    plan: Plan, data: Dataset, private: Solution, *, key: Key, on_step: OnStep
) -> list[Score]:
    """Returns scores of models on a public data set's test records: privacy's cost.

    In order: the best constant and a linear model, both without privacy; a private
    linear model with the same budget, unless the plan is one; and `private`, the model
    that `train_private` has fitted by the plan. `on_step` shows progress.
    """
    linear = dataclasses.replace(plan, arguments={})
    exact = dataclasses.replace(linear, budget=Budget(NO_PRIVACY, plan.budget.delta))
    plans = {"linear model, not private": exact}
    if plan.arguments:
        plans[linear.method] = linear
    solutions = {}
    for (name, own), own_key in zip(plans.items(), jax.random.split(key), strict=False):
        on_step(name, 0, 1)
        solutions[name] = jax.block_until_ready(fit(own, rows_of(data), key=own_key))
        on_step(name, 1, 1)
    (first, without), *private_ones = solutions.items()
    level = without.stats.get("constant", 0.0)
    constant = jnp.zeros_like(without.params).at[-1].set(level)
    nothing = PrivacyGuarantee.non_private()
    features, targets = map(jnp.asarray, data.test)

    def score(name: str, params: PyTree, privacy: PrivacyGuarantee) -> Score:
        predictions = predictions_of(params, features)
        both = quality_of(plan, np.asarray(predictions), data)
        if data.task == "classification":
            number = jnp.mean((predictions > 0) == (targets > 0))
        else:
            number = jnp.mean(jnp.abs(plan.loss_fn.mean_of(predictions) - targets))
        return Score(name, privacy, *both, float(number))

    return [
        score("constant, not private", constant, nothing),
        score(first, without.params, nothing),
        *(score(k, x.params, x.privacy) for k, x in private_ones),
        score(plan.method, private.params, private.privacy),
    ]


def predictions_of(params: PyTree, features: ArrayLike) -> jax.Array:
    """Returns predictions (n,), before the link, of a linear or an additive model."""
    if isinstance(params, Curves):
        return params.predict(features)
    return jnp.asarray(features) @ params


def quality_of(
    plan: Plan, predictions: np.ndarray, data: Dataset
) -> tuple[float, float]:
    """Returns the mean loss of predictions on test records, and their AUC or R2.

    `predictions` (n,) or (n, K) are scores, to which the link function is not yet
    applied. The AUC of K classes is the mean of each against the rest.
    """
    targets, at = data.test_targets, jnp.asarray(predictions)
    loss = float(jnp.mean(plan.loss_fn.value(at, targets)))
    if data.task == "classification":
        is_label = [targets == k for k in range(plan.loss_fn.num_outputs)]
        is_label = is_label if len(is_label) > 1 else [targets > 0]
        scores = predictions.reshape(len(targets), -1).T
        ranks = scipy.stats.rankdata(scores, axis=1)  # AUC as a Mann-Whitney statistic
        pairs = [*zip(ranks, is_label, strict=True)]
        above = [own[label].mean() - own[~label].mean() for own, label in pairs]
        return loss, float(0.5 + np.mean(above) / len(targets))
    errors = targets - np.asarray(plan.loss_fn.mean_of(at), np.float64)
    return loss, float(1 - np.mean(errors**2) / np.var(targets.astype(np.float64)))


def evaluation_privacy(
    training: PrivacyGuarantee, num_samples: int, unit: str
) -> PrivacyGuarantee:
    """Returns the guarantee of `evaluate`, which spends as much as the training did.

    Each may spend the budget (parallel composition), because a record's index, or the
    name of its unit (such as a person), decides whether it is held out: a replaced one
    changes the training or the evaluation, never both, if nothing else uses both parts.
    The evaluation uses one record of each unit, so a unit costs as much as a record.
    `num_samples` are held out; `unit` is the difference between neighbors, in words.
    """
    budget = training.epsilon, training.delta
    return one_gaussian(*budget, num_samples, unit, num_releases=2)[1]


def evaluate(
    plan: Plan,
    data: Dataset,  # whose test records are scored
    solution: Solution,  # of the training
    privacy: PrivacyGuarantee,  # for the scores
    target: Any,  # what the schema declares of it: a scale, or the positive label
    *,
    key: Key,
) -> dict[str, Any]:
    """Releases private scores of a model, and of a constant, on the held-out records.

    Returns the entry `evaluation` of report.json, without the guarantee.

    Privacy:
        The guarantee is `privacy`, which `evaluation_privacy` returns. With units,
        neighboring data sets differ in all records of one unit.
    """
    features, targets = data.test
    known = "constant" in solution.stats
    constant = np.asarray(solution.stats.get("constant", 0.0), np.float64)
    name = "the best constant, released in training"
    predicted = np.asarray(predictions_of(solution.params, features), np.float64)
    is_end = None
    if plan.loss_fn.has_log_link:
        # Predictions are logarithms of means; the model's range bounds them.
        low, high = np.log(MEANS)
        is_end = (predicted <= low) | (predicted >= high)
        predicted = np.clip(predicted, low, high)
    if data.test_exposures is not None:
        # A record without exposure was not observed: no weight, as in training.
        is_seen = data.test_exposures > 0
        offsets = np.log(np.where(is_seen, data.test_exposures, 1.0).astype(float))
        predicted, constant = predicted + offsets, constant + offsets
        targets = np.where(is_seen, targets, np.nan)
        name += ", in proportion to the exposure"
    event: Any = privacy.dp_event
    scores = private_scores(
        predicted,
        targets,
        beside=constant,
        loss=plan.loss_fn,
        loss_name=plan.loss,
        scale=None if target.categories else target.scale,
        key=key,
        noise_multiplier=event.event.noise_multiplier,
        is_end=is_end,
    )
    return {
        "num_samples": len(targets),
        "num_scored": scores.num_scored,
        "constant": name if known else "zero weights",  # with which it is compared
        "verdict": scores.verdict or None,
        "measures": {
            name: {"model": model._asdict(), "constant": constant._asdict()}
            for name, model, constant in scores.measures
        },
        "calibration": [
            {"from": low, "to": high, "share": share._asdict()}
            for low, high, share in scores.calibration
        ],
    }
