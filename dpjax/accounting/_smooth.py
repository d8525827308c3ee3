"""Noise scaled to a smooth sensitivity: its cost, and how to split a budget.

`docs/privacy/proofs/mechanisms.md`, 2.6 and 2.7, proves these equations. A release
f(x) + b S(x) Z adds noise Z in units of S, a t-smooth bound of the local sensitivity.
It is (1/2)epsilon^2-zCDP, where, with s = 1/b, Y standard normal and L standard Laplace
(Bun, Steinke 2019),

    Z = L exp(sigma Y):       epsilon = t/sigma + e^(1.5 sigma^2) s,               (1)
    Z = sinh(sigma Y)/sigma:  epsilon = sqrt(t (t/sigma^2 + 1/sigma + 2))
                                        + s (2/(3 sigma) + sigma/2),               (2)

where (2) needs sigma >= 0.3. The first term is the cost of a change of the scale by
e^t, the second of a shift: s times a bound of the slope of the log density.

Gaussian noise. The release f + c S N(0, I) in d dimensions is (epsilon, delta)-DP if

    D(r, s) = sup_A P(A) - e^epsilon Q(A),  P = N(0, I),  Q = N(s e_1, r^2 I),      (3)

is at most delta at s = min(1, r) / c for all r in [e^-B, e^B], where B is the
smoothness. D grows with s. For all r between R and r', where r' is nearer to 1 than R,
with alpha(r')^2 = (1 - r'^2) / (1 - R^2),

    D(r, min(1, r) / c) <= D(R, min(1, r') / (alpha(r') c));                        (4)

for 0 <= e <= epsilon, with delta_G the exact delta of a Gaussian release of sensitivity
/ stddev = 1/c, and for all r in [e^-b, e^b]

    D(r, min(1, r) / c) <= max over r = e^(+-b) of D_e(r, 0)
                           + e^e delta_G(epsilon - e).                              (5)

Let x be the first coordinate. The log of dP/dQ is l(x) plus the log ratio of the last
d - 1 coordinates, which differ in scale alone, so

    D(r, s) = E_x D'_(epsilon - l(x)),  l(x) = log r - x^2/2 + (x-s)^2/(2r^2),      (6)

where D'_t is (3) at s = 0 and epsilon = t, in d - 1 dimensions: a difference of
chi-square probabilities. (5) covers a neighborhood of r = 1, and (4) the rest in
finitely many pieces, split until each bound is at most delta.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.optimize
import scipy.special

from dpjax._types import ArrayLike
from dpjax.accounting._gaussian import gaussian_stddev

_MULTIPLIER_SLACK = 1e-9  # the share by which it is rounded up

_MARGIN = 1.01  # raises a Gaussian multiplier until all pieces are covered
# A piece this narrow is not split again: the margin is wider.
_NARROWEST = 1.0005
_LARGEST_EXPONENT = 700.0  # e^t stays finite; a smaller e^t only enlarges delta
_LARGEST_EPSILON = 300.0  # a larger epsilon is treated as this one
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(10)
_AROUND = np.concatenate([[0.0], np.geomspace(1e-3, 0.5, 7)])
_END = 38  # standard deviations: beyond, no mass is left in double precision


class SmoothNoise(NamedTuple):
    """The parameters of noise that is scaled to a smooth sensitivity."""

    smoothness: float  # t of the smooth sensitivity
    multiplier: float  # b = scale of the noise / smooth sensitivity
    sigma: float  # shape of the noise


def calibrate_smooth_noise(
    rho: float, *, num_samples: int, trim_count: int, relative_spread: float = 1.0
) -> SmoothNoise:
    """Splits a zCDP budget between smoothness and noise for a trimmed mean."""
    # It minimizes the standard deviation of `laplace_log_normal` noise over the
    # smoothness t and the noise's shape sigma (Bun, Steinke 2019, Section 3.1.1), for
    # the expected smooth sensitivity max(relative_spread / (n - 2m), e^(-mt)), in units
    # of upper - lower, the bounds of the values. Here n is num_samples, m is
    # trim_count, and relative_spread is a public guess of (x_(n) - x_(1)) / (upper -
    # lower). The cost of the result is at most rho, for every guess.
    epsilon = math.sqrt(2 * rho)
    floor = relative_spread / (num_samples - 2 * trim_count)
    # Above this t the expected sensitivity is constant.
    enough = max(-math.log(floor), 0.0) / trim_count

    sigma = np.geomspace(0.01, 3.0, 200)[:, None]
    # The grid of t has shares, from a millionth to nearly 1, of the t that would cost
    # all of epsilon.
    share = scipy.special.expit(np.linspace(-14, 6, 200))
    affordable = epsilon * sigma
    smoothness = np.clip(share * affordable, None, max(enough, 1e-9))
    shift = epsilon - smoothness / sigma
    multiplier = _slope(sigma) / shift
    sensitivity = np.maximum(floor, np.exp(-trim_count * smoothness))
    stddev = math.sqrt(2) * np.exp(sigma**2)  # of the noise in units of its scale
    noise = sensitivity * multiplier * stddev

    row, column = np.unravel_index(np.argmin(noise), noise.shape)
    best_t, best_sigma = float(smoothness[row, column]), float(sigma[row, 0])
    shift = epsilon - best_t / best_sigma
    best = float(_slope(best_sigma)) / shift
    return SmoothNoise(best_t, best * (1 + _MULTIPLIER_SLACK), best_sigma)


def _slope(sigma):
    """Returns the bound of the slope of the log density: the factor of s in (1)."""
    return np.exp(1.5 * sigma**2)


def smooth_gaussian_multiplier(
    epsilon: float, delta: float, *, smoothness: float, num_coordinates: int
) -> float:
    """Returns the multiplier c of Gaussian noise on a B-smooth sensitivity S.

    The release value + c S N(0, I), in num_coordinates, is (epsilon, delta)-DP under
    the relation of S, if S bounds the l2 distance of the values of any two neighbors,
    and changes by at most e^B. c is inf from about `largest_smoothness` on.
    """
    epsilon, num = min(epsilon, _LARGEST_EPSILON), num_coordinates

    def excess(shift: float) -> float:
        at_low = _delta(epsilon, -smoothness, num, math.exp(-smoothness) * shift)
        return max(at_low, _delta(epsilon, smoothness, num, shift)) - delta

    if smoothness >= largest_smoothness(epsilon, delta, num_coordinates=num):
        return math.inf
    # The largest shift 1/c that both ends of [e^-B, e^B] allow is the start: it shrinks
    # until the bounds (4) and (5) prove that it is small enough in the entire interval.
    shift = most = 1 / gaussian_stddev(epsilon, delta, sensitivity=1)
    if excess(most) > 0:
        shift = _root(excess, 0.0, most)
    while shift > 1e-6 * most:
        shift /= _MARGIN
        if _is_enough(epsilon, delta, smoothness, num, shift):
            return 1 / shift
    return math.inf


def largest_smoothness(epsilon: float, delta: float, *, num_coordinates: int) -> float:
    """Returns the smoothness B at which no finite Gaussian noise is enough."""
    # Even if the values of two neighbors agree, and only their smooth sensitivities
    # differ, by e^B, the scale of the noise reveals this at the cost (epsilon, delta).
    epsilon = min(epsilon, _LARGEST_EPSILON)

    def excess(smoothness: float) -> float:
        return _largest_scale_delta(epsilon, smoothness, num_coordinates) - delta

    above = epsilon
    while excess(above) <= 0:
        above *= 2
    return _root(excess, 1e-9 * above, above)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    how = {"method": "brentq", "xtol": 1e-12 * high, "rtol": 1e-9}
    return scipy.optimize.root_scalar(function, bracket=(low, high), **how).root


def _is_enough(epsilon, delta, smoothness, num_coordinates, shift) -> bool:
    """Returns whether noise of stddev sensitivity / shift is proved to be enough."""
    # It is enough if a release of num_coordinates numbers is (epsilon, delta)-DP. The
    # smooth sensitivities of two neighbors have a ratio r in [e^-B, e^B], B =
    # smoothness. At every r, with s = min(1, r) shift, the delta at epsilon of N(0, I)
    # against N(s e_1, r^2 I) must be at most `delta`. The bound (5) of this module
    # covers the r in [e^-near, e^near], and (4) covers both sides.
    near = smoothness
    while not _by_two_steps(epsilon, delta, near, num_coordinates, shift):
        near /= 2
        if near < 1e-6 * smoothness:
            return False

    def is_covered(far: float, near: float) -> bool:
        """Returns whether noise is enough for log ratios of scales in [near, far]."""
        alpha = math.sqrt(math.expm1(2 * near) / math.expm1(2 * far))  # equation (4)
        longest = min(1.0, math.exp(near)) * shift / alpha
        if _delta(epsilon, far, num_coordinates, longest) <= delta:
            return True
        if far / near < _NARROWEST:
            return False
        middle = math.copysign(math.sqrt(far * near), far)
        return is_covered(far, middle) and is_covered(middle, near)

    if near == smoothness:
        return True
    return is_covered(-smoothness, -near) and is_covered(smoothness, near)


def _by_two_steps(epsilon, delta, width, num_coordinates, shift) -> bool:
    """Returns whether noise of stddev sensitivity / shift is (epsilon, delta)-DP.

    The ratio of two neighbors' stddevs is in [e^-width, e^width]. A small width needs
    this test, which is sufficient; other ratios are tested by (4) of this module.
    """
    # By (5), the part `first` of epsilon is for the change of the scale, the rest for
    # the shift.
    for first in epsilon * 2.0 ** -np.arange(1, 16):
        scale = _largest_scale_delta(first, width, num_coordinates)
        remaining = (delta - scale) * math.exp(-first)
        # delta_G(epsilon - first) <= remaining, by the exact Gaussian calibration.
        if remaining > 0 and shift > 0:
            stddev = gaussian_stddev(epsilon - first, remaining, sensitivity=shift)
            if stddev <= 1:
                return True
    return False


def _largest_scale_delta(epsilon: float, width: float, num_coordinates: int) -> float:
    ends = (_scale_delta(epsilon, x, num_coordinates) for x in (-width, width))
    return float(max(ends))


def _delta(epsilon, log_ratio, num_coordinates, shift) -> float:
    """Returns the delta at epsilon of N(0, I) against N(shift e_1, r^2 I)."""
    # I has num_coordinates dimensions, e_1 is the first unit vector, and log r is
    # `log_ratio`. The result is D(r, s) of (3), the cost of noise, by the integral (6).
    curvature = math.expm1(-2 * log_ratio)  # 1/r^2 - 1
    slope = shift * math.exp(-2 * log_ratio)
    # d log r + curvature x^2/2 - slope x + slope s/2 = epsilon where the event A of (3)
    # meets the axis x: there the integrand may have a kink, and the cells are smaller.
    constant = slope * shift / 2 + num_coordinates * log_ratio - epsilon
    discriminant = slope**2 - 2 * curvature * constant
    edges = np.arange(-_END, _END + 1)
    if discriminant > 0:
        larger = slope + math.sqrt(discriminant)
        roots = np.array([[2 * constant / larger], [larger / curvature]])
        around = np.concatenate([roots - _AROUND, roots + _AROUND], axis=None)
        edges = np.union1d(edges, np.clip(around, -_END, _END))
    half_widths = np.diff(edges)[:, None] / 2
    x = (edges[:-1, None] + half_widths * (1 + _NODES)).ravel()
    weights = (half_widths * _NODE_WEIGHTS).ravel()
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    # This is l(x), by (x - s)^2/r^2 - x^2 = curvature x^2 - 2 slope x + slope s.
    loss = log_ratio + curvature * x**2 / 2 - slope * x + slope * shift / 2
    rest = _scale_delta(epsilon - loss, log_ratio, num_coordinates - 1)
    return float(np.sum(weights * density * rest))


def _scale_delta(epsilon: ArrayLike, log_ratio, num_coordinates) -> np.ndarray:
    """Returns the deltas, at real epsilons, of N(0, I) against N(0, r^2 I)."""
    # I has num_coordinates dimensions, and log r is `log_ratio`. This is the cost of
    # noise if only its scale differs between neighbors.
    t = np.asarray(epsilon, np.float64)
    growth = np.exp(np.minimum(t, _LARGEST_EXPONENT))
    if num_coordinates == 0:
        return np.maximum(0.0, 1 - growth)
    # The event A of (3) is |x|^2 > level for r < 1, and |x|^2 < level for r > 1.
    level = 2 * (t - num_coordinates * log_ratio) / math.expm1(-2 * log_ratio)
    level = np.maximum(level, 0.0) / 2
    tail = scipy.special.gammaincc if log_ratio < 0 else scipy.special.gammainc
    half = num_coordinates / 2
    of_p, of_q = tail(half, level), tail(half, level * math.exp(-2 * log_ratio))
    return np.maximum(0.0, of_p - growth * of_q)
