"""What a benchmark is made of: methods that do the same work, and what is asked.

A case is data: its methods are made when it runs, its targets are judged when the page
is written, from the numbers of a recorded run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Work:
    """The least that a method's algorithm moves and computes.

    The counts are formulas over the names in `sizes`, shown as they are computed.

    Attributes:
        bytes: bytes read and written.
        operations: additions, multiplications, comparisons and their like.
        resident: bytes that are touched again and again, or the data where they are
            read once; it decides which of the measured bandwidths counts.
        sizes: what the names in the formulas stand for.
    """

    bytes: str
    operations: str
    resident: str
    sizes: Mapping[str, float]

    def count(self, formula: str) -> float:
        """Returns what a formula comes to."""
        return float(eval(formula, {"__builtins__": {}}, dict(self.sizes)))


@dataclass(frozen=True)
class Method:
    """One way to do a case's work.

    Attributes:
        name: as in the tables; targets refer to it.
        make: returns `(function, arguments)`. A function made by `jax.jit` is compiled
            apart and its scratch memory read from the compiler; any other is called as
            it stands, work on the host included.
        package: whose it is; where that is not installed the method is left out.
        work: returns what its algorithm has to do, where that is known.
        count: how many units (draws, steps) one call makes.
        series: the line that the method is a point of, in a case with an axis.
        x: where on the axis it lies.
    """

    name: str
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    package: str = "dpjax"
    work: Callable[[], Work] | None = None
    count: int | None = None
    series: str = ""
    x: float | None = None


@dataclass(frozen=True)
class Target:
    """What is asked of a method; exactly one of the three bounds is given.

    Attributes:
        method: whose number it is.
        against: methods to compare with: the best of those measured counts. None of
            them: the number itself is asked about.
        at_most: bound on the method's number over the other's.
        times_faster: bound from below on the other's number over the method's.
        at_least: bound from below on the number itself.
        quantity: a number of a measurement (see `record.Measurement`).
        against_name: what `against` is called, where it is several.
        binds: why the target is hard; shown where it is missed.
    """

    method: str
    against: Sequence[str] = ()
    at_most: float | None = None
    times_faster: float | None = None
    at_least: float | None = None
    quantity: str = "seconds"
    against_name: str = ""
    binds: str = ""

    def __post_init__(self):
        given = [
            bound
            for bound in (self.at_most, self.times_faster, self.at_least)
            if bound is not None
        ]
        if len(given) != 1 or not given[0] > 0:
            raise ValueError(f"{self}: exactly one bound, above zero")
        if (self.times_faster is not None and not self.against) or (
            self.at_least is not None and self.against
        ):
            raise ValueError(f"{self}: times_faster compares, at_least does not")


@dataclass(frozen=True)
class Case:
    """Methods that take turns at the same work.

    Attributes:
        name: as on the command line and in the record.
        title: heading on the page.
        text: what is measured and how; no results.
        build: `build(quick)` returns the methods, with smaller data where quick.
        targets: what is asked.
        yardstick: the method that the table divides the times by; in a case with an
            axis the series, at the same place.
        unit: what `Method.count` counts.
        has_peak: whether the peak memory of each method is measured, in a process of
            its own; takes seconds a method.
        quick_peak: whether a quick run measures it too.
        axis: its label, for cases whose methods are points of lines.
    """

    name: str
    title: str
    text: str
    build: Callable[[bool], Sequence[Method]]
    targets: Sequence[Target] = ()
    yardstick: str = ""
    unit: str = ""
    has_peak: bool = True
    quick_peak: bool = False
    axis: str = ""
