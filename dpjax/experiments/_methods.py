"""The private methods of `dpjax train`: one declaration each.

A method names a solver, the options that it reads, and how they become arguments.
Another one is a name in `_settings.MethodName` and an entry of `METHODS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpjax import _validate
from dpjax.experiments import _arguments
from dpjax.experiments._descent import Facts
from dpjax.experiments._settings import LossName, MethodName, Settings, option
from dpjax.experiments._whole_fits import aggregate_fits, perturb_objective
from dpjax.solvers import (
    Solution,
    dp_frank_wolfe,
    dp_gradient_descent,
    dp_iterative_hard_thresholding,
    dp_l1_regression,
    dp_lasso,
    dp_sparse_linear_regression,
)


@dataclass(frozen=True, kw_only=True)
class Method:
    """A solver, and what it takes.

    Attributes:
        title: how tables and plots call it.
        solver: takes (loss_fn, params, data) where losses are free, and (features,
            targets) where it has a loss of its own.
        reads: the options, as fields of `Settings`, that it reads beyond those of every
            method.
        arguments: makes the solver's further arguments from settings and public facts.
        losses: those that it can minimise.
        needs: the options that must be given.
        has_own_loss: which of the two the solver takes.
        has_steps: whether it can be watched.
        has_delta: whether it spends a delta.
        can_be_pure: whether it can do with delta = 0.
    """

    title: str
    solver: Callable[..., Solution]
    reads: frozenset[str]
    arguments: Callable[[Settings, Facts], dict[str, Any]]
    losses: tuple[LossName, ...] = tuple(LossName)
    needs: frozenset[str] = frozenset()
    has_own_loss: bool = False
    has_steps: bool = True
    has_delta: bool = True
    can_be_pure: bool = False


def find_method(settings: Settings, *, is_classification: bool | None = None) -> Method:
    """Returns the method that is asked for, and checks that the options go with it.

    Args:
        settings: the options.
        is_classification: the task, for a data set that has a loss by default.

    Raises:
        ValueError: if the loss or an option does not go with the method.
    """
    loss = find_loss(settings, is_classification=is_classification)
    method = next(m for m in METHODS[settings.method] if loss in m.losses)
    where = f"with --method {settings.method}"
    if len(METHODS[settings.method]) > 1:
        where += f" and --loss {loss}"
    for name in settings.given():
        _validate.require(
            name in method.reads | _READ_BY_ALL,
            option(name),
            _shown(getattr(settings, name)),
            f"left out {where}",
        )
    for name in method.needs:
        value = getattr(settings, name)
        _validate.require(value is not None, option(name), value, f"given {where}")
    if settings.delta is not None and not method.has_delta:
        _validate.require(
            settings.delta == 0, "--delta", settings.delta, f"0 or left out {where}"
        )
    elif settings.delta is not None and not method.can_be_pure:
        _validate.probability(**{"--delta": settings.delta})
    return method


def find_loss(settings: Settings, *, is_classification: bool | None = None) -> LossName:
    """Returns the loss that is asked for, or the one that suits task and method.

    Raises:
        ValueError: if the method cannot minimise it, or it is open for a user's file.
    """
    possible = [name for m in METHODS[settings.method] for name in m.losses]
    if settings.loss is not None:
        _validate.require(
            settings.loss in possible,
            "--loss",
            str(settings.loss),
            f"{' or '.join(possible)} with --method {settings.method}",
        )
        return settings.loss
    if len(possible) == 1:
        return possible[0]
    _validate.require(
        is_classification is not None,
        "--loss",
        None,
        f"given for a file: {', '.join(possible)}",
    )
    return LossName.LOGISTIC if is_classification else LossName.SQUARED


def _shown(value: Any) -> Any:
    return str(value) if isinstance(value, str) else value


_READ_BY_ALL = frozenset(
    {"epsilon", "delta", "method", "loss", "calibration", "private_ranges", "quick"}
)
_OF_ESTIMATORS = frozenset({"estimator", "scale", "moment_bound"})
_LOSSES_WITH_GRADIENTS = tuple(name for name in LossName if name != LossName.SQUARED)

# For each name the variants, of which the first takes that can minimise the loss.
METHODS: dict[MethodName, tuple[Method, ...]] = {
    MethodName.GRADIENT_DESCENT: (
        Method(
            title="DP-GD",
            solver=dp_gradient_descent,
            reads=_OF_ESTIMATORS
            | {"num_groups", "steps", "learning_rate", "l2", "batching", "batch_size"},
            arguments=_arguments.gradient_descent,
        ),
    ),
    MethodName.FRANK_WOLFE: (
        Method(
            title="DP-FW",
            solver=dp_frank_wolfe,
            reads=_OF_ESTIMATORS
            | {"radius", "steps", "learning_rate", "l2", "batching"},
            arguments=_arguments.frank_wolfe,
            can_be_pure=True,
        ),
    ),
    MethodName.LASSO: (
        Method(
            title="DP-LASSO",
            solver=dp_lasso,
            reads=frozenset({"radius", "steps", "scale", "moment_bound"}),
            arguments=_arguments.lasso,
            losses=(LossName.SQUARED,),
            has_own_loss=True,
            can_be_pure=True,
        ),
    ),
    MethodName.SPARSE: (
        Method(
            title="DP sparse regression",
            solver=dp_sparse_linear_regression,
            reads=frozenset(
                {"sparsity", "radius", "steps", "learning_rate"}
                | {"scale", "moment_bound"}
            ),
            arguments=_arguments.sparse_linear,
            losses=(LossName.SQUARED,),
            needs=frozenset({"sparsity"}),
            has_own_loss=True,
        ),
        Method(
            title="DP-IHT",
            solver=dp_iterative_hard_thresholding,
            reads=_OF_ESTIMATORS | {"sparsity", "steps", "learning_rate", "l2"},
            arguments=_arguments.hard_thresholding,
            losses=_LOSSES_WITH_GRADIENTS,
            needs=frozenset({"sparsity"}),
            can_be_pure=True,
        ),
    ),
    MethodName.L1: (
        Method(
            title="DP l1 regression",
            solver=dp_l1_regression,
            reads=frozenset({"radius", "candidates", "scale", "moment_bound"}),
            arguments=_arguments.l1,
            losses=(LossName.ABSOLUTE,),
            has_own_loss=True,
            has_steps=False,
            has_delta=False,
            can_be_pure=True,
        ),
    ),
    MethodName.SAMPLE_AGGREGATE: (
        Method(
            title="DP sample-and-aggregate",
            solver=aggregate_fits,
            reads=frozenset({"subsets", "radius", "steps", "learning_rate", "l2"}),
            arguments=_arguments.sample_aggregate,
            needs=frozenset({"subsets"}),
            has_steps=False,
        ),
    ),
    MethodName.OBJECTIVE_PERTURBATION: (
        Method(
            title="DP objective perturbation",
            solver=perturb_objective,
            reads=frozenset({"scale", "l2"}),
            arguments=_arguments.objective_perturbation,
            losses=(LossName.LOGISTIC,),
            has_own_loss=True,
            has_steps=False,
        ),
    ),
}
