"""Noise multipliers for a budget: exact ones, and those that the papers print."""

import math
from typing import cast

from dpjax import _validate
from dpjax._tree import Static
from dpjax._types import REPLACE_ONE, Calibration, Scalar
from dpjax.accounting import (
    PrivacyGuarantee,
    epsilon_to_rho,
    gaussian_event,
    noise_multiplier,
    noise_multiplier_to_epsilon,
)
from dpjax.batching import Batching, Disjoint, Full
from dpjax.estimators import Estimator


def check_budget(epsilon: float, delta: float) -> None:
    """Requires what Gaussian noise needs: 0 < epsilon < inf and 0 < delta < 1."""
    _validate.positive(epsilon=epsilon)
    _validate.probability(delta=delta)


def calibrated_noise(
    estimator: Estimator,
    batching: Batching,
    *,
    num_samples: int,
    num_steps: int,
    epsilon: float,
    delta: float,
    calibration: Calibration,
) -> tuple[float, PrivacyGuarantee]:
    """Returns the noise multiplier of one step, and the guarantee of all steps."""
    sampling = batching.accounting(num_samples, num_steps)
    noise = estimator.noise
    if calibration == "tight":
        multiplier = noise_multiplier(epsilon, delta, noise=noise, **sampling)
    else:
        multiplier = _paper_multiplier(
            estimator, batching, num_steps=num_steps, epsilon=epsilon, delta=delta
        )
        # The printed constants are reported at what they really give.
        epsilon = noise_multiplier_to_epsilon(
            multiplier, delta, noise=noise, **sampling
        )
    return multiplier, PrivacyGuarantee.of(
        epsilon,
        delta,
        dp_event=gaussian_event(multiplier, noise=noise, **sampling),
        relation=REPLACE_ONE,
        num_samples=num_samples,
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


def _paper_multiplier(
    estimator: Estimator,
    batching: Batching,
    *,
    num_steps: int,
    epsilon: float,
    delta: float,
) -> float:
    _validate.require(
        estimator.noise == "gaussian",
        "calibration",
        "paper",
        f"'tight' with {type(estimator).__name__}: no privacy follows from the printed "
        "scale",
    )
    _validate.require(
        not batching.is_sampled,
        "calibration",
        "paper",
        f"'tight' with {batching}: the papers print no noise for sampled batches",
    )
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
