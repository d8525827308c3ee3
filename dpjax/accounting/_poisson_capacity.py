"""The capacity of padded Poisson batches, and the privacy cost of their overflow.

Compiled training pads every Poisson batch to one capacity and drops the records beyond
it. Let P~ be the distribution of a run with unbounded batches, P that of the padded run
on the same data, and Q~, Q the same on a neighboring data set. The two runs agree
unless a step overflows, so their total variation distance is at most
tau = T Pr[Binomial(n, q) > capacity]. If the unbounded run is (epsilon, delta~)-DP,
then for every event S

    P(S) <= P~(S) + tau <= e^epsilon Q~(S) + delta~ + tau
         <= e^epsilon Q(S) + delta~ + (1 + e^epsilon) tau,                        (1)

whatever rule chooses the records that are dropped.
"""

import bisect
import math

import scipy.stats

from dpjax import _validate

# Share of delta that covers overflow: it changes the noise by about 1e-4 of itself.
_OVERFLOW_SHARE = 1e-3

# Smallest tail probability that a float64 binomial tail can still resolve.
_SMALLEST_TAIL = 1e-290


def poisson_capacity(
    num_samples: int,
    sampling_prob: float,
    *,
    num_steps: int,
    epsilon: float,
    delta: float,
) -> int:
    """The batch capacity whose overflow the accounting of Poisson batches covers.

    The smallest c with (1 + e^epsilon) T Pr[Binomial(n, q) > c] <= delta / 1000, for
    T batches into which each of n records enters with probability q. Under add/remove n
    is an upper bound on the size of both neighboring data sets. `noise_multiplier` and
    `noise_multiplier_to_epsilon` reserve this thousandth of delta for every Poisson
    scheme, so padded batches of at least this capacity need no further accounting.

    Returns:
        Number of records, between 1 and `num_samples`; `num_samples` where the allowed
        tail is zero or too small for float64.

    Privacy:
        Equation (1) of this module, for any rule that chooses the records to drop.

    Example:
        >>> poisson_capacity(100_000, 0.01, num_steps=1000, epsilon=1.0, delta=1e-5)
        1224
    """
    _validate.count(num_samples=num_samples, num_steps=num_steps)
    check_sampling_prob(sampling_prob)
    _validate.above_zero(epsilon=epsilon)
    _validate.delta(delta)
    # Equation (1) solved for the tail of one step; e^-epsilon cannot overflow.
    shrink = math.exp(-epsilon)
    tail = _OVERFLOW_SHARE * delta * shrink / ((1 + shrink) * num_steps)
    if tail < _SMALLEST_TAIL:
        return num_samples
    capacity = bisect.bisect_left(
        range(num_samples),
        True,
        key=lambda c: scipy.stats.binom.sf(c, num_samples, sampling_prob) <= tail,
    )
    return max(1, capacity)


def without_overflow(delta: float) -> float:
    """Returns delta without the share for the overflow of padded batches."""
    return delta * (1 - _OVERFLOW_SHARE)


def overflow_probability(epsilon: float, delta: float) -> float:
    """Returns the largest tau of equation (1) in a run with that guarantee."""
    return _OVERFLOW_SHARE * delta / (1 + math.exp(min(epsilon, 700.0)))


def check_sampling_prob(sampling_prob: float) -> None:
    """Requires 0 < sampling_prob <= 1."""
    _validate.require(
        0 < sampling_prob <= 1, "sampling_prob", sampling_prob, "in (0, 1]"
    )
