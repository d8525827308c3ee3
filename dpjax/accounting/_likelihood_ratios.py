"""Laws of likelihood ratios on a grid: random allocation, groups in Poisson batches.

Random allocation. An epoch is c steps with Gaussian noise of stddev 1. A record enters
one step, chosen uniformly and independently of all else, and moves the sum of that step
by a vector of norm at most C, which may depend on the outcomes of the earlier steps.
Every hockey-stick divergence between the laws with the record and without it is at most
the divergence of

    P* = mean over i of N(C e_i, I) and Q* = N(0, I), in c dimensions,             (1)

in both directions: `docs/privacy/proofs/composition.md`, 3.8. The same holds after
r < c steps, where the likelihood ratio under Q is (1 - r/c) + (Y_1 + .. + Y_r) / c, and
Y_i is the ratio of step i. Epochs, and other Gaussian releases, compose adaptively. If
the record is replaced, P' is the other law, Q a run without it, and

    P(S) <= e^e1 Q(S) + d1 <= e^(e1 + e2) P'(S) + e^e1 d2 + d1.                    (2)

Groups. A Poisson step that k records may enter is dominated by the pair of

    P* = sum over i of Pr[Bin(k, q) = i] N(i C, 1)                                  (3)

and N(0, 1), in both directions, if the k records are added or removed; if they are
replaced, by P* and its mirror image. The same pair dominates a cycle of steps in which
each record may enter only its own (`batching.CyclicPoisson`). Steps compose adaptively:
`docs/privacy/proofs/composition.md`, 3.7.

Numbers. Every rounding replaces the law of the likelihood ratio under Q by a law that
is larger in convex order, which increases all divergences (3.8): mass goes to the two
neighboring points of a grid, in proportions that preserve the mean. So the laws of
means of 1, 2, 4, .. terms are discrete, and bounds in both directions. Feldman and
Shenfeld (2025, 2026) have the pair (1), and round all losses to one side.
"""

import dataclasses
import functools
import math

import numpy as np
import scipy.stats
from dp_accounting import DpEvent, GaussianDpEvent
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
)
from scipy.special import ndtr

from dpjax._types import REPLACE_ONE, NeighboringRelation
from dpjax.accounting._sampling import Sampling

# Outside of these standard deviations no gain is claimed: epsilon is about 20 at the
# lower end, and the laws span hundreds of units of the logarithm below it.
_LEAST_STDDEV, _LARGEST_STDDEV = 0.2, 1e6

# The spacing of losses is the first share of their standard deviation, and at most the
# second number. It raises the variance of the losses by about the square of the share,
# and the noise by half as much. Rare large losses get a wider spacing, so that an epoch
# has at most about `_MOST_LOSSES` cells.
_FINENESS, _WIDEST, _MOST_LOSSES = 0.02, 0.01, 20_000

# So much mass is moved at each end of a law; grids reach so many standard deviations.
_UNSEEN, _REACH = 1e-18, 9.0

# This covers the errors in epsilon of float64 and of the bins (`batching.BallsInBins`).
_ROUNDOFF = 1e-9
_LARGEST_EPSILON = 300.0

# No gain is claimed for groups with a larger k C (of other releases too), or with more
# terms of (3) above `_UNSEEN_TERM`. The terms below it move to the next larger shift.
_LARGEST_SHIFT, _MOST_TERMS, _UNSEEN_TERM = 10.0, 500, 1e-20
_GROUP_FINENESS, _CELLS_PER_LOSS = 0.01, 8


@dataclasses.dataclass(frozen=True)
class RandomAllocationDpEvent(DpEvent):
    """Steps in which each record enters one of every c, uniformly and independently.

    The accountants of `dp_accounting` 0.6 reject it. The last epoch may be shorter.
    `noise_multiplier_to_epsilon` with `num_bins` computes the cost.

    Attributes:
        num_bins: c.
        num_steps: T, the number of steps.
        event: the release of the records that enter a step; its noise multiplier is
            stddev / norm bound of a record, under both relations.
    """

    num_bins: int
    num_steps: int
    event: GaussianDpEvent


@dataclasses.dataclass(frozen=True)
class Law:
    """The distribution under Q of a likelihood ratio P/Q, on a grid e^(spacing i)."""

    spacing: float  # distance of the logarithms of two points
    first: int  # the integer of the first point
    masses: np.ndarray  # probabilities of the points
    zero: float  # probability of zero
    lost: float  # one minus the mean: the probability of infinity under P


def allocation_epsilon(
    stddev: float, delta: float, run: Sampling, other_multiplier: float, fft_error
) -> float:
    """Returns an upper bound of the epsilon at `delta` of steps with random allocation.

    A record enters one random step of each epoch of `run.num_bins` steps. `stddev` is
    the noise of a step, and `other_multiplier` that of another Gaussian release (inf:
    none), in units of the norm bound of a record. `fft_error` is the absolute error of
    a composed delta. The result is inf where `epsilon_of_run` must use other bounds.
    """
    least = min(stddev, other_multiplier)
    if not _LEAST_STDDEV <= least <= stddev <= _LARGEST_STDDEV:
        return math.inf
    sizes = run.num_steps, run.num_bins or 1
    removed, added = run_losses(stddev, *sizes, other_multiplier)
    delta *= 1 - _ROUNDOFF
    if run.relation is not REPLACE_ONE:
        pair = (x.get_epsilon_for_delta(delta - fft_error) for x in (removed, added))
        epsilon = max(pair) if delta > fft_error else math.inf
        return float(epsilon) + _ROUNDOFF
    smallest = delta / 1_000 - fft_error
    if smallest <= 0:
        return math.inf
    top = max(x.get_epsilon_for_delta(smallest) for x in (removed, added))
    if top > _LARGEST_EPSILON:
        return math.inf
    # This is (2). Chords of a delta, which is convex in e^epsilon, are above it.
    first = np.linspace(0.0, float(top) + _ROUNDOFF, 1_000)
    grown = np.exp(first)
    of_first = np.asarray(removed.get_delta_for_epsilon(first.tolist()))
    of_second = np.asarray(added.get_delta_for_epsilon(first.tolist()))
    rest = (delta - of_first - fft_error) / grown - fft_error
    factor = np.interp(rest, of_second[::-1], grown[::-1], left=math.inf)
    return float(np.min(first + np.log(factor))) + _ROUNDOFF


def allocation_delta(
    event: RandomAllocationDpEvent, relation, fft_error: float, epsilons: np.ndarray
) -> np.ndarray:
    """Returns upper bounds (n,) of delta, by epsilon, under random allocation."""
    # A record enters one random step of each epoch of `event.num_bins` steps. The
    # epsilons (n,) are 0 or more; `fft_error` is the absolute error of a delta that is
    # composed by FFT. A `Profile` of the event needs this function.
    stddev = event.event.noise_multiplier
    if not _LEAST_STDDEV <= stddev <= _LARGEST_STDDEV:
        return np.ones_like(epsilons)
    run = run_losses(stddev, event.num_steps, event.num_bins, math.inf)
    added, other = (lambda e, x=x: np.asarray(x.get_delta_for_epsilon(e)) for x in run)
    exact = np.maximum(epsilons - _ROUNDOFF, 0.0)
    if relation is not REPLACE_ONE:
        delta = np.maximum(added(exact), other(exact)) + fft_error
    else:
        # The bound (2) splits epsilon in two parts: these are shares of the first part.
        first = exact[:, None] * np.linspace(0.0, 1.0, 101)
        values, places = np.unique(first, return_inverse=True)
        of_first = added(values)[places].reshape(first.shape) + fft_error
        of_second = other(values)[places].reshape(first.shape)[:, ::-1] + fft_error
        grown = np.exp(np.minimum(first, _LARGEST_EPSILON))
        delta = np.min(of_first + grown * of_second, axis=1)
    return np.minimum(delta * (1 + _ROUNDOFF), 1.0)


def run_losses(
    stddev: float, num_steps: int, num_bins: int, other_multiplier: float
) -> tuple[PrivacyLossDistribution, PrivacyLossDistribution]:
    """Returns the privacy loss distributions for a removed and for an added record."""
    # They are of a run with random allocation: the record enters one random step of
    # each epoch of `num_bins` steps; the last epoch may be shorter. `stddev` of a step
    # and `other_multiplier` of another Gaussian release (inf: none) are in units of the
    # norm bound of the record.
    shift = 1 / stddev
    epochs, last = divmod(num_steps, num_bins)
    # The variance of the losses, and the largest loss of an epoch, set the spacing.
    spread = math.expm1(shift**2) * (epochs + last / num_bins) / num_bins
    num_composed = epochs + (last > 0)
    if other_multiplier < math.inf:
        spread, num_composed = spread + other_multiplier**-2, num_composed + 1
    largest = math.log1p(math.exp(_REACH * shift + shift**2 / 2) / num_bins)
    fine = max(_FINENESS * math.sqrt(spread / num_composed), largest / _MOST_LOSSES)
    spacing = min(_WIDEST, fine)
    parts = []
    if epochs:
        epoch = losses_of(_epoch(num_bins, num_bins, shift, spacing))
        parts.append([x.self_compose(epochs) if epochs > 1 else x for x in epoch])
    if last:
        parts.append(losses_of(_epoch(last, num_bins, shift, spacing)))
    directions = [
        functools.reduce(lambda one, other: one.compose(other), direction)
        for direction in zip(*parts, strict=True)
    ]
    removed, added = with_release(directions, other_multiplier, spacing)
    return removed, added


def with_release(
    losses: list[PrivacyLossDistribution], multiplier: float, interval: float
) -> list[PrivacyLossDistribution]:
    """Returns privacy losses with those of a Gaussian release (inf: none) composed."""
    if multiplier == math.inf:
        return losses
    other = from_gaussian_mechanism(multiplier, value_discretization_interval=interval)
    return [each.compose(other) for each in losses]


def losses_of(law: Law) -> list[PrivacyLossDistribution]:
    """Returns the privacy losses of a law, from P to Q and from Q to P."""
    spacing, probs = law.spacing, law.masses * _points(law)
    last = law.first + len(probs) - 1
    back = spacing, -last, law.masses[::-1].copy(), law.zero, True
    pmfs = (spacing, law.first, probs, law.lost, True), back
    return [PrivacyLossDistribution(pld_pmf.DensePLDPmf(*pmf)) for pmf in pmfs]


def _epoch(num_steps: int, num_bins: int, shift: float, spacing: float) -> Law:
    """Returns the law of the likelihood ratio of an epoch with random allocation."""
    # The ratio compares the densities of the epoch's noisy sums with a record and
    # without it; its log is the privacy loss. The record enters one random step of
    # `num_bins`, and moves the sum of this step by `shift` stddevs of the noise. Only
    # num_steps of these steps are made. `spacing` is the distance of two logs.

    @functools.cache
    def mean_of(count: int, depth: int) -> Law:
        # A term of weight 2^-depth in the mean may be rounded 2^(depth/2) times wider.
        wider = spacing * 2 ** (depth // 2)
        if count == 1:
            return _lognormal(shift, wider)
        half = count // 2
        first, second = mean_of(half, depth + 1), mean_of(count - half, depth + 1)
        return _mixed(first, second, half / count, wider)

    if num_steps == num_bins:
        return mean_of(num_bins, 0)
    law = mean_of(num_steps, math.floor(math.log2(num_bins / num_steps)))
    absent = Law(law.spacing, 0, np.ones(1), 0.0, 0.0)
    return _mixed(absent, law, (num_bins - num_steps) / num_bins, spacing)


def _lognormal(shift: float, spacing: float) -> Law:
    """Returns a law that bounds exp(shift z - shift^2/2) for a standard normal z."""
    # This is the likelihood ratio of a step whose sum a record moves by `shift` stddevs
    # of noise. The law is on a grid of logs, and larger in convex order: epsilons that
    # are computed from it are upper bounds.
    reach = math.ceil((_REACH * shift + shift**2 / 2) / spacing)
    z = spacing * np.arange(-reach, reach + 1) / shift + shift / 2
    points = np.exp(spacing * np.arange(-reach, reach + 1))
    mass = normal_masses(z)
    above = (normal_masses(z - shift) / points[:-1] - mass) / math.expm1(spacing)
    above = np.clip(above, 0.0, mass)
    masses = np.r_[mass - above, 0.0] + np.r_[0.0, above]
    lifted = ndtr(z[0] - shift) / points[0]
    masses[0] += lifted
    masses[-1] += ndtr(-z[-1])
    lost = ndtr(shift - z[-1]) - points[-1] * ndtr(-z[-1])
    zero = max(float(ndtr(z[0]) - lifted), 0.0)
    return _trimmed(Law(spacing, -reach, masses, zero, max(float(lost), 0.0)))


def normal_masses(z: np.ndarray) -> np.ndarray:
    """Returns normal probabilities between neighboring z, from the nearer tail."""
    upper = ndtr(-z[:-1]) - ndtr(-z[1:])
    return np.where(z[:-1] > 0, upper, ndtr(z[1:]) - ndtr(z[:-1]))


def _mixed(first: Law, second: Law, weight: float, spacing: float) -> Law:
    """Returns a law that bounds weight A + (1 - weight) B, for independent A and B."""
    # A and B, with laws `first` and `second`, are likelihood ratios of two parts of an
    # epoch. The likelihood ratio of both parts together is their mean, weighted by the
    # numbers of steps. The result is larger in convex order than the law of this mean,
    # so that epsilons computed from it are upper bounds.
    # Both spacings are the same multiple of the new `spacing`. Up to a shift, the place
    # of a sum on the grid depends on the gap of the two integers only.
    factor = round(first.spacing / spacing)
    size, other_size = len(first.masses), len(second.masses)
    gaps = second.first - first.first + np.arange(1 - size, other_size)
    logs = np.log1p((1 - weight) * np.expm1(gaps * first.spacing))
    both, both_above = _place(logs, spacing)
    weights = np.array([weight, 1 - weight])
    (of_one, of_two), alone_above = _place(np.log(weights), spacing)
    low = factor * min(first.first, second.first) + min(of_one, of_two)
    high = factor * max(first.first + size, second.first + other_size) + 2
    masses = np.zeros(high - low)

    def put(place: int, above: float, products: np.ndarray) -> None:
        start = place - low
        stop = start + factor * (len(products) - 1) + 1
        masses[start:stop:factor] += (1 - above) * products
        masses[start + 1 : stop + 1 : factor] += above * products

    cells = (x.tolist() for x in (gaps, both, both_above))
    for gap, place, above in zip(*cells, strict=True):
        begin = max(first.first, second.first - gap)
        end = min(first.first + size, second.first + other_size - gap)
        products = first.masses[begin - first.first : end - first.first].copy()
        products *= second.masses[begin + gap - second.first : end + gap - second.first]
        put(factor * begin + place, above, products)
    # These are the sums in which B or A is zero.
    put(factor * first.first + of_one, alone_above[0], first.masses * second.zero)
    put(factor * second.first + of_two, alone_above[1], second.masses * first.zero)
    lost = weight * first.lost + (1 - weight) * second.lost
    return _trimmed(Law(spacing, low, masses, first.zero * second.zero, lost))


def _place(logs: np.ndarray, spacing: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the grid's integers below logs, and the shares of the next integers."""
    places = np.floor(logs / spacing).astype(int)
    above = np.expm1(logs - places * spacing) / math.expm1(spacing)
    return places, np.clip(above, 0.0, 1.0)


def _points(law: Law) -> np.ndarray:
    return np.exp(law.spacing * (law.first + np.arange(len(law.masses))))


def _trimmed(law: Law) -> Law:
    """Returns a law that bounds the given law, without the points of its far ends."""
    # Mass of 1e-18 moves at either end, so that there are fewer points. The new law is
    # larger in convex order, so that bounds of epsilon stay valid.
    points, masses = _points(law), law.masses
    low = int(np.searchsorted(np.cumsum(masses), _UNSEEN))
    beyond = int(np.searchsorted(np.cumsum((masses * points)[::-1]), _UNSEEN))
    high = len(masses) - 1 - beyond
    central = masses[low : high + 1].copy()
    lifted = float(masses[:low] @ points[:low]) / points[low]
    central[0] += lifted
    central[-1] += masses[high + 1 :].sum()
    zero = law.zero + max(float(masses[:low].sum()) - lifted, 0.0)
    lost = float(masses[high + 1 :] @ (points[high + 1 :] - points[high]))
    return Law(law.spacing, law.first + low, central, zero, law.lost + lost)


def group_epsilon(stddev: float, delta: float, run: Sampling) -> float:
    """Returns an upper bound of epsilon if a group of records changes, at `delta`."""
    # `run` has the group's size, the number of steps on Poisson batches, and another
    # Gaussian release, if any. `stddev` of a step is in units of a record's norm bound;
    # `delta` is already reduced by the FFT's error. Without a bound the result is inf.
    group_size, other_multiplier = run.group_size, run.other_multiplier
    if group_size > _LARGEST_SHIFT * min(stddev, other_multiplier):
        return math.inf
    counts = np.arange(group_size + 1)
    probs = scipy.stats.binom.pmf(counts, group_size, run.sampling_prob)
    terms = np.append(np.flatnonzero(probs[:-1] > _UNSEEN_TERM), group_size)
    if len(terms) > _MOST_TERMS:
        return math.inf
    weights = np.add.reduceat(probs, np.append(0, terms[:-1] + 1))
    law = step_law(terms / stddev, weights, run.relation)
    directions = [x.self_compose(run.num_steps) for x in losses_of(law)]
    directions = with_release(directions, other_multiplier / group_size, law.spacing)
    delta *= 1 - _ROUNDOFF
    return float(max([x.get_epsilon_for_delta(delta) for x in directions])) + _ROUNDOFF


def step_law(
    moves: np.ndarray, weights: np.ndarray, relation: NeighboringRelation
) -> Law:
    """Returns a law of the likelihood ratio of a Poisson step that a group may enter.

    Composed laws, rounded so that epsilons are bounds, give `group_epsilon`. `weights`
    are the probabilities of the numbers i of records that enter, and `moves` the
    increasing shifts i C of the sum, in stddevs: (3), a mixture of Gaussians.
    """
    law = moves, weights
    other = (-moves, weights) if relation is REPLACE_ONE else (np.zeros(1), np.ones(1))

    def log_ratio(x: np.ndarray) -> np.ndarray:
        return _log_density(x, *law) - _log_density(x, *other)

    end = _REACH + moves[-1]
    # A rough grid measures the spread of the losses, which sets the spacing.
    rough, width = np.linspace(-end, end, 2_000, retstep=True)
    losses = log_ratio(rough)
    spread = width * float(np.exp(-(rough**2) / 2) @ losses**2) / math.sqrt(2 * math.pi)
    largest = float(losses[-1] - losses[0])
    fine = max(_GROUP_FINENESS * math.sqrt(spread), largest / _MOST_LOSSES)
    spacing = min(_WIDEST, fine)

    num_losses = 2 * end * float(np.max(np.diff(losses))) / width / spacing
    x = np.linspace(-end, end, math.ceil(_CELLS_PER_LOSS * num_losses) + 2)
    losses = log_ratio(x) / spacing
    # The mass of a cell of x goes to two points around its losses, and keeps its mean.
    low = np.floor(losses[:-1]).astype(int)
    high = np.maximum(np.ceil(losses[1:]).astype(int), low + 1)
    mass = _masses(x, *other)
    gain = _masses(x, *law) * np.exp(-low * spacing) - mass
    above = np.clip(gain / np.expm1((high - low) * spacing), 0.0, mass)
    first = low[0]
    masses = np.zeros(high[-1] - first + 1)
    np.add.at(masses, low - first, mass - above)
    np.add.at(masses, high - first, above)
    # Mass beyond the ends goes to zero and the first point, or the last and infinity.
    begin, last = math.ceil(losses[0]), math.floor(losses[-1])
    lifted = _below(x[0], *law) * math.exp(-begin * spacing)
    left = _below(-x[-1], -other[0], other[1])
    masses[begin - first] += lifted
    masses[last - first] += left
    zero = max(_below(x[0], *other) - lifted, 0.0)
    lost = _below(-x[-1], -law[0], law[1]) - math.exp(last * spacing) * left
    return Law(spacing, int(first), masses, zero, max(lost, 0.0))


def _log_density(x: np.ndarray, moves: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the log likelihood ratio of a mixture of N(move, 1) and N(0, 1)."""
    with np.errstate(divide="ignore"):
        logs = np.log(weights) - moves**2 / 2
    terms = (log + x * move for log, move in zip(logs, moves, strict=True))
    return functools.reduce(np.logaddexp, terms)


def _masses(x: np.ndarray, moves: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the probabilities of a mixture between neighboring x."""
    terms = zip(weights, moves, strict=True)
    return sum((w * normal_masses(x - move) for w, move in terms), np.zeros(len(x) - 1))


def _below(x: float, moves: np.ndarray, weights: np.ndarray) -> float:
    """Returns the probability of a mixture below a point."""
    return float(weights @ ndtr(x - moves))
