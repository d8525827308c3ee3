"""Scales from the theory: the threshold that balances bias against noise.

A small scale has a large bias, because it clips the tails; sampling error and privacy
noise grow with the scale. The papers' formulas ignore the noise or have loose
constants; the noise-aware ones here minimize the whole bound.
"""

import math
from typing import NamedTuple

import numpy as np
from dp_accounting import gaussian_mechanism

from dpjax import _validate


class Assumptions(NamedTuple):
    """The moment bound, sizes and privacy on which a scale depends."""

    moment_bound: float
    moment_order: float
    num_samples: int
    num_coordinates: int
    num_steps: int
    epsilon: float
    delta: float
    failure_prob: float

    def checked(self) -> "Assumptions":
        """Returns itself, or raises `ValueError` for an argument out of its range."""
        _validate.positive(moment_bound=self.moment_bound, epsilon=self.epsilon)
        _validate.count(
            num_samples=self.num_samples,
            num_coordinates=self.num_coordinates,
            num_steps=self.num_steps,
        )
        _validate.probability(delta=self.delta, failure_prob=self.failure_prob)
        _validate.require(
            1 < self.moment_order <= 2, "moment_order", self.moment_order, "in (1, 2]"
        )
        return self

    @property
    def log_failure(self) -> float:
        """log(2 d T / xi): a union bound over coordinates, steps and two sides."""
        return math.log(2 * self.num_coordinates * self.num_steps / self.failure_prob)

    @property
    def noise_deviation(self) -> float:
        """High-probability size of a coordinate's noise, per unit of |influence| / n.

        The l2 sensitivity is 2 sqrt(d) limit / n and T releases share (epsilon, delta),
        so the stddev is kappa·2 sqrt(d) limit / n with the exact Gaussian kappa.
        """
        with np.errstate(divide="ignore"):  # log(0) at large epsilon
            one = gaussian_mechanism.get_sigma_gaussian(self.epsilon, self.delta)
        kappa = one * math.sqrt(self.num_steps)
        dimensions = math.sqrt(self.num_coordinates)
        return 2 * kappa * dimensions * math.sqrt(2 * self.log_failure)


def noise_aware_threshold(setting: Assumptions, bias_factor: float) -> float:
    """Minimizes bias + deviation over the threshold B, with v = moment_order - 1.

    bias_factor·u / B^v + B·c / n, c = noise + (2/3) log(2dT/xi) by Bernstein, is least
    at B^(1+v) = v·bias_factor·u·n / c.
    """
    v = setting.moment_order - 1
    cost = setting.noise_deviation + 2 / 3 * setting.log_failure
    gain = v * bias_factor * setting.moment_bound * setting.num_samples
    return (gain / cost) ** (1 / (1 + v))


def paper_threshold(setting: Assumptions) -> float:
    """The thresholds that paper 003 prints."""
    effective = setting.moment_bound * setting.num_samples * setting.epsilon
    if setting.num_coordinates == setting.num_steps == 1:
        # Algorithm 1, line 1.
        effective /= math.log(1 / setting.failure_prob)
        effective /= math.sqrt(math.log(1.25 / setting.delta))
    else:
        # Theorem 7.
        effective /= setting.num_coordinates**1.5 * math.sqrt(setting.num_steps)
    return effective ** (1 / setting.moment_order)
