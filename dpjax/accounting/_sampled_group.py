"""Poisson batches where k records change at once, those of one person.

A step with noise N(0, 1) is dominated by the pair of

    P* = sum over i of Pr[Bin(k, q) = i] N(i C, 1)                                  (1)

and N(0, 1), in both directions, if the k records are added or removed; if they are
replaced, by P* and its mirror image. The same pair dominates a cycle of steps of which
each record enters its own (`batching.CyclicPoisson`). Steps compose adaptively. Proof,
by Gaussian comparison: `docs/privacy/proofs/composition.md`, 3.7.

Numbers. In a cell of the line, the likelihood ratio of the pair increases. Its mass
goes to the two points of the grid of losses around it, so that its mean is preserved,
which raises all divergences (`_random_allocation.py`).
"""

import functools
import math

import numpy as np
import scipy.stats
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from scipy.special import ndtr

from dpjax._types import REPLACE_ONE, NeighboringRelation
from dpjax.accounting._random_allocation import Law, losses_of, normal_masses

# Beyond these no gain is claimed: the largest k C, of other releases too, and how many
# terms of (1) have a probability that is seen. Others move to the next larger shift.
_LARGEST_SHIFT, _MOST_TERMS, _UNSEEN = 10.0, 500, 1e-20
_REACH = 9.0  # of a normal variable
# The spacing of losses: over their standard deviation, at most, and how many cells.
_FINENESS, _WIDEST, _MOST_LOSSES = 0.01, 0.01, 20_000
_CELLS_PER_LOSS = 8
_ROUNDOFF = 1e-9


def group_epsilon(
    stddev: float,
    delta: float,
    *,
    sampling_prob: float,
    num_steps: int,
    group_size: int,
    relation: NeighboringRelation,
    other_multiplier: float,
) -> float:
    """Returns an upper bound of epsilon of T Poisson steps, and another release.

    Args:
        stddev: standard deviation over the norm bound of a record.
        delta: privacy parameter in (0, 1), without the error of the FFT.
        sampling_prob: q.
        num_steps: T.
        group_size: k.
        relation: REPLACE_ONE or ADD_OR_REMOVE_ONE, of the k records together.
        other_multiplier: stddev over the l2 sensitivity to one record of another
            release, on all records; inf: none.
    """
    if group_size > _LARGEST_SHIFT * min(stddev, other_multiplier):
        return math.inf
    probs = scipy.stats.binom.pmf(np.arange(group_size + 1), group_size, sampling_prob)
    terms = np.append(np.flatnonzero(probs[:-1] > _UNSEEN), group_size)
    if len(terms) > _MOST_TERMS:
        return math.inf
    weights = np.add.reduceat(probs, np.append(0, terms[:-1] + 1))
    law = step_law(terms / stddev, weights, relation)
    directions = [x.self_compose(num_steps) for x in losses_of(law)]
    if other_multiplier < math.inf:
        other = from_gaussian_mechanism(
            other_multiplier / group_size, value_discretization_interval=law.spacing
        )
        directions = [x.compose(other) for x in directions]
    delta *= 1 - _ROUNDOFF
    epsilons = [x.get_epsilon_for_delta(delta) for x in directions]
    return float(max(epsilons)) + _ROUNDOFF


def step_law(
    moves: np.ndarray, weights: np.ndarray, relation: NeighboringRelation
) -> Law:
    """Returns a law above that of the likelihood ratio of the pair (1).

    Args:
        moves: i C of its terms, increasing, in standard deviations of the noise.
        weights: their probabilities.
        relation: REPLACE_ONE or ADD_OR_REMOVE_ONE.
    """
    law = moves, weights
    other = (-moves, weights) if relation is REPLACE_ONE else (np.zeros(1), np.ones(1))

    def log_ratio(x: np.ndarray) -> np.ndarray:
        return _log_density(x, *law) - _log_density(x, *other)

    end = _REACH + moves[-1]
    rough, width = np.linspace(-end, end, 2_000, retstep=True)
    losses = log_ratio(rough)
    spread = width * float(np.exp(-(rough**2) / 2) @ losses**2) / math.sqrt(2 * math.pi)
    largest = float(losses[-1] - losses[0])
    fine = max(_FINENESS * math.sqrt(spread), largest / _MOST_LOSSES)
    spacing = min(_WIDEST, fine)

    num_losses = 2 * end * float(np.max(np.diff(losses))) / width / spacing
    x = np.linspace(-end, end, math.ceil(_CELLS_PER_LOSS * num_losses) + 2)
    losses = log_ratio(x) / spacing
    low = np.floor(losses[:-1]).astype(int)
    high = np.maximum(np.ceil(losses[1:]).astype(int), low + 1)
    mass = _masses(x, *other)
    gain = _masses(x, *law) * np.exp(-low * spacing) - mass
    above = np.clip(gain / np.expm1((high - low) * spacing), 0.0, mass)
    first = low[0]
    masses = np.zeros(high[-1] - first + 1)
    np.add.at(masses, low - first, mass - above)
    np.add.at(masses, high - first, above)
    # The ends: to zero and the next point, and to the last point and infinity.
    begin, last = math.ceil(losses[0]), math.floor(losses[-1])
    lifted = _below(x[0], *law) * math.exp(-begin * spacing)
    left = _below(-x[-1], -other[0], other[1])
    masses[begin - first] += lifted
    masses[last - first] += left
    zero = max(_below(x[0], *other) - lifted, 0.0)
    lost = _below(-x[-1], -law[0], law[1]) - math.exp(last * spacing) * left
    return Law(spacing, int(first), masses, zero, max(lost, 0.0))


def _log_density(x: np.ndarray, moves: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns log densities of a mixture of N(move, 1), over that of N(0, 1)."""
    with np.errstate(divide="ignore"):
        logs = np.log(weights) - moves**2 / 2
    terms = (log + x * move for log, move in zip(logs, moves, strict=True))
    return functools.reduce(np.logaddexp, terms)


def _masses(x: np.ndarray, moves: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the probabilities of a mixture between neighbors."""
    terms = zip(weights, moves, strict=True)
    return sum((w * normal_masses(x - move) for w, move in terms), np.zeros(len(x) - 1))


def _below(x: float, moves: np.ndarray, weights: np.ndarray) -> float:
    """Returns the probability of a mixture below a point."""
    return float(weights @ ndtr(x - moves))
