"""What a training run is asked for, and the checks that need no data.

Errors name the options of `dpjax train`.
"""

from dataclasses import dataclass
from enum import StrEnum

from dpjax import _validate


class LossName(StrEnum):
    """Losses of a linear predictor."""

    LOGISTIC = "logistic"
    SQUARED = "squared"
    HUBER = "huber"
    BIWEIGHT = "biweight"


class EstimatorName(StrEnum):
    """Robust means."""

    SMOOTHED_TRUNCATION = "smoothed-truncation"
    TRUNCATION = "truncation"
    WINSORIZATION = "winsorization"
    CLIPPING = "clipping"
    MEDIAN_OF_MEANS = "median-of-means"


class BatchingName(StrEnum):
    """How a step chooses its records."""

    FULL = "full"
    DISJOINT = "disjoint"
    POISSON = "poisson"
    WITHOUT_REPLACEMENT = "without-replacement"


class CalibrationName(StrEnum):
    """Exact noise, or the noise that the papers print."""

    TIGHT = "tight"
    PAPER = "paper"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of a run; None takes the default of `make_plan`.

    Attributes:
        epsilon: privacy of the run.
        delta: n^-1.1 by default, as n is public under replace-one.
        loss: for a named data set, by default what suits its task.
        estimator: the robust mean of the gradients.
        scale: its scale, threshold or clip norm; by default from moment_bound.
        moment_bound: assumed bound on the second moment of a gradient's coordinate;
            0.25 for the logistic loss (a feature of unit size times a residual of a
            half), else 1. It affects utility alone.
        num_groups: of the median of means.
        steps: 300 for a named data set, else ceil(10 log n).
        learning_rate: 1 for the logistic loss, else 0.1.
        l2: strength of the l2 penalty.
        batching: how a step chooses its records.
        batch_size: of the batchings that sample.
        calibration: of the noise.
        quick: 10 steps by default, to try things out.
    """

    epsilon: float
    delta: float | None = None
    loss: LossName | None = None
    estimator: EstimatorName = EstimatorName.SMOOTHED_TRUNCATION
    scale: float | None = None
    moment_bound: float | None = None
    num_groups: int | None = None
    steps: int | None = None
    learning_rate: float | None = None
    l2: float = 0.0
    batching: BatchingName = BatchingName.FULL
    batch_size: int | None = None
    calibration: CalibrationName = CalibrationName.TIGHT
    quick: bool = False

    def __post_init__(self):
        _validate.positive(**{"--epsilon": self.epsilon})
        _validate.non_negative(**{"--l2": self.l2})
        if self.delta is not None:
            _validate.probability(**{"--delta": self.delta})
        if self.scale is not None:
            _validate.within(1e-18, 1e30, **{"--scale": self.scale})
        if self.moment_bound is not None:
            _validate.within(1e-30, 1e30, **{"--moment-bound": self.moment_bound})
        if self.learning_rate is not None:
            _validate.positive(**{"--learning-rate": self.learning_rate})
        if self.steps is not None:
            _validate.count(**{"--steps": self.steps})
        if self.num_groups is not None:
            _validate.count(**{"--num-groups": self.num_groups})
        if self.batch_size is not None:
            _validate.count(**{"--batch-size": self.batch_size})
        self._check_combinations()

    def _check_combinations(self) -> None:
        samples = self.batching in (
            BatchingName.POISSON,
            BatchingName.WITHOUT_REPLACEMENT,
        )
        _validate.require(
            samples == (self.batch_size is not None),
            "--batch-size",
            self.batch_size,
            f"{'given' if samples else 'left out'} with --batching {self.batching}",
        )
        _validate.require(
            not samples or self.estimator != EstimatorName.MEDIAN_OF_MEANS,
            "--batching",
            str(self.batching),
            "full or disjoint with --estimator median-of-means, whose groups are fixed",
        )
        _validate.require(
            not samples or self.calibration == CalibrationName.TIGHT,
            "--calibration",
            str(self.calibration),
            f"tight with --batching {self.batching}",
        )
        _validate.require(
            self.num_groups is None or self.estimator == EstimatorName.MEDIAN_OF_MEANS,
            "--num-groups",
            self.num_groups,
            f"left out with --estimator {self.estimator}",
        )
        _validate.require(
            self.moment_bound is None
            or (self.scale is None and self.estimator != EstimatorName.CLIPPING),
            "--moment-bound",
            self.moment_bound,
            "left out with --scale and with --estimator clipping",
        )
