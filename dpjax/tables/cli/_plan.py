"""A fully specified training run, from settings and public facts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpjax import _validate
from dpjax._rounding import difference_down
from dpjax.accounting import Sampling, noise_multiplier
from dpjax.datasets import Dataset
from dpjax.losses import LinearLoss
from dpjax.solvers.additive._knots import knots_of
from dpjax.tables import default_delta
from dpjax.tables.cli._losses import (
    AMOUNTS,
    FOR_AMOUNTS,
    FOR_NUMBERS,
    LossName,
    loss_of,
)
from dpjax.tables.cli._settings import Settings
from dpjax.tables.models._terms import bending_features


class Budget(NamedTuple):
    """A privacy budget."""

    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A fully specified run; every entry is public.

    Attributes:
        loss: name of the loss.
        power: of the Tweedie loss; None for its default.
        budget: privacy of the training.
        arguments: of the solver; with `smooth` among them, the model is additive.
    """

    loss: LossName
    power: float | None
    budget: Budget
    arguments: Mapping[str, Any]

    @property
    def loss_fn(self) -> LinearLoss:
        """The loss."""
        return loss_of(self.loss, self.power)

    @property
    def method(self) -> str:
        """The name of the private model."""
        is_additive = self.arguments.get("smooth")
        return "DP additive model" if is_additive else "DP linear model"


def find_loss(settings: Settings, *, is_classification: bool | None = None) -> LossName:
    """Returns the chosen loss, or the one that suits the task.

    Raises:
        ValueError: If it is missing for a file.
    """
    if settings.loss is not None:
        return settings.loss
    rule = f"given for a file: logistic, {', '.join(FOR_NUMBERS)}"
    _validate.require(is_classification is not None, "--loss", None, rule)
    return "logistic" if is_classification else "squared"


def split_budget(settings: Settings, num_samples: int) -> tuple[Budget, Budget]:
    """Splits the budget into that of centers and scales, and that of the training.

    Raises:
        ValueError: If there is no delta for a single record.
    """
    delta = settings.delta
    if delta is None:
        # Of one record it would be 1, and a half is left to who asks for it.
        rule = "given with a single record, of which n^-1.1 is 1"
        _validate.require(num_samples > 1, "--delta", None, rule)
        delta = default_delta(num_samples)
    share = settings.private_ranges or 0.0
    ranges = Budget(share * settings.epsilon, share * delta)
    return ranges, Budget(
        difference_down(settings.epsilon, ranges.epsilon),
        difference_down(delta, ranges.delta),
    )


def make_plan(settings: Settings, data: Dataset) -> Plan:
    """Returns the run, with defaults that depend on public sizes alone.

    Only the task, the name and the shapes of the data are used, never its values.

    Raises:
        ValueError: If an option does not go with the facts or the task.
    """
    is_classification = data.task == "classification"
    loss = find_loss(settings, is_classification=is_classification)
    rule = f"{', '.join(FOR_NUMBERS)} for {data.name}, whose target is a number"
    _validate.require(is_classification or loss != "logistic", "--loss", loss, rule)
    rule = f"another than {AMOUNTS} for {data.name}, whose target is a class"
    is_fine = not is_classification or loss not in FOR_AMOUNTS
    _validate.require(is_fine, "--loss", loss, rule)
    num_samples, num_features = data.features.shape
    _, budget = split_budget(settings, num_samples)
    arguments: dict[str, Any] = {}
    if settings.intervals:
        rule = "left out where there is no column"
        _validate.require(num_features > 1, "--intervals", True, rule)
        arguments["intervals"] = True
    if settings.max_features is not None:
        arguments["max_features"] = settings.max_features
    if settings.may_bend:
        bending = list(bending_features(data.schema))
        multiplier = noise_multiplier(*budget, Sampling(num_steps=1))
        sizes = num_samples, num_features, len(bending)
        if knots_of(loss_of(loss, settings.power), *sizes, multiplier):
            arguments["smooth"] = bending
    return Plan(loss=loss, power=settings.power, budget=budget, arguments=arguments)
