"""A privacy filter: a limit on what releases that are chosen one by one may cost.

Whoever chooses the next release has seen the ones before, and may choose its budget by
them. Composition theorems for budgets that are fixed beforehand do not cover that; a
filter does, which looks only at whether what has been spent stays within a limit.

Let release i, given those before it, have P_i and Q_i as laws of its outcome on two
neighbouring data sets. Fix an order alpha > 1. If its divergence is at most r_i, which
may depend on the earlier outcomes, then by taking expectations from the last to the
first,

    E_Q prod_i (P_i/Q_i)^alpha exp(-(alpha - 1) r_i) <= 1,

so where sum_i r_i <= R whatever the outcomes, all of them together have a divergence
of at most R (Feldman and Zrnic 2021). That needs one alpha for all outcomes: were it
enough that *some* order of several has room, the outcomes would choose the order, and
the failure probabilities of the orders add up. Hence one order, fixed with the limit.

A release that is (epsilon, delta)-DP and known no closer is, with probability
1 - delta, one that is epsilon-DP, under the same mixture on both data sets (Kairouz, Oh
and Viswanath 2015). Where these deltas add up to at most D whatever the outcomes, some
of them fails with probability at most D; restricted to where none does, densities are
those of a filtered interaction as above, times factors of at most one which both data
sets share. So all is (epsilon(R, delta'), delta' + D)-DP (Whitehouse et al. 2023). Half
of delta is for each.

Padded Poisson batches overflow with a probability tau, which events do not tell: the
law of a release is that far from the one whose divergence is known. Where all taus add
up to at most t, that holds of all releases together, on both data sets: it costs
(1 + e^epsilon) t of the other half of delta, by equation (1) of `_poisson_capacity`.

At delta = 0 the order is infinite: divergences are pure epsilons, which add up.
"""

import dataclasses
import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from dp_accounting import DpEvent, RandomizedResponseDpEvent
from dp_accounting.rdp import RdpAccountant

from dpjax import _validate
from dpjax._rounding import as_decimal, claim, rounded_down, rounded_up
from dpjax._types import REPLACE_ONE, NeighboringRelation
from dpjax.accounting._guarantee import PrivacyGuarantee
from dpjax.accounting._profiles import overflow_of

# Of dp_accounting's divergences, whose float64 errors are below.
_RELATIVE, _ABSOLUTE = 1e-9, 1e-12
_LARGEST_ORDER = 10**5


class Spending(NamedTuple):
    """What a release costs in a filter.

    Attributes:
        divergence: its Renyi divergence, of the filter's order, at most.
        delta: with what probability it may exceed that; for padded Poisson batches,
            what their overflow costs.
    """

    divergence: float
    delta: float


@dataclasses.dataclass(frozen=True)
class PrivacyFilter:
    """A limit for all releases of one data set, and what they have spent of it.

    Releases may be chosen adaptively, their mechanisms and budgets too. Immutable:
    `spend` returns the filter after a release. What it needs before a release is the
    guarantee that the release will have, as `PrivacyGuarantee`.

    Args:
        epsilon: privacy of all releases together, positive and finite.
        delta: privacy of all releases together, in [0, 1). Half of it turns divergences
            into epsilon, half is for releases of which only their (epsilon, delta) is
            known. At 0, releases of pure epsilon alone are within the limit.
        relation: that of all guarantees.
        order: of the Renyi divergence, a whole number from 2 to 1e5, inf at delta = 0;
            None: the one that affords the most zCDP, which epsilon and delta tell.
        spent: by the releases so far.

    Raises:
        ValueError: If an argument is out of its range.

    Privacy:
        As long as every release was spent before it was made, all of them together are
        (epsilon, delta)-DP under `relation`. Proved at the head of this file.

    Example:
        Twelve releases by Gaussian noise, each of epsilon = 1, for an epsilon of 4.

        >>> from dpjax.accounting import gaussian_event
        >>> one = PrivacyGuarantee.of(1.0, 1e-6, dp_event=gaussian_event(4.2247))
        >>> table = PrivacyFilter(4.0, 1e-5)
        >>> while table.admits(one):
        ...     table = table.spend(one)
        >>> len(table.spent)
        12

    Reference:
        Feldman, Zrnic (2021), "Individual privacy accounting via a Renyi filter", for
        divergences; Whitehouse, Ramdas, Rogers, Wu (2023), "Fully-adaptive composition
        in differential privacy", with a delta. From divergence to epsilon: Canonne,
        Kamath, Steinke (2020), Proposition 12.
    """

    epsilon: float
    delta: float
    relation: NeighboringRelation = REPLACE_ONE
    order: float | None = None
    spent: tuple[Spending, ...] = ()

    def __post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon)
        _validate.delta(self.delta)
        _validate.require(
            isinstance(self.relation, NeighboringRelation),
            "relation",
            self.relation,
            "a NeighboringRelation",
        )
        best = _best_order(self.epsilon, self.delta / 2)
        if self.order is None:
            object.__setattr__(self, "order", best)
        is_whole = self.order in range(2, _LARGEST_ORDER + 1)
        _validate.require(
            self.order == math.inf if self.delta == 0 else is_whole,
            "order",
            self.order,
            f"inf at delta = 0, else a whole number from 2 to {_LARGEST_ORDER}",
        )

    @property
    def limit(self) -> Spending:
        """What all releases together may spend."""
        if self.order == math.inf:
            return Spending(self.epsilon, 0.0)
        divergence = _affordable(self.epsilon, self.delta / 2, np.array([self.order]))
        return Spending(max(0.0, float(divergence[0]) - _ABSOLUTE), self.delta / 2)

    @property
    def total(self) -> Spending:
        """What the releases so far have spent, read as decimals and rounded up."""
        divergences, deltas = zip((0.0, 0.0), *self.spent, strict=True)
        return Spending(_sum_up(divergences), _sum_up(deltas))

    def price(self, *parts: PrivacyGuarantee) -> Spending:
        """Returns what a release would cost.

        The event of a guarantee tells its divergence where `dp_accounting` knows one.
        Else its (epsilon, delta) is taken: the largest divergence of a mechanism that
        is epsilon-DP, that of randomised response, but with probability delta. Of a
        pure epsilon, the smaller of the two.

        Args:
            parts: one guarantee; or one for each of several disjoint parts of the
                records, fixed by a public index, of which each is seen by one part of
                the release: they cost the maximum.

        Raises:
            ValueError: If there is no part, one is under another relation, or there are
                several under another relation than REPLACE_ONE.
        """
        _validate.require(len(parts) > 0, "parts", parts, "one guarantee or more")
        for part in parts:
            _validate.require(
                part.relation is self.relation,
                "relation",
                part.relation.name,
                f"{self.relation.name}, as of the filter",
            )
        _validate.require(
            len(parts) == 1 or self.relation is REPLACE_ONE,
            "relation",
            self.relation.name,
            "REPLACE_ONE where parts of the records are apart",
        )
        prices = [self._price(part) for part in parts]
        return Spending(*(max(numbers) for numbers in zip(*prices, strict=True)))

    def admits(self, *parts: PrivacyGuarantee) -> bool:
        """Tells whether a release is within the limit; takes what `price` takes."""
        return self._after(self.price(*parts))._is_within

    def spend(self, *parts: PrivacyGuarantee) -> "PrivacyFilter":
        """Returns the filter after a release.

        Args:
            parts: as of `price`.

        Raises:
            ValueError: As `price`, and if the release would exceed the limit.

        Example:
            >>> from dpjax.accounting import selection_event
            >>> table = PrivacyFilter(1.0, 1e-6)
            >>> choice = PrivacyGuarantee.of(0.1, 0.0, dp_event=selection_event(0.1))
            >>> table = table.spend(choice)
            >>> round(table.total.divergence, 6), table.order
            (0.02875, 23)
            >>> table.spend(PrivacyGuarantee.of(2.0, 0.0, dp_event=selection_event(2.)))
            Traceback (most recent call last):
                ...
            ValueError: the release must be within the limit of epsilon = 1, ...
        """
        price = self.price(*parts)
        after = self._after(price)
        if not after._is_within:
            left = self.left
            raise ValueError(
                f"the release must be within the limit of "
                f"{claim(self.epsilon, self.delta)} for all: it takes a Renyi "
                f"divergence of {rounded_up(price.divergence, 4)} of order "
                f"{self.order} and a delta of {rounded_up(price.delta, 3)} of its own; "
                f"{rounded_down(left.divergence, 4)} and "
                f"{rounded_down(left.delta, 3)} are left."
            )
        return after

    @property
    def left(self) -> Spending:
        """What may still be spent."""
        return Spending(
            *(
                max(0.0, limit - spent)
                for limit, spent in zip(self.limit, self.total, strict=True)
            )
        )

    @property
    def _is_within(self) -> bool:
        total, limit = self.total, self.limit
        return total.divergence <= limit.divergence and total.delta <= limit.delta

    def _after(self, price: Spending) -> "PrivacyFilter":
        return dataclasses.replace(self, spent=(*self.spent, price))

    def _price(self, part: PrivacyGuarantee) -> Spending:
        if self.order == math.inf:
            return Spending(part.epsilon if part.delta == 0 else math.inf, 0.0)
        known = self._divergence(part.dp_event)
        if part.delta > 0 and known < math.inf:
            grown = 1 + math.exp(min(self.epsilon, 700.0))
            return Spending(known, grown * overflow_of(part))
        # With probability lies / 2 the answer is the wrong one of two.
        lies = 2 / (1 + math.exp(part.epsilon)) if part.epsilon < 700 else 0.0
        response = self._divergence(RandomizedResponseDpEvent(lies, 2))
        return Spending(min(known, response), part.delta)

    def _divergence(self, event: DpEvent) -> float:
        order = self.order or 2
        accountant = RdpAccountant([order], neighboring_relation=self.relation)
        if not accountant.supports(event):
            return math.inf
        accountant.compose(event)
        # Proposition 12 at this delta, where its terms in delta are 40 / (order - 1).
        known = float(accountant.get_epsilon(math.exp(-40.0) / order))
        divergence = known - 40.0 / (order - 1) - math.log1p(-1 / order)
        return max(0.0, divergence) * (1 + _RELATIVE) + _ABSOLUTE


def _sum_up(numbers: Sequence[float]) -> float:
    """Returns the least float that is no smaller than the sum, all read as decimals.

    So ten releases of 0.1 are 1, and eleven are not: in binary 0.1 is a little more.
    """
    if math.inf in numbers:
        return math.inf
    exact = sum(Fraction(as_decimal(x)) for x in numbers)
    nearest = float(exact) if exact <= sys.float_info.max else math.inf
    if nearest == math.inf or Fraction(as_decimal(nearest)) >= exact:
        return nearest
    return math.nextafter(nearest, math.inf)


def _affordable(epsilon: float, delta: float, orders: np.ndarray) -> np.ndarray:
    """Returns the largest divergence of each order that gives (epsilon, delta).

    delta = exp((a - 1) (R - epsilon)) (1 - 1/a)^a / (a - 1), solved for R.
    """
    return (
        epsilon
        - np.log1p(-1 / orders)
        + (math.log(delta) + np.log(orders)) / (orders - 1)
    )


def _best_order(epsilon: float, delta: float) -> float:
    """Returns the order that affords the most zCDP, R / a."""
    if delta == 0:
        return math.inf
    orders = np.unique(np.geomspace(2, _LARGEST_ORDER, 2000).astype(int))
    return int(orders[np.argmax(_affordable(epsilon, delta, orders) / orders)])
