"""What a training run is asked for, and the checks that need no data.

Errors name the options of `dpjax train`.
"""

import dataclasses
from dataclasses import dataclass
from enum import StrEnum

from dpjax import _validate


class MethodName(StrEnum):
    """Private methods; `_methods` declares each of them."""

    GRADIENT_DESCENT = "gradient-descent"
    FRANK_WOLFE = "frank-wolfe"
    LASSO = "lasso"
    SPARSE = "sparse"
    L1 = "l1"
    SAMPLE_AGGREGATE = "sample-aggregate"
    OBJECTIVE_PERTURBATION = "objective-perturbation"


class LossName(StrEnum):
    """Losses of a linear predictor."""

    LOGISTIC = "logistic"
    SQUARED = "squared"
    ABSOLUTE = "absolute"
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
        delta: n^-1.1 by default, as n is public under replace-one; 0 for pure
            epsilon-DP, where the method has it.
        method: the private method.
        loss: for a named data set, by default what suits its task and the method.
        estimator: the robust mean of the gradients; smoothed truncation by default.
        scale: its scale, threshold or clip norm; by default from moment_bound. For
            methods without gradients of records, where records are cut off.
        moment_bound: assumed bound on the second moment of a gradient's coordinate;
            0.25 for the logistic loss (a feature of unit size times a residual of a
            half), else 1. It affects utility alone.
        num_groups: of the median of means.
        steps: for gradient descent 300 for a named data set, else ceil(10 log n); for
            other methods what their theory says.
        learning_rate: for gradient descent 1 for the logistic loss, else 0.1.
        l2: strength of the l2 penalty.
        batching: how a step chooses its records; full by default.
        batch_size: of the batchings that sample.
        radius: of the set that the weights are kept in; 1 by default.
        sparsity: how many weights are not zero.
        candidates: among how many weight vectors to choose.
        subsets: how many disjoint parts of the records are fitted.
        calibration: of the noise.
        private_ranges: the share of the budget that buys centres and scales.
        quick: 10 steps by default, or 1,000 candidates, to try things out.
    """

    epsilon: float
    delta: float | None = None
    method: MethodName = MethodName.GRADIENT_DESCENT
    loss: LossName | None = None
    estimator: EstimatorName | None = None
    scale: float | None = None
    moment_bound: float | None = None
    num_groups: int | None = None
    steps: int | None = None
    learning_rate: float | None = None
    l2: float = 0.0
    batching: BatchingName | None = None
    batch_size: int | None = None
    radius: float | None = None
    sparsity: int | None = None
    candidates: int | None = None
    subsets: int | None = None
    calibration: CalibrationName = CalibrationName.TIGHT
    private_ranges: float | None = None
    quick: bool = False

    def __post_init__(self):
        _validate.positive(**{"--epsilon": self.epsilon})
        _validate.non_negative(**{"--l2": self.l2})
        if self.delta is not None and self.delta != 0:
            _validate.probability(**{"--delta": self.delta})
        if self.scale is not None:
            _validate.within(1e-18, 1e30, **{"--scale": self.scale})
        if self.moment_bound is not None:
            _validate.within(1e-30, 1e30, **{"--moment-bound": self.moment_bound})
        if self.learning_rate is not None:
            _validate.positive(**{"--learning-rate": self.learning_rate})
        if self.radius is not None:
            _validate.within(1e-12, 1e12, **{"--radius": self.radius})
        if self.private_ranges is not None:
            _validate.probability(**{"--private-ranges": self.private_ranges})
        for name in (
            "steps",
            "num_groups",
            "batch_size",
            "sparsity",
            "candidates",
            "subsets",
        ):
            if getattr(self, name) is not None:
                _validate.count(**{option(name): getattr(self, name)})
        self._check_combinations()

    def given(self) -> list[str]:
        """Returns the names of the fields that differ from their defaults."""
        fields = dataclasses.fields(self)
        return [f.name for f in fields if getattr(self, f.name) != f.default]

    def _check_combinations(self) -> None:
        batching = self.batching or BatchingName.FULL
        estimator = self.estimator or EstimatorName.SMOOTHED_TRUNCATION
        samples = batching in (BatchingName.POISSON, BatchingName.WITHOUT_REPLACEMENT)
        _validate.require(
            samples == (self.batch_size is not None),
            "--batch-size",
            self.batch_size,
            f"{'given' if samples else 'left out'} with --batching {batching}",
        )
        _validate.require(
            not samples or estimator != EstimatorName.MEDIAN_OF_MEANS,
            "--batching",
            str(batching),
            "full or disjoint with --estimator median-of-means, whose groups are fixed",
        )
        _validate.require(
            not samples or self.calibration == CalibrationName.TIGHT,
            "--calibration",
            str(self.calibration),
            f"tight with --batching {batching}",
        )
        _validate.require(
            self.num_groups is None or estimator == EstimatorName.MEDIAN_OF_MEANS,
            "--num-groups",
            self.num_groups,
            f"left out with --estimator {estimator}",
        )
        _validate.require(
            self.moment_bound is None
            or (self.scale is None and estimator != EstimatorName.CLIPPING),
            "--moment-bound",
            self.moment_bound,
            "left out with --scale and with --estimator clipping",
        )


def option(field: str) -> str:
    """Returns how a field of the settings is given: "--batch-size"."""
    return f"--{field.replace('_', '-')}"
