"""Private selections: the cost of T adaptive selections, and the epsilon of each.

A selection with epsilon_0 is epsilon_0-DP by either mechanism. T selections that are
epsilon_0-DP leak at most as much as T answers of randomized response (Kairouz, Oh and
Viswanath 2015). With p = 1 / (1 + e^epsilon_0), these answers have

    delta(epsilon) = sum_l Bin(l; T, p) (1 - e^(epsilon - (T - 2l) epsilon_0))_+     (1)

where l counts the false answers. At delta = 0 this is basic composition, T epsilon_0;
it is never more than advanced composition. The exponential mechanism leaks less: its
log probability ratio has a range of epsilon_0 in all, so it is (epsilon_0^2/8)-zCDP,
which gives a smaller epsilon for large T.

Sources: Kairouz, Oh, Viswanath (2015), "The composition theorem for differential
privacy", Theorem 3.3; for bounded range Dong, Durfee, Rogers (2020), "Optimal
differential privacy composition for exponential mechanisms"; Cesar, Rogers (2021),
"Bounding, concentrating, and truncating", Lemma 3.2, for epsilon^2/8.
"""

from collections.abc import Callable

import numpy as np
import scipy.optimize
import scipy.special
import scipy.stats
from dp_accounting import RandomizedResponseDpEvent, SelfComposedDpEvent

from dpjax._types import SelectionName
from dpjax.accounting._events import BoundedRangeDpEvent
from dpjax.accounting._zcdp import rho_to_epsilon

# Roots are computed to about 1e-12. A total epsilon is rounded up by the first share,
# and the epsilon of each selection is rounded down by the second, larger share, so that
# the selections together never exceed the budget.
_TOTAL_SLACK = 1e-10
_EACH_SLACK = 1e-9


def selection_epsilon(
    epsilon: float,
    delta: float,
    *,
    num_selections: int,
    mechanism: SelectionName = "exponential",
) -> float:
    """Returns the epsilon of each of T adaptive selections that share a budget.

    It is the largest epsilon_0, rounded down by one part in 1e9 (at delta = 0 it is
    exactly epsilon / T), with which T = `num_selections` selections, each of which may
    depend on earlier outcomes, are together (epsilon, delta)-DP under the relation for
    which each sensitivity range holds.
    """
    basic = epsilon / num_selections
    if delta == 0 or num_selections == 1:
        return basic

    how = {"num_selections": num_selections, "mechanism": mechanism}

    def excess(each: float) -> float:
        return total_selection_epsilon(each, delta, **how) - epsilon

    upper = epsilon
    while excess(upper) < 0:  # this happens only at a large delta
        upper *= 2
    return max(basic, _root(excess, upper) * (1 - _EACH_SLACK))


def total_selection_epsilon(
    epsilon: float,
    delta: float,
    *,
    num_selections: int,
    mechanism: SelectionName = "exponential",
) -> float:
    """Returns the total epsilon at `delta` of T adaptive selections of `epsilon` each.

    Rounded up, it is the smallest of basic composition, optimal composition, (1) of
    this module, and for the exponential mechanism zCDP with rho = T epsilon^2 / 8. The
    zCDP bound of permute-and-flip, with epsilon^2 / 2, is never below (1).
    """
    basic = num_selections * epsilon
    if delta == 0 or epsilon == 0:
        return basic
    total = min(basic, _optimal_epsilon(epsilon, delta, num_selections))
    if mechanism == "exponential":
        rho = num_selections * (epsilon * epsilon) / 8
        total = min(total, rho_to_epsilon(rho, delta) * (1 + _TOTAL_SLACK))
    return total


def selection_event(
    epsilon: float, *, num_selections: int = 1, mechanism: SelectionName = "exponential"
) -> SelfComposedDpEvent:
    """Returns the `dp_accounting` event of T adaptive selections."""
    # Permute-and-flip is read as randomized response between two values, the worst of
    # all mechanisms of this epsilon at delta = 0.
    if mechanism == "exponential":
        event = BoundedRangeDpEvent.of(epsilon)
    else:
        flip_prob = float(scipy.special.expit(-epsilon))
        event = RandomizedResponseDpEvent(noise_parameter=2 * flip_prob, num_buckets=2)
    return SelfComposedDpEvent(event, num_selections)


def _optimal_epsilon(epsilon: float, delta: float, num_selections: int) -> float:
    """Returns the total epsilon of T selections of `epsilon` each, at `delta`."""
    # It solves (1) of this module, optimal composition, for epsilon, rounded up.
    flips = np.arange(num_selections // 2 + 1)  # with more, the loss is negative
    losses = (num_selections - 2 * flips) * epsilon
    masses = scipy.stats.binom.pmf(flips, num_selections, scipy.special.expit(-epsilon))

    def excess(total: float) -> float:
        gains = -np.expm1(np.minimum(total - losses, 0.0))
        return float(np.sum(masses * gains)) - delta

    if excess(0.0) <= 0:
        return 0.0
    basic = float(losses[0])  # at this epsilon the sum of (1) is zero
    return min(basic, _root(excess, basic) * (1 + _TOTAL_SLACK))


def _root(function: Callable[[float], float], upper: float) -> float:
    """Returns the root in (0, upper] of a monotone function that changes its sign."""
    bracket = {"bracket": (0.0, upper), "xtol": 1e-13 * upper, "rtol": 1e-13}
    return float(scipy.optimize.root_scalar(function, **bracket).root)
