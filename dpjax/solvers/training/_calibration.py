"""Checks of budgets, and the noise multipliers that they allow."""

from typing import NamedTuple

from dp_accounting import UnsupportedDpEvent

from dpjax import _validate
from dpjax._tree import Static
from dpjax._types import (
    REPLACE_ONE,
    REPLACE_SPECIAL,
    NeighboringRelation,
    PyTree,
    SelectionName,
    Unit,
)
from dpjax.accounting import (
    PrivacyGuarantee,
    noise_multiplier,
    noise_multiplier_to_epsilon,
)
from dpjax.accounting._selection import selection_epsilon, selection_event
from dpjax.accounting._subsampling import gaussian_event
from dpjax.batching._batching import Batching
from dpjax.estimators import Estimator
from dpjax.gradients._users import UserRecords
from dpjax.mechanisms._strategy import Strategy

FAILURE_PROB = 0.01  # probability with which error bounds in stats and defaults fail


def check_budget(epsilon: float, delta: float) -> None:
    """Requires 0 < epsilon < inf and 0 < delta < 1, as Gaussian noise does."""
    _validate.positive(epsilon=epsilon)
    _validate.probability(delta=delta)


def check_noise(
    epsilon: float | None, delta: float, noise_multiplier: float | None
) -> None:
    """Requires delta in (0, 1), and epsilon, or inf, or noise_multiplier above zero."""
    rule = "given if noise_multiplier is None, else None"
    is_fine = (epsilon is None) != (noise_multiplier is None)
    _validate.require(is_fine, "epsilon", epsilon, rule)
    check_budget(1.0 if epsilon in (None, float("inf")) else epsilon, delta)
    if noise_multiplier is not None:
        _validate.positive(noise_multiplier=noise_multiplier)


def unit_of(data: PyTree) -> Unit:
    """Returns the unit of privacy: "user" for data by user, otherwise "record"."""
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
    multiplier: float | None = None,
) -> tuple[float, PrivacyGuarantee]:
    """Returns the noise multiplier of one step, and the guarantee of all steps.

    The multiplier is stddev / l2 sensitivity of a step's mean, the smallest for this
    budget and batching. With a strategy of correlated noise it is for the independent
    noise behind it. `unit` names the protected unit in the guarantee. If a `multiplier`
    is given, of a longer run within the budget, the guarantee is what it proves.
    """
    _validate.bounded_estimator(estimator)
    is_fine = not (estimator.groups_by_index and batching.is_sampled)
    rule = f"Full() or Disjoint() with {estimator}, which needs batches fixed by index"
    _validate.require(is_fine, "batching", batching, rule)
    how = {"noise": estimator.noise, "relation": relation, "strategy": strategy}
    sampling = batching.sampling(num_samples, num_steps, **how)
    if multiplier is None:
        multiplier = noise_multiplier(epsilon, delta, sampling)
    else:
        known = noise_multiplier_to_epsilon(multiplier, delta, sampling)
        epsilon = min(known, epsilon)
    return multiplier, PrivacyGuarantee.of(
        epsilon,
        delta,
        dp_event=gaussian_event(multiplier, sampling),
        # n is public, so no record is added or removed, but one record may be blanked.
        relation=relation if relation is REPLACE_ONE else REPLACE_SPECIAL,
        num_samples=num_samples,
        unit=unit,
    )


def unsupported(epsilon: float, delta: float, num_samples: int) -> PrivacyGuarantee:
    """Returns the guarantee of a mechanism that no event of dp_accounting describes."""
    event = UnsupportedDpEvent()  # accountants reject it
    return PrivacyGuarantee.of(epsilon, delta, dp_event=event, num_samples=num_samples)


def traceable(
    estimator: Estimator, noise_multiplier: float | None
) -> float | Static | None:
    """Returns noise_multiplier for a jitted call, `Static` if noise is not Gaussian."""
    # Noise of `TrimmedMean` is fitted to a concrete multiplier on the host.
    is_fitted = noise_multiplier is not None and estimator.noise != "gaussian"
    return Static(noise_multiplier) if is_fitted else noise_multiplier


class Choices(NamedTuple):
    """Private choices of a run: their mechanism, and the guarantee of all together."""

    mechanism: SelectionName
    epsilon: float  # of one choice
    num_composed: int  # how many choices one record affects
    privacy: tuple[float, float]  # (epsilon, delta) of all these choices together

    @classmethod
    def tight(cls, num_composed: int, epsilon: float, delta: float) -> "Choices":
        """Returns choices by the mechanism that gives each the largest epsilon."""
        # A record affects num_composed choices, which together are (epsilon, delta)-DP;
        # a larger epsilon of one choice means a smaller error.
        if num_composed == 1:
            return cls("permute_and_flip", epsilon, 1, (epsilon, 0.0))
        by_name: dict[SelectionName, float] = {
            name: selection_epsilon(
                epsilon, delta, num_selections=num_composed, mechanism=name
            )
            for name in ("permute_and_flip", "exponential")
        }
        # At the same epsilon permute-and-flip is never worse, so it comes first: `max`
        # returns the first name of a tie.
        name = max(by_name, key=lambda name: by_name[name])
        return cls(name, by_name[name], num_composed, (epsilon, delta))

    def guarantee(self, num_samples: int, unit: Unit = "record") -> PrivacyGuarantee:
        """Returns the guarantee of all choices together."""
        event = selection_event(
            self.epsilon, num_selections=self.num_composed, mechanism=self.mechanism
        )
        return PrivacyGuarantee.of(
            *self.privacy, dp_event=event, num_samples=num_samples, unit=unit
        )
