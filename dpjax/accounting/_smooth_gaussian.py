"""Gaussian noise on a smooth sensitivity: its multiplier, its epsilon, its limit.

Let S be a B-smooth bound of a local sensitivity: neighbors have |f - f'| <= min(S, S')
and S <= e^B S'. The release f + c S N(0, I) in d dimensions is (epsilon, delta)-DP if

    D(r, s) = sup_A P(A) - e^epsilon Q(A),  P = N(0, I),  Q = N(s e_1, r^2 I),      (1)

is at most delta at s = min(1, r) / c for all r in [e^-B, e^B]. Indeed in units of c S
the release is P and that of the neighbor Q, with r = S'/S and a shift of at most s, up
to a rotation; the converse, Q against P, is (1) with 1/r. Four facts:

(a) D grows with s. The best A is where dP/dQ > e^epsilon: the outside of a ball round
    s e_1 / (1 - r^2) if r < 1, that ball if r > 1. For r < 1, let A follow the shift:
    Q(A) stays and P(ball) falls as its center moves away from 0. For r > 1 let A stay:
    the center of Q moves away from the ball's, so Q(A) falls.

(b) If r lies between 1 and R, then D(r, s) <= D(R, s / alpha), where alpha^2 =
    (1 - r^2) / (1 - R^2): the channel x -> alpha x + sqrt(1 - alpha^2) N(0, I) makes
    the pair of (r, s) out of that of (R, s / alpha). So D(r, 0) grows with |log r|, and

        D(r, min(1, r) / c) <= D(R, min(1, r') / (alpha(r') c))                     (2)

    for all r between R and r', where r' is nearer to 1 than R.

(c) By way of N(0, r^2 I), for 0 <= e <= epsilon and with delta_G the exact delta of a
    Gaussian release of sensitivity / stddev = 1/c: for all r in [e^-b, e^b]

        D(r, min(1, r) / c) <= max over r = e^(+-b) of D_e(r, 0)
                               + e^e delta_G(epsilon - e).                          (3)

(d) With the first coordinate apart, x, the log of dP/dQ is l(x) plus that of the other
    d - 1 coordinates, of scale alone, so

        D(r, s) = E_x D'_(epsilon - l(x)),  l(x) = log r - x^2/2 + (x-s)^2/(2r^2),  (4)

    where D'_t is (1) at s = 0, d - 1 and t: a difference of chi-square probabilities.

In all experiments D(r, min(1, r) / c) is largest at an end of [e^-B, e^B]. This is not
proved, so it is not used: (3) covers a neighborhood of r = 1, and (2) the rest in
finitely many pieces, split until each is at most delta. This costs 1 per cent of noise.
(2) and (3) are inequalities; (4) is evaluated by Gauss-Legendre quadrature in double
precision, whose error is far below that per cent in comparisons, but is not proved.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy.optimize
import scipy.special

from dpjax import _validate
from dpjax._types import ArrayLike
from dpjax.accounting._gaussian import gaussian_epsilon, gaussian_stddev

# A multiplier, or an epsilon, is raised by this factor until all pieces are covered.
_MARGIN = 1.01
# A piece this narrow is not split again: the margin is wider.
_NARROWEST = 1.0005
_LARGEST_EXPONENT = 700.0  # e^t stays finite; a smaller e^t only enlarges delta
_LARGEST_EPSILON = 300.0  # a larger epsilon is treated as this one
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(10)
_AROUND = np.concatenate([[0.0], np.geomspace(1e-3, 0.5, 7)])
_END = 38  # standard deviations: beyond, no mass is left in double precision


def smooth_gaussian_multiplier(
    epsilon: float, delta: float, *, smoothness: float, num_coordinates: int
) -> float:
    """The multiplier of Gaussian noise on a B-smooth sensitivity S.

    For a value in d dimensions: between neighbors S changes by a factor of at most
    e^B, where B > 0 is the smoothness.

    Returns:
        c such that noise of standard deviation c S in each coordinate is enough; inf if
        no noise is enough, from about `largest_smoothness` on.

    Privacy:
        value + c S N(0, I) is (epsilon, delta)-DP under the relation of S: S must bound
        the l2 distance of the values of any two neighbors, and be B-smooth. The proof
        is in the docstring of this module.

    Example:
        >>> round(smooth_gaussian_multiplier(
        ...     1.0, 1e-5, smoothness=0.01, num_coordinates=10), 2)
        4.43
        >>> from dpjax.accounting import gaussian_stddev
        >>> round(gaussian_stddev(1.0, 1e-5, sensitivity=1.0), 2)
        3.73

    Reference:
        Nissim, Raskhodnikova, Smith (2007), Smooth sensitivity and sampling in private
        data analysis, whose Gaussian multiplier is 5 sqrt(2 log(2/delta)) / epsilon at
        smoothness epsilon / (4 (d + log(2/delta))), as paper 001 prints it.
    """
    _validate.positive(epsilon=epsilon)
    _check(delta, smoothness, num_coordinates)
    epsilon = min(epsilon, _LARGEST_EPSILON)

    def excess(shift: float) -> float:
        return _delta_at_ends(epsilon, smoothness, num_coordinates, shift) - delta

    if smoothness >= largest_smoothness(
        epsilon, delta, num_coordinates=num_coordinates
    ):
        return math.inf
    shift = most = 1 / gaussian_stddev(epsilon, delta, sensitivity=1)
    if excess(most) > 0:
        shift = _root(excess, 0.0, most)
    while shift > 1e-6 * most:
        shift /= _MARGIN
        if _is_enough(epsilon, delta, smoothness, num_coordinates, shift):
            return 1 / shift
    return math.inf


def smooth_gaussian_epsilon(
    noise_multiplier: float, delta: float, *, smoothness: float, num_coordinates: int
) -> float:
    """The epsilon that Gaussian noise on a smooth sensitivity costs.

    Returns:
        epsilon > 0, rounded up by at least 1 per cent; inf above 300.

    Example:
        >>> round(smooth_gaussian_epsilon(
        ...     4.43, 1e-5, smoothness=0.01, num_coordinates=10), 2)
        1.0
    """
    _validate.positive(noise_multiplier=noise_multiplier)
    _check(delta, smoothness, num_coordinates)
    shift = 1 / noise_multiplier

    def excess(epsilon: float) -> float:
        return _delta_at_ends(epsilon, smoothness, num_coordinates, shift) - delta

    epsilon = max(1e-9, gaussian_epsilon(noise_multiplier, delta, sensitivity=1))
    most = _LARGEST_EPSILON
    if max(epsilon, smoothness) >= most or excess(most) > 0:
        return math.inf
    if excess(epsilon) > 0:
        epsilon = _root(excess, epsilon, most)
    while epsilon < most:
        epsilon *= _MARGIN
        if _is_enough(epsilon, delta, smoothness, num_coordinates, shift):
            return epsilon
    return math.inf


def largest_smoothness(epsilon: float, delta: float, *, num_coordinates: int) -> float:
    """The smoothness at which Gaussian noise would have to be infinite.

    Even if the values of two neighbors agree and only S differs, the release reveals
    the scale of its noise: this is the largest B with D(e^-B, 0) and D(e^B, 0) at most
    delta. It decreases as 1 / sqrt(d) in high dimension.

    Returns:
        The bound, exclusive, on the smoothness in `smooth_gaussian_multiplier`.

    Example:
        >>> [round(largest_smoothness(1.0, 1e-5, num_coordinates=d), 4)
        ...  for d in (1, 10, 100)]
        [0.0647, 0.0376, 0.016]
    """
    _validate.positive(epsilon=epsilon)
    _check(delta, 1.0, num_coordinates)
    epsilon = min(epsilon, _LARGEST_EPSILON)

    def excess(smoothness: float) -> float:
        return _largest_scale_delta(epsilon, smoothness, num_coordinates) - delta

    above = epsilon
    while excess(above) <= 0:
        above *= 2
    return _root(excess, 1e-9 * above, above)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    solution = scipy.optimize.root_scalar(
        function, bracket=(low, high), method="brentq", xtol=1e-12 * high, rtol=1e-9
    )
    return float(solution.root)


def _is_enough(
    epsilon: float, delta: float, smoothness: float, num_coordinates: int, shift: float
) -> bool:
    """Returns whether D(r, min(1, r) shift) <= delta on [e^-B, e^B], by (2), (3)."""
    near = smoothness
    while not _by_two_steps(epsilon, delta, near, num_coordinates, shift):
        near /= 2
        if near < 1e-6 * smoothness:
            return False

    def is_covered(far: float, near: float) -> bool:
        alpha = math.sqrt(math.expm1(2 * near) / math.expm1(2 * far))  # equation (2)
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


def _by_two_steps(
    epsilon: float, delta: float, width: float, num_coordinates: int, shift: float
) -> bool:
    """Returns whether (3) is at most delta on [e^-width, e^width], for some e."""
    for first in epsilon * 2.0 ** -np.arange(1, 16):
        scale = _largest_scale_delta(first, width, num_coordinates)
        remaining = (delta - scale) * math.exp(-first)
        # delta_G(epsilon - first) <= remaining, by the exact Gaussian calibration.
        if remaining > 0 and shift > 0:
            stddev = gaussian_stddev(epsilon - first, remaining, sensitivity=shift)
            if stddev <= 1:
                return True
    return False


def _delta_at_ends(
    epsilon: float, smoothness: float, num_coordinates: int, shift: float
) -> float:
    return max(
        _delta(epsilon, -smoothness, num_coordinates, math.exp(-smoothness) * shift),
        _delta(epsilon, smoothness, num_coordinates, shift),
    )


def _largest_scale_delta(epsilon: float, width: float, num_coordinates: int) -> float:
    return max(
        float(_scale_delta(epsilon, log_ratio, num_coordinates))
        for log_ratio in (-width, width)
    )


def _delta(
    epsilon: float, log_ratio: float, num_coordinates: int, shift: float
) -> float:
    """Returns D(r, s) of (1) by (4), at log r and s."""
    curvature = math.expm1(-2 * log_ratio)  # 1/r^2 - 1
    slope = shift * math.exp(-2 * log_ratio)
    # d log r + curvature x^2/2 - slope x + slope s/2 = epsilon where the best A meets
    # the axis: there the integrand may have a kink, and the cells are smaller.
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
    # l(x), with (x - s)^2/r^2 - x^2 = curvature x^2 - 2 slope x + slope s.
    loss = log_ratio + curvature * x**2 / 2 - slope * x + slope * shift / 2
    rest = _scale_delta(epsilon - loss, log_ratio, num_coordinates - 1)
    return float(np.sum(weights * density * rest))


def _scale_delta(
    epsilon: ArrayLike, log_ratio: float, num_coordinates: int
) -> np.ndarray:
    """Returns D(r, 0) at log r, for every real epsilon."""
    t = np.asarray(epsilon, np.float64)
    growth = np.exp(np.minimum(t, _LARGEST_EXPONENT))
    if num_coordinates == 0:
        return np.maximum(0.0, 1 - growth)
    # A: |x|^2 > level for r < 1, and |x|^2 < level for r > 1.
    level = 2 * (t - num_coordinates * log_ratio) / math.expm1(-2 * log_ratio)
    level = np.maximum(level, 0.0) / 2
    tail = scipy.special.gammaincc if log_ratio < 0 else scipy.special.gammainc
    half = num_coordinates / 2
    of_p, of_q = tail(half, level), tail(half, level * math.exp(-2 * log_ratio))
    return np.maximum(0.0, of_p - growth * of_q)


def _check(delta: float, smoothness: float, num_coordinates: int) -> None:
    _validate.probability(delta=delta)
    _validate.positive(smoothness=smoothness)
    _validate.count(num_coordinates=num_coordinates)
