"""What the page of utility asks of its record: means, ratios and verdicts."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.text import number
from benchmarks.utility_methods import METHODS
from benchmarks.utility_problems import LARGEST_EXCESS, NAMES
from benchmarks.utility_record import Place, Record, Row

OURS, BAR, CONSTANT = "dp_linear_model", "hindsight", "constant"
WIDE_BAR = "hindsight_wide"
RIVALS = (
    *("adassp", "adassp_quantile", "boosted_adassp", "tukey_em"),
    *("diffprivlib_linear", "diffprivlib_logistic", "diffprivlib_logistic_unit"),
)
FLOOR = 0.002  # of the excess of zero weights, added to both sides of a ratio


class Summary(NamedTuple):
    """Mean and standard error of a row's repetitions."""

    mean: float
    error: float


def summary(row: Row | None) -> Summary | None:
    """Returns the summary; None where nothing ran."""
    if row is None or len(row.excess) < 2:
        return None
    values = np.array(row.excess)
    return Summary(
        float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))
    )


class Numbers:
    """The record's numbers, as the page asks for them."""

    def __init__(self, content: Record):
        self.rows = content.rows
        self.problems = content.problems
        self.epsilons = sorted({place.epsilon for place in content.rows})

    def names(self, *, is_real: bool | None = None) -> list[str]:
        """Returns the problems, all or of one kind, in the order of their tables."""
        return [
            name
            for name in NAMES
            if name in self.problems
            and is_real in (None, self.problems[name]["is_real"])
        ]

    def of(self, problem: str, method: str, epsilon: float) -> Summary | None:
        """Returns the summary of a row; None where nothing ran."""
        return summary(self.rows.get(Place(problem, method, epsilon)))

    def ratio(
        self, problem: str, method: str, epsilon: float, bar: str = BAR
    ) -> float | None:
        """Returns a method's ratio to the bar; None without either."""
        ours, other = (self.of(problem, one, epsilon) for one in (method, bar))
        if ours is None or other is None:
            return None
        floor = FLOOR * self.problems[problem]["zero_excess"]
        return (max(ours.mean, 0) + floor) / (max(other.mean, 0) + floor)

    def geometric_mean(
        self, problems: Sequence[str], method: str, epsilon: float, bar: str = BAR
    ) -> tuple[float, int] | None:
        """Returns the mean of the ratios over those problems that have one."""
        ratios = [
            ratio
            for problem in problems
            if (ratio := self.ratio(problem, method, epsilon, bar)) is not None
        ]
        if not ratios:
            return None
        return float(np.exp(np.mean(np.log(ratios)))), len(ratios)


class Verdict(NamedTuple):
    """One thing asked: what was found, None where the record lacks it."""

    asked: str
    found: str
    holds: bool | None


def verdicts(numbers: Numbers) -> Iterator[Verdict]:
    """Judges what the solver without settings was asked to reach."""
    real, made = (numbers.names(is_real=kind) for kind in (True, False))
    for epsilon in (1.0, 2.0, 8.0):
        yield _no_worse(
            numbers,
            real,
            BAR,
            epsilon,
            f"every real set, epsilon {epsilon:g}: at most hindsight, within two "
            "standard errors",
        )
        yield _at_most(numbers, real, epsilon, 0.6, "real sets")
    yield _at_most(numbers, real, 0.1, 1.3, "real sets")
    for epsilon in (1.0, 2.0, 8.0):  # not asked, but fairer
        yield _no_worse(
            numbers,
            real,
            WIDE_BAR,
            epsilon,
            f"(not asked) every real set, epsilon {epsilon:g}: at most hindsight on "
            "the wider grid, within two standard errors",
        )
        where = "(not asked) real sets, against the wider grid"
        yield _at_most(numbers, real, epsilon, 1.0, where, WIDE_BAR)
    for epsilon in numbers.epsilons:
        yield _no_worse(
            numbers,
            real,
            CONSTANT,
            epsilon,
            f"every real set, epsilon {epsilon:g}: at most the private constant plus "
            "its own standard error",
        )
    yield _at_most(numbers, made, 0.1, 3.0, "made sets")
    for epsilon in numbers.epsilons:
        if epsilon >= 0.5:
            yield _at_most(numbers, made, epsilon, 1.5, "made sets")
    yield _sparse(numbers)
    for rival in RIVALS:
        yield _leads(numbers, rival)


def _no_worse(numbers, problems, other, epsilon, asked) -> Verdict:
    worse, compared = [], 0
    for name in problems:
        ours, bar = (numbers.of(name, one, epsilon) for one in (OURS, other))
        if ours is None or bar is None:
            continue
        compared += 1
        room = ours.error
        if other != CONSTANT:
            room = 2 * math.hypot(ours.error, bar.error)
        if ours.mean > bar.mean + room:
            title = numbers.problems[name]["title"]
            worse.append(f"{title} {short(ours.mean)} against {short(bar.mean)}")
    found = f"{compared - len(worse)} of {compared} sets"
    if worse:
        found += "; not " + ", ".join(worse)
    return Verdict(asked, found, not worse if compared else None)


def _at_most(numbers, problems, epsilon, bound, where, bar=BAR) -> Verdict:
    mean = numbers.geometric_mean(problems, OURS, epsilon, bar)
    asked = f"{where}, epsilon {epsilon:g}: geometric mean at most {bound:g}"
    if mean is None:
        return Verdict(asked, "", None)
    return Verdict(asked, f"{short(mean[0])} over {mean[1]} sets", mean[0] <= bound)


def _sparse(numbers) -> Verdict:
    asked = "sparse, epsilon 1: excess at least 50 times below hindsight"
    ours, bar = (numbers.of("sparse", one, 1.0) for one in (OURS, BAR))
    if ours is None or bar is None:
        return Verdict(asked, "", None)
    factor = bar.mean / ours.mean if ours.mean > 0 else math.inf
    return Verdict(asked, f"{factor:.0f} times", factor >= 50)


def _leads(numbers, rival) -> Verdict:
    asked = f"every epsilon: ahead of {METHODS[rival].title}, geometric mean"
    found, holds = [], []
    for epsilon in numbers.epsilons:
        shared = [
            name
            for name in numbers.names()
            if numbers.ratio(name, rival, epsilon) is not None
            and numbers.ratio(name, OURS, epsilon) is not None
        ]
        if shared:
            ours, other = (
                numbers.geometric_mean(shared, one, epsilon)[0] for one in (OURS, rival)
            )
            found.append(f"{epsilon:g}: {short(ours)} against {short(other)}")
            holds.append(ours < other)
    return Verdict(asked, "; ".join(found), all(holds) if holds else None)


def short(x: float) -> str:
    """Returns a number with three digits, however large."""
    if abs(x) >= LARGEST_EXCESS / 100:
        return "not finite"
    return f"{x:.0e}".replace("e+", "e") if abs(x) >= 1e5 else number(x)
