"""A training run with nothing left open, made of settings and public sizes."""

import math
from dataclasses import dataclass

from dpjax import _validate, losses
from dpjax._types import Calibration, LossFn
from dpjax.batching import Batching, Disjoint, Full, Poisson, WithoutReplacement
from dpjax.datasets import Dataset
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

# The thresholds with 95 per cent efficiency for standard normal errors (Holland and
# Welsch 1977), in units of the target.
_LOSSES: dict[LossName, LossFn] = {
    LossName.LOGISTIC: losses.logistic,
    LossName.SQUARED: losses.squared,
    LossName.HUBER: losses.huber(1.345),
    LossName.BIWEIGHT: losses.biweight(4.685),
}

# Whose theory gives the scale.
_KINDS = {
    EstimatorName.SMOOTHED_TRUNCATION: SmoothedTruncation,
    EstimatorName.TRUNCATION: Truncation,
    EstimatorName.WINSORIZATION: Winsorization,
    EstimatorName.MEDIAN_OF_MEANS: Truncation,  # of each group
    EstimatorName.CLIPPING: SmoothedTruncation,  # of its baseline; it has none itself
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run with nothing left open; every entry is public.

    Attributes:
        loss: the loss's name.
        loss_fn: the loss, without the l2 penalty.
        l2: strength of the l2 penalty.
        epsilon: privacy of the run.
        delta: privacy of the run.
        estimator: the robust mean.
        robust_baseline: its kind at the scale that the papers print, for the baseline
            without privacy; smoothed truncation in the place of clipping.
        learning_rate: step size.
        num_steps: how many steps.
        batching: which records a step sees.
        calibration: of the noise.
    """

    loss: LossName
    loss_fn: LossFn
    l2: float
    epsilon: float
    delta: float
    estimator: Estimator
    robust_baseline: Estimator
    learning_rate: float
    num_steps: int
    batching: Batching
    calibration: Calibration


def make_plan(settings: Settings, data: Dataset, *, is_named: bool) -> Plan:
    """Fills in what the settings leave open, from public sizes alone.

    Args:
        settings: what is asked for.
        data: its task, its name and its shapes count, its values do not.
        is_named: whether it is one of the public data sets, which take 300 steps.

    Raises:
        ValueError: if an option does not suit the sizes or the task.

    Example:
        >>> from dpjax import datasets
        >>> plan = make_plan(Settings(epsilon=1.0), datasets.adult(), is_named=True)
        >>> plan.num_steps, f"{plan.delta:.3g}", plan.estimator
        (300, '1.09e-05', SmoothedTruncation(scale=0.805..., beta=9.210...))
    """
    is_classification = data.task == "classification"
    loss = settings.loss or (
        LossName.LOGISTIC if is_classification else LossName.SQUARED
    )
    is_logistic = loss == LossName.LOGISTIC
    _validate.require(
        is_classification or not is_logistic,
        "--loss",
        str(loss),
        f"squared, huber or biweight for {data.name}, whose target is a number",
    )
    num_samples = len(data.features)
    delta = num_samples**-1.1 if settings.delta is None else settings.delta
    _validate.probability(**{"--delta": delta})  # one record has n^-1.1 = 1
    num_steps = settings.steps or _default_steps(settings, num_samples, is_named)
    batching = _batching(settings, num_samples, num_steps)
    estimator, robust_baseline = _estimators(
        settings, data, batching, num_steps, delta, 0.25 if is_logistic else 1.0
    )
    return Plan(
        loss=loss,
        loss_fn=_LOSSES[loss],
        l2=settings.l2,
        epsilon=settings.epsilon,
        delta=delta,
        estimator=estimator,
        robust_baseline=robust_baseline,
        learning_rate=settings.learning_rate or (1.0 if is_logistic else 0.1),
        num_steps=num_steps,
        batching=batching,
        calibration="paper"
        if settings.calibration == CalibrationName.PAPER
        else "tight",
    )


def _default_steps(settings: Settings, num_samples: int, is_named: bool) -> int:
    if settings.quick:
        return min(10, num_samples)
    if is_named:
        return 300
    # The theory's number for strongly convex losses at a condition number of 10.
    return max(1, math.ceil(10 * math.log(num_samples)))


def _batching(settings: Settings, num_samples: int, num_steps: int) -> Batching:
    if settings.batching == BatchingName.FULL:
        return Full()
    if settings.batching == BatchingName.DISJOINT:
        _validate.require(
            num_steps <= num_samples,
            "--steps",
            num_steps,
            f"at most the {num_samples} records that disjoint batches share",
        )
        return Disjoint()
    batch_size = settings.batch_size or 1  # given, as the settings have checked
    _validate.require(
        batch_size <= num_samples,
        "--batch-size",
        batch_size,
        f"at most the number of records, {num_samples}",
    )
    if settings.batching == BatchingName.POISSON:
        return Poisson(batch_size)
    return WithoutReplacement(batch_size)


def _estimators(
    settings: Settings,
    data: Dataset,
    batching: Batching,
    num_steps: int,
    delta: float,
    default_moment_bound: float,
) -> tuple[Estimator, Estimator]:
    """Returns the estimator of the run, and that of the robust baseline."""
    num_samples, num_features = data.features.shape
    batch_size = int(batching.divisor(num_samples, num_steps))
    has_groups = settings.estimator == EstimatorName.MEDIAN_OF_MEANS
    num_groups = _num_groups(settings, batch_size, num_features) if has_groups else 1
    setting = {
        "num_samples": batch_size // num_groups,
        "num_coordinates": num_features,
        # One step a record under disjoint batches, which share no budget.
        "num_steps": batching.accounting(num_samples, num_steps)["num_steps"],
        "epsilon": settings.epsilon,
        "delta": delta,
    }
    moment_bound = settings.moment_bound or default_moment_bound
    kind = _KINDS[settings.estimator]
    if settings.estimator == EstimatorName.CLIPPING:
        estimator = Clipping(settings.scale or 1.0)
    elif settings.scale is not None:
        estimator = kind(settings.scale)
    else:
        estimator = kind.for_moment(moment_bound, **setting)
    robust_baseline = kind.for_moment(moment_bound, calibration="paper", **setting)
    if not has_groups:
        return estimator, robust_baseline
    return (
        MedianOfMeans(estimator, num_groups),
        MedianOfMeans(robust_baseline, num_groups),
    )


def _num_groups(settings: Settings, batch_size: int, num_features: int) -> int:
    if settings.num_groups is None:
        default = MedianOfMeans.for_failure_prob(
            Truncation(1.0), num_coordinates=num_features
        )
        return min(default.num_groups, batch_size)
    _validate.require(
        settings.num_groups <= batch_size,
        "--num-groups",
        settings.num_groups,
        f"at most the {batch_size} records of a batch",
    )
    return settings.num_groups
