"""Conversions between rho-zCDP and (epsilon, delta)-differential privacy.

With b = alpha - 1 > 0 and L = log(1/delta), a rho-zCDP mechanism is (epsilon, delta)-DP
for every b at

    epsilon(b) = (1 + b) rho + (L - log(1 + b)) / b - log(1 + 1/b).              (1)

This is Corollary 13 of Canonne, Kamath and Steinke (2020) solved for epsilon. Every b
gives a valid bound, so a search for the best b that stops early is only slightly
pessimistic, in both directions of the conversion.
"""

import math
from collections.abc import Callable

import scipy.optimize

from dpjax import _validate

# `epsilon_to_rho` is smaller by this share, so that float rounding (1e-15) cannot bring
# `rho_to_epsilon` above the requested epsilon.
_SLACK = 1e-12


def rho_to_epsilon(rho: float, delta: float) -> float:
    """Returns the epsilon of a rho-zCDP mechanism at a given delta.

    It is the smallest epsilon(b) over b > 0 of equation (1) in this module, which is
    below rho + 2 sqrt(rho log(1/delta)), the usual conversion.

    Args:
        rho: zero-concentrated privacy parameter, 0 <= rho <= inf.
        delta: privacy parameter in [0, 1). At delta = 0 only rho = 0 has a finite
            epsilon.

    Returns:
        epsilon >= 0, rounded up.

    Privacy:
        The bound holds under any neighboring relation: epsilon has the relation of rho.

    Example:
        >>> round(rho_to_epsilon(0.5, 1e-5), 4)
        4.7284

    Reference:
        Canonne, Kamath, Steinke (2020), The discrete Gaussian for differential privacy,
        Corollary 13.
    """
    _validate.within(0.0, math.inf, rho=rho)
    _validate.delta(delta)
    if rho == 0:
        return 0.0
    if rho == math.inf or delta == 0:
        return math.inf
    log_inverse = -math.log(delta)
    # d epsilon / db = rho - (L - log(1 + b)) / b^2 has exactly one zero, since rho b^2
    # grows and L - log(1 + b) falls. Dropping either term bounds the zero from above.
    b = _root(
        lambda b: rho * b * b + math.log1p(b) - log_inverse,
        upper=min(math.sqrt(log_inverse / rho), _largest_b(log_inverse)),
    )
    epsilon = (1 + b) * rho + (log_inverse - math.log1p(b)) / b - math.log1p(1 / b)
    return max(0.0, epsilon)  # A bound below zero implies a bound of zero.


def epsilon_to_rho(epsilon: float, delta: float) -> float:
    """Returns the largest rho of zCDP within an (epsilon, delta) budget.

    It is the largest rho with `rho_to_epsilon(rho, delta) <= epsilon`, rounded down by
    one part in 1e12: a rho-zCDP mechanism is (epsilon, delta)-DP under the same
    relation. It is 0 at delta = 0.

    Example:
        >>> round(epsilon_to_rho(1.0, 1e-5), 5)
        0.03056
    """
    _validate.above_zero(epsilon=epsilon)
    _validate.delta(delta)
    if epsilon == math.inf:
        return math.inf
    if delta == 0:
        return 0.0
    log_inverse = -math.log(delta)
    root_l = math.sqrt(log_inverse)
    # The difference of the two roots, written without cancellation.
    root_rho = epsilon / (math.sqrt(log_inverse + epsilon) + root_l)

    # Equation (1) solved for rho is maximal where its derivative in b vanishes:
    #   b^2 / (1 + 2b) (epsilon + log(1 + 1/b)) + log(1 + b) = L,
    # where the left side grows with b. This rho is above root_rho^2, the rho of the
    # usual conversion, so rho b^2 <= L bounds b from above.
    b = _root(
        lambda b: (
            b / (2 + 1 / b) * (epsilon + math.log1p(1 / b))
            + math.log1p(b)
            - log_inverse
        ),
        upper=min(root_l / root_rho, _largest_b(log_inverse)),
    )
    gain = epsilon + math.log1p(1 / b) - (log_inverse - math.log1p(b)) / b
    return gain / (1 + b) * (1 - _SLACK)


def _root(function: Callable[[float], float], *, upper: float) -> float:
    """Returns the root in (0, upper] of an increasing function, or else `upper`."""
    # The function is negative near zero. The callers need the b of the best bound (1),
    # where a derivative vanishes.
    lower = upper
    while function(lower) > 0:
        lower /= 2
    if lower == upper:
        return upper
    solution = scipy.optimize.root_scalar(
        function, bracket=(lower, 2 * lower), xtol=1e-12 * lower
    )
    return float(solution.root)


def _largest_b(log_inverse: float) -> float:
    # log(1 + b) <= L holds; beyond L = 700 the exponential would overflow.
    return math.expm1(min(log_inverse, 700.0))
