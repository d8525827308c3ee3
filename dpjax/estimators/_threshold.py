"""The base of truncation and winsorization: a threshold, and what theory chooses.

A small threshold has a large bias, because it clips the tails; sampling error and
privacy noise grow with it. The papers' formulas ignore the noise or have loose
constants; the noise-aware ones here minimize the whole bound.
"""

import abc
import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from dp_accounting import gaussian_mechanism

from dpjax import _validate
from dpjax._rounding import LARGEST, SMALLEST
from dpjax._types import Scalar
from dpjax.estimators._estimator import CoordinateEstimator


@dataclass(frozen=True)
class ThresholdEstimator(CoordinateEstimator):
    """A mean of influences bounded by a threshold, coordinate by coordinate."""

    threshold: Scalar

    def __post_init__(self):
        _validate.within(SMALLEST, LARGEST, threshold=self.threshold)

    @property
    def limit(self) -> Scalar:
        """The threshold."""
        return self.threshold

    @staticmethod
    @abc.abstractmethod
    def bias_factor(v: float) -> float:
        """Returns c such that the bias is at most c·u / B^v where E|x|^(1+v) <= u."""

    @classmethod
    def for_moment(
        cls,
        moment_bound: float,
        *,
        moment_order: float = 2.0,
        num_samples: int,
        num_coordinates: int = 1,
        num_steps: int = 1,
        epsilon: float,
        delta: float,
        failure_prob: float = 0.01,
    ) -> Self:
        """Returns the threshold that the theory chooses for a moment bound.

        If E|x|^(1+v) <= u, the threshold B causes a bias of at most c·u / B^v (c = 1
        for truncation, less for winsorization). With n samples, d coordinates and T
        releases the deviation is at most B·k / n, where k covers sampling (Bernstein)
        and exact Gaussian noise. This minimizes the sum: B^(1+v) = v c u n / k.

        Args:
            moment_bound: u, in units of the samples to the power `moment_order`.
            moment_order: 1 + v in (1, 2].
            num_samples: n, the number of samples of one estimate.
            num_coordinates: d.
            num_steps: T, the number of estimates that are released.
            epsilon: privacy of all releases together.
            delta: privacy of all releases together.
            failure_prob: xi, the probability that the error bound fails.

        Example:
            >>> from dpjax.estimators import Truncation, Winsorization
            >>> setting = dict(num_samples=10_000, epsilon=1.0, delta=1e-5)
            >>> print(f"{Truncation.for_moment(1.0, **setting).threshold:.1f}")
            19.0
            >>> print(f"{Winsorization.for_moment(1.0, **setting).threshold:.1f}")
            9.5

        Reference:
            Tao, Wu, Cheng, Wang (2022), Algorithm 1 (d = T = 1) and Theorem 7.
        """
        setting = Assumptions(
            moment_bound=moment_bound,
            moment_order=moment_order,
            num_samples=num_samples,
            num_coordinates=num_coordinates,
            num_steps=num_steps,
            epsilon=epsilon,
            delta=delta,
            failure_prob=failure_prob,
        ).checked()
        return cls(noise_aware_threshold(setting, cls.bias_factor(moment_order - 1)))


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
        _validate.positive(
            moment_bound=self.moment_bound,
            moment_order=self.moment_order,
            epsilon=self.epsilon,
        )
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
            epsilon = min(self.epsilon, 1e20)  # its search fails beyond
            multiplier = gaussian_mechanism.get_sigma_gaussian(epsilon, self.delta)
        kappa = multiplier * math.sqrt(self.num_steps)
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
