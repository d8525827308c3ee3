"""Batches of fixed size, drawn without replacement, where a record is replaced.

Let q be the batch size over n, mu = 1 / noise multiplier, and d_mu the curve of the
Gaussian (Balle, Wang 2018, Theorem 8). By the proof in `_sample.py`, at every epsilon,

    h(epsilon) = q d_mu(log(1 + (e^epsilon - 1) / q)),    epsilon >= 0,            (1)

bounds the divergence of a step (Balle, Barthe, Gaboardi 2018, Theorem 11), and as the
relation is symmetric, 1 - e^epsilon (1 - h(-epsilon)) does for epsilon < 0.

This curve is convex in s = e^epsilon: for s >= 1 it is that of the pair (R, Q), R =
(1 - q) Q + q N(mu, 1) and Q = N(0, 1), for s < 1 that of (Q, R), and at s = 1 its slope
increases, from -R(x < mu/2) to -Q(x > mu/2). So it is the curve of a pair of
distributions, which dominates a step, and T of them dominate T adaptive steps (Zhu,
Dong, Wang 2022, Proposition 8 and Theorem 10). Chords between points of the curve lie
above it, and are the curve of discrete distributions, which are composed (Doroshenko et
al. 2022).
"""

import math

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
)

from dpjax.accounting._gaussian import gaussian_delta, gaussian_epsilon
from dpjax.accounting._sample import subsampled_epsilon, without_sampling

# The probability of losses beyond the last cell, and the largest number of cells.
_UNSEEN, _MOST_LOSSES = 1e-18, 100_000


def one_step_epsilon(noise_multiplier: float, delta: float, prob: float) -> float:
    """Returns the epsilon of one step with Gaussian noise: (1), solved for it."""
    if delta >= prob:
        return 0.0
    inner = gaussian_epsilon(noise_multiplier, delta / prob, sensitivity=1.0)
    return subsampled_epsilon(inner, prob)


def fixed_size_losses(
    noise_multiplier: float, prob: float, interval: float
) -> PrivacyLossDistribution:
    """Returns the privacy loss distribution of a pair that dominates a step.

    Args:
        noise_multiplier: stddev over the l2 sensitivity to replacing one record of a
            batch.
        prob: the batch size over the number of records.
        interval: the spacing of the losses.
    """
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
    """Returns the privacy losses of T steps, and of another Gaussian release.

    Args:
        step: the losses of one step, of this spacing.
        num_steps: T.
        interval: as from `spacing`.
        other_multiplier: noise multiplier of the other release; inf: none.
    """
    losses = step.self_compose(num_steps)
    if other_multiplier == math.inf:
        return losses
    other = from_gaussian_mechanism(
        other_multiplier, value_discretization_interval=interval
    )
    return losses.compose(other)
