"""The smallest noise multiplier of sampled batches within a budget."""

import dataclasses
import functools
import math
from collections.abc import Callable

from dpjax import _validate
from dpjax._rounding import rounded_up
from dpjax.accounting._gaussian import gaussian_stddev
from dpjax.accounting._poisson_capacity import without_overflow
from dpjax.accounting._sampled_gaussian import ROUNDED_UP, Scheme
from dpjax.accounting._zcdp import epsilon_to_rho

# Multipliers base 2^(-k / 1024): the smallest of them is too large by 7e-4 at most.
_PER_HALVING = 1024
_LARGEST_HALVINGS = 1000
# Epsilons between these are compared. If a multiplier is halved they at least double,
# where amplification is not lost: the first guess of their slope.
_LEAST, _MOST = 1e-9, 1e9
_LARGEST = 1e6  # an epsilon beyond it gets this one's noise, which is more
_RISE = math.log(2) / _PER_HALVING
# Privacy losses so many times as far apart tell epsilon to some thousandths, in a
# tenth of the time.
_COARSENESS = 16
_MOST_GUESSES = 12  # of the evaluations of one search, before a plain bisection


@functools.lru_cache(maxsize=256)
def calibrate(epsilon: float, delta: float, scheme: Scheme) -> float:
    """The smallest multiplier whose epsilon at `delta` is at most `epsilon`."""
    if not scheme.is_full_batch and epsilon < math.inf:
        epsilon = min(epsilon, _LARGEST)
    if scheme.other_multiplier < math.inf:
        sampled = dataclasses.replace(scheme, other_multiplier=math.inf)
        least = scheme.epsilon(math.inf, delta)
        rule = f"within the budget, {epsilon}: it alone costs {rounded_up(least, 4)}"
        is_fine = least <= epsilon
        _validate.require(is_fine, "other_multiplier", scheme.other_multiplier, rule)
        return _smallest(epsilon, delta, scheme, calibrate(epsilon, delta, sampled))
    if scheme.noise != "gaussian":
        rho = epsilon_to_rho(epsilon, delta) / scheme.num_steps / scheme.group_size**2
        return math.sqrt(0.5 / rho) * (1 + ROUNDED_UP) if rho > 0 else math.inf
    usable_delta = without_overflow(delta) if scheme.has_coins else delta
    full_batch = gaussian_stddev(
        epsilon,
        usable_delta,
        sensitivity=float(scheme.group_size),
        num_releases=scheme.num_releases,
    )
    if scheme.is_full_batch:
        return full_batch
    return _smallest(epsilon, delta, scheme, full_batch)


def _smallest(epsilon: float, delta: float, scheme: Scheme, base: float) -> float:
    """Returns the smallest base 2^(-k / 1024) that is within the budget.

    An evaluation may take a fifth of a second. Coarse ones tell where to look: a few
    fine ones then see that a multiplier is within the budget, and the next is not.
    """
    if base in (0.0, math.inf):
        return base

    def multiplier(k: int) -> float:
        return base * 2.0 ** min(-k / _PER_HALVING, _LARGEST_HALVINGS)

    def excess(coarseness: int) -> Callable[[int], float]:
        @functools.cache
        def at(k: int) -> float:
            reached = scheme.epsilon(multiplier(k), delta, coarseness)
            return math.log(min(max(reached, _LEAST), _MOST) / epsilon)

        return at

    start, rise = 0, _RISE
    if scheme.num_bins is None and scheme.group_size == 1:
        coarse = excess(_COARSENESS)
        start = _last_within(coarse, 0, _RISE)
        rise = max(coarse(start + 1) - coarse(start), _RISE / 10)
    return multiplier(_last_within(excess(1), start, rise))


def _last_within(excess: Callable[[int], float], start: int, rise: float) -> int:
    """Returns the k where the increasing `excess` is at most 0, and above at k + 1.

    It is nearly linear: a line through the two values nearest to 0 tells where to look
    next. `rise` is a guess of its slope.
    """
    seen: dict[int, float] = {}
    within, beyond, guess = -math.inf, math.inf, start
    while within + 1 < beyond:
        k = int(guess)
        seen[k] = excess(k)
        within, beyond = (k, beyond) if seen[k] <= 0 else (within, k)
        near, *rest = sorted(seen, key=lambda k: abs(seen[k]))[:2]
        for other in rest:
            rise = max((seen[other] - seen[near]) / (other - near), _RISE / 10)
        zero = math.floor(near - seen[near] / rise)
        stride = 2 ** max(len(seen) - 2, 0)
        if beyond == math.inf:
            guess = max(zero, within + stride)
        elif within == -math.inf:
            guess = min(zero, beyond - stride)
        elif len(seen) > _MOST_GUESSES or not within <= zero < beyond:
            guess = (within + beyond) // 2
        else:
            guess = max(zero, within + 1)
    return int(within)
