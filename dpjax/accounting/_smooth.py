"""Noise scaled to a smooth sensitivity: its cost, and how to split a budget.

A release f(x) + b S(x) Z adds noise Z in units of S, a t-smooth bound of the local
sensitivity: |f(x) - f(x')| <= min(S(x), S(x')) and S(x) <= e^t S(x') for neighbors.
With s = 1/b it is (1/2)epsilon^2-zCDP. With Y standard normal and L standard Laplace,

    Z = L exp(sigma Y):       epsilon = t/sigma + e^(1.5 sigma^2) s,               (1)
    Z = sinh(sigma Y)/sigma:  epsilon = sqrt(t (t/sigma^2 + 1/sigma + 2))
                                        + s (2/(3 sigma) + sigma/2),               (2)

where (2) needs sigma >= 0.3. Both are due to Bun and Steinke (2019). A change of the
scale by e^t costs the first term; the second is s times a bound of the slope of the log
density, of a shift. Proof: `docs/privacy/proofs/mechanisms.md`, 2.6.
"""

import math
from typing import Literal, NamedTuple

import numpy as np
import scipy.special

from dpjax import _validate

SmoothNoiseName = Literal["laplace_log_normal", "arsinh_normal"]

_LEAST_SIGMA = {"laplace_log_normal": 1e-3, "arsinh_normal": 0.3}
_LARGEST_SIGMA = 8.0  # the largest that the mechanisms draw

# Multipliers are rounded up by the first share, rho by the second, smaller one.
_MULTIPLIER_SLACK = 1e-9
_RHO_SLACK = 1e-10


class SmoothNoise(NamedTuple):
    """Scales noise to a smooth sensitivity.

    Attributes:
        smoothness: t of the smooth sensitivity.
        multiplier: b = scale of the noise / smooth sensitivity.
        sigma: shape of the noise.
    """

    smoothness: float
    multiplier: float
    sigma: float


def smooth_noise_multiplier(
    rho: float,
    *,
    smoothness: float,
    sigma: float,
    mechanism: SmoothNoiseName = "laplace_log_normal",
) -> float:
    """The smallest scale / smooth sensitivity within a zCDP budget.

    Equation (1) or (2) of this module solved for b = 1/s, with epsilon = sqrt(2 rho).

    Args:
        rho: zCDP cost of releasing one number, positive and finite.
        smoothness: t, positive.
        sigma: shape of the noise, at most 8; at least 0.3 for "arsinh_normal" and 0.001
            for "laplace_log_normal".
        mechanism: "laplace_log_normal" or "arsinh_normal".

    Returns:
        b, rounded up by one part in 1e9; inf if a change of the scale by e^t alone
        costs more than rho.

    Raises:
        ValueError: If an argument is out of its range.

    Privacy:
        f plus the noise of `dpjax.mechanisms` with scale b S is rho-zCDP under the
        relation for which S is t-smooth. This module names the proof; the tests compare
        it with the Renyi divergence by quadrature.

    Example:
        >>> round(smooth_noise_multiplier(0.5, smoothness=0.1, sigma=0.5), 2)
        1.82
        >>> round(smooth_noise_multiplier(
        ...     0.5, smoothness=0.1, sigma=1.0, mechanism="arsinh_normal"), 2)
        2.63

    Reference:
        Bun, Steinke (2019), Average-case averages: private algorithms for smooth
        sensitivity and mean estimation, Section 3.
    """
    _validate.positive(rho=rho, smoothness=smoothness)
    _check(sigma, mechanism)
    shift = math.sqrt(2 * rho) - float(_scale_cost(smoothness, sigma, mechanism))
    if shift <= 0:
        return math.inf
    return float(_slope(sigma, mechanism)) / shift * (1 + _MULTIPLIER_SLACK)


def smooth_noise_rho(
    multiplier: float,
    *,
    smoothness: float,
    sigma: float,
    mechanism: SmoothNoiseName = "laplace_log_normal",
) -> float:
    """The zCDP cost of noise of a given scale / smooth sensitivity.

    rho = epsilon^2 / 2 of equation (1) or (2) of this module, with s = 1 / multiplier.

    Returns:
        rho of releasing one number, rounded up by one part in 1e10; costs add up over
        coordinates and steps.

    Example:
        >>> # Paper 001, Theorem 3: t = epsilon^2/16, s = epsilon/4 at epsilon = 1.
        >>> rho = smooth_noise_rho(4.0, smoothness=1 / 16, sigma=1.0,
        ...                        mechanism="arsinh_normal")
        >>> round((2 * rho) ** 0.5, 3)
        0.729
    """
    _validate.positive(multiplier=multiplier, smoothness=smoothness)
    _check(sigma, mechanism)
    shift = float(_slope(sigma, mechanism)) / multiplier
    epsilon = float(_scale_cost(smoothness, sigma, mechanism)) + shift
    return epsilon**2 / 2 * (1 + _RHO_SLACK)


def calibrate_smooth_noise(
    rho: float,
    *,
    num_samples: int,
    trim_count: int,
    relative_spread: float = 1.0,
    mechanism: SmoothNoiseName = "laplace_log_normal",
) -> SmoothNoise:
    """Splits a zCDP budget between smoothness and noise for a trimmed mean.

    Minimizes the standard deviation of the noise over t and sigma, for the expected
    smooth sensitivity: in units of upper - lower

        max(relative_spread / (n - 2m), e^(-mt)).

    The guess of the spread affects the accuracy only. Privacy holds for every guess
    that is public.

    Args:
        rho: zCDP cost of releasing one number, positive and finite.
        num_samples: n, public.
        trim_count: m, at least 1, with 2m < n.
        relative_spread: a public guess of (x_(n) - x_(1)) / (upper - lower), positive.
        mechanism: "laplace_log_normal" or "arsinh_normal".

    Returns:
        smoothness, multiplier and sigma, with `smooth_noise_rho` of them at most rho;
        within a per cent or so of the least noise.

    Example:
        >>> noise = calibrate_smooth_noise(1e-4, num_samples=100_000, trim_count=5_000)
        >>> print(f"{noise.smoothness:.4f} {noise.multiplier:.0f} {noise.sigma:.2f}")
        0.0023 152 0.38

    Reference:
        Bun, Steinke (2019), Section 3.1.1, for the choice of sigma.
    """
    _validate.positive(rho=rho, relative_spread=relative_spread)
    _validate.count(num_samples=num_samples, trim_count=trim_count)
    rule = f"less than half of num_samples = {num_samples}"
    _validate.require(2 * trim_count < num_samples, "trim_count", trim_count, rule)
    _check(1.0, mechanism)
    epsilon = math.sqrt(2 * rho)
    floor = relative_spread / (num_samples - 2 * trim_count)
    # Above this t the expected sensitivity is constant.
    enough = max(-math.log(floor), 0.0) / trim_count

    sigma = np.geomspace(max(_LEAST_SIGMA[mechanism], 0.01), 3.0, 200)[:, None]
    # Shares of the t that would cost all of epsilon: from a millionth to nearly 1.
    share = scipy.special.expit(np.linspace(-14, 6, 200))
    affordable = _largest_smoothness(epsilon, sigma, mechanism)
    smoothness = np.clip(share * affordable, None, max(enough, 1e-9))
    shift = epsilon - _scale_cost(smoothness, sigma, mechanism)
    multiplier = _slope(sigma, mechanism) / shift
    sensitivity = np.maximum(floor, np.exp(-trim_count * smoothness))
    noise = sensitivity * multiplier * _stddev(sigma, mechanism)

    row, column = np.unravel_index(np.argmin(noise), noise.shape)
    best_t, best_sigma = float(smoothness[row, column]), float(sigma[row, 0])
    return SmoothNoise(
        best_t,
        smooth_noise_multiplier(
            rho, smoothness=best_t, sigma=best_sigma, mechanism=mechanism
        ),
        best_sigma,
    )


def _scale_cost(t, sigma, mechanism):
    """Epsilon of a change of the scale by e^t: first terms of (1) and (2)."""
    if mechanism == "laplace_log_normal":
        return t / sigma
    return np.sqrt(t * (t / sigma**2 + 1 / sigma + 2))


def _largest_smoothness(epsilon, sigma, mechanism):
    """The t at which `_scale_cost` is epsilon."""
    if mechanism == "laplace_log_normal":
        return epsilon * sigma
    linear = 1 / sigma + 2  # t^2/sigma^2 + linear t = epsilon^2
    return 2 * epsilon**2 / (linear + np.sqrt(linear**2 + 4 * epsilon**2 / sigma**2))


def _slope(sigma, mechanism):
    """K, which bounds the slope of the log density: factors of s in (1) and (2)."""
    if mechanism == "laplace_log_normal":
        return np.exp(1.5 * sigma**2)
    return 2 / (3 * sigma) + sigma / 2


def _stddev(sigma, mechanism):
    """The standard deviation of Z."""
    if mechanism == "laplace_log_normal":
        return math.sqrt(2) * np.exp(sigma**2)
    return np.sqrt(np.expm1(2 * sigma**2) / 2) / sigma


def _check(sigma: float, mechanism: str) -> None:
    _validate.choice(SmoothNoiseName, mechanism=mechanism)
    _validate.within(_LEAST_SIGMA[mechanism], _LARGEST_SIGMA, sigma=sigma)
