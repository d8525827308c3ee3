"""Judges targets by the numbers of a record."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.case import Target
from benchmarks.record import Measurement, Results


@dataclass(frozen=True)
class Verdict:
    """What a target came to.

    Attributes:
        value: the number that is asked about, or the ratio.
        is_reached: whether it is within the bound.
        factor: how many times it is within the bound, or beyond it; at least 1.
        other: the method that it was compared with; "" where there is none.
    """

    value: float
    is_reached: bool
    factor: float
    other: str = ""


def quantity_of(
    measurement: Measurement, quantity: str, speed: Mapping[str, Any]
) -> float | None:
    """Returns a number of a measurement; None where it was not measured."""
    if quantity != "copy_share":
        return getattr(measurement, quantity)
    if measurement.work is None:
        return None
    bandwidth = speed["copies"][-1]["bytes_per_second"]
    return measurement.work["bytes"] / measurement.seconds / bandwidth


def judge(
    target: Target, results: Results | None, speed: Mapping[str, Any]
) -> Verdict | None:
    """Returns the verdict; None where a number that it takes was not measured."""
    numbers = {
        one.name: number
        for one in (results.methods if results else ())
        if (number := quantity_of(one, target.quantity, speed)) is not None
    }
    if target.method not in numbers:
        return None
    value, other = numbers[target.method], ""
    if target.against:
        others = [name for name in target.against if name in numbers]
        if not others:
            return None
        other = min(others, key=numbers.__getitem__)
        if value <= 0 or numbers[other] <= 0:
            return None
        ratio = value / numbers[other]
        value = ratio if target.times_faster is None else 1 / ratio
    if target.at_most is not None:
        room = target.at_most / value if value > 0 else float("inf")
    else:
        room = value / (target.times_faster or target.at_least or 1)
    return Verdict(value, room >= 1, max(room, 1 / room if room else 1), other)
