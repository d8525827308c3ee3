"""Plans models from public facts alone, and fits them to a file or a public set."""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate, losses
from dpjax._types import ArrayLike, Key, PyTree
from dpjax.accounting import PrivacyGuarantee, Sampling, noise_multiplier
from dpjax.datasets import Dataset
from dpjax.losses import LinearLoss
from dpjax.losses._residual_losses import named
from dpjax.solvers import (
    Checkpoint,
    Curves,
    Execution,
    Solution,
    dp_additive_model,
    dp_linear_model,
)
from dpjax.solvers.additive._curves import knots_of
from dpjax.tables.cli._release import RunFolder
from dpjax.tables.cli._settings import (
    AMOUNTS,
    FOR_AMOUNTS,
    FOR_NUMBERS,
    LossName,
    Settings,
)
from dpjax.tables.cli._terminal import OnStep
from dpjax.tables.models._terms import bending_features

_TWEEDIE = 1.5  # the default, halfway between counts (1) and amounts (2)
# Solvers take no infinite epsilon. At this one, the noise is below every other error,
# even in releases with a thousandth of the budget.
NO_PRIVACY = 1e12


class Budget(NamedTuple):
    """A privacy budget."""

    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A fully specified training; every entry is public.

    Attributes:
        loss: name of the loss.
        power: power of the Tweedie loss; None for its default.
        budget: privacy budget of the training, for one record.
        arguments: arguments of the solver; the model is additive if one is `smooth`.
    """

    loss: LossName
    power: float | None
    budget: Budget
    arguments: Mapping[str, Any]

    @property
    def loss_fn(self) -> LinearLoss:
        """The loss function, for targets in units of their scale."""
        return (
            _losses()[self.loss] if self.power is None else losses.log_link(self.power)
        )

    @property
    def method(self) -> str:
        """The name of the private model."""
        return f"DP {'additive' if self.arguments.get('smooth') else 'linear'} model"


@functools.cache
def _losses() -> dict[LossName, LinearLoss]:
    return {
        "logistic": losses.logistic,
        "squared": losses.squared,
        "huber": named("huber"),  # the linear model releases its threshold
        "poisson": losses.log_link(1.0),
        "gamma": losses.log_link(2.0),
        "tweedie": losses.log_link(_TWEEDIE),
    }


def make_plan(settings: Settings, data: Dataset, budget: Budget) -> Plan:
    """Returns the plan of a training, with defaults that depend on public sizes alone.

    Only the task, the name, the schema and the shapes of `data` are used.
    """
    is_classification = data.task == "classification"
    loss = settings.find_loss(is_classification=is_classification)
    rule = f"{', '.join(FOR_NUMBERS)} for {data.name}, whose target is a number"
    _validate.require(is_classification or loss != "logistic", "--loss", loss, rule)
    rule = f"another than {AMOUNTS} for {data.name}, whose target is a class"
    is_fine = not is_classification or loss not in FOR_AMOUNTS
    _validate.require(is_fine, "--loss", loss, rule)
    num_samples, num_features = data.features.shape
    arguments: dict[str, Any] = {}
    if settings.intervals:
        rule = "left out where there is no column"
        _validate.require(num_features > 1, "--intervals", True, rule)
        arguments["intervals"] = True
    if settings.max_features is not None:
        arguments["max_features"] = settings.max_features
    plan = Plan(loss=loss, power=settings.power, budget=budget, arguments=arguments)
    if settings.may_bend:
        # The columns have curves if the sizes and the budget allow knots.
        bending = list(bending_features(data.schema))
        multiplier = noise_multiplier(*budget, Sampling(num_steps=1))
        sizes = num_samples, num_features, len(bending)
        if knots_of(plan.loss_fn, *sizes, multiplier):
            arguments["smooth"] = bending
    return plan


class Score(NamedTuple):
    """Scores of a method on the test records, without any privacy.

    Attributes:
        method: name of the method.
        privacy: guarantee of the method, for the training records.
        risk: mean loss.
        score: accuracy for classification, else mean absolute error.
    """

    method: str
    privacy: PrivacyGuarantee
    risk: float
    score: float


def fit(plan: Plan, rows: tuple[Any, ...], *, key: Key, **options: Any) -> Solution:
    """Fits a linear model, or an additive model if some features are `smooth`.

    The last feature is the constant 1. Weights and exposures are shares of their public
    maximum. A record without exposure has weight zero, because it was not observed.
    """
    features, targets, weights, exposures = rows
    offsets = None
    if exposures is not None:
        is_seen = exposures > 0
        offsets = jnp.log(jnp.where(is_seen, exposures, 1.0))
        weights = jnp.where(is_seen, 1.0 if weights is None else weights, 0.0)
    is_additive = "smooth" in plan.arguments
    solution = (dp_additive_model if is_additive else dp_linear_model)(
        *(plan.loss_fn, (features, targets)),
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
    curves = {
        "num_curves": len(plan.arguments["smooth"]),
        "num_knots": len(solution.params.knots),
    }
    return dataclasses.replace(solution, stats=solution.stats | curves)


def rows_of(data: Dataset) -> tuple[np.ndarray | None, ...]:
    """Returns training features and targets, and weights and exposures or None."""
    return *data.train, data.weights, data.exposures


def training_privacy(plan: Plan, data: Dataset) -> PrivacyGuarantee:
    """Returns the guarantee that `train_private` will state, from shapes alone."""
    rows = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), rows_of(data)
    )
    solution = jax.eval_shape(lambda rows: fit(plan, rows, key=jax.random.key(0)), rows)
    return solution.privacy


def train_private(
    plan: Plan,
    data: Dataset,
    *,
    key: Key,
    on_step: OnStep,
    run_folder: RunFolder | None = None,
) -> Solution:
    """Runs the planned private method on the training records.

    With a `run_folder`, states are saved there, and the run resumes from them.
    """
    name, num_shown = plan.method, 0

    def watch(step, params):
        # Calls may come out of order, and must not wait for the device.
        nonlocal num_shown
        num_shown += 1
        on_step(name, num_shown, None)

    on_step(name, 0, None)
    checkpoint = run_folder and Checkpoint(run_folder.states, 10)
    execution = Execution(callback=watch, checkpoint=checkpoint)
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
    """Scores models of a public data set, with the private model last.

    It is compared with the best constant and the linear model, both without privacy;
    and, if the plan has arguments, with a plain linear model at the same budget.
    """
    linear = dataclasses.replace(plan, arguments={})
    exact = dataclasses.replace(linear, budget=Budget(NO_PRIVACY, plan.budget.delta))
    plans = {"linear model, not private": exact}
    if plan.arguments:
        plans[linear.method] = linear
    solutions = {}
    for (name, own), own_key in zip(plans.items(), jax.random.split(key), strict=False):
        on_step(name, 0, 1)
        fitted = fit(own, rows_of(data), key=own_key)
        solutions[name] = jax.block_until_ready(fitted)
        on_step(name, 1, 1)
    (first, without), *private_ones = solutions.items()
    level = without.stats.get("constant", 0.0)
    constant = jnp.zeros_like(without.params).at[-1].set(level)
    nothing = PrivacyGuarantee.non_private()
    features, targets = map(jnp.asarray, data.test)

    def score(name: str, params: PyTree, privacy: PrivacyGuarantee) -> Score:
        predictions = predictions_of(params, features)
        risk = jnp.mean(plan.loss_fn.value(predictions, targets))
        if data.task == "classification":
            number = jnp.mean((predictions > 0) == (targets > 0))
        else:
            number = jnp.mean(jnp.abs(plan.loss_fn.mean_of(predictions) - targets))
        return Score(name, privacy, float(risk), float(number))

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
