"""A fully specified training run, from settings and public facts."""

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
    """A fully specified run; every entry is public.

    Attributes:
        method: the private method.
        arguments: arguments of its solver besides data, loss, key and budget; None is
            the solver's default.
        facts: sizes, loss and budget.
        loss_fn: the loss, without the l2 penalty.
        l2: strength of the l2 penalty.
        descent: gradient descent on the same loss: the method itself, or a baseline.
    """

    method: Method
    arguments: Mapping[str, Any]
    facts: Facts
    loss_fn: losses.LinearLoss
    l2: float
    descent: Descent


class Budget(NamedTuple):
    """A privacy budget."""

    epsilon: float
    delta: float


def split_budget(
    settings: Settings, num_samples: int, *, is_classification: bool | None = None
) -> tuple[Budget, Budget]:
    """Splits the budget into that of centers and scales, and that of the training.

    Raises:
        ValueError: If an option does not go with the method.
    """
    method = find_method(settings, is_classification=is_classification)
    if not method.has_delta:
        delta = 0.0
    elif settings.delta is not None:
        delta = settings.delta
    else:
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


def make_plan(settings: Settings, data: Dataset, *, is_named: bool) -> Plan:
    """Returns the run, with defaults that depend on public sizes alone.

    Only the task, the name and the shapes of the data are used, never its values. The
    public data sets (`is_named`) take 300 steps.

    Raises:
        ValueError: If an option does not go with the method, the facts or the task.
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
