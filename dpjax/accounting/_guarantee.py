"""The guarantee of a released value, for programs and for people."""

import dataclasses
import math

from dp_accounting import DpEvent, NonPrivateDpEvent

from dpjax import _validate
from dpjax._rounding import factor_up, rounded_up
from dpjax._types import ADD_OR_REMOVE_ONE, REPLACE_ONE, NeighboringRelation


@dataclasses.dataclass(frozen=True)
class PrivacyGuarantee:
    """An (epsilon, delta) guarantee, the relation it holds for, and how to say it.

    For every two neighbouring data sets and every set S of outcomes,
    Pr[S] <= e^epsilon Pr'[S] + delta. This does not say that the ratio of probabilities
    is at most e^epsilon with probability 1 - delta: with Gaussian noise for (1, 1e-5)
    it exceeds e with probability 1.6e-4. Immutable and hashable, so that it can be
    static metadata of a pytree. `str()` gives the description.

    Args:
        epsilon: privacy parameter, 0 <= epsilon <= inf; inf means no privacy.
        delta: privacy parameter in [0, 1).
        relation: which data sets count as neighbours.
        dp_event: the `dp_accounting` event of the release, in the convention of that
            relation (`gaussian_event` and `selection_event` say which accountant reads
            it). It must be hashable: compose tuples, not lists.
        description: the guarantee in one sentence; `of` writes it, with epsilon,
            e^epsilon and delta rounded up.

    Raises:
        ValueError: If epsilon is negative or NaN, delta is outside [0, 1), the relation
            is not a `NeighboringRelation`, or the event cannot be hashed.

    Example:
        >>> from dpjax.accounting import gaussian_event
        >>> guarantee = PrivacyGuarantee.of(
        ...     1.0, 1e-5, dp_event=gaussian_event(3.7306), num_samples=32_561)
        >>> print(guarantee)
        Replacing any one of the 32,561 records changes the probability of any event
        to at most e^1 = 2.72 times what it was, plus 1e-05.
    """

    epsilon: float
    delta: float
    relation: NeighboringRelation
    dp_event: DpEvent
    description: str

    def __post_init__(self) -> None:
        _validate.within(0.0, math.inf, epsilon=self.epsilon)
        _validate.delta(self.delta)
        check_relation(self.relation)
        try:
            hash(self.dp_event)
        except TypeError:
            raise ValueError(
                "dp_event must be hashable (compose tuples of events, not lists), "
                f"got {self.dp_event!r}."
            ) from None

    def __str__(self) -> str:
        return self.description

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
        """A guarantee that writes its own description.

        Args:
            epsilon: privacy parameter, 0 <= epsilon <= inf.
            delta: privacy parameter in [0, 1).
            dp_event: the `dp_accounting` event of the release.
            relation: which data sets count as neighbours.
            num_samples: the number of units, if it is public and should be named.
            unit: a noun for what neighbours differ in: "record", "user" (one with all
                its records, see `dpjax.gradients.by_user`), or another noun with its
                description, such as "group of records with one postcode".

        Returns:
            The guarantee.

        Raises:
            ValueError: As for the class, and if the unit is not a text.

        Example:
            >>> from dpjax.accounting import gaussian_event
            >>> event = gaussian_event(1.0)
            >>> PrivacyGuarantee.of(1.0, 1e-5, dp_event=event).description
            'Replacing any one record changes the probability of any event to at most
            e^1 = 2.72 times what it was, plus 1e-05.'
        """
        is_words = isinstance(unit, str) and unit.strip() != ""
        _validate.require(is_words, "unit", unit, 'a noun, such as "record"')
        if epsilon == math.inf:
            description = (
                f"No privacy is guaranteed: the outcome may reveal any {unit}."
            )
        else:
            replaced = _any_one(unit, relation, num_samples)
            description = _describe(epsilon, delta, relation, replaced)
        return cls(epsilon, delta, relation, dp_event, description)

    @classmethod
    def non_private(cls) -> "PrivacyGuarantee":
        """The guarantee of a method that is not private: epsilon = inf.

        Example:
            >>> print(PrivacyGuarantee.non_private())
            No privacy is guaranteed: the outcome may reveal any record.
        """
        return cls.of(math.inf, 0.0, dp_event=NonPrivateDpEvent())


def check_relation(relation: NeighboringRelation) -> None:
    """Requires a relation of `dp_accounting`."""
    is_relation = isinstance(relation, NeighboringRelation)
    _validate.require(is_relation, "relation", relation, "a NeighboringRelation")


_NEIGHBOURS = {
    NeighboringRelation.REPLACE_ONE: "Replacing",
    NeighboringRelation.ADD_OR_REMOVE_ONE: "Adding or removing",
    NeighboringRelation.REPLACE_SPECIAL: "Blanking",
}


def _any_one(unit: str, relation: NeighboringRelation, num_samples: int | None) -> str:
    # Under add/remove the number of units is itself private, hence never named.
    if num_samples is None or relation is ADD_OR_REMOVE_ONE:
        return f"any one {unit}"
    noun, *more = unit.split(" ", 1)
    return " ".join([f"any one of the {num_samples:,} {noun}s", *more])


def _describe(
    epsilon: float, delta: float, relation: NeighboringRelation, replaced: str
) -> str:
    neighbours = f"{_NEIGHBOURS[relation]} {replaced}"
    # Rounded up: the text never claims more than is proved.
    shown = rounded_up(epsilon, 4)
    factor = f"e^{shown}"
    # Otherwise e^epsilon leaves the float range, or has too many digits to be read.
    if epsilon == 0 or 1e-6 <= float(shown) < 700:
        factor += f" = {factor_up(float(shown))}"
    # Not "with probability 1 - delta": the loss exceeds epsilon more often than that.
    more = f", plus {rounded_up(delta, 6)}" if delta > 0 else ""
    return (
        f"{neighbours} changes the probability of any event to at most {factor} times "
        f"what it was{more}."
    )
