"""What the options of `dpjax train` become as arguments of a solver."""

import math
from typing import Any

from dpjax import _validate
from dpjax.constraints import L1Ball
from dpjax.experiments._candidates import candidate_net
from dpjax.experiments._descent import (
    Facts,
    check_steps,
    choose_batching,
    choose_estimator,
    plan_descent,
)
from dpjax.experiments._settings import (
    BatchingName,
    CalibrationName,
    EstimatorName,
    Settings,
)

_QUICK_STEPS, _QUICK_CANDIDATES = 10, 1_000
_MOST_NUMBERS = 2**28  # of all candidates together: 1 GiB


def gradient_descent(settings: Settings, facts: Facts) -> dict[str, Any]:
    """Makes the arguments of `dp_gradient_descent`."""
    return plan_descent(settings, facts).arguments()


def frank_wolfe(settings: Settings, facts: Facts) -> dict[str, Any]:
    """Makes the arguments of `dp_frank_wolfe`, and checks its options."""
    is_paper = settings.calibration == CalibrationName.PAPER
    _validate.require(
        settings.batching in (None, BatchingName.DISJOINT)
        or (settings.batching == BatchingName.FULL and not is_paper),
        "--batching",
        str(settings.batching),
        "disjoint, or full with --calibration tight, with --method frank-wolfe",
    )
    if settings.learning_rate is not None:
        _validate.within(0, 1, **{"--learning-rate": settings.learning_rate})
    _validate.require(
        settings.estimator != EstimatorName.MEDIAN_OF_MEANS,
        "--estimator",
        str(settings.estimator),
        "another one with --method frank-wolfe",
    )
    is_smoothed = settings.estimator in (None, EstimatorName.SMOOTHED_TRUNCATION)
    _validate.require(
        is_smoothed or not is_paper,
        "--estimator",
        str(settings.estimator),
        "smoothed-truncation with --calibration paper, with --method frank-wolfe",
    )
    _validate.require(
        is_smoothed or settings.scale is not None or settings.estimator == "clipping",
        "--scale",
        settings.scale,
        f"given with --method frank-wolfe and --estimator {settings.estimator}",
    )
    estimator = None  # the solver's, whose scale suits choices
    if settings.scale is not None or not is_smoothed:
        estimator = choose_estimator(settings, facts, facts.num_samples, num_steps=1)
    steps = _steps(settings, facts)
    batching = None
    if settings.batching is not None:
        batching = choose_batching(settings, facts, steps or 1)
    return {
        "constraint": L1Ball(_radius(settings)),
        "estimator": estimator,
        "moment_bound": settings.moment_bound or facts.moment_bound,
        "num_steps": steps,
        "learning_rate": settings.learning_rate,
        "batching": batching,
        "calibration": str(settings.calibration),
    }


def lasso(settings: Settings, facts: Facts) -> dict[str, Any]:
    """Makes the arguments of `dp_lasso`."""
    if settings.calibration == CalibrationName.PAPER:
        _validate.probability(**{"--delta": facts.delta})
    return {
        "radius": _radius(settings),
        "threshold": _threshold(settings),
        "num_steps": _steps(settings, facts),
        "moment_bound": settings.moment_bound or 1.0,
        "calibration": str(settings.calibration),
    }


def sparse_linear(settings: Settings, facts: Facts) -> dict[str, Any]:
    """Makes the arguments of `dp_sparse_linear_regression`."""
    return {
        "sparsity": _sparsity(settings, facts),
        "threshold": _threshold(settings),
        "learning_rate": settings.learning_rate,
        "num_steps": check_steps(settings.steps, facts),
        "moment_bound": settings.moment_bound or 1.0,
        "radius": _radius(settings),
        "calibration": str(settings.calibration),
    }


def hard_thresholding(settings: Settings, facts: Facts) -> dict[str, Any]:
    """Makes the arguments of `dp_iterative_hard_thresholding`."""
    if settings.calibration == CalibrationName.PAPER:
        _validate.probability(**{"--delta": facts.delta})
    sparsity = _sparsity(settings, facts)
    # The papers' number; records are shared out among the steps.
    papers = max(1, math.floor(math.log(facts.num_samples)))
    num_steps = check_steps(settings.steps, facts) or papers
    return {
        "sparsity": sparsity,
        "estimator": choose_estimator(
            settings,
            facts._replace(num_features=sparsity),  # as many coordinates have noise
            facts.num_samples // num_steps,
            num_steps=1,
        ),
        # In theory 2/3 of the inverse smoothness, here for features of unit size.
        "learning_rate": settings.learning_rate or 2 / 3 / facts.smoothness,
        "num_steps": num_steps,
        "calibration": str(settings.calibration),
    }


def l1(settings: Settings, facts: Facts) -> dict[str, Any]:
    """Makes the arguments of `dp_l1_regression`, its candidates too."""
    default = _QUICK_CANDIDATES if settings.quick else 100_000
    number = settings.candidates or default
    _validate.require(
        2 <= number <= _MOST_NUMBERS // facts.num_features,
        "--candidates",
        number,
        f"from 2 to {_MOST_NUMBERS // facts.num_features:,} with "
        f"{facts.num_features} features, for memory",
    )
    return {
        "candidates": candidate_net(number, facts.num_features, _radius(settings)),
        "truncation": None if settings.scale is None else 1 / settings.scale,
        "moment_bound": settings.moment_bound or 1.0,
        "calibration": str(settings.calibration),
    }


def sample_aggregate(settings: Settings, facts: Facts) -> dict[str, Any]:
    """Makes the arguments of `aggregate_fits`."""
    _validate.require(
        settings.subsets is not None and settings.subsets <= facts.num_samples,
        "--subsets",
        settings.subsets,
        f"at most the number of records, {facts.num_samples}",
    )
    return {
        "num_subsets": settings.subsets,
        "radius": _radius(settings),
        "learning_rate": settings.learning_rate or facts.default_rate,
        "num_steps": settings.steps or (_QUICK_STEPS if settings.quick else 100),
        "calibration": str(settings.calibration),
    }


def objective_perturbation(settings: Settings, facts: Facts) -> dict[str, Any]:
    """Makes the arguments of `perturb_objective`."""
    return {
        # Features of unit size make rows of about sqrt(d); longer ones are shrunk.
        "longest_row": settings.scale or math.sqrt(facts.num_features),
        # N Lambda of a few is what suits rows of length one.
        "regularization": settings.l2 or 3 / facts.num_samples,
        "calibration": str(settings.calibration),
    }


def _radius(settings: Settings) -> float:
    return 1.0 if settings.radius is None else settings.radius


def _threshold(settings: Settings) -> float | None:
    if settings.scale is not None:
        _validate.within(1e-8, 1e12, **{"--scale": settings.scale})
    return settings.scale


def _sparsity(settings: Settings, facts: Facts) -> int:
    sparsity = settings.sparsity or 1  # given, as the method needs it
    _validate.require(
        sparsity <= facts.num_features,
        "--sparsity",
        sparsity,
        f"at most the number of features, {facts.num_features}",
    )
    return sparsity


def _steps(settings: Settings, facts: Facts) -> int | None:
    """Returns the steps that are asked for; None leaves them to the solver."""
    if settings.steps is None and settings.quick:
        return min(_QUICK_STEPS, facts.num_samples)
    return check_steps(settings.steps, facts)
