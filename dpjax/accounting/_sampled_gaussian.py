"""Sampling schemes of batches: the event of each, and the accountant that reads it.

The pair of distributions that dominates a Poisson step is in `_sampled_group.py`, for
one record and several, under both relations; for one, it is the pair that the PLD
accountant uses. Its T-fold composition dominates T adaptive steps (Zhu, Dong, Wang
2022, "Optimal accounting of differential privacy via characteristic function", Theorem
10). `_random_allocation.py` has the pair of batches of which each record enters one in
every c, `_fixed_size.py` that of batches of fixed size.
"""

import math

import numpy as np
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
)
from dp_accounting.rdp import RdpAccountant

from dpjax._types import REPLACE_ONE
from dpjax.accounting._fixed_size import (
    fixed_size_losses,
    one_step_epsilon,
    run_losses,
    spacing,
)
from dpjax.accounting._gaussian import gaussian_epsilon
from dpjax.accounting._poisson_capacity import without_overflow
from dpjax.accounting._poisson_losses import (
    losses_where_removed,
    losses_where_replaced,
)
from dpjax.accounting._random_allocation import (
    RandomAllocationDpEvent,
    allocation_epsilon,
)
from dpjax.accounting._sampled_group import group_epsilon
from dpjax.accounting._sampled_renyi import (
    fixed_size_log_moment,
    poisson_log_moment,
    renyi_epsilon,
)
from dpjax.accounting._sampling import Sampling
from dpjax.accounting._zcdp import rho_to_epsilon

# Outside this range of noise multipliers no sampled step is analyzed: below, epsilon
# would be beyond 1e5; above, the accountants' float64 differences vanish.
_SMALLEST_MULTIPLIER = 1e-3
_LARGEST_MULTIPLIER = 1e6

# The PLD accountant rounds up, except for the error of its FFT: compared with the exact
# composed Gaussian, its delta was too small by up to 2e-16 a step (T = 10 to 1e6). This
# is 5 times that.
_FFT_ERROR = 1e-15

# If delta is this many times larger, setting the error aside costs a thousandth of
# epsilon at most, and Renyi divergences cost some hundredths.
_FAR_ABOVE = 100

# A square root and a quotient, so that 1 / (2 z^2) is never above the budget's rho.
ROUNDED_UP = 2.0**-50


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


def event_of(multiplier: float, run: Sampling) -> DpEvent:
    """Returns the steps, in the convention of the accountant that reads them."""
    if run.noise != "gaussian":
        rho = 0.5 / multiplier**2 if multiplier > 0 else math.inf
        return SelfComposedDpEvent(ZCDpEvent(rho), run.num_steps)
    step = GaussianDpEvent(_unit(run) * multiplier)
    if run.num_bins is not None:
        return RandomAllocationDpEvent(run.num_bins, run.num_steps, step)
    if run.num_samples is not None and run.batch_size is not None:
        # The RDP accountant expects stddev / sensitivity, that is stddev / 2C.
        step = SampledWithoutReplacementDpEvent(run.num_samples, run.batch_size, step)
    elif run.sampling_prob < 1:
        step = PoissonSampledDpEvent(run.sampling_prob, step)
    return SelfComposedDpEvent(step, run.num_steps)


def epsilon_of_run(
    multiplier: float, delta: float, run: Sampling, coarseness: int = 1
) -> float:
    """Returns an upper bound of epsilon at `delta` of a run with independent noise.

    With privacy losses so many times as far apart it is larger, and takes less time.
    """
    other = run.other_multiplier
    if run.noise != "gaussian":
        if min(multiplier, other) == 0:
            return math.inf
        rho = 0.5 * run.num_steps / multiplier**2 + 0.5 / other**2
        return rho_to_epsilon(run.group_size**2 * rho, delta)
    if has_coins(run):
        delta = without_overflow(delta)
    # Batches do not depend on the data, so a sampled run is a mixture of runs that
    # are each as private as full batches. So is the mixture (joint convexity).
    full_batch = _full_batch_epsilon(multiplier, delta, run)
    if (
        is_full_batch(run)
        or full_batch in (0.0, math.inf)
        or not _SMALLEST_MULTIPLIER <= multiplier <= _LARGEST_MULTIPLIER
    ):
        return full_batch
    lost = _FFT_ERROR * (num_releases(run) + (other < math.inf))
    if run.num_bins is not None:
        allocated = allocation_epsilon(
            _unit(run) * multiplier,
            delta,
            num_steps=run.num_steps,
            num_bins=run.num_bins,
            relation=run.relation,
            other_multiplier=_unit(run) * other,
            fft_error=lost,
        )
        return min(full_batch, allocated)
    bounds = [full_batch]
    if run.batch_size is not None and run.num_steps == 1 and other == math.inf:
        bounds.append(one_step_epsilon(multiplier, delta, _prob(run)))
    if delta > lost:
        bounds.append(_by_losses(multiplier, delta - lost, run, coarseness))
    if delta < lost * _FAR_ABOVE and run.group_size == 1:
        bounds.append(_by_renyi(multiplier, delta, run))
    return min(bounds)


def _full_batch_epsilon(multiplier: float, delta: float, run: Sampling) -> float:
    sensitivity, other = float(run.group_size), run.other_multiplier
    if other == math.inf:
        return gaussian_epsilon(
            multiplier, delta, sensitivity=sensitivity, num_releases=num_releases(run)
        )
    if min(multiplier, other) == 0:
        return math.inf
    # Several Gaussian releases cost as much as one, whose precision (inverse
    # variance) is the sum of their precisions.
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
    """Returns an epsilon by privacy loss distributions, composed by FFT."""
    other = run.other_multiplier
    if run.group_size > 1:
        return group_epsilon(
            _unit(run) * multiplier,
            delta,
            sampling_prob=run.sampling_prob,
            num_steps=run.num_steps,
            group_size=run.group_size,
            relation=run.relation,
            other_multiplier=other,
        )
    interval = coarseness * spacing(multiplier, _prob(run), other)
    if run.batch_size is not None:
        step = fixed_size_losses
    elif run.relation is REPLACE_ONE:
        step = losses_where_replaced
    else:
        step = losses_where_removed
    single = step(multiplier, _prob(run), interval)
    losses = run_losses(single, run.num_steps, interval, other)
    with np.errstate(over="ignore"):  # of an epsilon beyond 700: inf
        return float(losses.get_epsilon_for_delta(delta))


def _by_renyi(multiplier: float, delta: float, run: Sampling) -> float:
    """Returns an epsilon by Renyi divergences, which have no error in delta."""
    if run.relation is REPLACE_ONE:
        return renyi_epsilon(
            poisson_log_moment if run.batch_size is None else fixed_size_log_moment,
            multiplier,
            delta,
            sampling_prob=_prob(run),
            num_steps=run.num_steps,
            other_multiplier=run.other_multiplier,
        )
    accountant = RdpAccountant(neighboring_relation=run.relation)
    accountant.compose(event_of(multiplier, run))
    if run.other_multiplier < math.inf:
        accountant.compose(GaussianDpEvent(run.other_multiplier))
    return float(accountant.get_epsilon(delta))
