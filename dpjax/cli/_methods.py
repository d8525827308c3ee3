"""The private methods of `dpjax train`: one declaration each.

A method has a solver and a function that returns the solver's arguments. The parameters
of that function are the options that the method reads. To add a method, add a name to
`_settings.MethodName` and an entry to `METHODS`.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, get_args

from dpjax import _validate
from dpjax.cli import _high_dimensional as many
from dpjax.cli import _single_fits
from dpjax.cli._descent import Facts, plan_descent
from dpjax.cli._losses import FOR_AMOUNTS, LossName
from dpjax.cli._options import flag
from dpjax.cli._settings import MethodName, Settings
from dpjax.solvers import (
    Solution,
    dp_frank_wolfe,
    dp_gradient_descent,
    dp_iterative_hard_thresholding,
    dp_l1_regression,
    dp_lasso,
    dp_sparse_linear_regression,
)

_WITHOUT_LINK = tuple(name for name in get_args(LossName) if name not in FOR_AMOUNTS)


@dataclass(frozen=True)
class Method:
    """A solver, and the options that it reads.

    Attributes:
        name: name for `--method`; two methods with different losses may share it.
        title: name in tables and plots.
        solver: a function of (loss_fn, params, data), or of (features, targets) if it
            has a loss of its own.
        options: a function of public facts and, as keywords, the options that the
            method reads, required if they have no default. Returns the solver's
            arguments.
        losses: the losses that it can minimize.
        has_own_loss: whether the solver has a loss of its own.
        has_weights: whether the solver also takes weights and exposures.
        has_steps: whether it can be watched and resumed.
        has_own_coordinates: whether its iterates are in coordinates of its own, and so
            are not models.
        has_delta: whether it spends a delta.
        can_be_pure: whether it accepts delta = 0.
    """

    name: MethodName
    title: str
    solver: Callable[..., Solution]
    options: Callable[..., dict[str, Any]]
    losses: tuple[LossName, ...] = _WITHOUT_LINK
    _: KW_ONLY
    has_own_loss: bool = False
    has_weights: bool = False
    has_steps: bool = True
    has_own_coordinates: bool = False
    has_delta: bool = True
    can_be_pure: bool = False

    @property
    def reads(self) -> dict[str, bool]:
        """The options that this method reads, and whether each is required."""
        _, *parameters = inspect.signature(self.options).parameters.values()
        read = {one.name: one.default is one.empty for one in parameters}
        return read if self.has_own_loss else {"l2": False} | read

    def given(self, settings: Settings) -> dict[str, Any]:
        """Returns the given options that the method reads."""
        _, *names = inspect.signature(self.options).parameters
        values = {name: getattr(settings, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


def find_method(settings: Settings, *, is_classification: bool | None = None) -> Method:
    """Returns the chosen method, and checks that the options go with it.

    Raises:
        ValueError: If the loss or an option does not go with the method.
    """
    loss = find_loss(settings, is_classification=is_classification)
    variants = [method for method in METHODS if method.name == settings.method]
    method = next(method for method in variants if loss in method.losses)
    where = f"with --method {settings.method}"
    if len(variants) > 1:
        where += f" and --loss {loss}"
    for name, value in settings.given_to_method().items():
        readers = {other.name: None for other in METHODS if name in other.reads}
        rule = f"left out {where} (for {', '.join(readers)})"
        _validate.require(name in method.reads, flag(name), value, rule)
    for name, is_needed in method.reads.items():
        value = getattr(settings, name)
        is_fine = value is not None or not is_needed
        _validate.require(is_fine, flag(name), value, f"given {where}")
    if settings.delta is not None and not method.has_delta:
        _validate.require(
            settings.delta == 0, "--delta", settings.delta, f"0 or left out {where}"
        )
    elif settings.delta is not None and not method.can_be_pure:
        _validate.probability(**{"--delta": settings.delta})
    return method


def find_loss(settings: Settings, *, is_classification: bool | None = None) -> LossName:
    """Returns the chosen loss, or the one that suits task and method.

    Raises:
        ValueError: If the method cannot minimize it, or it is missing for a file.
    """
    variants = [method for method in METHODS if method.name == settings.method]
    possible: list[LossName] = [name for one in variants for name in one.losses]
    if settings.loss is not None:
        rule = f"{' or '.join(possible)} with --method {settings.method}"
        _validate.require(settings.loss in possible, "--loss", settings.loss, rule)
        return settings.loss
    if len(possible) == 1:
        return possible[0]
    rule = f"given for a file: {', '.join(possible)}"
    _validate.require(is_classification is not None, "--loss", None, rule)
    return "logistic" if is_classification else "squared"


@functools.wraps(plan_descent)
def _gradient_descent(facts: Facts, **options: Any) -> dict[str, Any]:
    return plan_descent(facts, **options).arguments()


GRADIENT_DESCENT = Method(
    "gradient-descent", "DP-GD", dp_gradient_descent, _gradient_descent
)
_PURE: dict[str, Any] = {"can_be_pure": True}
_OWN: dict[str, Any] = {"has_own_loss": True}
_ONE_FIT: dict[str, Any] = {"has_steps": False}
# Among methods of one name, the first that can minimize the loss is used.
METHODS = (
    Method(
        *("linear-model", "DP linear model"),
        *(_single_fits.fit_linear_model, _single_fits.linear_model),
        losses=("logistic", "squared", "huber", *FOR_AMOUNTS),
        has_weights=True,
        has_own_coordinates=True,
        **_OWN,
    ),
    GRADIENT_DESCENT,
    Method("frank-wolfe", "DP-FW", dp_frank_wolfe, many.frank_wolfe, **_PURE),
    Method("lasso", "DP-LASSO", dp_lasso, many.lasso, ("squared",), **_OWN, **_PURE),
    Method(
        "sparse",
        "DP sparse regression",
        *(dp_sparse_linear_regression, many.sparse_linear),
        losses=("squared",),
        **_OWN,
    ),
    Method(
        "sparse",
        "DP-IHT",
        *(dp_iterative_hard_thresholding, many.hard_thresholding),
        losses=("logistic", "absolute", "huber", "biweight"),
        **_PURE,
    ),
    Method(
        *("l1", "DP l1 regression", dp_l1_regression, many.l1),
        losses=("absolute",),
        has_delta=False,
        **_OWN | _ONE_FIT | _PURE,
    ),
    Method(
        *("sample-aggregate", "DP sample-and-aggregate"),
        *(_single_fits.aggregate_fits, _single_fits.sample_aggregate),
        **_ONE_FIT,
    ),
    Method(
        *("objective-perturbation", "DP objective perturbation"),
        *(_single_fits.perturb_objective, _single_fits.objective_perturbation_of_rows),
        losses=("logistic",),
        **_OWN | _ONE_FIT,
    ),
)
