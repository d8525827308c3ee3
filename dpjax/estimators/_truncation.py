"""Truncation and winsorization: a threshold for each coordinate, chosen by theory.

A small threshold has a large bias, because it clips the tails; with a large threshold,
sampling error and privacy noise are large. The papers' formulas ignore the noise or
have loose constants; the formulas here minimize the whole bound, noise included.
"""

import abc
import math
from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import gaussian_mechanism

from dpjax import _validate
from dpjax._rounding import LARGEST, SMALLEST
from dpjax._tree import as_float, like, register, within
from dpjax._types import PyTree, Scalar
from dpjax.estimators._estimator import CoordinateEstimator


@dataclass(frozen=True)
class ThresholdEstimator(CoordinateEstimator):
    """A mean of influences bounded by a threshold, coordinate by coordinate."""

    threshold: Scalar

    def __post_init__(self):
        _validate.within(SMALLEST, LARGEST, threshold=self.threshold)

    @property
    def limit(self) -> Scalar:
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
        """Returns the estimator with the threshold of least error for a moment bound.

        If E|x|^(1+v) <= u, the threshold B causes a bias of at most c·u / B^v (c = 1
        for truncation, less for winsorization). With n samples, d coordinates and T
        releases the deviation is at most B·k / n, where k covers sampling (Bernstein)
        and exact Gaussian noise. The sum is least for B^(1+v) = v c u n / k.

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
        _validate.positive(moment_bound=moment_bound, moment_order=moment_order)
        is_fine = 1 < moment_order <= 2
        _validate.require(is_fine, "moment_order", moment_order, "in (1, 2]")
        log_failure, noise = deviations(
            num_samples, num_coordinates, num_steps, epsilon, delta, failure_prob
        )
        v = moment_order - 1
        cost = noise + 2 / 3 * log_failure
        gain = v * cls.bias_factor(v) * moment_bound * num_samples
        return cls((gain / cost) ** (1 / (1 + v)))


def deviations(num_samples, num_coordinates, num_steps, epsilon, delta, failure_prob):
    """Returns log(2 d T / xi), and a bound on a coordinate's noise times n / limit."""
    # `for_moment` balances bias and noise by them. With probability 1 - xi, no
    # coordinate of T releases exceeds the bound: the logarithm is from a union bound
    # over d coordinates, T releases and two signs. The stddev is kappa·2 sqrt(d) limit
    # / n: the l2 sensitivity times kappa, exact for T Gaussian releases within
    # (epsilon, delta).
    _validate.positive(epsilon=epsilon)
    _validate.count(num_samples=num_samples, num_coordinates=num_coordinates)
    _validate.count(num_steps=num_steps)
    _validate.probability(delta=delta, failure_prob=failure_prob)
    log_failure = math.log(2 * num_coordinates * num_steps / failure_prob)
    with np.errstate(divide="ignore"):  # log(0) at large epsilon
        epsilon = min(epsilon, 1e20)  # the search of dp_accounting fails beyond
        multiplier = gaussian_mechanism.get_sigma_gaussian(epsilon, delta)
    kappa = multiplier * math.sqrt(num_steps)
    noise = 2 * kappa * math.sqrt(num_coordinates) * math.sqrt(2 * log_failure)
    return log_failure, noise


@register("threshold")
@dataclass(frozen=True)
class Truncation(ThresholdEstimator):
    """The mean of x·1{|x| <= threshold}, coordinate by coordinate.

    Sensitivity: replacing one of n records moves a coordinate by at most
    2·threshold / n, before rounding.

    Attributes:
        threshold: B in [1e-20, 1e30], in units of the samples; a pytree leaf.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import Truncation
        >>> print(Truncation(1.0)(jnp.array([0.5, 0.7, 1e30, jnp.nan])))
        0.3

    Reference:
        Tao, Wu, Cheng, Wang (2022), Algorithm 1, line 1.
    """

    def influence(self, sample: PyTree) -> PyTree:
        """Returns the sample with NaN and entries beyond the threshold set to zero."""

        def truncate(x: jax.Array) -> jax.Array:
            x = as_float(x)
            return jnp.where(jnp.abs(x) <= like(self.threshold, x), x, 0)

        return jax.tree.map(truncate, sample)

    @staticmethod
    def bias_factor(v: float) -> float:
        """Returns 1: E|x|·1{|x| > B} <= u / B^v, by Markov's inequality."""
        return 1.0


@register("threshold")
@dataclass(frozen=True)
class Winsorization(ThresholdEstimator):
    """The mean of min(max(x, -threshold), threshold), coordinate by coordinate.

    Sensitivity: as for `Truncation`. The bias is smaller: a quarter, for v = 1.

    Attributes:
        threshold: B in [1e-20, 1e30], in units of the samples; a pytree leaf.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import Winsorization
        >>> print(Winsorization(1.0)(jnp.array([0.5, 0.7, 1e30, jnp.nan])))
        0.55

    Reference:
        Tao, Wu, Cheng, Wang (2022), the interval truncation named after Theorem 3.
    """

    def influence(self, sample: PyTree) -> PyTree:
        """Returns the sample with entries clipped to the threshold; NaN gives zero."""

        def winsorize(x: jax.Array) -> jax.Array:
            x = as_float(x)
            return jnp.where(jnp.isnan(x), 0, within(x, like(self.threshold, x)))

        return jax.tree.map(winsorize, sample)

    @staticmethod
    def bias_factor(v: float) -> float:
        """Returns v^v / (1+v)^(1+v): (x - B) / x^(1+v) is largest at x = B (1+v)/v."""
        return v**v / (1 + v) ** (1 + v)
