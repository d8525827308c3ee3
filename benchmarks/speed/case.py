"""What a benchmark is made of: methods that do the same work, and what is asked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Method:
    """One way to do a case's work; left out where its package is not installed.

    `make` returns `(function, arguments)`; what `jax.jit` made is compiled apart.
    `moved_bytes` is the least that it reads and writes, where that is known.
    """

    name: str
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    package: str = "dpjax"
    moved_bytes: int | None = None


@dataclass(frozen=True)
class Measurement:
    """What was measured of one method; None where it does not apply.

    `seconds` is the median of so many `repeats`, beside quartiles; `peak_bytes` is
    resident memory at its highest in a call, over that before it.
    """

    name: str
    package: str
    seconds: float
    quartiles: Sequence[float]
    repeats: int
    compile_seconds: float | None = None
    temporary_bytes: int | None = None
    peak_bytes: int | None = None
    moved_bytes: int | None = None

    def quantity(self, name: str, floor: Mapping[str, Any]) -> float | None:
        """Returns a number of it; None where it was not measured."""
        if name != "copy_share":
            return getattr(self, name)
        if self.moved_bytes is None:
            return None
        return self.moved_bytes / self.seconds / floor["copies"][-1]["bytes_per_second"]


class Verdict(NamedTuple):
    """What a target came to: a number or a ratio, and how far from its bound."""

    value: float
    is_reached: bool
    factor: float  # how many times within the bound, or beyond it; at least 1
    other: str = ""  # the method that it was compared with


@dataclass(frozen=True)
class Target:
    """What is asked of a method; exactly one of the three bounds is given.

    `at_most` and `times_faster` bound the ratio to the best of `against`, which is
    called `against_name` where it is several, `at_least` the `quantity` itself.
    """

    method: str
    against: Sequence[str] = ()
    at_most: float | None = None
    times_faster: float | None = None
    at_least: float | None = None
    quantity: str = "seconds"
    against_name: str = ""

    def judge(self, measured, floor) -> Verdict | None:
        """Returns the verdict; None where a number that it takes was not measured."""
        numbers = {one.name: one.quantity(self.quantity, floor) for one in measured}
        numbers = {name: number for name, number in numbers.items() if number}
        others = [name for name in self.against if name in numbers]
        if self.method not in numbers or (self.against and not others):
            return None
        value, other = numbers[self.method], ""
        if others:
            other = min(others, key=numbers.__getitem__)
            value /= numbers[other]
        value = 1 / value if self.times_faster else value
        room = value / (self.times_faster or self.at_least or 1)
        if self.at_most is not None:
            room = self.at_most / value
        return Verdict(value, room >= 1, max(room, 1 / room), other)


@dataclass(frozen=True)
class Case:
    """Methods that take turns at the same work, and targets.

    The table divides times by the yardstick's. Peak memory takes a process a method.
    """

    name: str
    title: str
    build: Callable[[], Sequence[Method]]
    targets: Sequence[Target] = ()
    yardstick: str = ""
    has_peak: bool = True
