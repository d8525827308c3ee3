"""Events of `dp_accounting`, and two more: their parts, checks and pure epsilons.

Accountants do not reject invalid events: they read a noise multiplier of -1 as 1.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator
from numbers import Integral, Real
from typing import Any

import dp_accounting as dpa
from dp_accounting import dp_event

from dpjax import _validate
from dpjax._types import ADD_OR_REMOVE_ONE, REPLACE_ONE, NeighboringRelation

ROUNDOFF = 1e-14  # bounds the relative errors of float64 formulas

# Fields that hold numbers are checked by name: a name means the same in all events.
_COUNTS = (
    *("count", "num_buckets", "num_bins", "num_steps", "sensitivity"),
    *("source_dataset_size", "sample_size", "dataset_size", "truncated_batch_size"),
)
_AMOUNTS = "noise_multiplier standard_deviation noise_parameter rho xi mean shape"
_RANGES = dict.fromkeys(_AMOUNTS.split(), (0.0, math.inf))
_RANGES["sampling_probability"] = (0.0, 1.0)


class BoundedRangeDpEvent(dpa.ZCDpEvent):
    """A selection with log probability ratios of range epsilon = sqrt(8 rho).

    It is therefore epsilon-DP. Accountants of `dp_accounting` read it as rho-zCDP.
    """

    @classmethod
    def of(cls, epsilon: float) -> "BoundedRangeDpEvent":
        """Returns the event of an epsilon; rho > 0 even if the square underflows."""
        return cls(max(epsilon * epsilon / 8, 1e-300) if epsilon > 0 else 0.0)

    @property
    def epsilon(self) -> float:
        """Returns the pure epsilon, rounded up."""
        return math.sqrt(8 * self.rho) * (1 + ROUNDOFF)


@dataclasses.dataclass(frozen=True)
class SampleDpEvent(dpa.DpEvent):
    """The releases of one random sample, amplified once; no accountant reads it."""

    samples: frozenset[str]  # identities of it, and of samples that it was drawn from


def leaves(event: dpa.DpEvent, count: int = 1) -> Iterator[tuple[dpa.DpEvent, int]]:
    """Yields each uncomposed part of an event, with the number of times it happens."""
    # `event`, which may be a nested composition, itself happens `count` times. Bounds
    # such as `pure_epsilon` are known for parts only.
    if isinstance(event, dpa.ComposedDpEvent):
        for part in event.events:
            yield from leaves(part, count)
    elif isinstance(event, dpa.SelfComposedDpEvent):
        yield from leaves(event.event, count * event.count)
    else:
        yield event, count


def map_leaves(
    function: Callable[[dpa.DpEvent], dpa.DpEvent], event: dpa.DpEvent
) -> dpa.DpEvent:
    """Returns a composed event with function(part) in place of each of its parts."""
    # Lists become tuples, so that the event can be hashed for a cache.
    if isinstance(event, dpa.ComposedDpEvent):
        parts: Any = tuple(map_leaves(function, part) for part in event.events)
        return dpa.ComposedDpEvent(parts)
    if isinstance(event, dpa.SelfComposedDpEvent):
        return dpa.SelfComposedDpEvent(map_leaves(function, event.event), event.count)
    if isinstance(event, dp_event.MixtureOfGaussiansDpEvent):
        lists = event.sensitivities, event.sampling_probs
        event = type(event)(event.standard_deviation, *map(tuple, lists))
    return function(event)


def samples_of(*events: dpa.DpEvent) -> Counter[str]:
    """Counts the releases of each `Sample` in the events, by the sample's identity."""
    # A `Sample` is a random part of a table. Callers accept a single release of it,
    # because its releases must be composed before sampling amplifies their privacy.
    counts: Counter[str] = Counter()
    for event in events:
        for leaf, count in leaves(event):
            inner = getattr(leaf, "event", None)
            if isinstance(leaf, SampleDpEvent):
                counts.update(dict.fromkeys(leaf.samples, count))
            elif inner is not None:
                counts.update(samples_of(inner))
    return counts


def check_event(name: str, event: Any) -> None:
    """Raises `ValueError` unless the numbers of a `dp_accounting` event are valid."""
    # Accountants do not check them. The message names `name`; unknown fields pass.
    rule = "an event of dp_accounting, such as dp_accounting.GaussianDpEvent(1.0)"
    _validate.require(isinstance(event, dpa.DpEvent), name, event, rule)
    parts = getattr(event, "events", [getattr(event, "event", None)])
    for part in parts:
        if part is not None:
            check_event(name, part)
    is_response = isinstance(event, dpa.RandomizedResponseDpEvent)
    ranges = _RANGES | ({"noise_parameter": (0.0, 1.0)} if is_response else {})
    for field, (low, high) in ranges.items():
        is_fine = _is_between(Real, getattr(event, field, low), low, high)
        _validate.require(
            is_fine, name, event, f"one with {field} in [{low:g}, {high:g}]"
        )
    for field in _COUNTS:
        is_fine = _is_between(Integral, getattr(event, field, 1), 1, math.inf)
        _validate.require(is_fine, name, event, f"one with an integer {field} >= 1")
    if isinstance(event, dpa.SampledWithoutReplacementDpEvent):
        is_fine = event.sample_size <= event.source_dataset_size
        rule = "an event whose sample_size is at most its source_dataset_size"
        _validate.require(is_fine, name, event, rule)


def _is_between(kind: type, value: Any, low: float, high: float) -> bool:
    return isinstance(value, kind) and low <= value <= high


def has_no_noise(event: dpa.DpEvent) -> bool:
    """Returns whether an event, or the event inside a sampled event, has no noise."""
    # Such a release has an infinite epsilon, which no accountant needs to compute.
    amounts = ("noise_multiplier", "noise_parameter", "standard_deviation")
    inner = getattr(event, "event", None)
    return (
        isinstance(event, dpa.NonPrivateDpEvent)
        or any(getattr(event, name, 1.0) == 0 for name in amounts)
        or (inner is not None and has_no_noise(inner))
    )


def pure_epsilon(event: dpa.DpEvent, relation: NeighboringRelation) -> float:
    """Returns the epsilon at delta = 0 of an uncomposed event, or inf if unknown."""
    # Pure epsilons of parts add up to one of the composition, which bounds its cost.
    if isinstance(event, dpa.NoOpDpEvent):
        return 0.0
    if isinstance(event, BoundedRangeDpEvent):
        return event.epsilon
    if isinstance(event, dpa.LaplaceDpEvent):
        return 1 / event.noise_multiplier
    if isinstance(event, dp_event.DiscreteLaplaceDpEvent):
        return event.noise_parameter * event.sensitivity
    # A removed record gives no answer to randomized response, so that epsilon is inf.
    if isinstance(event, dpa.RandomizedResponseDpEvent) and relation is REPLACE_ONE:
        noise, buckets = event.noise_parameter, event.num_buckets
        return math.log1p(buckets * (1 - noise) / noise)
    return math.inf


def read_under(relation: NeighboringRelation) -> NeighboringRelation:
    """Returns the relation under which accountants read the events of a guarantee."""
    # A blanked record contributes zero, as a removed one. Under REPLACE_SPECIAL they
    # compare an answer of randomized response with pure noise, which costs less than
    # the two answers that `selection_event` means.
    return REPLACE_ONE if relation is REPLACE_ONE else ADD_OR_REMOVE_ONE
