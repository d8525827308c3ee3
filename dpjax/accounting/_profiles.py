"""Privacy profiles: the delta of one run of a mechanism, as a function of epsilon.

    delta(epsilon) = max over neighbors and sets S of Pr[S] - e^epsilon Pr'[S],     (1)

for every real epsilon, because the relation is symmetric: for epsilon < 0 the
complement of S gives delta(epsilon) = 1 - e^epsilon (1 - delta(-epsilon)). On a
neighbor, a set of probability z has at most the probability

    frontier(z) = min(1, inf over epsilon of e^epsilon z + delta(epsilon)).          (2)

This module has upper bounds of both; the minimum of several bounds is a bound.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import dp_accounting as dpa
import numpy as np
import scipy.special
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpjax import _validate
from dpjax._types import ADD_OR_REMOVE_ONE, REPLACE_ONE, NeighboringRelation
from dpjax.accounting._events import (
    ROUNDOFF,
    check_event,
    has_no_noise,
    leaves,
    map_leaves,
    pure_epsilon,
    read_under,
)
from dpjax.accounting._gaussian import gaussian_delta
from dpjax.accounting._likelihood_ratios import (
    RandomAllocationDpEvent,
    allocation_delta,
    with_release,
)
from dpjax.accounting._sampled_gaussian import (
    fixed_size_losses,
    overflow_probability,
    spacing,
)

Curve = Callable[[np.ndarray], np.ndarray]

_FFT_ERROR = 1e-15  # the error of a PLD for each step: see `_sampled_gaussian`
# The minimum (2) is over this grid, which costs less than 1e-6 of a probability.
_EPSILONS = np.r_[0.0, np.geomspace(1e-4, 200.0, 20_000)]
_ORDERS = np.r_[1 + np.geomspace(1e-3, 1e4, 300)]
_SAMPLED_ORDERS = np.r_[2:64, 64:513:32]  # orders between integers cost seconds
_LARGEST_EPSILON = 700.0
_ROOT_SLACK, _LARGEST_ROOT = 1e-9, 1e4


@dataclasses.dataclass(frozen=True)
class Profile:
    """Upper bounds of delta by epsilon for one run of a mechanism, as far as known."""

    pure: float  # the epsilon at delta = 0; inf if none is known
    delta: Curve | None = None  # of epsilon, from 0 on; None: from `renyi`
    frontier: Curve | None = None  # see `reach`; None: from the other fields
    # Orders above 1, and bounds of the Renyi divergences there.
    renyi: tuple[np.ndarray, np.ndarray] | None = None

    def delta_at(self, epsilon: np.ndarray) -> np.ndarray:
        """Returns upper bounds (n,) of delta at real epsilons (n,), by (1)."""
        size = np.abs(epsilon)
        bounds = [np.ones_like(size)]
        if math.isfinite(self.pure):
            bounds.append(_pure_delta(self.pure, 0.0, size))
        if self.delta is not None:
            bounds.append(self.delta(size))
        if self.renyi is not None:
            bounds.append(_renyi_delta(*self.renyi, size))
        delta = np.minimum.reduce(bounds)
        negative = -np.expm1(-size) + np.exp(-size) * delta
        return np.where(epsilon >= 0, delta, negative)

    def reach(self, z: np.ndarray) -> np.ndarray:
        """Returns upper bounds (n,) of the power of attacks, by false positive rate z.

        These are bounds of (2): of the probability on a neighbor of sets of outcomes
        that have probability z, an array (n,).
        """
        bounds = [np.ones_like(z)]
        if self.frontier is not None:
            bounds.append(self.frontier(z))
        else:
            slopes, delta = self._lines
            crossings = np.diff(delta) / np.diff(slopes)
            lowest = np.searchsorted(crossings, -z)
            bounds.append(slopes[lowest] * z + delta[lowest])
        if math.isfinite(self.pure):
            bounds.append(_pure_frontier(self.pure, 0.0, z))
        if self.renyi is not None:
            # Data processing implies z' (z'/z)^(a-1) <= e^((a-1) renyi).
            orders, values = (part[:, None] for part in self.renyi)
            with np.errstate(divide="ignore"):
                logs = (1 - 1 / orders) * (values + np.log(z))
            bounds.append(np.exp(np.minimum(np.min(logs, axis=0), 0.0)))
        return np.clip(np.minimum.reduce(bounds) * (1 + ROUNDOFF), 0.0, 1.0)

    def epsilon_at(self, delta: float) -> float:
        """Returns the smallest epsilon for a positive delta, rounded up."""
        reached = root(lambda x: float(self.delta_at(np.array([x]))[0]) - delta)
        return min(self.pure, reached)

    @functools.cached_property
    def _lines(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns slopes e^epsilon, increasing, and intercepts delta of lines in z."""
        # Each line e^epsilon z + delta bounds `reach`(z), and the minimum of all lines
        # is the bound. Lines that are the minimum for some z are the vertices of the
        # lower convex hull of delta over e^epsilon: only these are returned.
        epsilons = np.r_[-_EPSILONS[:0:-1], _EPSILONS]
        hull: list[tuple[float, float]] = []
        points = np.exp(epsilons).tolist(), self.delta_at(epsilons).tolist()
        for x, y in zip(*points, strict=True):
            while len(hull) > 1:
                (x_0, y_0), (x_1, y_1) = hull[-2:]
                if (y_1 - y_0) * (x - x_1) < (y - y_1) * (x_1 - x_0):
                    break
                hull.pop()
            hull.append((x, y))
        slopes, delta = np.array(hull).T
        return slopes, delta


def readable(name: str, event: dpa.DpEvent, relation: NeighboringRelation) -> Profile:
    """Returns the profile of an event; raises where there is none."""
    check_event(name, event)
    with_tuples = map_leaves(lambda part: part, event)  # in place of lists: hashable
    profile = _of_event(with_tuples, relation)
    rule = f"an event that an accountant can read under {relation.name}"
    _validate.require(profile is not None, name, event, rule)
    return profile or Profile(math.inf)


@functools.lru_cache(maxsize=64)
def profile_of_release(
    epsilon: float, delta: float, event: dpa.DpEvent, relation: NeighboringRelation
) -> Profile:
    """Returns the privacy profile, delta by epsilon, of a release with a guarantee."""
    # The profile follows from the guarantee's epsilon and delta, and from its event if
    # that is readable. Tradeoffs of attacks, and costs of searches, need all deltas.
    claimed = approximate(epsilon, delta)
    # A guarantee of a pure epsilon is used as it is, without its event.
    profile = _of_event(event, relation) if delta > 0 else None
    if profile is None:
        return claimed
    dropped = overflow_of(epsilon, delta, event)

    def delta_at(epsilon: np.ndarray) -> np.ndarray:
        cut = dropped * (1 + np.exp(np.minimum(epsilon, _LARGEST_EPSILON)))
        return np.minimum(claimed.delta_at(epsilon), profile.delta_at(epsilon) + cut)

    def frontier(z: np.ndarray) -> np.ndarray:
        with_cut = profile.reach(np.minimum(z + dropped, 1.0)) + dropped
        return np.minimum(claimed.reach(z), with_cut)

    if dropped == 0:
        return Profile(profile.pure, delta_at, frontier, profile.renyi)
    return Profile(math.inf, delta_at, frontier)


def approximate(epsilon: float, delta: float) -> Profile:
    """Returns the privacy profile, delta by epsilon, that (epsilon, delta)-DP implies.

    Such a mechanism leaks at most everything, with probability delta, and otherwise one
    answer of randomized response (Kairouz, Oh, Viswanath 2015).
    """
    if epsilon == math.inf:
        return Profile(math.inf, np.ones_like)
    pure = epsilon if delta == 0 else math.inf
    curve = functools.partial(_pure_delta, epsilon, delta)
    return Profile(pure, curve, functools.partial(_pure_frontier, epsilon, delta))


def root(excess: Callable[[float], float]) -> float:
    """Returns the zero of a decreasing function, rounded up; 0 if excess(0) <= 0."""
    # `excess` is delta(epsilon) minus a given delta, so that the zero is the epsilon at
    # this delta. The result is inf for a zero beyond 1e4.
    if excess(0.0) <= 0:
        return 0.0
    lower, upper = 0.0, 1.0
    while excess(upper) > 0:
        lower, upper = upper, 2 * upper
        if upper > _LARGEST_ROOT:
            return math.inf
    while upper - lower > _ROOT_SLACK * upper:
        middle = (lower + upper) / 2
        lower, upper = (middle, upper) if excess(middle) > 0 else (lower, middle)
    return upper


def gaussian(mu: float) -> Profile:
    """Returns the privacy profile of Gaussian noise, mu = sensitivity / stddev."""
    # Balle, Wang (2018), Theorem 8, have its delta(epsilon).
    if mu == 0:
        return approximate(0.0, 0.0)

    def frontier(z: np.ndarray) -> np.ndarray:
        return scipy.special.ndtr(scipy.special.ndtri(z) + mu) * (1 + 1e-12)

    return Profile(math.inf, functools.partial(gaussian_delta, mu), frontier)


def worst(profiles: Sequence[Profile]) -> Profile:
    """Returns a privacy profile of a mechanism that is drawn from several mechanisms.

    The draw ignores the data. The profile is the largest delta at every epsilon. Delta
    curves may cross, so the best of several runs may cost more than if all runs used
    any one of the mechanisms: `docs/privacy/proofs/choices.md`, 6.6.
    """
    if len(profiles) == 1:
        return profiles[0]

    def delta_at(epsilon: np.ndarray) -> np.ndarray:
        return np.maximum.reduce([each.delta_at(epsilon) for each in profiles])

    return Profile(max(each.pure for each in profiles), delta_at)


def overflow_of(epsilon: float, delta: float, event: dpa.DpEvent) -> float:
    """Returns a bound of the probability that padded batches drop a record."""
    # Padded batches have a fixed number of rows; to drop records beyond it costs delta.
    # The bound is for all steps of a run with this guarantee, and is 0 without such
    # batches. `poisson_capacity` bounds it by the epsilon of the run, which is known if
    # the event has no other part.
    parts = [part for part, _ in leaves(event)]
    padded = (dpa.PoissonSampledDpEvent, RandomAllocationDpEvent)
    if not any(isinstance(part, padded) for part in parts):
        return 0.0
    return overflow_probability(epsilon if len(parts) == 1 else 0.0, delta)


@functools.lru_cache(maxsize=64)
def _of_event(event: dpa.DpEvent, relation: NeighboringRelation) -> Profile | None:
    """Returns the privacy profile, delta by epsilon, of an event, or None."""
    # The result is None if neither an accountant nor a pure epsilon bounds the event.
    # The numbers of the event have the units that `gaussian_event` documents.
    parts, relation = list(leaves(event)), read_under(relation)
    kinds = {type(part) for part, _ in parts}
    if any(has_no_noise(part) for part, _ in parts):
        return approximate(math.inf, 0.0)
    if kinds <= {dpa.GaussianDpEvent, dpa.NoOpDpEvent}:
        return gaussian(_mu(parts))
    pure = math.fsum(count * pure_epsilon(part, relation) for part, count in parts)
    pure *= 1 + ROUNDOFF
    num_steps = sum(count for _, count in parts)
    delta = None
    # Noise on values of a known sensitivity has no relation of its own. The PLD
    # accountant of dp_accounting 0.6 counts composed randomized response only once, so
    # it does not read such events here.
    known = {dpa.GaussianDpEvent, dpa.NoOpDpEvent}
    has_none = kinds <= {*known, dpa.LaplaceDpEvent, DiscreteLaplaceDpEvent}
    accountant = PLDAccountant(ADD_OR_REMOVE_ONE if has_none else relation)
    if dpa.RandomizedResponseDpEvent not in kinds and accountant.supports(event):
        delta = _chords(accountant.compose(event).get_delta, num_steps)
    # For batches of fixed size, with Gaussian releases beside them, the deltas (1) of
    # `_sampled_gaussian` are below the Renyi bounds of dp_accounting.
    fixed_size = [
        (x.event.noise_multiplier, x.sample_size / x.source_dataset_size, count)
        for x, count in parts
        if isinstance(x, dpa.SampledWithoutReplacementDpEvent)
        and isinstance(x.event, dpa.GaussianDpEvent)
    ]
    is_alone = len(fixed_size) == 1 and len(kinds - known) == 1
    if is_alone and relation is REPLACE_ONE:
        mu = _mu(parts)
        multiplier, prob, count = fixed_size[0]
        other = 1 / mu if mu > 0 else math.inf
        interval = spacing(multiplier, prob, other)
        steps = fixed_size_losses(multiplier, prob, interval).self_compose(count)
        (losses,) = with_release([steps], other, interval)
        delta = _chords(losses.get_delta_for_epsilon, num_steps)
    if isinstance(event, RandomAllocationDpEvent):
        error = _FFT_ERROR * math.ceil(event.num_steps / event.num_bins)
        delta = _chords(functools.partial(allocation_delta, event, relation, error), 0)
    is_sampled = any(hasattr(part, "event") for part, _ in parts)
    accountant = RdpAccountant(_SAMPLED_ORDERS if is_sampled else _ORDERS, relation)
    renyi = None
    if delta is None and accountant.supports(event):
        accountant.compose(event)
        finite = np.isfinite(accountant.rdp)
        if finite.any():
            values = accountant.rdp[finite] * (1 + ROUNDOFF * num_steps)
            renyi = accountant.orders[finite], values
    if delta is None and renyi is None and pure == math.inf:
        return None
    return Profile(pure, delta, None, renyi)


def _mu(parts: list[tuple[dpa.DpEvent, int]]) -> float:
    """Returns 1 / noise multiplier of one Gaussian event as costly as all of parts."""
    squares = (
        count / part.noise_multiplier**2
        for part, count in parts
        if isinstance(part, dpa.GaussianDpEvent)
    )
    return math.sqrt(math.fsum(squares)) * (1 + ROUNDOFF)


def _chords(get_delta: Callable, num_steps: int) -> Curve:
    """Returns a fast upper bound of `get_delta`, a slow function delta(epsilon)."""
    # It interpolates values of `get_delta` linearly in e^epsilon: delta is convex in
    # e^epsilon, so chords are above it. The error of the FFT is added num_steps times.
    deltas = get_delta(_EPSILONS)
    deltas = np.broadcast_to(np.asarray(deltas, float), _EPSILONS.shape)
    known = np.minimum(deltas + _FFT_ERROR * num_steps, 1.0)
    last = len(_EPSILONS) - 1

    def delta(epsilon: np.ndarray) -> np.ndarray:
        left = np.searchsorted(_EPSILONS, epsilon, side="right") - 1
        left = np.clip(left, 0, last)
        right = np.minimum(left + 1, last)
        step = _EPSILONS[right] - _EPSILONS[left]
        past = np.minimum(epsilon - _EPSILONS[left], step)
        share = np.expm1(past) / np.where(step > 0, np.expm1(step), 1.0)
        return known[left] + share * (known[right] - known[left])

    return delta


def _renyi_delta(orders: np.ndarray, values: np.ndarray, epsilon: np.ndarray):
    """Returns the least delta of Canonne, Kamath, Steinke (2020), Proposition 12."""
    least = np.zeros_like(epsilon)
    for order, value in zip(orders, values, strict=True):
        log = (order - 1) * (value - epsilon + math.log1p(-1 / order))
        least = np.minimum(least, log - math.log(order))
    return np.exp(least)


def _pure_delta(epsilon: float, delta: float, at: np.ndarray) -> np.ndarray:
    gap = -np.expm1(np.minimum(at - epsilon, 0.0)) / (1 + math.exp(-epsilon))
    return delta + (1 - delta) * gap


def _pure_frontier(epsilon: float, delta: float, z: np.ndarray) -> np.ndarray:
    """Returns (2) for a run of which only epsilon and delta are known."""
    if epsilon > _LARGEST_EPSILON:
        return np.where(z > 0, 1.0, delta)
    grown = math.exp(epsilon)
    # This is 1 - e^-epsilon (1 - delta - z), without cancellation.
    last = -math.expm1(-epsilon) + (z + delta) / grown
    return np.minimum(grown * z + delta, last)
