"""Renyi divergences of sampled steps where a record is replaced: for a tiny delta.

Privacy loss distributions are composed by an FFT, whose error is absolute: no smaller
delta can be proved. Renyi divergences have only relative errors. Let phi be the density
of N(0, 1), the stddev of the noise 1, and a > 1 the order.

Poisson batches. Let m be the norm bound of a record. The pair that dominates a step
(see `_sampled_gaussian`) has the divergence

    log(int phi(x) p(x)^a p(-x)^(1-a) dx) / (a - 1),  p(x) = 1 - q + q e^(m x - m^2/2).

The integrand f is analytic where |Im x| < pi / (2 m), so that the error of the
trapezoidal rule falls exponentially in 1 / step (Trefethen, Weideman 2014, Theorem
5.1). At Im x = y = min(8, sqrt(2/a) / m) it is at most e^(1 + y^2/2) times what it is
on the line, since |p| is there between cos(m y) >= 1 - 1/a and 1 times p: the step
below leaves less than e^-80 of the integral. The slope of log f lies between -x and
(2a - 1) m - x, and is above -x for x < 0: beyond 40 and 2 a m + 40 there is less than
e^-700 of it.

Batches of fixed size. The pair of `_fixed_size` has the losses u and -u, where x > mu/2
and r = e^u = 1 - q + q e^(mu x - mu^2/2), and otherwise loss 0: under Q, the density is
phi at u and r phi at -u. So its divergence is

    log(1 + int_{x > mu/2} phi(x) (r^a + r^(1-a) - 1 - r) dx) / (a - 1).

The factor of phi increases in x: its value at the right end of a cell times the mass of
the cell is at least the integral. Beyond a mu + 40 there is less than e^-700.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import scipy.special
from dp_accounting.rdp import compute_epsilon

_ORDERS = 1 + np.geomspace(0.1, 4_000.0, 60)
_LARGEST_SHIFT = 200.0  # of the orders used
_ROUNDOFF = 1e-11


def poisson_log_moment(order: float, multiplier: float, prob: float) -> float:
    """Returns (order - 1) times the divergence of a Poisson step under REPLACE_ONE."""
    bound = 0.5 / multiplier
    step = min(1 / 8, 0.1 / (bound * math.sqrt(order)))
    count = math.ceil((2 * order * bound + 40) / step)
    x = step * np.arange(-count, count + 1)
    logs = log_ratio(bound * x - bound**2 / 2, prob)
    logs = order * logs + (1 - order) * logs[::-1] - x**2 / 2
    return _log_sum(logs) + math.log(step / math.sqrt(2 * math.pi))


def fixed_size_log_moment(order: float, multiplier: float, prob: float) -> float:
    """Returns (order - 1) times the divergence of a step of fixed size."""
    mu = 1 / multiplier
    step = min(1 / 250, 1 / (20 * order * mu))
    x = mu / 2 + step * np.arange(math.ceil((order * mu + 40) / step) + 1)
    beyond = scipy.special.log_ndtr(-x)
    masses = beyond[:-1] + np.log(-np.expm1(np.diff(beyond)))
    loss = log_ratio(mu * x[1:] - mu**2 / 2, prob)
    # r^a + r^(1-a) - 1 - r = r^a (1 - r^-a) (1 - r^(1-a))
    parts = np.expm1(-order * loss) * np.expm1((1 - order) * loss)
    logs = order * loss + np.log(parts)
    return _log_sum(np.r_[0.0, masses + logs])


def log_ratio(log: np.ndarray, prob: float) -> np.ndarray:
    """Returns log(1 - q + q e^log), also of an e^log that overflows."""
    small = np.log1p(prob * np.expm1(np.minimum(log, 500.0)))
    rest = (1 - prob) * np.exp(-np.maximum(log, 500.0))
    return np.where(log < 500, small, log + np.log(prob + rest))


def renyi_epsilon(
    log_moment: Callable[[float, float, float], float],
    multiplier: float,
    delta: float,
    *,
    sampling_prob: float,
    num_steps: int,
    other_multiplier: float,
) -> float:
    """Returns an epsilon of T steps under REPLACE_ONE, and another Gaussian release.

    `log_moment` is one of the two above; the noise multipliers are stddev / l2
    sensitivity, and `other_multiplier` = inf means no other release.
    """
    orders, step = _step_divergences(log_moment, multiplier, sampling_prob)
    if orders.size == 0:
        return math.inf
    divergences = num_steps * step + orders / (2 * other_multiplier**2)
    epsilon, _ = compute_epsilon(orders.tolist(), divergences.tolist(), delta)
    return float(epsilon) * (1 + _ROUNDOFF)


@functools.lru_cache(maxsize=256)
def _step_divergences(
    log_moment: Callable[[float, float, float], float], multiplier: float, prob: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns orders, and bounds of the divergences of a step: they hold for any delta.

    The largest orders are left out: they take long, and gain little.
    """
    orders = _ORDERS[_ORDERS / multiplier <= _LARGEST_SHIFT]
    logs = np.array([log_moment(order, multiplier, prob) for order in orders])
    return orders, (logs * (1 + _ROUNDOFF) + _ROUNDOFF) / (orders - 1)


def _log_sum(logs: np.ndarray) -> float:
    largest = float(np.max(logs))
    return largest + math.log(float(np.sum(np.exp(logs - largest))))
