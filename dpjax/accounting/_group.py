"""Group privacy: from one record to several records of one person, and back."""

import math
from typing import Any

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    SelfComposedDpEvent,
    UnsupportedDpEvent,
    ZCDpEvent,
)

from dpjax import _validate
from dpjax._rounding import sum_up
from dpjax.accounting._events import SampleDpEvent
from dpjax.accounting._guarantee import PrivacyGuarantee

# More than the rounding of float64 in what follows.
_SLACK = 1e-12


def group_privacy(
    guarantee: PrivacyGuarantee,
    group_size: int,
    *,
    num_groups: int | None = None,
    unit: str | None = None,
) -> PrivacyGuarantee:
    """The guarantee of a release for neighbors that differ in up to k records.

    What is (epsilon, delta)-DP for one record is (k epsilon, delta (e^(k epsilon) - 1)
    / (e^epsilon - 1))-DP for k.

    Args:
        guarantee: for one record.
        group_size: k, at least 1.
        num_groups: the number of groups, if it is public and should be named.
        unit: a noun for a group, as for `PrivacyGuarantee.of`. None: "group of up to k
            records".

    Returns:
        The guarantee. It has an event if the event for one record consists of Gaussian
        mechanisms (their noise multiplier is divided by k) and zCDP (its rho is
        multiplied by k^2).

    Raises:
        ValueError: If group_size is below 1.

    Privacy:
        A chain of k neighbors of the given relation connects two such data sets. If
        the number of records is public, pad people with fewer than k records.

    Example:
        >>> from dpjax.accounting import gaussian_event
        >>> one = PrivacyGuarantee.of(0.25, 1e-6, dp_event=gaussian_event(16.0))
        >>> four = group_privacy(one, 4)
        >>> f"{four.epsilon:g} {four.delta:.3g} {four.dp_event.event}"
        '1 6.05e-06 GaussianDpEvent(noise_multiplier=4.0)'
        >>> print(four)
        Replacing any one group of up to 4 records changes the probability of any
        event to at most e^1 = 2.72 times what it was, plus 6.04975e-06.

    Reference:
        Vadhan (2017), "The complexity of differential privacy", Lemma 2.2. Dong, Roth,
        Su (2022), "Gaussian differential privacy", Theorem 2.14. Bun, Steinke (2016),
        "Concentrated differential privacy", Proposition 1.9.
    """
    _validate.count(group_size=group_size)
    if num_groups is not None:
        _validate.count(num_groups=num_groups)
    epsilon, delta = guarantee.epsilon, guarantee.delta
    if group_size > 1 and epsilon < math.inf:
        delta = min(1 - 2.0**-53, delta * _multiple(epsilon, group_size) * (1 + _SLACK))
        epsilon = sum_up(*[epsilon] * group_size)
    return PrivacyGuarantee.of(
        epsilon,
        delta,
        dp_event=_event(guarantee.dp_event, group_size),
        relation=guarantee.relation,
        num_samples=num_groups,
        unit=f"group of up to {group_size} records" if unit is None else unit,
    )


def group_budget(epsilon: float, delta: float, group_size: int) -> tuple[float, float]:
    """The budget for one record that implies a given budget for up to k records.

    The inverse of `group_privacy`: (epsilon / k, delta (e^(epsilon/k) - 1) / (e^epsilon
    - 1)). At epsilon = 1 its Gaussian noise is only 0.2 per cent more than the exact
    one, k times the noise for one record.

    Returns:
        epsilon and delta for one record, rounded down.

    Example:
        >>> epsilon, delta = group_budget(1.0, 1e-5, 4)
        >>> f"{epsilon:.4f} {delta:.3g}"
        '0.2500 1.65e-06'
    """
    _validate.positive(epsilon=epsilon)
    _validate.delta(delta)
    _validate.count(group_size=group_size)
    if group_size == 1:
        return epsilon, delta
    each = epsilon / group_size * (1 - _SLACK)
    return each, delta / _multiple(each, group_size) * (1 - 3 * _SLACK)


def _multiple(epsilon: float, group_size: int) -> float:
    """Returns (e^(k epsilon) - 1) / (e^epsilon - 1), which is at least k."""
    if epsilon == 0:
        return float(group_size)
    exponent = (group_size - 1) * epsilon
    if exponent > 700:
        return math.inf
    return math.exp(exponent) * math.expm1(-group_size * epsilon) / math.expm1(-epsilon)


def _event(event: DpEvent, group_size: int) -> DpEvent:
    if isinstance(event, GaussianDpEvent):
        return GaussianDpEvent(event.noise_multiplier / group_size)
    if isinstance(event, ZCDpEvent) and event.xi == 0:
        return type(event)(event.rho * group_size**2)  # of the range, too
    if isinstance(event, SelfComposedDpEvent):
        return SelfComposedDpEvent(_event(event.event, group_size), event.count)
    if isinstance(event, ComposedDpEvent):
        parts: Any = tuple(_event(part, group_size) for part in event.events)
        return ComposedDpEvent(parts)
    # It knows its sample, of which there is still only one release.
    return event if isinstance(event, SampleDpEvent) else UnsupportedDpEvent()
