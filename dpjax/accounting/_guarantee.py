"""Privacy guarantees of releases, in numbers and in words, for records and groups."""

import dataclasses
import math
import sys
from functools import partial
from html import escape

import numpy as np
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    UnsupportedDpEvent,
    ZCDpEvent,
)
from numpy.typing import ArrayLike

from dpjax import _validate
from dpjax._rounding import factor_up, rounded_up, sum_up
from dpjax._types import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    REPLACE_SPECIAL,
    NeighboringRelation,
)
from dpjax.accounting._events import SampleDpEvent, check_event, map_leaves, samples_of
from dpjax.accounting._profiles import Profile, profile_of_release, readable

_ROUNDED_UP = 1 + 1e-14  # exceeds the rounding error of Bayes' rule
_SLACK = 1e-12  # exceeds the float64 rounding error of the formulas for groups


@dataclasses.dataclass(frozen=True)
class PrivacyGuarantee:
    """An (epsilon, delta) guarantee, its neighboring relation, and its description.

    For every two neighboring data sets and every set S of outcomes,
    Pr[S] <= e^epsilon Pr'[S] + delta. Immutable and hashable, so that it can be static
    metadata of a pytree. `str()` gives the description.

    Args:
        epsilon: privacy parameter, 0 <= epsilon <= inf; inf means no privacy.
        delta: privacy parameter in [0, 1).
        relation: which data sets count as neighbors.
        dp_event: the `dp_accounting` event of the release, in the convention of that
            relation, which `epsilon_of` describes. It must be hashable: compose tuples,
            not lists.
        description: the guarantee in one sentence; `of` writes it, with epsilon,
            e^epsilon and delta rounded up.
        unit: a noun for what neighbors differ in, as for `of`.

    Raises:
        ValueError: If epsilon is negative or NaN, delta is outside [0, 1), the relation
            is not a `NeighboringRelation`, the event cannot be hashed, or the unit is
            no text.

    Example:
        >>> from dp_accounting import GaussianDpEvent
        >>> guarantee = PrivacyGuarantee.of(
        ...     1.0, 1e-5, dp_event=GaussianDpEvent(3.7306), num_samples=32_561)
        >>> print(guarantee)
        Replacing any one of the 32,561 records changes the probability of any event
        to at most e^1 = 2.72 times what it was, plus 1e-05.
    """

    epsilon: float
    delta: float
    relation: NeighboringRelation
    dp_event: DpEvent
    description: str
    unit: str = "record"

    def __post_init__(self) -> None:
        """Raises `ValueError` for a wrong field or a sample released twice."""
        _validate.within(0.0, math.inf, epsilon=self.epsilon)
        _validate.delta(self.delta)
        check_relation(self.relation)
        is_words = isinstance(self.unit, str) and self.unit.strip() != ""
        _validate.require(is_words, "unit", self.unit, 'a noun, such as "record"')
        try:
            hash(self.dp_event)
        except TypeError:
            rule = "hashable (compose tuples of events, not lists)"
            _validate.require(False, "dp_event", self.dp_event, rule)
        check_event("dp_event", self.dp_event)
        counts = samples_of(self.dp_event).values()
        rule = "of one release per sample: compose several by `Sample.privacy`"
        _validate.require(max(counts, default=1) == 1, "dp_event", self.dp_event, rule)

    def __str__(self) -> str:
        return self.description

    def __repr__(self) -> str:
        return f"<PrivacyGuarantee: {self.description}>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.description)}</p>"

    @classmethod
    def of(
        cls,
        epsilon: float,
        delta: float,
        *,
        dp_event: DpEvent,
        relation: NeighboringRelation = REPLACE_ONE,
        num_samples: int | None = None,
        unit: str = "record",
    ) -> "PrivacyGuarantee":
        """Returns a guarantee, and writes its description from its numbers.

        `num_samples` is the number of units, if it is public and the description should
        name it. `unit` is a noun for what neighbors differ in: "record", "user" (with
        all records of the user, see `dpjax.gradients.by_user`), or a noun with more
        words, such as "group of records with one postcode".

        Raises:
            ValueError: As for the class; or if `num_samples` is given under
                ADD_OR_REMOVE_ONE.

        Example:
            >>> from dp_accounting import GaussianDpEvent
            >>> event = GaussianDpEvent(1.0)
            >>> PrivacyGuarantee.of(1.0, 1e-5, dp_event=event).description
            'Replacing any one record changes the probability of any event to at most
            e^1 = 2.72 times what it was, plus 1e-05.'
        """
        stated = cls(epsilon, delta, relation, dp_event, "", unit)
        if num_samples is not None:
            _validate.count(num_samples=num_samples)
            rule = (
                "None under ADD_OR_REMOVE_ONE, where neighbors differ in this number: "
                "if it is public and records are blanked, give REPLACE_SPECIAL"
            )
            is_fine = relation is not ADD_OR_REMOVE_ONE
            _validate.require(is_fine, "num_samples", num_samples, rule)
        description = f"No privacy is guaranteed: the outcome may reveal any {unit}."
        if epsilon < math.inf:
            replaced = _any_one(unit, relation, num_samples)
            description = _describe(epsilon, delta, relation, replaced)
        return dataclasses.replace(stated, description=description)

    @classmethod
    def non_private(cls) -> "PrivacyGuarantee":
        """Returns the guarantee of a method that is not private: epsilon = inf.

        Example:
            >>> print(PrivacyGuarantee.non_private())
            No privacy is guaranteed: the outcome may reveal any record.
        """
        return cls.of(math.inf, 0.0, dp_event=NonPrivateDpEvent())

    def tradeoff(self, false_positive_rates: ArrayLike) -> np.ndarray:
        """Returns the largest true positive rate of any attack by false positive rate.

        An attack sees the release, and knows all records except one. For that record it
        knows two candidates (under add/remove: the record, or no record), and answers
        "yes" or "no" to the first. A "yes" is false if the second is in the data. With
        the privacy profile delta(epsilon), tradeoff(a) = inf over epsilon of e^epsilon
        a + delta(epsilon).

        Args:
            false_positive_rates: probabilities, of any shape.

        Returns:
            float64 probabilities of the same shape, rounded up; a concave function of
            the rate that increases to 1. They are exact if `dp_event` consists of
            Gaussian mechanisms on all records, and within about 1e-6 if its privacy
            loss distribution is known. Otherwise they follow from Renyi divergences, or
            from epsilon and delta:
            min(e^epsilon a + delta, 1 - e^-epsilon (1 - delta - a)).

        Privacy:
            No attack exceeds these rates, whatever it knows and computes. `dp_event`
            must describe everything that was released, in the convention of `relation`.

        Example:
            The rates at (1, 1e-5), for Gaussian noise and from epsilon and delta alone:

            >>> from dp_accounting import GaussianDpEvent, UnsupportedDpEvent
            >>> for event in (GaussianDpEvent(3.7306), UnsupportedDpEvent()):
            ...     privacy = PrivacyGuarantee.of(1.0, 1e-5, dp_event=event)
            ...     print(privacy.tradeoff([0.01, 0.1, 0.5]).round(4))
            [0.0198 0.1554 0.6057]
            [0.0272 0.2718 0.8161]

        Reference:
            Kairouz, Oh, Viswanath (2015), "The composition theorem for differential
            privacy", Theorem 2.1. Dong, Roth, Su (2022), "Gaussian differential
            privacy", Proposition 2.12 and equation (6).
        """
        rates = np.asarray(false_positive_rates)
        _validate.within(0.0, 1.0, false_positive_rates=rates)
        rates = rates.astype(np.float64)
        return self._profile.reach(rates.ravel()).reshape(rates.shape)

    def posterior(self, prior: float, false_positive_rates: ArrayLike) -> np.ndarray:
        """Returns the largest probability that an attack which says "yes" is right.

        "Yes" means the first of two candidates for a record, as in `tradeoff`. With p
        its prior, b = tradeoff(a), and Bayes' rule,

            posterior = p b / (p b + (1 - p) a).

        Args:
            prior: the attacker's probability, before the release, that the record is
                the first candidate; in (0, 1).
            false_positive_rates: as for `tradeoff`.

        Returns:
            float64 probabilities of the shape of the rates, rounded up. They fall as
            the rate grows. The value at rate 0 is the limit, which bounds the posterior
            after every outcome: with delta > 0 it is in general 1, because rare
            outcomes may reveal the record.

        Privacy:
            The bound holds for every attack that has at least this false positive rate,
            because tradeoff is concave and so tradeoff(a) / a falls.

        Example:
            A prior of 1 percent rises to at most 9 percent, if the attack says "yes"
            falsely for one person in a thousand.

            >>> from dp_accounting import GaussianDpEvent
            >>> noisy = PrivacyGuarantee.of(3.0, 1e-5, dp_event=GaussianDpEvent(1.4))
            >>> print(noisy.posterior(0.01, [0.001, 0.1]).round(3))
            [0.081 0.028]
        """
        _validate.probability(prior=prior)
        true = self.tradeoff(false_positive_rates)
        false = np.asarray(false_positive_rates, dtype=np.float64)
        # As the rate tends to 0, true and false positives are as 1 to e^-epsilon.
        is_limit = (false == 0) & (true == 0)
        yes = prior * np.where(is_limit, 1.0, true)
        no = (1 - prior) * np.where(is_limit, math.exp(-self._profile.pure), false)
        return np.minimum(yes / (yes + no) * _ROUNDED_UP, 1.0)

    def for_groups(
        self, group_size: int, *, num_groups: int | None = None, unit: str | None = None
    ) -> "PrivacyGuarantee":
        """Returns the guarantee for neighbors that differ in up to k records.

        A release that is (epsilon, delta)-DP for one record is (k epsilon, delta
        (e^(k epsilon) - 1) / (e^epsilon - 1))-DP for k records.

        Args:
            group_size: k, at least 1.
            num_groups: the number of groups, if it is public and should be named.
            unit: a noun for a group, as for `of`. None: "group of up to k records".

        Returns:
            The guarantee for groups. It has an event if the event for one record
            consists of Gaussian mechanisms (their noise multiplier is divided by k) and
            zCDP mechanisms (their rho is multiplied by k^2).

        Privacy:
            A chain of k steps of the relation connects two such data sets. If the
            number of records is public, pad the records of people who have fewer.

        Example:
            >>> from dp_accounting import GaussianDpEvent
            >>> one = PrivacyGuarantee.of(0.25, 1e-6, dp_event=GaussianDpEvent(16.0))
            >>> four = one.for_groups(4)
            >>> f"{four.epsilon:g} {four.delta:.3g} {four.dp_event}"
            '1 6.05e-06 GaussianDpEvent(noise_multiplier=4.0)'

        Reference:
            Vadhan (2017), "The complexity of differential privacy", Lemma 2.2. Dong,
            Roth, Su (2022), "Gaussian differential privacy", Theorem 2.14. Bun, Steinke
            (2016), "Concentrated differential privacy", Proposition 1.9.
        """
        _validate.count(group_size=group_size)
        if num_groups is not None:
            _validate.count(num_groups=num_groups)
        epsilon, delta = self.epsilon, self.delta
        if group_size > 1 and epsilon < math.inf:
            grown = delta * _multiple(epsilon, group_size) * (1 + _SLACK)
            delta = min(1 - 2.0**-53, grown)
            epsilon = sum_up(*[epsilon] * group_size)
        return PrivacyGuarantee.of(
            epsilon,
            delta,
            dp_event=map_leaves(partial(_event, group_size), self.dp_event),
            relation=self.relation,
            num_samples=num_groups,
            unit=f"group of up to {group_size} records" if unit is None else unit,
        )

    @property
    def _profile(self) -> Profile:
        return profile_of_release(
            float(self.epsilon), float(self.delta), self.dp_event, self.relation
        )


def epsilon_of(
    event: DpEvent, delta: float, *, relation: NeighboringRelation = REPLACE_ONE
) -> float:
    """Returns the epsilon of the release that an event describes.

    Args:
        event: a `dp_accounting` event or composition. A `GaussianDpEvent` holds stddev
            / l2 sensitivity under the relation; only within a `PoissonSampledDpEvent`
            it holds stddev / the largest norm of a record's contribution, under
            REPLACE_ONE twice as much. A choice with the exponential mechanism of
            epsilon_0 is a `ZCDpEvent(epsilon_0^2 / 8)`.
        delta: privacy parameter in [0, 1).
        relation: the neighboring relation.

    Returns:
        epsilon >= 0, rounded up: the smallest that the privacy loss distribution, the
        Renyi divergences or the pure epsilon of the event prove. At delta = 0 it is the
        sum of pure epsilons. It is inf without privacy, or if no bound is finite.

    Raises:
        ValueError: If delta is out of its range, the relation is not a
            `NeighboringRelation`, a number of the event is out of its range, or no
            accountant reads the event under that relation.

    Privacy:
        The release is (epsilon, delta)-DP under the relation. An event does not say how
        batches are padded: the guarantee of a run, and `noise_multiplier_to_epsilon`,
        count the records that padded Poisson batches drop; this function does not.

    Example:
        Three selections with epsilon 0.1, and Gaussian noise of multiplier 8:

        >>> from dp_accounting import (
        ...     ComposedDpEvent, GaussianDpEvent, SelfComposedDpEvent, ZCDpEvent)
        >>> choices = SelfComposedDpEvent(ZCDpEvent(0.1**2 / 8), 3)
        >>> both = ComposedDpEvent((choices, GaussianDpEvent(8.0)))
        >>> print(f"{epsilon_of(both, 1e-5):.2f}")
        0.59

    Reference:
        Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022), "Connect the dots";
        Canonne, Kamath, Steinke (2020), Proposition 12; Balle, Wang (2018), Theorem 8,
        for Gaussian noise alone.
    """
    _validate.delta(delta)
    check_relation(relation)
    profile = readable("event", event, relation)
    return profile.pure if delta == 0 else profile.epsilon_at(float(delta))


def delta_of(
    event: DpEvent, epsilon: float, *, relation: NeighboringRelation = REPLACE_ONE
) -> float:
    """Returns the delta of the release that an event describes, at a given epsilon.

    It is the inverse of `epsilon_of`, with the same arguments and guarantee; epsilon is
    0 or more.

    Returns:
        delta in [0, 1], rounded up.

    Example:
        >>> from dp_accounting import GaussianDpEvent
        >>> print(f"{delta_of(GaussianDpEvent(3.7306), 1.0):.4g}")
        1e-05
    """
    _validate.within(0.0, math.inf, epsilon=epsilon)
    check_relation(relation)
    profile = readable("event", event, relation)
    if epsilon >= profile.pure:
        return 0.0
    at = np.array([min(float(epsilon), sys.float_info.max)])
    return float(profile.delta_at(at)[0])


def check_relation(relation: NeighboringRelation) -> None:
    """Requires a relation of `dp_accounting`."""
    is_relation = isinstance(relation, NeighboringRelation)
    rule = "a NeighboringRelation of dp_accounting, such as dpjax.REPLACE_ONE"
    _validate.require(is_relation, "relation", relation, rule)


_NEIGHBOURS = {
    REPLACE_ONE: "Replacing",
    ADD_OR_REMOVE_ONE: "Adding or removing",
    REPLACE_SPECIAL: "Blanking",
}


def _any_one(unit: str, relation: NeighboringRelation, num_samples: int | None) -> str:
    is_blanked = relation is REPLACE_SPECIAL
    if num_samples is None:
        return f"any one {unit}" + ", at a public number of them," * is_blanked
    noun, *more = unit.split(" ", 1)
    replaced = " ".join([f"any one of the {num_samples:,} {noun}s", *more])
    return replaced + ", whose number is public," * is_blanked


def _describe(epsilon, delta, relation: NeighboringRelation, replaced: str) -> str:
    """Returns the description of a `PrivacyGuarantee`, one sentence."""
    # `replaced` says what neighbors differ in, such as "any one record". Epsilon and
    # delta are rounded up: the text never claims more than is proved.
    shown = rounded_up(epsilon, 4)
    factor = f"e^{shown}"
    # Outside this range e^epsilon overflows, or has too many digits to be read.
    if epsilon == 0 or 1e-6 <= float(shown) < 700:
        factor += f" = {factor_up(float(shown))}"
    # "With probability 1 - delta" would be wrong: the loss exceeds epsilon more often.
    more = f", plus {rounded_up(delta, 6)}" if delta > 0 else ""
    return (
        f"{_NEIGHBOURS[relation]} {replaced} changes the probability of any event to "
        f"at most {factor} times what it was{more}."
    )


def _multiple(epsilon: float, group_size: int) -> float:
    """Returns (e^(k epsilon) - 1) / (e^epsilon - 1), which is at least k."""
    if epsilon == 0:
        return float(group_size)
    exponent = (group_size - 1) * epsilon
    if exponent > 700:
        return math.inf
    return math.exp(exponent) * math.expm1(-group_size * epsilon) / math.expm1(-epsilon)


def _event(group_size: int, event: DpEvent) -> DpEvent:
    """Returns an uncomposed event for neighbors that differ in group_size records."""
    # `event` describes the same release for neighbors that differ in one record. If no
    # rule is known for it, the result is an event that no accountant reads.
    if isinstance(event, GaussianDpEvent):
        return GaussianDpEvent(event.noise_multiplier / group_size)
    if isinstance(event, ZCDpEvent) and event.xi == 0:
        return type(event)(event.rho * group_size**2)  # or a BoundedRangeDpEvent
    # The event of a `Sample` stays, so that a second release of it is still detected.
    return event if isinstance(event, SampleDpEvent) else UnsupportedDpEvent()
