"""Methods compared on problems at several epsilons: how they run, what a page asks.

A row stands at (problem, method, epsilon) and has an excess for each repetition.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import jax
import numpy as np

from benchmarks import record
from benchmarks.page import number, table
from benchmarks.record import PACKAGES, Record, Row

# What stands for an excess that is not finite, and for all above: JSON has no infinity.
LARGEST_EXCESS = 1e30
WORDS = {True: "yes", False: "**no**", None: "not recorded"}  # of a verdict
Run = Callable[[str, str, float, int], tuple[Row, Mapping[str, Any]] | None]


class Suite(NamedTuple):
    """One part of a command: what it runs by default, and the record that it goes to.

    `one` maps problem, method, epsilon and repetitions to a row and the facts of the
    problem; None where the method does not serve it. `others` are problems that run
    only when they are named; of `packages` the versions are noted.
    """

    one: Run
    methods: Collection[str]
    problems: Collection[str]
    epsilons: Sequence[float]
    repetitions: int
    path: Path
    packages: Sequence[str] = ()
    others: Sequence[str] = ()


def add_arguments(suites: Mapping[str, Suite], parser) -> None:
    """Adds a command a suite: what to run, and the record that it goes to."""
    commands = parser.add_subparsers(dest="part", required=True)
    for part, suite in suites.items():
        one = commands.add_parser(part, help="run what the record lacks")
        one.add_argument("--methods", nargs="+", default=list(suite.methods))
        one.add_argument("--problems", nargs="+", default=list(suite.problems))
        one.add_argument("--epsilons", nargs="+", type=float, default=suite.epsilons)
        one.add_argument("--repetitions", type=int, default=suite.repetitions)
        one.add_argument("--out", type=Path, default=suite.path, help="the record")
        words = "also what the record has"
        one.add_argument("--again", action="store_true", help=words)


def run(suites, part, *, methods, problems, epsilons, repetitions, out, again) -> None:
    """Runs what a record lacks, and merges each row as it comes."""
    suite = suites[part]
    known = {"method": [*suite.methods], "problem": [*suite.problems, *suite.others]}
    for kind, name in [*product(["method"], methods), *product(["problem"], problems)]:
        if name not in known[kind]:
            names = ", ".join(known[kind])
            raise ValueError(f"{kind} = {name!r}: must be one of {names}")
    for epsilon in epsilons:
        if not epsilon > 0:
            raise ValueError(f"epsilon = {epsilon}: must be positive")
    if repetitions < 2:
        raise ValueError(f"repetitions = {repetitions}: must be at least 2")

    def found(place: record.Place) -> record.Found | None:
        problem, method, epsilon = place
        if (pair := suite.one(problem, method, epsilon, repetitions)) is None:
            return None
        row, facts = pair
        said = row.get("left_out") or ""
        if (mean := summary(row)) is not None:
            said = f"{mean.mean:.4g} +- {mean.error:.2g}, {row['seconds']:.1f} s"
        print(f"{problem}, {method}, epsilon {epsilon:g}: {said}", flush=True)
        return {place: row}, {problem: facts}

    record.fill(
        out,
        product(problems, methods, map(float, epsilons)),
        found,
        is_there=lambda row, _: not again and len(row["excess"]) >= repetitions,
        about=record.about_run((*PACKAGES, *suite.packages)),
    )


def key_of(seed: int, *names: Any) -> jax.Array:
    """Returns a key that depends on all that is run."""
    name = " ".join(f"{x:g}" if isinstance(x, float) else x for x in names)
    return jax.random.fold_in(jax.random.key(seed), crc32(name.encode()) & 0x7FFFFFFF)


def keys_of(key: jax.Array, repetitions: int) -> jax.Array:
    """Returns a key a repetition; more of them begin with the fewer."""
    indices = np.arange(repetitions, dtype=np.uint32)
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(indices)


class Verdict(NamedTuple):
    """One thing asked: what was found, None where the record lacks it."""

    asked: str
    found: str
    holds: bool | None


def verdicts_table(of: str, verdicts: Iterable[Verdict]) -> str:
    """Returns a row a verdict."""
    rows = ([one.asked, one.found, WORDS[one.holds]] for one in verdicts)
    return table([f"asked of {of}", "found", "holds"], rows)


class Summary(NamedTuple):
    """Mean and standard error of a row's repetitions."""

    mean: float
    error: float


def summary(row: Row | None) -> Summary | None:
    """Returns the summary; None where nothing ran."""
    if row is None or len(row["excess"]) < 2:
        return None
    values = np.array(row["excess"])
    error = values.std(ddof=1) / math.sqrt(len(values))
    return Summary(float(values.mean()), float(error))


class Numbers:
    """A record's numbers, as a page asks for them; of another measure than excess."""

    def __init__(self, content: Record, measure: str = "excess"):
        self.rows, self.facts = content.rows, content.facts
        if measure != "excess":
            found = {place: row.get(measure, []) for place, row in self.rows.items()}
            self.rows = {one: {"excess": values} for one, values in found.items()}
        self.epsilons = sorted({epsilon for _, _, epsilon in content.rows})

    @property
    def header(self) -> list[str]:
        """Returns a column's title an epsilon."""
        return [f"epsilon {epsilon:g}" for epsilon in self.epsilons]

    def of(self, problem: str, method: str, epsilon: float) -> Summary | None:
        """Returns the summary of a row; None where nothing ran."""
        return summary(self.rows.get((problem, method, epsilon)))

    def column(self, problem, methods, epsilon) -> dict[str, Summary]:
        """Returns the summaries of those methods that ran."""
        found = {method: self.of(problem, method, epsilon) for method in methods}
        return {method: one for method, one in found.items() if one is not None}

    def chosen(self, problem: str, method: str) -> list[str] | None:
        """Returns the settings that hindsight chose, a cell an epsilon."""
        rows = [self.rows.get((problem, method, epsilon)) for epsilon in self.epsilons]
        facts = ([] if row is None else row["facts"].values() for row in rows)
        cells = [" / ".join(f"{x:g}" for x in values) for values in facts]
        return cells if any(rows) else None


def judged(numbers, problems, methods, epsilon, asked, holds, said) -> Verdict:
    """Judges a rule of facts and two methods, on every problem that both have run."""
    fails, compared = [], 0
    for name in problems:
        ours, other = (numbers.of(name, method, epsilon) for method in methods)
        if ours is None or other is None:
            continue
        compared += 1
        if not holds(numbers.facts[name], ours, other):
            title = numbers.facts[name]["title"]
            fails.append(f"{title} {said(ours)} against {said(other)}")
    found = f"{compared - len(fails)} of {compared} sets"
    if fails:
        found += "; not " + ", ".join(fails)
    return Verdict(asked, found, not fails if compared else None)


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """Returns the geometric mean; None of nothing."""
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else None


def table_of_problem(numbers, problem, titles, corner, cell, is_rival, best=min) -> str:
    """Returns a row a method, a column an epsilon; the best rival in bold."""
    found = {one: numbers.column(problem, titles, one) for one in numbers.epsilons}
    found = {epsilon: column for epsilon, column in found.items() if column}
    header = [f"epsilon {epsilon:g}" for epsilon in found]

    def text(method: str, column: Mapping[str, Summary]) -> str:
        if method not in column:
            return ""
        rivals = [name for name in column if is_rival(name)]
        first = best(rivals, key=lambda name: column[name].mean, default="")
        said = cell(column[method])
        return f"**{said}**" if method == first else said

    rows = [
        [title, *(text(method, column) for column in found.values())]
        for method, title in titles.items()
        if any(method in column for column in found.values())
    ]
    return table([corner, *header], rows) if found else ""


def wins(ours: Row, other: Row) -> float:
    """Returns in which share of pairs of keys ours is better."""
    return float(np.mean(np.less.outer(ours["excess"], other["excess"])))


def short(x: float) -> str:
    """Returns a number with three digits, however large."""
    if abs(x) >= LARGEST_EXCESS / 100:
        return "not finite"
    return f"{x:.0e}".replace("e+", "e") if abs(x) >= 1e5 else number(x)


def shown(found: Summary | None) -> str:
    """Returns a mean and its standard error with three digits."""
    return "" if found is None else f"{short(found.mean)} ± {short(found.error)}"
