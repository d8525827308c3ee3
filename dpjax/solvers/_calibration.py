"""Checks of budgets, and the noise multipliers that they allow."""

from typing import Any

from dpjax import _validate
from dpjax._tree import Static
from dpjax._types import (
    REPLACE_ONE,
    REPLACE_SPECIAL,
    NeighboringRelation,
    PyTree,
    Unit,
)
from dpjax.accounting import (
    PrivacyGuarantee,
    gaussian_event,
    noise_multiplier,
)
from dpjax.batching import Batching
from dpjax.estimators import Estimator
from dpjax.gradients._users import UserRecords
from dpjax.mechanisms import Strategy


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
    multiplier = unfiltered = noise_multiplier(epsilon, delta, **sampling)
    if strategy is not None:
        multiplier = noise_multiplier(
            epsilon, delta, strategy=strategy, relation=relation, **pattern
        )
    return multiplier, PrivacyGuarantee.of(
        epsilon,
        delta,
        dp_event=gaussian_event(unfiltered, **sampling),
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
