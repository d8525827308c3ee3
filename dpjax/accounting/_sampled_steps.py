"""Sampled steps: their privacy losses and their Renyi divergences.

Let q be the probability that a record is in a batch, mu = 1 / noise multiplier, and
d_mu the curve of the Gaussian (Balle, Wang 2018, Theorem 8).

Batches of fixed size, where a record is replaced. At every epsilon >= 0,

    h(epsilon) = q d_mu(log(1 + (e^epsilon - 1) / q))                              (1)

bounds the divergence of a step, and for epsilon < 0 so does
1 - e^epsilon (1 - h(-epsilon)). It is the curve of a pair of distributions, and T of
them dominate T adaptive steps: `docs/privacy/proofs/composition.md`, 3.5. Chords
between points of the curve lie above it, and are the curve of discrete distributions,
which are composed (Doroshenko et al. 2022).

Poisson batches. The pair that dominates a step is `docs/privacy/proofs/composition.md`,
3.7. A record is replaced: let a = mu / 2. The pair is P = (1 - q) phi_0 + q phi_a and
Q = (1 - q) phi_0 + q phi_-a. The log of P / Q increases in x, and is epsilon at the tau
of

    sinh(a tau - epsilon / 2) = (1 - q)/q e^(a^2 / 2) sinh(epsilon / 2),           (2)

because q e^(-a^2/2) (e^(a tau) - e^(epsilon - a tau)) = (1 - q)(e^epsilon - 1) there.
So the divergence of P and Q is

    q (Phi(a - tau) - e^epsilon Phi(-a - tau)) - (1 - q)(e^epsilon - 1) Phi(-tau). (3)

A record is removed: now a = mu, and Q = phi_0. The divergence is

    q d_a(log(1 + (e^epsilon - 1) / q)),    epsilon > log(1 - q),                  (4)

and 1 - e^epsilon below. If it is added, P and Q change places. `dp_accounting` has the
same curves, evaluated at one epsilon after the other, which took most of the time.

Renyi divergences, where a record is replaced: for a tiny delta. Losses are composed by
an FFT, whose error is absolute: no smaller delta can be proved. Renyi divergences have
only relative errors. Let phi be the density of N(0, 1), and the order a > 1. A Poisson
step has, with m = mu / 2,

    log(int phi(x) p(x)^a p(-x)^(1-a) dx) / (a - 1),  p(x) = 1 - q + q e^(m x - m^2/2).

The integrand f is analytic where |Im x| < pi / (2 m), so that the error of the
trapezoidal rule falls exponentially in 1 / step (Trefethen, Weideman 2014, Theorem
5.1). At Im x = y = min(8, sqrt(2/a) / m) it is at most e^(1 + y^2/2) times what it is
on the line, since |p| is there between cos(m y) >= 1 - 1/a and 1 times p: the step
below leaves less than e^-80 of the integral. The slope of log f lies between -x and
(2a - 1) m - x, and is above -x for x < 0: beyond 40 and 2 a m + 40 there is less than
e^-700 of it.

The pair of a step of fixed size has the losses u and -u, where x > mu/2 and
r = e^u = 1 - q + q e^(mu x - mu^2/2), and otherwise loss 0: under Q, the density is phi
at u and r phi at -u. So its divergence is

    log(1 + int_{x > mu/2} phi(x) (r^a + r^(1-a) - 1 - r) dx) / (a - 1).

The factor of phi increases in x: its value at the right end of a cell times the mass of
the cell is at least the integral. Beyond a mu + 40 there is less than e^-700.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import scipy.special
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
)
from dp_accounting.rdp import compute_epsilon

from dpjax._types import ArrayLike
from dpjax.accounting._gaussian import gaussian_delta, gaussian_epsilon

LogMoment = Callable[[float, float, float], float]

SLACK = 1e-12  # more than the rounding of float64 in `subsampled_epsilon`
# The probability of losses beyond the last cell, and the largest number of cells.
_UNSEEN, _UNSEEN_OF_POISSON, _MOST_LOSSES = 1e-18, 1e-22, 100_000

_ORDERS = 1 + np.geomspace(0.1, 4_000.0, 60)
_LARGEST_SHIFT = 200.0  # of the orders used
_ROUNDOFF = 1e-11


def one_step_epsilon(noise_multiplier: float, delta: float, prob: float) -> float:
    """Returns the epsilon of one step with Gaussian noise: (1), solved for it."""
    if delta >= prob:
        return 0.0
    inner = gaussian_epsilon(noise_multiplier, delta / prob, sensitivity=1.0)
    return subsampled_epsilon(inner, prob)


def fixed_size_losses(
    noise_multiplier: float, prob: float, interval: float
) -> PrivacyLossDistribution:
    """Returns losses of the pair that dominates a step: (1), at this interval."""
    largest = one_step_epsilon(noise_multiplier, _UNSEEN, prob)
    count = max(1, math.ceil(largest / interval))
    epsilons = interval * np.arange(count + 1)
    raised = without_sampling(epsilons, prob)
    above = np.minimum(prob * gaussian_delta(1 / noise_multiplier, raised), 1.0)
    return symmetric_losses(interval, above)


def symmetric_losses(interval: float, above: np.ndarray) -> PrivacyLossDistribution:
    """Returns the losses of a symmetric pair, of its divergences.

    `above` has them at epsilon = 0, interval, 2 interval and so on. Chords lie above
    the curve.
    """
    last = len(above) - 1
    epsilons = interval * np.arange(last + 1)
    below = -np.expm1(-epsilons) + np.exp(-epsilons) * above
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(
        interval, np.arange(-last, last + 1), np.r_[below[:0:-1], above]
    )
    return PrivacyLossDistribution(pmf)


def spacing(noise_multiplier: float, prob: float, other_multiplier: float) -> float:
    """Returns a spacing of the losses of a run: a wider one rounds up more."""
    # The loss of a release spans about 1 / multiplier^2: this bounds time and memory.
    # The loss of a sampled step may be much smaller: on average, q of this.
    least = min(noise_multiplier, other_multiplier)
    widest = 1e-4 * max(1.0, (0.5 / least) ** 2)
    spread = prob * math.sqrt(math.expm1(min(noise_multiplier**-2, 700.0)))
    largest = max(
        one_step_epsilon(noise_multiplier, _UNSEEN, prob),
        gaussian_epsilon(other_multiplier, _UNSEEN, sensitivity=1.0),
    )
    return min(widest, max(spread / 10, largest / _MOST_LOSSES))


def run_losses(
    step: PrivacyLossDistribution,
    num_steps: int,
    interval: float,
    other_multiplier: float,
) -> PrivacyLossDistribution:
    """Returns the privacy losses of T steps, and of another release unless at inf."""
    losses = step.self_compose(num_steps)
    if other_multiplier == math.inf:
        return losses
    other = from_gaussian_mechanism(
        other_multiplier, value_discretization_interval=interval
    )
    return losses.compose(other)


def losses_where_replaced(
    noise_multiplier: float, prob: float, interval: float
) -> PrivacyLossDistribution:
    """Returns the losses of the pair that dominates a Poisson step: (2) and (3)."""
    bound = 0.5 / noise_multiplier
    reach = bound - float(scipy.special.ndtri(_UNSEEN_OF_POISSON))
    shifts = np.array([bound, -bound]) * reach - bound**2 / 2
    more, less = log_ratio(shifts, prob)
    epsilons = interval * np.arange(max(1, math.ceil((more - less) / interval)) + 1)
    half = epsilons[1:] / 2
    log = bound**2 / 2 + math.log1p(-prob) - math.log(prob)
    log += half + np.log(-np.expm1(-2 * half)) - math.log(2)  # of (2)
    tau = (half + np.logaddexp(np.logaddexp(0, 2 * log) / 2, log)) / bound
    tau = np.r_[0.0, tau]
    upper = scipy.special.ndtr(bound - tau)
    other = np.exp(epsilons + scipy.special.log_ndtr(-bound - tau))
    rest = np.exp(epsilons + scipy.special.log_ndtr(-tau)) * -np.expm1(-epsilons)
    above = np.clip(prob * (upper - other) - (1 - prob) * rest, 0.0, 1.0)
    return symmetric_losses(interval, above)


def losses_where_removed(
    noise_multiplier: float, prob: float, interval: float
) -> PrivacyLossDistribution:
    """Returns the losses of the pairs that dominate a Poisson step: (4)."""
    bound = 1 / noise_multiplier
    reach = -float(scipy.special.ndtri(_UNSEEN_OF_POISSON))
    ends = np.array([-reach, reach + bound]) * bound - bound**2 / 2
    first, last = log_ratio(ends, prob) / interval
    cells = np.arange(math.floor(first), math.ceil(last) + 1)
    epsilons = interval * cells
    has_both = epsilons > math.log1p(-prob)
    removed = -np.expm1(np.minimum(epsilons, 0.0))
    raised = without_sampling(epsilons[has_both], prob)
    removed[has_both] = np.minimum(prob * gaussian_delta(bound, raised), 1.0)
    added = -np.expm1(-epsilons) + np.exp(-epsilons) * removed
    curves = (cells, removed), (-cells[::-1], np.clip(added[::-1], 0.0, 1.0))
    return PrivacyLossDistribution(
        *(pld_pmf.create_pmf_pessimistic_connect_dots(interval, *x) for x in curves)
    )


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
    log_moment: LogMoment,
    multiplier: float,
    prob: float,
    delta: float,
    num_steps: int,
    other_multiplier: float,
) -> float:
    """Returns an epsilon of T steps where a record is replaced, and another release."""
    orders, step = _step_divergences(log_moment, multiplier, prob)
    if orders.size == 0:
        return math.inf
    divergences = num_steps * step + orders / (2 * other_multiplier**2)
    epsilon, _ = compute_epsilon(orders.tolist(), divergences.tolist(), delta)
    return float(epsilon) * (1 + _ROUNDOFF)


@functools.lru_cache(maxsize=256)
def _step_divergences(
    log_moment: LogMoment, multiplier: float, prob: float
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


def without_sampling(epsilons: ArrayLike, prob: float) -> np.ndarray:
    """Returns log(1 + (e^epsilon - 1) / q), of epsilons above log(1 - q)."""
    epsilons = np.asarray(epsilons)
    with np.errstate(over="ignore"):
        return np.where(
            epsilons < 1,
            np.log1p(np.expm1(epsilons) / prob),
            # Without e^epsilon, which may overflow.
            epsilons + np.log1p((prob - 1) * np.exp(-epsilons)) - math.log(prob),
        )


def subsampled_epsilon(epsilon: float, prob: float) -> float:
    """Returns log(1 + q (e^epsilon - 1)), rounded up."""
    if prob == 1:
        return epsilon
    if epsilon < 700:
        outer = math.log1p(prob * math.expm1(epsilon))
    else:  # e^epsilon overflows soon, and 1 - q is nothing beside q e^epsilon
        outer = epsilon + math.log(prob)
    return outer * (1 + SLACK)
