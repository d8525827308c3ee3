"""The Gaussian mechanism, exactly: its noise and its epsilon.

T adaptive releases of l2 sensitivity D, with noise of standard deviation s, are exactly
as private as one release of sensitivity sqrt(T) D (Dong, Roth, Su 2022, Corollary 3.3).
With mu = sqrt(T) D / s the tight curve is, for every epsilon >= 0,

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).  (1)
"""

import math

import numpy as np
import scipy.special
from dp_accounting import gaussian_mechanism

from dpjax import _validate
from dpjax.accounting._zcdp import epsilon_to_rho, rho_to_epsilon

# Roots are computed to about 1e-12. The stddev is rounded up by the first share and
# epsilon by the second, smaller share, so that the stddev for an epsilon never costs
# more than that epsilon.
_STDDEV_SLACK = 1e-9
_EPSILON_SLACK = 1e-10

_ROUNDOFF = 1e-14  # bounds the relative errors of log_ndtr and of later operations

# Below this epsilon the two terms of (1) agree to so many digits that double precision
# cannot separate them; two closed-form upper bounds replace it.
_SMALLEST_ANALYTIC_EPSILON = 1e-4
# Above these epsilons (of the search for stddev, and for epsilon) the second term of
# (1) is left out: noise of s sensitivities has delta <= Phi(1 / (2 s) - epsilon s).
# This raises epsilon by a share of about 1 / epsilon, less than the stddev's slack.
_LARGEST_ANALYTIC_EPSILON, _LARGEST_SEARCHED = 1e12, 1e10


def gaussian_stddev(
    epsilon: float, delta: float, *, sensitivity: float, num_releases: int = 1
) -> float:
    """Returns the smallest standard deviation that makes Gaussian releases private.

    The stddev solves equation (1) of this module, delta(epsilon) = delta. It is valid
    for every epsilon > 0; the classical sqrt(2 log(1.25/delta)) / epsilon is not.

    Args:
        epsilon: privacy parameter, 0 < epsilon <= inf.
        delta: privacy parameter in [0, 1). No finite Gaussian noise reaches delta = 0,
            so the answer there is inf.
        sensitivity: l2 sensitivity of each release, in the units of the value.
        num_releases: number of releases T; each may depend on the earlier ones.

    Returns:
        Standard deviation of the noise in each coordinate of each release, in the units
        of `sensitivity`, rounded up by one part in 1e9; 0.0 at epsilon = inf. Below
        epsilon = 1e-4 it is an upper bound, at most 1.5 times the smallest.

    Privacy:
        All releases together are (epsilon, delta)-DP, under the neighboring relation
        for which the sensitivity holds.

    Example:
        >>> round(gaussian_stddev(1.0, 1e-5, sensitivity=1.0), 4)
        3.7306
        >>> round(gaussian_stddev(1.0, 1e-5, sensitivity=1.0, num_releases=50), 3)
        26.38

    Reference:
        Balle, Wang (2018), "Improving the Gaussian mechanism", Theorem 8.
    """
    _validate.above_zero(epsilon=epsilon)
    _validate.delta(delta)
    _validate.non_negative(sensitivity=sensitivity)
    _validate.count(num_releases=num_releases)
    if epsilon == math.inf or sensitivity == 0:
        return 0.0
    if delta == 0:
        return math.inf
    if epsilon < _SMALLEST_ANALYTIC_EPSILON:
        by_zcdp = 1 / math.sqrt(2 * epsilon_to_rho(epsilon, delta))
        unit = min(by_zcdp, _zero_epsilon_stddev(delta))
    elif epsilon >= _LARGEST_ANALYTIC_EPSILON:
        z = float(scipy.special.ndtri(delta))
        unit = 1 / (z + math.sqrt(z * z + 2 * epsilon))
    else:
        with np.errstate(divide="ignore"):  # A delta that rounds to zero has log -inf.
            unit = gaussian_mechanism.get_sigma_gaussian(epsilon, delta, tol=1e-15)
    scale = sensitivity * math.sqrt(num_releases)
    return float(unit) * scale * (1 + _STDDEV_SLACK)


def gaussian_epsilon(
    stddev: float, delta: float, *, sensitivity: float, num_releases: int = 1
) -> float:
    """Returns the epsilon of Gaussian releases with noise of a given stddev.

    Epsilon solves equation (1) of this module, delta(epsilon) = delta. The stddev of
    the noise is from 0 to inf; the other arguments are as for `gaussian_stddev`.

    Returns:
        epsilon >= 0, rounded up by one part in 1e10; never above the epsilon for which
        `gaussian_stddev` returned the stddev.

    Privacy:
        As for `gaussian_stddev`.

    Example:
        >>> round(gaussian_epsilon(26.380, 1e-5, sensitivity=1.0, num_releases=50), 3)
        1.0
    """
    _validate.within(0.0, math.inf, stddev=stddev)
    _validate.delta(delta)
    _validate.non_negative(sensitivity=sensitivity)
    _validate.count(num_releases=num_releases)
    if sensitivity == 0 or stddev == math.inf:
        return 0.0
    if stddev == 0 or delta == 0:
        return math.inf
    unit = stddev / (sensitivity * math.sqrt(num_releases))
    if unit >= _zero_epsilon_stddev(delta):
        return 0.0
    epsilon = (0.5 / unit - float(scipy.special.ndtri(delta))) / unit
    if epsilon >= _LARGEST_SEARCHED:
        return float(epsilon) * (1 + _EPSILON_SLACK)
    with np.errstate(divide="ignore"):  # A delta that rounds to zero has log -inf.
        epsilon = gaussian_mechanism.get_epsilon_gaussian(unit, delta, tol=1e-15)
    if epsilon < _SMALLEST_ANALYTIC_EPSILON:
        return min(_SMALLEST_ANALYTIC_EPSILON, rho_to_epsilon(1 / (2 * unit**2), delta))
    return float(epsilon) * (1 + _EPSILON_SLACK)


def gaussian_delta(mu: float, epsilon: np.ndarray) -> np.ndarray:
    """Returns delta(epsilon) of equation (1), rounded up."""
    first = scipy.special.log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + scipy.special.log_ndtr(-mu / 2 - epsilon / mu)
    slack = _ROUNDOFF * (1 + np.abs(first) + np.abs(second) + epsilon)
    return np.exp(first) * (slack - np.expm1(np.minimum(second - first, 0.0)))


def _zero_epsilon_stddev(delta: float) -> float:
    # (1) at epsilon = 0 is 2 Phi(mu/2) - 1 = erf(mu / sqrt(8)), and delta(epsilon)
    # falls with epsilon: this stddev (at sensitivity 1) is enough for every epsilon.
    return 1 / (math.sqrt(8) * float(scipy.special.erfinv(delta)))
