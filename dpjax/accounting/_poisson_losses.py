"""Poisson batches: the privacy losses of a step.

A record is replaced. Let a = 1 / (2 noise multiplier), the norm bound over the standard
deviation. The pair that dominates a step (see `_sampled_group`) is P = (1 - q) phi_0
+ q phi_a and Q = (1 - q) phi_0 + q phi_-a. The log of P / Q increases in x, and is
epsilon at the tau of

    sinh(a tau - epsilon / 2) = (1 - q)/q e^(a^2 / 2) sinh(epsilon / 2),           (1)

because q e^(-a^2/2) (e^(a tau) - e^(epsilon - a tau)) = (1 - q)(e^epsilon - 1) there.
So the divergence of P and Q is

    q (Phi(a - tau) - e^epsilon Phi(-a - tau)) - (1 - q)(e^epsilon - 1) Phi(-tau). (2)

A record is removed. Now a = 1 / noise multiplier, and Q = phi_0. With d_a the curve of
the Gaussian (Balle, Wang 2018, Theorem 8), the divergence is

    q d_a(log(1 + (e^epsilon - 1) / q)),    epsilon > log(1 - q),                  (3)

and 1 - e^epsilon below. If it is added, P and Q change places.

`dp_accounting` has the same curves, evaluated at one epsilon after the other: this took
most of the time of a run's epsilon.
"""

import math

import numpy as np
import scipy.special
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from dpjax.accounting._fixed_size import symmetric_losses
from dpjax.accounting._gaussian import gaussian_delta
from dpjax.accounting._sample import without_sampling
from dpjax.accounting._sampled_renyi import log_ratio

_UNSEEN = 1e-22  # the probability of losses beyond the last cell


def losses_where_replaced(
    noise_multiplier: float, prob: float, interval: float
) -> PrivacyLossDistribution:
    """Returns the losses of the pair that dominates a step under REPLACE_ONE.

    Args:
        noise_multiplier: stddev over the l2 sensitivity to replacing one record.
        prob: the probability q that a record enters a batch, below 1.
        interval: the spacing of the losses.
    """
    bound = 0.5 / noise_multiplier
    reach = bound - float(scipy.special.ndtri(_UNSEEN))
    shifts = np.array([bound, -bound]) * reach - bound**2 / 2
    more, less = log_ratio(shifts, prob)
    epsilons = interval * np.arange(max(1, math.ceil((more - less) / interval)) + 1)
    half = epsilons[1:] / 2
    log = bound**2 / 2 + math.log1p(-prob) - math.log(prob)
    log += half + np.log(-np.expm1(-2 * half)) - math.log(2)  # of (1)
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
    """Returns the losses of the pairs that dominate a step under ADD_OR_REMOVE_ONE.

    Args:
        noise_multiplier: stddev over the l2 sensitivity to removing one record.
        prob: as for `losses_where_replaced`.
        interval: the spacing of the losses.
    """
    bound = 1 / noise_multiplier
    reach = -float(scipy.special.ndtri(_UNSEEN))
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
