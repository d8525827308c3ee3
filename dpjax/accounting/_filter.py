"""A privacy filter: a limit on the total cost of releases that are chosen adaptively.

The analyst chooses each release, and its budget, after seeing the earlier releases.
Composition theorems for budgets that are fixed beforehand do not cover this; a filter
does. If the Renyi divergences of the releases, at one order that is fixed with the
limit, add up to at most R for all outcomes, then the divergence of all releases
together is at most R: `docs/privacy/proofs/choices.md`, 6.1. A release with a delta
adds delta to the total delta, and padded Poisson batches with overflow probability tau
add (1 + e^epsilon) tau (6.2 there). At delta = 0 the order is infinite, and pure
epsilons add up.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from dp_accounting import DpEvent, RandomizedResponseDpEvent
from dp_accounting.rdp import RdpAccountant

from dpjax import _validate
from dpjax._rounding import as_decimal, claim, rounded_down, rounded_up, sum_up
from dpjax._types import REPLACE_ONE, NeighboringRelation
from dpjax.accounting._events import read_under, samples_of
from dpjax.accounting._guarantee import PrivacyGuarantee, check_relation
from dpjax.accounting._profiles import overflow_of

# These exceed the float64 errors of the divergences that dp_accounting computes.
_RELATIVE, _ABSOLUTE = 1e-9, 1e-12
_LARGEST_ORDER = 10**5


class Spending(NamedTuple):
    """The cost of a release in a filter: a Renyi divergence, and a delta."""

    divergence: float  # an upper bound of its Renyi divergence of the filter's order
    delta: float  # the probability that it fails; for Poisson batches, of overflow


@dataclasses.dataclass(frozen=True)
class PrivacyFilter:
    """A limit for all releases of one data set, and the costs of the releases so far.

    The releases, their mechanisms and their budgets may be chosen adaptively. A filter
    is immutable: `spend` takes the `PrivacyGuarantee` that a release will have, and
    returns the filter after it.

    Args:
        epsilon: privacy of all releases together, positive and finite.
        delta: privacy of all releases together, in [0, 1). Half of it converts
            divergences to epsilon; half pays for releases of which only (epsilon,
            delta) is known. At 0, only releases of pure epsilon are within the limit.
        relation: the neighboring relation of all guarantees.
        order: order of the Renyi divergence, an integer from 2 to 1e5, or inf at
            delta = 0. None: the order at which the limit allows the most zCDP.
        spent: the costs of the releases so far.
        samples: the identities of the samples (`Sample`) that the releases used.

    Privacy:
        If every release is spent before it is made, all releases together are
        (epsilon, delta)-DP under `relation`. All releases of one random sample have one
        guarantee (`Sample.privacy`): the filter refuses a second guarantee, because
        amplification does not hold for a sample that is partly known.

    Example:
        Twelve releases with Gaussian noise of epsilon = 1 each fit into epsilon = 4.

        >>> from dp_accounting import GaussianDpEvent
        >>> release = PrivacyGuarantee.of(1.0, 1e-6, dp_event=GaussianDpEvent(4.2247))
        >>> table = PrivacyFilter(4.0, 1e-5)
        >>> for _ in range(12):
        ...     table = table.spend(release)
        >>> table.left.divergence < table.price(release).divergence
        True

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
    samples: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Raises `ValueError` for a wrong field; chooses a Renyi order by default."""
        _validate.positive(epsilon=self.epsilon)
        _validate.delta(self.delta)
        check_relation(self.relation)
        if self.order is None:
            object.__setattr__(self, "order", _best_order(self.epsilon, self.delta / 2))
        is_integer = self.order in range(2, _LARGEST_ORDER + 1)
        rule = f"inf at delta = 0, else an integer from 2 to {_LARGEST_ORDER}"
        is_fine = self.order == math.inf if self.delta == 0 else is_integer
        _validate.require(is_fine, "order", self.order, rule)

    @property
    def limit(self) -> Spending:
        """Returns the most that all releases together may spend."""
        if self.order == math.inf:
            return Spending(self.epsilon, 0.0)
        divergence = _affordable(self.epsilon, self.delta / 2, np.array([self.order]))
        return Spending(max(0.0, float(divergence[0]) - _ABSOLUTE), self.delta / 2)

    @property
    def total(self) -> Spending:
        """Returns the sum of the costs so far, added as decimals and rounded up."""
        columns = zip((0.0, 0.0), *self.spent, strict=True)
        return Spending(*(sum_up(*column, exactly=as_decimal) for column in columns))

    def price(self, *parts: PrivacyGuarantee) -> Spending:
        """Returns the divergence and the delta that a release would cost.

        The divergence is computed from the event of the guarantee, if `dp_accounting`
        can do so. Otherwise it is the divergence of randomized response at epsilon,
        which bounds the release except with probability delta. For a pure epsilon it is
        the smaller of the two.

        Args:
            parts: one guarantee; or one for each part of the release, if each part uses
                one of several disjoint subsets of the records that are fixed by a
                public index: the release then costs the maximum.

        Raises:
            ValueError: If no guarantee is given, a guarantee has another relation than
                the filter, or several are given under another one than REPLACE_ONE.
        """
        _validate.require(len(parts) > 0, "parts", parts, "one guarantee or more")
        for part in parts:
            rule = f"{self.relation.name}, the relation of the filter"
            is_fine = part.relation is self.relation
            _validate.require(is_fine, "relation", part.relation.name, rule)
        rule = "REPLACE_ONE if there are several parts, of disjoint subsets of records"
        is_fine = len(parts) == 1 or self.relation is REPLACE_ONE
        _validate.require(is_fine, "relation", self.relation.name, rule)
        prices = [self._price(part) for part in parts]
        return Spending(*(max(numbers) for numbers in zip(*prices, strict=True)))

    def spend(self, *parts: PrivacyGuarantee) -> "PrivacyFilter":
        """Returns a new filter, to which the cost of a release is added.

        Args:
            parts: as for `price`.

        Raises:
            ValueError: As for `price`, and if the release would exceed the limit or
                uses a sample that an earlier release used.

        Example:
            >>> from dp_accounting import LaplaceDpEvent
            >>> table = PrivacyFilter(1.0, 1e-6)
            >>> table.spend(PrivacyGuarantee.of(2.0, 0.0, dp_event=LaplaceDpEvent(0.5)))
            Traceback (most recent call last):
                ...
            ValueError: the release must be within the limit of epsilon = 1, ...
        """
        price = self.price(*parts)
        counts = samples_of(*(part.dp_event for part in parts))
        is_new = max([1, *counts.values()]) == 1 and not counts.keys() & self.samples
        rule = (
            "of samples from which nothing was released yet: compose all releases of "
            "one sample by `Sample.privacy`, and spend them together before the first"
        )
        _validate.require(is_new, "parts", parts, rule)
        spent = {"spent": (*self.spent, price), "samples": self.samples | counts.keys()}
        after = dataclasses.replace(self, **spent)
        total, limit = after.total, self.limit
        if total.divergence > limit.divergence or total.delta > limit.delta:
            left = self.left
            raise ValueError(
                f"the release must be within the limit of "
                f"{claim(self.epsilon, self.delta)} for all releases: it costs a Renyi "
                f"divergence of {rounded_up(price.divergence, 4)} of order "
                f"{self.order} and a delta of {rounded_up(price.delta, 3)}, but only "
                f"{rounded_down(left.divergence, 4)} and "
                f"{rounded_down(left.delta, 3)} are left. Lower its epsilon or delta."
            )
        return after

    @property
    def left(self) -> Spending:
        """Returns the part of the limit that may still be spent."""
        pairs = zip(self.limit, self.total, strict=True)
        return Spending(*(max(0.0, limit - spent) for limit, spent in pairs))

    def _price(self, part: PrivacyGuarantee) -> Spending:
        """Returns the Renyi divergence and the delta that one guarantee costs."""
        # The divergence, of the filter's order, follows from the event of `part`, or
        # else from its epsilon and delta. `price` takes the maximum over disjoint
        # parts.
        if self.order == math.inf:
            return Spending(part.epsilon if part.delta == 0 else math.inf, 0.0)
        event = part.dp_event
        known = self._divergence(event, read_under(self.relation))
        if part.delta > 0 and known < math.inf:
            grown = 1 + math.exp(min(self.epsilon, 700.0))
            return Spending(known, grown * overflow_of(part.epsilon, part.delta, event))
        # Randomized response bounds it, with random answers of probability `flips`.
        flips = 2 / (1 + math.exp(part.epsilon)) if part.epsilon < 700 else 0.0
        response = self._divergence(RandomizedResponseDpEvent(flips, 2), REPLACE_ONE)
        return Spending(min(known, response), part.delta)

    def _divergence(self, event: DpEvent, relation: NeighboringRelation) -> float:
        """Returns a bound of an event's Renyi divergence, at the filter's order."""
        # `_price` charges it. It is inf if `dp_accounting` cannot read the event under
        # `relation`.
        order = self.order or 2
        accountant = RdpAccountant([order], neighboring_relation=relation)
        if not accountant.supports(event):
            return math.inf
        accountant.compose(event)
        # The accountant returns an epsilon, which Proposition 12 turns back into the
        # divergence. At this delta its terms in delta are 40 / (order - 1).
        known = float(accountant.get_epsilon(math.exp(-40.0) / order))
        divergence = known - 40.0 / (order - 1) - math.log1p(-1 / order)
        return max(0.0, divergence) * (1 + _RELATIVE) + _ABSOLUTE


def _affordable(epsilon: float, delta: float, orders: np.ndarray) -> np.ndarray:
    """Returns the largest divergence R of each order a for (epsilon, delta)."""
    # R solves delta = exp((a - 1) (R - epsilon)) (1 - 1/a)^a / (a - 1).
    cost = (math.log(delta) + np.log(orders)) / (orders - 1)
    return epsilon - np.log1p(-1 / orders) + cost


def _best_order(epsilon: float, delta: float) -> float:
    """Returns the order at which the limit allows the most zCDP, R / a."""
    if delta == 0:
        return math.inf
    orders = np.unique(np.geomspace(2, _LARGEST_ORDER, 2000).astype(int))
    return int(orders[np.argmax(_affordable(epsilon, delta, orders) / orders)])
