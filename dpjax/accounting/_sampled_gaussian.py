"""Sampled runs: privacy losses of a step, the event and the epsilon of a run.

`docs/privacy/proofs/composition.md`, 3.5 to 3.7, proves these equations. Let q be the
probability that a record is in a batch, mu = 1 / noise multiplier, and d_mu the curve
of the Gaussian (Balle, Wang 2018, Theorem 8).

Batches of fixed size, where a record is replaced. At every epsilon >= 0,

    h(epsilon) = q d_mu(log(1 + (e^epsilon - 1) / q))                              (1)

bounds the divergence of a step, and for epsilon < 0 so does
1 - e^epsilon (1 - h(-epsilon)). Chords of this curve are above it, and are the curve of
discrete distributions, which are composed (Doroshenko et al. 2022).

Poisson batches. If a record is replaced, let a = mu / 2. The pair that dominates a step
is P = (1 - q) phi_0 + q phi_a and Q = (1 - q) phi_0 + q phi_-a, with the divergence

    q (Phi(a - tau) - e^epsilon Phi(-a - tau)) - (1 - q)(e^epsilon - 1) Phi(-tau): (2)

the log of P / Q increases in x, and is epsilon at the tau that solves

    sinh(a tau - epsilon / 2) = (1 - q)/q e^(a^2 / 2) sinh(epsilon / 2).           (3)

If a record is removed, let a = mu and Q = phi_0. The divergence is

    q d_a(log(1 + (e^epsilon - 1) / q)),    epsilon > log(1 - q),                  (4)

and 1 - e^epsilon below. If it is added, P and Q change places. `dp_accounting` has the
same curves, but evaluates them at one epsilon after the other, which is slow.

Compiled training pads every Poisson batch to one capacity and drops the records beyond
it, by any rule. With tau = T Pr[Binomial(n, q) > capacity], a run that is
(epsilon, delta~)-DP with unbounded batches is, padded,

    (epsilon, delta~ + (1 + e^epsilon) tau)-DP.                                    (5)
"""

import bisect
import functools
import math
from collections.abc import Callable

import dp_accounting as dpa
import numpy as np
import scipy.special
import scipy.stats
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.rdp import RdpAccountant, compute_epsilon

from dpjax._types import REPLACE_ONE, ArrayLike
from dpjax.accounting._gaussian import gaussian_delta, gaussian_epsilon
from dpjax.accounting._likelihood_ratios import (
    RandomAllocationDpEvent,
    allocation_epsilon,
    group_epsilon,
    with_release,
)
from dpjax.accounting._sampling import Sampling
from dpjax.accounting._zcdp import rho_to_epsilon

SLACK = 1e-12  # exceeds the float64 rounding error of `subsampled_epsilon`
# These are the probability of losses beyond the last cell, and the most cells.
_UNSEEN, _UNSEEN_OF_POISSON, _MOST_LOSSES = 1e-18, 1e-22, 100_000

_ORDERS = 1 + np.geomspace(0.1, 4_000.0, 60)
_LARGEST_SHIFT = 200.0  # the largest order / multiplier that is used
_ROUNDOFF = 1e-11

# Outside this range of noise multipliers no sampled step is analyzed: below, epsilon
# would be beyond 1e5; above, the accountants' float64 differences vanish.
_SMALLEST_MULTIPLIER = 1e-3
_LARGEST_MULTIPLIER = 1e6

# The PLD accountant rounds up, except for the error of its FFT: compared with the exact
# composed Gaussian, its delta was too small by up to 2e-16 a step (T = 10 to 1e6). This
# is 5 times that.
_FFT_ERROR = 1e-15

# If delta is this many times larger than the FFT's error, subtracting the error costs a
# thousandth of epsilon at most, and Renyi divergences cost some hundredths.
_FAR_ABOVE = 100

# It covers a square root and a quotient: 1 / (2 z^2) is never above the budget's rho.
ROUNDED_UP = 2.0**-50

# This share of delta covers overflow. It changes the noise by a share of about 1e-4.
_OVERFLOW_SHARE = 1e-3

# Smallest tail probability that a float64 binomial tail can still resolve.
_SMALLEST_TAIL = 1e-290


def one_step_epsilon(noise_multiplier: float, delta: float, prob: float) -> float:
    """Returns the epsilon of one step of fixed batch size: (1), solved for it."""
    if delta >= prob:
        return 0.0
    inner = gaussian_epsilon(noise_multiplier, delta / prob, sensitivity=1.0)
    return subsampled_epsilon(inner, prob)


def fixed_size_losses(
    noise_multiplier: float, prob: float, interval: float
) -> PrivacyLossDistribution:
    """Returns the privacy loss distribution of a step on a batch of fixed size."""
    # The replaced record is in the batch with probability `prob`; noise_multiplier is
    # stddev / sensitivity. Losses are multiples of `interval`; (1) has their deltas.
    largest = one_step_epsilon(noise_multiplier, _UNSEEN, prob)
    count = max(1, math.ceil(largest / interval))
    epsilons = interval * np.arange(count + 1)
    raised = without_sampling(epsilons, prob)
    above = np.minimum(prob * gaussian_delta(1 / noise_multiplier, raised), 1.0)
    return symmetric_losses(interval, above)


def symmetric_losses(interval: float, above: np.ndarray) -> PrivacyLossDistribution:
    """Returns the privacy loss distribution with the deltas `above`, (n,)."""
    # They are hockey-stick divergences at epsilon = 0, interval, 2 interval, .., equal
    # in both directions between neighbors. The deltas in between are on chords.
    last = len(above) - 1
    epsilons = interval * np.arange(last + 1)
    below = -np.expm1(-epsilons) + np.exp(-epsilons) * above
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(
        interval, np.arange(-last, last + 1), np.r_[below[:0:-1], above]
    )
    return PrivacyLossDistribution(pmf)


def spacing(noise_multiplier: float, prob: float, other_multiplier: float) -> float:
    """Returns the spacing of the grid to which privacy losses of a run are rounded."""
    # A wide spacing takes less time, but makes epsilon larger. A record is in a step
    # with `prob`; `other_multiplier` is of another Gaussian release, inf for none.
    # The loss of a release spans about 1 / multiplier^2: this bounds time and memory.
    # The loss of a sampled step may be much smaller: on average it is q of this.
    least = min(noise_multiplier, other_multiplier)
    widest = 1e-4 * max(1.0, (0.5 / least) ** 2)
    spread = prob * math.sqrt(math.expm1(min(noise_multiplier**-2, 700.0)))
    largest = max(
        one_step_epsilon(noise_multiplier, _UNSEEN, prob),
        gaussian_epsilon(other_multiplier, _UNSEEN, sensitivity=1.0),
    )
    return min(widest, max(spread / 10, largest / _MOST_LOSSES))


def losses_where_replaced(
    noise_multiplier: float, prob: float, interval: float
) -> PrivacyLossDistribution:
    """Returns the privacy loss distribution of a Poisson step for a replaced record."""
    # Arguments are as for `fixed_size_losses`. The delta of the step is (2) of this
    # module, at the threshold tau that solves (3).
    bound = 0.5 / noise_multiplier
    reach = bound - float(scipy.special.ndtri(_UNSEEN_OF_POISSON))
    shifts = np.array([bound, -bound]) * reach - bound**2 / 2
    more, less = log_ratio(shifts, prob)
    epsilons = interval * np.arange(max(1, math.ceil((more - less) / interval)) + 1)
    half = epsilons[1:] / 2
    log = bound**2 / 2 + math.log1p(-prob) - math.log(prob)
    log += half + np.log(-np.expm1(-2 * half)) - math.log(2)  # the right side of (3)
    # By (3), tau is (epsilon / 2 + arsinh e^log) / a.
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
    """Returns the privacy loss distribution of a Poisson step under add/remove."""
    # Arguments are as for `fixed_size_losses`. The delta is (4) of this module.
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
    """Returns (order - 1) times the Renyi divergence of a Poisson step."""
    # A record, which is in a batch with probability `prob`, is replaced; multiplier =
    # stddev / sensitivity. `_by_renyi` bounds epsilon by it where delta is tiny.
    bound = 0.5 / multiplier
    step = min(1 / 8, 0.1 / (bound * math.sqrt(order)))
    count = math.ceil((2 * order * bound + 40) / step)
    x = step * np.arange(-count, count + 1)
    logs = log_ratio(bound * x - bound**2 / 2, prob)
    logs = order * logs + (1 - order) * logs[::-1] - x**2 / 2
    return _log_sum(logs) + math.log(step / math.sqrt(2 * math.pi))


def fixed_size_log_moment(order: float, multiplier: float, prob: float) -> float:
    """Returns (order - 1) times the Renyi divergence of a step of fixed batch size."""
    # The arguments are those of `poisson_log_moment`.
    mu = 1 / multiplier
    step = min(1 / 250, 1 / (20 * order * mu))
    x = mu / 2 + step * np.arange(math.ceil((order * mu + 40) / step) + 1)
    beyond = scipy.special.log_ndtr(-x)
    masses = beyond[:-1] + np.log(-np.expm1(np.diff(beyond)))
    loss = log_ratio(mu * x[1:] - mu**2 / 2, prob)
    # r, a likelihood ratio: r^a + r^(1-a) - 1 - r = r^a (1 - r^-a) (1 - r^(1-a))
    parts = np.expm1(-order * loss) * np.expm1((1 - order) * loss)
    logs = order * loss + np.log(parts)
    return _log_sum(np.r_[0.0, masses + logs])


def log_ratio(log: np.ndarray, prob: float) -> np.ndarray:
    """Returns log(1 - q + q e^log), also if e^log overflows."""
    small = np.log1p(prob * np.expm1(np.minimum(log, 500.0)))
    rest = (1 - prob) * np.exp(-np.maximum(log, 500.0))
    return np.where(log < 500, small, log + np.log(prob + rest))


@functools.lru_cache(maxsize=256)
def _step_divergences(
    log_moment: Callable[[float, float, float], float], multiplier: float, prob: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns orders, and bounds of a step's Renyi divergences, for `_by_renyi`."""
    # `log_moment` is (order - 1) times a divergence. Large orders take too long.
    orders = _ORDERS[_ORDERS / multiplier <= _LARGEST_SHIFT]
    logs = np.array([log_moment(order, multiplier, prob) for order in orders])
    return orders, (logs * (1 + _ROUNDOFF) + _ROUNDOFF) / (orders - 1)


def _log_sum(logs: np.ndarray) -> float:
    largest = float(np.max(logs))
    return largest + math.log(float(np.sum(np.exp(logs - largest))))


def without_sampling(epsilons: ArrayLike, prob: float) -> np.ndarray:
    """Returns the epsilons that sampling amplifies to `epsilons`, of the same shape."""
    # These are log(1 + (e^epsilon - 1) / q), for epsilons above log(1 - q), where q =
    # `prob` is the probability that a record is in the sample. `subsampled_epsilon` is
    # the inverse.
    epsilons = np.asarray(epsilons)
    with np.errstate(over="ignore"):
        return np.where(
            epsilons < 1,
            np.log1p(np.expm1(epsilons) / prob),
            # This form avoids e^epsilon, which may overflow.
            epsilons + np.log1p((prob - 1) * np.exp(-epsilons)) - math.log(prob),
        )


def subsampled_epsilon(epsilon: float, prob: float) -> float:
    """Returns epsilon after amplification by sampling: log(1 + q (e^epsilon - 1))."""
    # It is rounded up; q = `prob` is the probability that a record is in the sample.
    if prob == 1:
        return epsilon
    if epsilon < 700:
        outer = math.log1p(prob * math.expm1(epsilon))
    else:  # e^epsilon overflows soon, and 1 - q is nothing beside q e^epsilon
        outer = epsilon + math.log(prob)
    return outer * (1 + SLACK)


def num_releases(run: Sampling) -> int:
    """Returns the most steps that a record can enter."""
    return math.ceil(run.num_steps / (run.num_bins or 1))


def has_coins(run: Sampling) -> bool:
    """Returns whether records enter independently, so that a batch may overflow."""
    return run.sampling_prob < 1 or run.num_bins is not None


def is_full_batch(run: Sampling) -> bool:
    """Returns whether every step uses all records."""
    return not has_coins(run) and run.batch_size is None


def _unit(run: Sampling) -> int:
    # The PLD accountant expects stddev / C with C the norm bound of a record, and
    # accounts itself for the 2C by which replacing one moves the sum.
    return 2 if has_coins(run) and run.relation is REPLACE_ONE else 1


def event_of(multiplier: float, run: Sampling) -> dpa.DpEvent:
    """Returns the `dp_accounting` event of the steps of a run, for one record."""
    # `multiplier` is stddev / sensitivity; for the event's units see `gaussian_event`.
    if run.noise != "gaussian":
        rho = 0.5 / multiplier**2 if multiplier > 0 else math.inf
        return dpa.SelfComposedDpEvent(dpa.ZCDpEvent(rho), run.num_steps)
    step = dpa.GaussianDpEvent(_unit(run) * multiplier)
    if run.num_bins is not None:
        return RandomAllocationDpEvent(run.num_bins, run.num_steps, step)
    if run.num_samples is not None and run.batch_size is not None:
        # The RDP accountant expects stddev / sensitivity: the norm bound counts twice.
        step = dpa.SampledWithoutReplacementDpEvent(
            run.num_samples, run.batch_size, step
        )
    elif run.sampling_prob < 1:
        step = dpa.PoissonSampledDpEvent(run.sampling_prob, step)
    return dpa.SelfComposedDpEvent(step, run.num_steps)


def epsilon_of_run(
    multiplier: float, delta: float, run: Sampling, coarseness: int = 1
) -> float:
    """Returns an upper bound of epsilon at `delta` of a run with independent noise."""
    # It is the smallest of several bounds; `multiplier` is stddev / sensitivity of a
    # step. `coarseness` widens the grid to which privacy losses are rounded: the bound
    # is then larger, and takes less time.
    other = run.other_multiplier
    if run.noise != "gaussian":
        if min(multiplier, other) == 0:
            return math.inf
        rho = 0.5 * run.num_steps / multiplier**2 + 0.5 / other**2
        return rho_to_epsilon(run.group_size**2 * rho, delta)
    delta = without_overflow(delta, run)
    # Batches do not depend on the data, so a sampled run is a mixture of runs that are
    # each as private as full batches. By joint convexity the mixture is too.
    full_batch = _full_batch_epsilon(multiplier, delta, run)
    if (
        is_full_batch(run)
        or full_batch in (0.0, math.inf)
        or not _SMALLEST_MULTIPLIER <= multiplier <= _LARGEST_MULTIPLIER
    ):
        return full_batch
    lost = _FFT_ERROR * (num_releases(run) + (other < math.inf))
    if run.num_bins is not None:
        of_bound = _unit(run) * multiplier, delta, run, _unit(run) * other
        return min(full_batch, allocation_epsilon(*of_bound, lost))
    bounds = [full_batch]
    if run.batch_size is not None and run.num_steps == 1 and other == math.inf:
        bounds.append(one_step_epsilon(multiplier, delta, _prob(run)))
    if delta > lost:
        bounds.append(_by_losses(multiplier, delta - lost, run, coarseness))
    if delta < lost * _FAR_ABOVE and run.group_size == 1:
        bounds.append(_by_renyi(multiplier, delta, run))
    return min(bounds)


def _full_batch_epsilon(multiplier: float, delta: float, run: Sampling) -> float:
    """Returns epsilon at `delta` of a Gaussian run as if steps used all records."""
    # This bounds a run with sampled batches too: see `epsilon_of_run`.
    sensitivity, other = float(run.group_size), run.other_multiplier
    if other == math.inf:
        return gaussian_epsilon(
            multiplier, delta, sensitivity=sensitivity, num_releases=num_releases(run)
        )
    if min(multiplier, other) == 0:
        return math.inf
    # Several Gaussian releases cost as much as one release with the sum of their
    # precisions (inverse variances).
    precision = num_releases(run) / multiplier**2 + 1 / other**2
    together = 1 / math.sqrt(precision) * (1 - ROUNDED_UP)
    return gaussian_epsilon(together, delta, sensitivity=sensitivity)


def _prob(run: Sampling) -> float:
    if run.batch_size is None or run.num_samples is None:
        return run.sampling_prob
    return run.batch_size / run.num_samples


def _by_losses(
    multiplier: float, delta: float, run: Sampling, coarseness: int
) -> float:
    """Returns a bound of epsilon of a sampled run, by privacy loss distributions."""
    # They are composed by FFT. The arguments are those of `epsilon_of_run`, which takes
    # the smallest of several bounds.
    other = run.other_multiplier
    if run.group_size > 1:
        return group_epsilon(_unit(run) * multiplier, delta, run)
    interval = coarseness * spacing(multiplier, _prob(run), other)
    if run.batch_size is not None:
        step = fixed_size_losses
    elif run.relation is REPLACE_ONE:
        step = losses_where_replaced
    else:
        step = losses_where_removed
    steps = step(multiplier, _prob(run), interval).self_compose(run.num_steps)
    (losses,) = with_release([steps], other, interval)
    with np.errstate(over="ignore"):  # an epsilon beyond 700 is inf
        return float(losses.get_epsilon_for_delta(delta))


def _by_renyi(multiplier: float, delta: float, run: Sampling) -> float:
    """Returns a bound of the epsilon of a sampled run, by Renyi divergences."""
    # `epsilon_of_run` takes it where delta is tiny: its error is relative to delta,
    # while an FFT has an absolute error.
    if run.relation is REPLACE_ONE:
        moment = poisson_log_moment if run.batch_size is None else fixed_size_log_moment
        orders, step = _step_divergences(moment, multiplier, _prob(run))
        if orders.size == 0:
            return math.inf
        divergences = run.num_steps * step + orders / (2 * run.other_multiplier**2)
        epsilon, _ = compute_epsilon(orders.tolist(), divergences.tolist(), delta)
        return float(epsilon) * (1 + _ROUNDOFF)
    accountant = RdpAccountant(neighboring_relation=run.relation)
    accountant.compose(event_of(multiplier, run))
    if run.other_multiplier < math.inf:
        accountant.compose(dpa.GaussianDpEvent(run.other_multiplier))
    return float(accountant.get_epsilon(delta))


def poisson_capacity(
    num_samples: int, prob: float, *, num_steps: int, epsilon: float, delta: float
) -> int:
    """Returns how many rows a padded Poisson batch needs, for a guarantee to hold."""
    # The smallest c has (1 + e^epsilon) T Pr[Binomial(n, q) > c] <= delta / 1000, for T
    # batches that each of n records enters with probability q; it is n, if that tail is
    # zero or too small for float64. Under add/remove n is an upper bound on the size of
    # both neighboring data sets.
    # Equation (5) solved for the tail of one step; e^-epsilon cannot overflow.
    shrink = math.exp(-epsilon)
    tail = _OVERFLOW_SHARE * delta * shrink / ((1 + shrink) * num_steps)
    if tail < _SMALLEST_TAIL:
        return num_samples

    def is_enough(c: int) -> bool:
        return bool(scipy.stats.binom.sf(c, num_samples, prob) <= tail)

    return max(1, bisect.bisect_left(range(num_samples), True, key=is_enough))


def without_overflow(delta: float, run: Sampling) -> float:
    """Returns delta, for padded batches without the share that covers overflow."""
    return delta * (1 - _OVERFLOW_SHARE) if has_coins(run) else delta


def overflow_probability(epsilon: float, delta: float) -> float:
    """Returns the largest tau of equation (5) in a run with this guarantee."""
    return _OVERFLOW_SHARE * delta / (1 + math.exp(min(epsilon, 700.0)))
