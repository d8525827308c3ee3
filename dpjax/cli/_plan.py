"""A training run with nothing left open, made of settings and public facts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpjax import _validate, losses
from dpjax._default_delta import default_delta
from dpjax._rounding import difference_down
from dpjax.cli._descent import Descent, Facts, plan_descent
from dpjax.cli._losses import AMOUNTS, FOR_AMOUNTS, FOR_NUMBERS, loss_of
from dpjax.cli._methods import Method, find_loss, find_method
from dpjax.cli._settings import Settings
from dpjax.datasets import Dataset
from dpjax.models._shared import bending_features
from dpjax.solvers import dp_gradient_descent


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A run with nothing left open; every entry is public.

    Attributes:
        method: the private method.
        arguments: what its solver takes beyond data, loss, key and budget; None is
            left to the solver.
        facts: sizes, loss and budget.
        loss_fn: the loss, without the l2 penalty.
        l2: strength of the l2 penalty.
        descent: gradient descent on the same loss: the method itself, or what it is
            compared with, of the same steps.
    """

    method: Method
    arguments: Mapping[str, Any]
    facts: Facts
    loss_fn: losses.LinearLoss
    l2: float
    descent: Descent


class Budget(NamedTuple):
    """Privacy parameters that may be spent."""

    epsilon: float
    delta: float


def split_budget(
    settings: Settings, num_samples: int, *, is_classification: bool | None = None
) -> tuple[Budget, Budget]:
    """Returns what centres and scales may cost, and the training with the rest.

    Raises:
        ValueError: if an option does not go with the method.
    """
    method = find_method(settings, is_classification=is_classification)
    if not method.has_delta:
        delta = 0.0
    elif settings.delta is not None:
        delta = settings.delta
    else:
        # Of one record it would be 1, and a half is left to who asks for it.
        _validate.require(num_samples > 1, "--delta", 1.0, "strictly between 0 and 1")
        delta = default_delta(num_samples)
    share = settings.private_ranges or 0.0
    ranges = Budget(share * settings.epsilon, share * delta)
    return ranges, Budget(
        difference_down(settings.epsilon, ranges.epsilon),
        difference_down(delta, ranges.delta),
    )


def make_plan(settings: Settings, data: Dataset, *, is_named: bool) -> Plan:
    """Fills in what the settings leave open, from public sizes alone.

    Of the data the task, the name and the shapes count, never the values. The public
    data sets (`is_named`) take 300 steps.

    Raises:
        ValueError: if an option does not suit the method, the facts or the task.
    """
    is_classification = data.task == "classification"
    loss = find_loss(settings, is_classification=is_classification)
    rule = f"{', '.join(FOR_NUMBERS)} for {data.name}, whose target is a number"
    _validate.require(is_classification or loss != "logistic", "--loss", loss, rule)
    rule = f"another than {AMOUNTS} for {data.name}, whose target is a class"
    is_fine = not is_classification or loss not in FOR_AMOUNTS
    _validate.require(is_fine, "--loss", loss, rule)
    method = find_method(settings, is_classification=is_classification)
    num_samples, num_features = data.features.shape
    _, training = split_budget(
        settings, num_samples, is_classification=is_classification
    )
    facts = Facts(
        num_samples=num_samples,
        num_features=num_features,
        loss=loss,
        epsilon=training.epsilon,
        delta=training.delta,
        calibration=settings.calibration,
        is_named=is_named,
        is_quick=settings.quick,
        bending=tuple(bending_features(data.schema)),
    )
    options = method.given(settings)
    if method.solver is dp_gradient_descent:
        descent = plan_descent(facts, **options)
        arguments = descent.arguments()
    else:
        shared = facts._replace(calibration="tight")
        descent = plan_descent(shared, steps=settings.steps)
        arguments = method.options(facts, **options)
    return Plan(
        method=method,
        arguments=arguments,
        facts=facts,
        loss_fn=loss_of(loss, settings.power),
        l2=settings.l2,
        descent=descent,
    )
