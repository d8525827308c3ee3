"""Noise multipliers for a budget: exact ones, and those that the papers print."""

import math
from typing import Any, cast

from dpjax import _validate
from dpjax._tree import Static
from dpjax._types import (
    REPLACE_ONE,
    REPLACE_SPECIAL,
    NeighboringRelation,
    PyTree,
    Scalar,
    Unit,
)
from dpjax.accounting import (
    PrivacyGuarantee,
    epsilon_to_rho,
    gaussian_event,
    noise_multiplier,
    noise_multiplier_to_epsilon,
)
from dpjax.batching import Batching, Disjoint, Full
from dpjax.estimators import Estimator
from dpjax.gradients._shared import UserRecords
from dpjax.mechanisms import Strategy

_LEAST_EPSILON = 1e-6


def check_budget(epsilon: float, delta: float) -> None:
    """Requires what Gaussian noise needs: 0 < epsilon < inf and 0 < delta < 1."""
    _validate.positive(epsilon=epsilon)
    _validate.probability(delta=delta)


def check_noise(
    epsilon: float | None, delta: float, noise_multiplier: float | None
) -> None:
    """Refuses a budget, or a noise multiplier in place of epsilon, out of its range."""
    rule = "given where noise_multiplier is not"
    is_fine = (epsilon is None) != (noise_multiplier is None)
    _validate.require(is_fine, "epsilon", epsilon, rule)
    check_budget(1.0 if epsilon is None else epsilon, delta)
    if noise_multiplier is not None:
        _validate.positive(noise_multiplier=noise_multiplier)


def unit_of(data: PyTree) -> Unit:
    """Returns what a row of the data is."""
    return "user" if isinstance(data, UserRecords) else "record"


def calibrated_noise(
    estimator: Estimator,
    batching: Batching,
    *,
    num_samples: int,
    num_steps: int,
    epsilon: float,
    delta: float,
    unit: str = "record",
    relation: NeighboringRelation = REPLACE_ONE,
    strategy: Strategy | None = None,
) -> tuple[float, PrivacyGuarantee]:
    """Returns the noise multiplier of one step, and the guarantee of all steps.

    With a strategy it is that of the independent noise which the strategy correlates.
    """
    _validate.bounded_estimator(estimator)
    _validate.require(
        not (estimator.groups_by_index and batching.is_sampled),
        "batching",
        batching,
        f"Full() or Disjoint() with {estimator}, to which records count by their index",
    )
    sampling: dict[str, Any] = batching.accounting(num_samples, num_steps)
    pattern = batching.participation(num_samples, num_steps)
    if strategy is not None and "sampling_prob" not in pattern:
        sampling = {"num_steps": 1}  # the whole run is one Gaussian release
    sampling = {**sampling, "noise": estimator.noise, "relation": relation}
    multiplier = alone = noise_multiplier(epsilon, delta, **sampling)
    if strategy is not None:
        multiplier = noise_multiplier(
            epsilon, delta, strategy=strategy, relation=relation, **pattern
        )
    return multiplier, PrivacyGuarantee.of(
        epsilon,
        delta,
        dp_event=gaussian_event(alone, **sampling),
        # n is public: no record is added or removed, but one may count as padding.
        relation=relation if relation is REPLACE_ONE else REPLACE_SPECIAL,
        num_samples=num_samples,
        unit=unit,
    )


def traceable(
    estimator: Estimator, noise_multiplier: float | None
) -> float | Static | None:
    """Returns the multiplier for a jitted call: a leaf, or static where it must be.

    Other noise than Gaussian is fitted to its multiplier on the host.
    """
    if noise_multiplier is None or estimator.noise == "gaussian":
        return noise_multiplier
    return Static(noise_multiplier)


def printed_excess(estimator: Estimator) -> float:
    """Returns how many times its true limit the papers print for an estimator."""
    return float(cast(Scalar, estimator.printed_limit) / cast(Scalar, estimator.limit))


def printed_epsilon(
    estimator: Estimator,
    *,
    epsilon: float,
    delta: float,
    num_samples: int,
    num_steps: int = 1,
    batching: Batching | None = None,
) -> float:
    """Returns the epsilon that the noise printed for an estimator really gives.

    With this budget `dp_gradient_descent` and `dp_mean` add the noise that the paper
    prints for `epsilon`, and `Solution.privacy` states the guarantee that holds.

    Args:
        estimator: one with Gaussian noise. `SmoothedTruncation` has the constants of
            paper 001, Algorithm 4; others have those of paper 003, Algorithms 1 to 3.
        epsilon: the paper's claim, positive.
        delta: the paper's claim, in (0, 1).
        num_samples: n.
        num_steps: T.
        batching: `Full()`, the default, or `Disjoint()`.

    Returns:
        The exact epsilon at the same delta, by the composition of Gaussian noise, but
        at least 1e-6, so that a solver accepts it as a budget.

    Raises:
        ValueError: If a number is out of its range, batches are drawn at random, or the
            noise of the estimator depends on the data (`TrimmedMean`).

    Example:
        >>> from dpjax.estimators import SmoothedTruncation
        >>> round(printed_epsilon(SmoothedTruncation(1.0), epsilon=1.0, delta=1e-5,
        ...                       num_samples=200, num_steps=50), 3)
        0.489

    Reference:
        Wang, Xiao, Devadas, Xu (2020), Algorithm 4; Tao, Wu, Cheng, Wang (2022),
        Algorithms 1 to 3.
    """
    check_budget(epsilon, delta)
    _validate.count(num_samples=num_samples, num_steps=num_steps)
    _validate.bounded_estimator(estimator)
    batching = Full() if batching is None else batching
    rule = "another: no privacy follows from the printed scale of its noise"
    _validate.require(estimator.noise == "gaussian", "estimator", estimator, rule)
    rule = "Full() or Disjoint(): the papers print no noise for sampled batches"
    _validate.require(not batching.is_sampled, "batching", batching, rule)
    multiplier = _printed_multiplier(
        estimator, batching, num_steps=num_steps, epsilon=epsilon, delta=delta
    )
    num_composed = batching.accounting(num_samples, num_steps)["num_steps"]
    exact = noise_multiplier_to_epsilon(multiplier, delta, num_steps=num_composed)
    return max(exact, _LEAST_EPSILON)


def _printed_multiplier(
    estimator: Estimator,
    batching: Batching,
    *,
    num_steps: int,
    epsilon: float,
    delta: float,
) -> float:
    if estimator.paper == "001":
        # 001, Algorithm 4: rho = (sqrt(log 1/delta + epsilon) - sqrt(log 1/delta))^2,
        # with the range 2 sqrt(2)/3 in place of the sharp one.
        releases = 1 if isinstance(batching, Disjoint) else num_steps
        rho = epsilon_to_rho(epsilon, delta, conversion="simple")
        return math.sqrt(releases / (2 * rho)) * printed_excess(estimator)
    if isinstance(batching, Full) and num_steps > 1:
        # 003, Algorithm 2, line 3: advanced composition.
        epsilon /= 2 * math.sqrt(2 * num_steps * math.log(2 / delta))
        delta /= 2 * num_steps
    # 003, Algorithms 1 and 3: the classical Gaussian mechanism.
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon
