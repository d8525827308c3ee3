"""Gradient descent with nothing left open: the default method, and the baselines."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpjax import _validate
from dpjax._types import Calibration
from dpjax.batching import Batching, Disjoint, Full, Poisson, WithoutReplacement
from dpjax.estimators import (
    Clipping,
    Estimator,
    MedianOfMeans,
    SmoothedTruncation,
    Truncation,
    Winsorization,
)
from dpjax.experiments._settings import (
    BatchingName,
    CalibrationName,
    EstimatorName,
    LossName,
    Settings,
)

# Whose theory gives the scale.
_KINDS = {
    EstimatorName.SMOOTHED_TRUNCATION: SmoothedTruncation,
    EstimatorName.TRUNCATION: Truncation,
    EstimatorName.WINSORIZATION: Winsorization,
    EstimatorName.MEDIAN_OF_MEANS: Truncation,  # of each group
    EstimatorName.CLIPPING: SmoothedTruncation,  # of its baseline; it has none itself
}


class Facts(NamedTuple):
    """What is public about a run before it is planned.

    Attributes:
        num_samples: n.
        num_features: d.
        loss: the loss's name.
        epsilon: privacy of the training.
        delta: privacy of the training.
        is_named: whether the data set is one of the public ones, which take 300 steps.
    """

    num_samples: int
    num_features: int
    loss: LossName
    epsilon: float
    delta: float
    is_named: bool

    @property
    def smoothness(self) -> float:
        """The largest second derivative of the loss in its prediction, but absolute."""
        return 0.25 if self.loss == LossName.LOGISTIC else 1.0

    @property
    def moment_bound(self) -> float:
        """Default bound on the second moment of a gradient's coordinate.

        That of a feature of unit size times a residual of size one, or for the logistic
        loss a half.
        """
        return 0.25 if self.loss == LossName.LOGISTIC else 1.0

    @property
    def default_rate(self) -> float:
        """Default step size of gradient descent."""
        return 1.0 if self.loss == LossName.LOGISTIC else 0.1

    @property
    def gaussian_delta(self) -> float:
        """The delta of Gaussian noise, which needs one, beside a pure method."""
        return self.delta or default_delta(self.num_samples)


def default_delta(num_samples: int) -> float:
    """Returns n^-1.1, and a half for one record.

    Example:
        >>> f"{default_delta(32_561):.3g}"
        '1.09e-05'
    """
    return min(0.5, num_samples**-1.1)


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Gradient descent with nothing left open.

    Attributes:
        estimator: the robust mean.
        robust_baseline: its kind at the scale that the papers print, for the baseline
            without privacy; smoothed truncation in the place of clipping.
        learning_rate: step size.
        num_steps: how many steps.
        batching: which records a step sees.
        calibration: of the noise.
    """

    estimator: Estimator
    robust_baseline: Estimator
    learning_rate: float
    num_steps: int
    batching: Batching
    calibration: Calibration

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of `dp_gradient_descent`."""
        return {
            "estimator": self.estimator,
            "learning_rate": self.learning_rate,
            "num_steps": self.num_steps,
            "batching": self.batching,
            "calibration": self.calibration,
        }


def plan_descent(settings: Settings, facts: Facts) -> Descent:
    """Fills in what the settings leave open, from public sizes alone.

    Raises:
        ValueError: if an option does not suit the facts.
    """
    num_steps = settings.steps or _default_steps(settings, facts)
    batching = choose_batching(settings, facts, num_steps)
    batch_size = int(batching.divisor(facts.num_samples, num_steps))
    # One step a record under disjoint batches, which share no budget.
    releases = batching.accounting(facts.num_samples, num_steps)["num_steps"]
    estimator, robust_baseline = (
        choose_estimator(
            settings, facts, batch_size, num_steps=releases, is_baseline=is_baseline
        )
        for is_baseline in (False, True)
    )
    return Descent(
        estimator=estimator,
        robust_baseline=robust_baseline,
        learning_rate=settings.learning_rate or facts.default_rate,
        num_steps=num_steps,
        batching=batching,
        calibration="paper"
        if settings.calibration == CalibrationName.PAPER
        else "tight",
    )


def _default_steps(settings: Settings, facts: Facts) -> int:
    if settings.quick:
        return min(10, facts.num_samples)
    if facts.is_named:
        return 300
    # The theory's number for strongly convex losses at a condition number of 10.
    return max(1, math.ceil(10 * math.log(facts.num_samples)))


def choose_batching(settings: Settings, facts: Facts, num_steps: int) -> Batching:
    """Returns the batching, if it suits the number of records."""
    if settings.batching in (None, BatchingName.FULL):
        return Full()
    if settings.batching == BatchingName.DISJOINT:
        check_steps(num_steps, facts)
        return Disjoint()
    batch_size = settings.batch_size or 1  # given, as the settings have checked
    _validate.require(
        batch_size <= facts.num_samples,
        "--batch-size",
        batch_size,
        f"at most the number of records, {facts.num_samples}",
    )
    if settings.batching == BatchingName.POISSON:
        return Poisson(batch_size)
    return WithoutReplacement(batch_size)


def check_steps(num_steps: int | None, facts: Facts) -> int | None:
    """Requires no more steps than records, where steps share the records out."""
    _validate.require(
        num_steps is None or num_steps <= facts.num_samples,
        "--steps",
        num_steps,
        f"at most the {facts.num_samples} records that disjoint batches share",
    )
    return num_steps


def choose_estimator(
    settings: Settings,
    facts: Facts,
    batch_size: int,
    *,
    num_steps: int,
    is_baseline: bool = False,
) -> Estimator:
    """Returns the estimator that is asked for, its scale as asked or by the theory.

    Args:
        settings: the options.
        facts: public facts.
        batch_size: how many records a step sees.
        num_steps: how many steps see a record.
        is_baseline: whether to take the scale that the papers print.
    """
    name = settings.estimator or EstimatorName.SMOOTHED_TRUNCATION
    has_groups = name == EstimatorName.MEDIAN_OF_MEANS
    num_groups = _num_groups(settings, facts, batch_size) if has_groups else 1
    if name == EstimatorName.CLIPPING and not is_baseline:
        return Clipping(settings.scale or 1.0)
    if settings.scale is not None and not is_baseline:
        estimator = _KINDS[name](settings.scale)
    else:
        estimator = _KINDS[name].for_moment(
            settings.moment_bound or facts.moment_bound,
            num_samples=batch_size // num_groups,
            num_coordinates=facts.num_features,
            num_steps=num_steps,
            epsilon=facts.epsilon,
            delta=facts.gaussian_delta,
            calibration="paper" if is_baseline else "tight",
        )
    return MedianOfMeans(estimator, num_groups) if has_groups else estimator


def _num_groups(settings: Settings, facts: Facts, batch_size: int) -> int:
    if settings.num_groups is None:
        default = MedianOfMeans.for_failure_prob(
            Truncation(1.0), num_coordinates=facts.num_features
        )
        return min(default.num_groups, batch_size)
    _validate.require(
        settings.num_groups <= batch_size,
        "--num-groups",
        settings.num_groups,
        f"at most the {batch_size} records of a batch",
    )
    return settings.num_groups
