"""The base of truncation and winsorization: a threshold and its theory."""

import abc
from dataclasses import dataclass
from typing import Self

from dpjax import _validate
from dpjax._rounding import LARGEST, SMALLEST
from dpjax._types import Calibration, Scalar
from dpjax.estimators import _theory_scale as theory
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
        calibration: Calibration = "tight",
    ) -> Self:
        """Returns the threshold that the theory chooses for a moment bound.

        If E|x|^(1+v) <= u, the threshold B causes a bias of at most c·u / B^v (c = 1
        for truncation, less for winsorization). With n samples, d coordinates and T
        releases the deviation is at most B·k / n, where k covers sampling (Bernstein)
        and exact Gaussian noise. "tight" minimizes the sum: B^(1+v) = v c u n / k.
        "paper" uses the printed thresholds.

        Args:
            moment_bound: u, in units of the samples to the power `moment_order`.
            moment_order: 1 + v in (1, 2].
            num_samples: n, the number of samples of one estimate.
            num_coordinates: d.
            num_steps: T, the number of estimates that are released.
            epsilon: privacy of all releases together.
            delta: privacy of all releases together.
            failure_prob: xi, the probability that the error bound fails.
            calibration: "tight" or "paper".

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
        setting = theory.Assumptions(
            moment_bound=moment_bound,
            moment_order=moment_order,
            num_samples=num_samples,
            num_coordinates=num_coordinates,
            num_steps=num_steps,
            epsilon=epsilon,
            delta=delta,
            failure_prob=failure_prob,
        ).checked()
        _validate.choice(Calibration, calibration=calibration)
        if calibration == "paper":
            return cls(theory.paper_threshold(setting))
        return cls(
            theory.noise_aware_threshold(setting, cls.bias_factor(moment_order - 1))
        )
