"""Smoothed truncation: the Catoni-Giulini mean (paper 001, Algorithm 4)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax

from dpjax import _validate
from dpjax._tree import register
from dpjax._types import PyTree
from dpjax.estimators import _catoni
from dpjax.estimators._estimator import CoordinateEstimator
from dpjax.estimators._smoothed import SmoothedEstimator, prepared, smoothed
from dpjax.estimators._threshold import Assumptions


@register("scale", "beta")
@dataclass(frozen=True)
class SmoothedTruncation(SmoothedEstimator, CoordinateEstimator):
    """The mean of scale·h_beta(x / scale), coordinate by coordinate.

    h_beta(a) = E phi(a (1 + Z/sqrt(beta))), Z standard normal, phi(x) = x - x^3/6 up to
    |x| = sqrt(2) and ±2 sqrt(2)/3 beyond. Like x near zero, bounded by
    (2 sqrt(2)/3) erf(sqrt(beta/2)) everywhere. Error below 1e-6 scale in float32; NaN
    gives zero.

    Sensitivity: replacing one of n records moves a coordinate by at most
    2·scale·M / n with M = (2 sqrt(2)/3) erf(sqrt(beta/2)), because every influence is
    clipped to ±scale·M; float32 rounding is added to that.

    Attributes:
        scale: s in [1e-18, 1e30], in units of the samples; a pytree leaf.
        beta: the precision of the smoothing, in [1e-6, 1e6]; a pytree leaf. Up to
            beta = 10 the influence costs a short polynomial; for larger beta, or if
            beta is traced at construction, about forty times as much. Change it with
            `dataclasses.replace`: if `jax.tree.map` raises it beyond the range of its
            polynomial, estimates are NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import SmoothedTruncation
        >>> estimate = SmoothedTruncation(100.0)(jnp.array([1.0, 2.0, 3.0, 1e30]))
        >>> print(f"{estimate:.3f}")
        17.591

    Reference:
        Catoni, Giulini (2017); Wang, Xiao, Devadas, Xu (2020), Algorithm 4, eq. (6) to
        (10); the sharp range and the stable evaluation are derived in
        `dpjax.estimators._catoni`.
    """

    def influence_fn(self) -> Callable[[PyTree], PyTree]:
        """See `Estimator.influence_fn`: computes the coefficients of the series."""
        parameters = prepared(self.scale, self.beta, self._degree)
        return lambda sample: jax.tree.map(lambda x: smoothed(x, *parameters), sample)

    @classmethod
    def for_moment(
        cls,
        moment_bound: float,
        *,
        num_samples: int,
        num_coordinates: int = 1,
        num_steps: int = 1,
        epsilon: float,
        delta: float,
        failure_prob: float = 0.01,
        beta: float | None = None,
    ) -> "SmoothedTruncation":
        """Returns the scale that the theory chooses for a second-moment bound.

        With E x^2 <= v and probability 1 - failure_prob, the error of one coordinate is
        at most v (1 + 1/beta) / (2 s) + (s/n) (beta/2 + log(2dT/zeta) + noise),
        of which this is the minimum over s.

        Args:
            moment_bound: v, in units of the samples squared.
            num_samples: n, the number of samples of one estimate.
            num_coordinates: d.
            num_steps: T, the number of estimates that are released.
            epsilon: privacy of all releases together.
            delta: privacy of all releases together.
            failure_prob: zeta, the probability that the error bound fails.
            beta: 2 log(1 / failure_prob) by default, as in the paper.

        Example:
            >>> estimator = SmoothedTruncation.for_moment(
            ...     1.0, num_samples=100_000, num_coordinates=10, num_steps=50,
            ...     epsilon=1.0, delta=1e-5)
            >>> print(f"{estimator.scale:.2f} {estimator.beta:.2f}")
            8.49 9.21

        Reference:
            Wang, Xiao, Devadas, Xu (2020), Lemma 3 and Algorithm 4, line 1; the bound
            with noise follows Catoni, Giulini (2017) and a union over d·T.
        """
        setting = Assumptions(
            moment_bound=moment_bound,
            moment_order=2.0,
            num_samples=num_samples,
            num_coordinates=num_coordinates,
            num_steps=num_steps,
            epsilon=epsilon,
            delta=delta,
            failure_prob=failure_prob,
        ).checked()
        if beta is None:
            beta = 2 * math.log(1 / failure_prob)
        _validate.positive(beta=beta)
        noise = _catoni.supremum(beta) * setting.noise_deviation
        cost = beta / 2 + setting.log_failure + noise
        gain = num_samples * moment_bound * (1 + 1 / beta) / 2
        return cls(math.sqrt(gain / cost), beta)
