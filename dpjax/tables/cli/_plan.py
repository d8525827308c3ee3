"""A training run's model, from options and public facts alone."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpjax import _validate, losses
from dpjax.accounting import Sampling, noise_multiplier
from dpjax.datasets import Dataset
from dpjax.losses import LinearLoss
from dpjax.losses._named import named
from dpjax.solvers.additive._knots import knots_of
from dpjax.tables.cli._settings import (
    AMOUNTS,
    FOR_AMOUNTS,
    FOR_NUMBERS,
    LossName,
    Settings,
)
from dpjax.tables.models._params import bending_features

_TWEEDIE = 1.5  # by default, halfway between counts and amounts


class Budget(NamedTuple):
    """A privacy budget."""

    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A fully specified training; every entry is public.

    Attributes:
        loss: name of the loss.
        power: of the Tweedie loss; None for its default.
        budget: privacy of the training, for a record.
        arguments: of the solver; with `smooth` among them, the model is additive.
    """

    loss: LossName
    power: float | None
    budget: Budget
    arguments: Mapping[str, Any]

    @property
    def loss_fn(self) -> LinearLoss:
        """The loss, of targets in units of their scale."""
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


def find_loss(settings: Settings, *, is_classification: bool | None = None) -> LossName:
    """Returns the chosen loss, or the one that suits the task."""
    if settings.loss is not None:
        return settings.loss
    rule = f"given for a file: logistic, {', '.join(FOR_NUMBERS)}"
    _validate.require(is_classification is not None, "--loss", None, rule)
    return "logistic" if is_classification else "squared"


def make_plan(settings: Settings, data: Dataset, budget: Budget) -> Plan:
    """Returns the plan, with defaults that depend on public sizes alone.

    Only the task, the name, the schema and the shapes of the data are used.
    """
    is_classification = data.task == "classification"
    loss = find_loss(settings, is_classification=is_classification)
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
        bending = list(bending_features(data.schema))
        multiplier = noise_multiplier(*budget, Sampling(num_steps=1))
        sizes = num_samples, num_features, len(bending)
        if knots_of(plan.loss_fn, *sizes, multiplier):
            arguments["smooth"] = bending
    return plan
