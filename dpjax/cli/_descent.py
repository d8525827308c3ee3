"""Arguments of gradient descent from its options, for training and for baselines."""

import math
from typing import Any, NamedTuple

from dpjax import _validate
from dpjax._default_delta import default_delta
from dpjax._types import Calibration
from dpjax.batching import Batching, Disjoint, Full, Poisson, WithoutReplacement
from dpjax.cli._losses import LossName
from dpjax.cli._settings import BatchingName, EstimatorName
from dpjax.estimators import (
    Clipping,
    Estimator,
    MedianOfMeans,
    SmoothedTruncation,
    Truncation,
    Winsorization,
)
from dpjax.solvers import printed_epsilon

# The estimator whose theory gives the scale, by the name of the option.
_KINDS = {
    "smoothed-truncation": SmoothedTruncation,
    "truncation": Truncation,
    "winsorization": Winsorization,
    "median-of-means": Truncation,  # of each group
    "clipping": SmoothedTruncation,  # for its baseline; clipping has no such theory
}


class Facts(NamedTuple):
    """Public facts about a run, from which it is planned.

    Attributes:
        num_samples: n.
        num_features: d.
        loss: name of the loss.
        epsilon: privacy of the training.
        delta: privacy of the training.
        calibration: calibration of the noise.
        is_named: whether the data set is a public one, which takes 300 steps.
        is_quick: whether this is a short trial run.
        bending: indices of the features that may have curves.
    """

    num_samples: int
    num_features: int
    loss: LossName
    epsilon: float
    delta: float
    calibration: Calibration
    is_named: bool
    is_quick: bool
    bending: tuple[int, ...] = ()

    @property
    def smoothness(self) -> float:
        """Bound on the loss's second derivative; the absolute loss has none."""
        return 0.25 if self.loss == "logistic" else 1.0

    @property
    def moment_bound(self) -> float:
        """Default bound on the second moment of a gradient's coordinate.

        It holds for a feature of second moment 1 times a residual of size 1, or of
        size 1/2 for the logistic loss.
        """
        return 0.25 if self.loss == "logistic" else 1.0

    @property
    def default_rate(self) -> float:
        """Default step size of gradient descent."""
        return 1.0 if self.loss == "logistic" else 0.1

    @property
    def gaussian_delta(self) -> float:
        """The delta for Gaussian noise: a default where the private method has none."""
        return self.delta or default_delta(self.num_samples)


class Descent(NamedTuple):
    """A fully specified run of gradient descent.

    Attributes:
        estimator: the robust mean.
        robust_baseline: the same kind of estimator at the papers' scale, for the
            baseline without privacy; smoothed truncation instead of clipping.
        learning_rate: step size.
        num_steps: number of steps.
        batching: which records a step uses.
        epsilon: the epsilon for which the noise is calibrated.
    """

    estimator: Estimator
    robust_baseline: Estimator
    learning_rate: float
    num_steps: int
    batching: Batching
    epsilon: float

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of `dp_gradient_descent`."""
        own = self._asdict()
        return {name: own[name] for name in own if name != "robust_baseline"}


def plan_descent(
    facts: Facts,
    *,
    estimator: EstimatorName | None = None,
    scale: float | None = None,
    moment_bound: float | None = None,
    num_groups: int | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
    batching: BatchingName | None = None,
    batch_size: int | None = None,
) -> Descent:
    """Returns gradient descent with defaults, which depend on public sizes alone.

    Raises:
        ValueError: If an option does not go with the facts.
    """
    num_steps = steps or _default_steps(facts)
    batches = choose_batching(facts, num_steps, batching, batch_size)
    size = int(batches.divisor(facts.num_samples, num_steps))
    options: dict[str, Any] = {
        "num_samples": size,
        # 1 with disjoint batches, because a record is in one of them only.
        "num_steps": batches.accounting(facts.num_samples, num_steps)["num_steps"],
        "moment_bound": moment_bound,
        "num_groups": num_groups,
    }
    chosen = choose_estimator(facts, estimator, scale=scale, **options)
    epsilon = facts.epsilon
    if facts.calibration == "paper":
        epsilon = printed_epsilon(
            chosen,
            epsilon=epsilon,
            delta=facts.gaussian_delta,
            num_samples=facts.num_samples,
            num_steps=num_steps,
            batching=batches,
        )
    return Descent(
        estimator=chosen,
        robust_baseline=choose_estimator(facts, estimator, is_baseline=True, **options),
        learning_rate=learning_rate or facts.default_rate,
        num_steps=num_steps,
        batching=batches,
        epsilon=epsilon,
    )


def _default_steps(facts: Facts) -> int:
    if facts.is_quick:
        return min(10, facts.num_samples)
    if facts.is_named:
        return 300
    # The theory's number for strongly convex losses at a condition number of 10.
    return max(1, math.ceil(10 * math.log(facts.num_samples)))


def choose_batching(
    facts: Facts,
    num_steps: int,
    name: BatchingName | None,
    batch_size: int | None = None,
) -> Batching:
    """Returns the batching, after checks against the number of records."""
    if name in (None, "full"):
        return Full()
    if name == "disjoint":
        check_steps(num_steps, facts)
        return Disjoint()
    batch_size = batch_size or 1  # given, as the settings have checked
    rule = f"at most the number of records, {facts.num_samples}"
    _validate.require(batch_size <= facts.num_samples, "--batch-size", batch_size, rule)
    if name == "poisson":
        return Poisson(batch_size)
    return WithoutReplacement(batch_size)


def check_steps(num_steps: int | None, facts: Facts) -> int | None:
    """Requires at most as many steps as records, because each step has its own."""
    rule = f"at most the {facts.num_samples} records that disjoint batches share"
    is_fine = num_steps is None or num_steps <= facts.num_samples
    _validate.require(is_fine, "--steps", num_steps, rule)
    return num_steps


def choose_estimator(
    facts: Facts,
    name: EstimatorName | None,
    *,
    scale: float | None = None,
    moment_bound: float | None = None,
    num_groups: int | None = None,
    num_samples: int,
    num_steps: int = 1,
    is_baseline: bool = False,
) -> Estimator:
    """Returns the chosen estimator, with the given scale or the theory's.

    Args:
        facts: public facts.
        name: name of the estimator; smoothed truncation by default.
        scale: the option --scale.
        moment_bound: the option --moment-bound.
        num_groups: the option --num-groups.
        num_samples: number of records that a step uses.
        num_steps: number of steps that use a record.
        is_baseline: whether to use the scale that the papers print.
    """
    name = name or "smoothed-truncation"
    if name == "clipping" and not is_baseline:
        return Clipping(scale or 1.0)
    has_groups = name == "median-of-means"
    groups = _num_groups(facts, num_groups, num_samples) if has_groups else 1
    if scale is not None:
        estimator = _KINDS[name](scale)
    else:
        estimator = _KINDS[name].for_moment(
            moment_bound or facts.moment_bound,
            num_samples=num_samples // groups,
            num_coordinates=facts.num_features,
            num_steps=num_steps,
            epsilon=facts.epsilon,
            delta=facts.gaussian_delta,
            calibration="paper" if is_baseline else "tight",
        )
    return MedianOfMeans(estimator, groups) if has_groups else estimator


def _num_groups(facts: Facts, num_groups: int | None, batch_size: int) -> int:
    if num_groups is None:
        default = MedianOfMeans.for_failure_prob(
            Truncation(1.0), num_coordinates=facts.num_features
        )
        return min(default.num_groups, batch_size)
    rule = f"at most the {batch_size} records of a batch"
    _validate.require(num_groups <= batch_size, "--num-groups", num_groups, rule)
    return num_groups
