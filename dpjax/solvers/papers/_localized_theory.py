"""What localized solvers derive from a moment bound: bias, phases, records needed."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from dpjax import _validate
from dpjax.accounting import Sampling, noise_multiplier


class Theory(NamedTuple):
    """The assumptions: E sup ||gradient||^k <= G^k within a ball, and the budget.

    Attributes:
        bound: G.
        order: k.
        radius: R, of the ball.
        dimension: d.
        noise_multiplier: kappa, of one Gaussian release at the whole budget; with
            delta = 0 of one release of Laplace noise in the l2 norm, see `_one_pass`.
    """

    bound: float
    order: float
    radius: float
    dimension: int
    noise_multiplier: float

    @classmethod
    def of(
        cls,
        epsilon: float,
        delta: float,
        *,
        moment_bound: float,
        moment_order: float,
        diameter: float,
        num_coordinates: int,
    ) -> "Theory":
        """Returns the assumptions of a solver's arguments, or raises `ValueError`."""
        _validate.positive(moment_bound=moment_bound, moment_order=moment_order)
        _validate.within(1e-20, 1e30, diameter=diameter)
        rule = "at least 2 and finite, because the theorem asks for a second moment"
        is_fine = 2 <= moment_order < math.inf
        _validate.require(is_fine, "moment_order", moment_order, rule)
        bound = moment_bound ** (1 / moment_order)
        rule = "such that its root of moment_order is between 1e-9 and 1e20"
        is_fine = 1e-9 <= bound <= 1e20
        _validate.require(is_fine, "moment_bound", moment_bound, rule)
        if delta == 0:
            _validate.within(1e-20, 1e20, epsilon=epsilon)
        return cls(
            bound,
            moment_order,
            diameter / 2,
            num_coordinates,
            noise_multiplier(epsilon, delta, Sampling(num_steps=1))
            if delta > 0
            else math.sqrt(num_coordinates + 1) / epsilon,
        )

    @property
    def excess(self) -> float:
        """S = (k - 1)^(k - 1) / k^k, of `bias`."""
        return (1 - 1 / self.order) ** (self.order - 1) / self.order

    def bias(self, clip_norm: float) -> float:
        """Returns b(C) = s G^k / C^(k - 1), at least E max(||gradient|| - C, 0).

        The largest (x - C) / x^k is at x = k C / (k - 1).
        """
        return self.bound * self.excess * (self.bound / clip_norm) ** (self.order - 1)


def phase_sizes(num_samples: int, num_phases: int) -> list[int]:
    """Returns the records of each phase: half of what is left, or the rest of it."""
    shares = [2 ** min(i, num_phases - 1) for i in range(1, num_phases + 1)]
    return [num_samples // share for share in shares]


def check_size(relative_risk: Callable[[int], float], data: Any) -> int:
    """Returns n, where the theorem's risk is at most the center's."""
    num_samples = enough = _validate.leading_size(data, "data")
    while relative_risk(enough) > 1:
        enough = math.ceil(1.1 * enough)
    if enough > num_samples:
        raise ValueError(
            "data must have enough records that the theorem is better than the centre "
            f"of the ball, here about {enough}, got {num_samples}."
        )
    return num_samples
