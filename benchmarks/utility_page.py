"""Writes UTILITY.md from its record; every number and verdict comes from there."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import utility_record
from benchmarks.record import ROOT
from benchmarks.text import number, table
from benchmarks.utility_methods import METHODS
from benchmarks.utility_problems import LARGEST_EXCESS
from benchmarks.utility_record import Place, Record, Row
from dpjax._files import check_file, write_whole

OURS, BAR, CONSTANT = "dp_linear_model", "hindsight", "constant"
RIVALS = (
    *("adassp", "adassp_quantile", "boosted_adassp", "tukey_em"),
    *("diffprivlib_linear", "diffprivlib_logistic"),
)
FLOOR = 0.002  # of the excess of zero weights, added to both sides of a ratio
HEAD = """\
# What a private linear model without settings is worth

Excess test risk of every method, at the same epsilon and delta = n^-1.1, under
replace-one. Written by `python -m benchmarks utility page` from
[{name}](results/{name}).

{text}
"""
TEXT = """\
Real data are scaled by public constants only (`dpjax.datasets`), and their excess is
over the non-private optimum of the training set, on the test set: it may fall below
zero, as fitting the training set exactly is not what generalises best. Made data are
judged by the weights that made them. Squared loss is half the square.

The bar is clipped gradient descent whose norm, step (0.03 to 300, by half decades) and
number of steps (10 to 300) are the best of {settings} by the very test risk that is
reported, on keys of their own, and which does not pay for that. Nobody can run it.
"""
MEANS = """\
## Against the best of hindsight

Ratios (max(excess, 0) + f) / (max(bar, 0) + f), where f is 0.2 % of the excess of zero
weights; geometric means over data sets, their number behind. A method that does not
serve a task is left out of that data set, so that means over fewer sets are not of the
same sets. Below 1 is better than hindsight.
"""
CHECKS = """\
## What was asked, and what was found

Computed from the record. Standard errors of differences are those of both means.
"""


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
        from benchmarks.utility_problems import NAMES

        return [
            name
            for name in NAMES
            if name in self.problems
            and is_real in (None, self.problems[name]["is_real"])
        ]

    def of(self, problem: str, method: str, epsilon: float) -> Summary | None:
        """Returns the summary of a row; None where nothing ran."""
        return summary(self.rows.get(Place(problem, method, epsilon)))

    def ratio(self, problem: str, method: str, epsilon: float) -> float | None:
        """Returns a method's ratio to the bar; None without either."""
        ours, bar = (self.of(problem, one, epsilon) for one in (method, BAR))
        if ours is None or bar is None:
            return None
        floor = FLOOR * self.problems[problem]["zero_excess"]
        return (max(ours.mean, 0) + floor) / (max(bar.mean, 0) + floor)

    def geometric_mean(
        self, problems: Sequence[str], method: str, epsilon: float
    ) -> tuple[float, int] | None:
        """Returns the mean of the ratios over those problems that have one."""
        ratios = [
            ratio
            for problem in problems
            if (ratio := self.ratio(problem, method, epsilon)) is not None
        ]
        if not ratios:
            return None
        return float(np.exp(np.mean(np.log(ratios)))), len(ratios)


def write_page(record_path: Path, output: Path | None = None) -> Path:
    """Writes the page and returns its path."""
    output = ROOT / "UTILITY.md" if output is None else output
    check_file("--output", output, suffix=".md")
    content = utility_record.read(record_path)
    write_whole(output, page(content, record_path.name).encode(), name="page")
    return output


def page(content: Record, name: str) -> str:
    """Returns the page."""
    from benchmarks.utility_hindsight import grid

    numbers = Numbers(content)
    parts = [
        HEAD.format(name=name, text=TEXT.format(settings=f"{len(grid())} settings")),
        *_means(numbers),
        CHECKS,
        _verdicts(numbers),
        "## Every data set\n",
        *_problems(numbers),
        "## What hindsight chose\n\nNorm, step and number of steps.\n",
        _choices(numbers),
        "## What each method is and pays\n",
        _methods(numbers),
        *_left_out(numbers),
        "## How it was run\n",
        *_machines(content),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _means(numbers: Numbers) -> Iterator[str]:
    yield MEANS
    for is_real, title in ((True, "Real data"), (False, "Made data")):
        problems = numbers.names(is_real=is_real)
        rows = []
        for method in METHODS.values():
            means = [
                numbers.geometric_mean(problems, method.name, epsilon)
                for epsilon in numbers.epsilons
            ]
            if method.name != BAR and any(means):
                counts = max(mean[1] for mean in means if mean)
                rows.append([method.title, *map(_mean_cell, means), str(counts)])
        if rows:
            titles = ", ".join(numbers.problems[name]["title"] for name in problems)
            yield f"**{title}**: {titles}.\n"
            header = ["method", *_headers(numbers), "sets"]
            yield table(header, rows)


def _headers(numbers: Numbers) -> list[str]:
    return [f"epsilon {epsilon:g}" for epsilon in numbers.epsilons]


def _mean_cell(mean: tuple[float, int] | None) -> str:
    return "" if mean is None else _short(mean[0])


def _short(x: float) -> str:
    if abs(x) >= LARGEST_EXCESS / 100:
        return "not finite"
    return f"{x:.0e}".replace("e+", "e") if abs(x) >= 1e5 else number(x)


def _cell(one: Summary | None, is_best: bool) -> str:
    if one is None:
        return ""
    text = _short(one.mean)
    if abs(one.mean) < 1e5 and one.error > 1e-9 * abs(one.mean):
        error = f"{one.error:.0f}" if one.error >= 10 else f"{one.error:.1g}"
        text += f" ± {error}"
    return f"**{text}**" if is_best else text


def _problems(numbers: Numbers) -> Iterator[str]:
    for name in numbers.names():
        facts = numbers.problems[name]
        columns = [
            {
                method: found
                for method in METHODS
                if (found := numbers.of(name, method, epsilon)) is not None
            }
            for epsilon in numbers.epsilons
        ]
        rows = [
            [
                method.title,
                *(
                    _cell(column.get(method.name), method.name == _best(column))
                    for column in columns
                ),
            ]
            for method in METHODS.values()
            if any(method.name in column for column in columns)
        ]
        loss = f"{facts['loss']} loss"
        few = facts["max_features"]
        yield (
            f"### {facts['title'][0].upper()}{facts['title'][1:]}\n\n"
            f"n = {facts['n']:,}, d = {facts['d']:,}, {loss},\n"
            f"delta = {facts['delta']:.1e}; {facts['num_test']:,} test records"
            + (f"; at most {few} features where a method can choose" if few else "")
            + f".\nZero weights: {number(facts['zero_excess'])}"
            + (
                f"; the best constant: {number(facts['intercept_excess'])}"
                if facts["has_intercept"]
                else ""
            )
            + ". Bold: the best private method.\n"
        )
        yield table(["excess test risk", *_headers(numbers)], rows)


def _best(column: dict[str, Summary]) -> str:
    private = [name for name in column if METHODS[name].is_private]
    return min(private, key=lambda name: column[name].mean, default="")


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
        if other == BAR:
            room = 2 * math.hypot(ours.error, bar.error)
        if ours.mean > bar.mean + room:
            title = numbers.problems[name]["title"]
            worse.append(f"{title} {_short(ours.mean)} against {_short(bar.mean)}")
    found = f"{compared - len(worse)} of {compared} sets"
    if worse:
        found += "; not " + ", ".join(worse)
    return Verdict(asked, found, not worse if compared else None)


def _at_most(numbers, problems, epsilon, bound, where) -> Verdict:
    mean = numbers.geometric_mean(problems, OURS, epsilon)
    asked = f"{where}, epsilon {epsilon:g}: geometric mean at most {bound:g}"
    if mean is None:
        return Verdict(asked, "", None)
    return Verdict(asked, f"{_short(mean[0])} over {mean[1]} sets", mean[0] <= bound)


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
            found.append(f"{epsilon:g}: {_short(ours)} against {_short(other)}")
            holds.append(ours < other)
    return Verdict(asked, "; ".join(found), all(holds) if holds else None)


def _verdicts(numbers: Numbers) -> str:
    words = {True: "yes", False: "**no**", None: "not recorded"}
    found = list(verdicts(numbers))
    rows = [[one.asked, one.found, words[one.holds]] for one in found]
    return table(["asked of `dp_linear_model`", "found", "holds"], rows)


def _choices(numbers: Numbers) -> str:
    rows = []
    for name in numbers.names():
        taken = [
            numbers.rows.get(Place(name, BAR, epsilon)) for epsilon in numbers.epsilons
        ]
        if any(taken):
            rows.append(
                [
                    numbers.problems[name]["title"],
                    *(
                        " / ".join(f"{value:g}" for value in row.facts.values())
                        if row
                        else ""
                        for row in taken
                    ),
                ]
            )
    return table(["data", *_headers(numbers)], rows)


def _methods(numbers: Numbers) -> str:
    rows = []
    for method in METHODS.values():
        done = [
            row
            for place, row in numbers.rows.items()
            if place.method == method.name and row.excess
        ]
        if done:
            seconds = sum(row.seconds for row in done)
            runs = sum(len(row.excess) for row in done)
            tasks = "both" if len(method.tasks) == 2 else method.tasks[0]
            rows.append(
                [
                    *(method.title, tasks, method.price),
                    *(method.given or "nothing", seconds / runs),
                ]
            )
    header = ["method", "losses", "price", "given, not paid", "seconds a run"]
    return table(header, rows)


def _left_out(numbers: Numbers) -> Iterator[str]:
    reasons = {}
    for place, row in sorted(numbers.rows.items()):
        if row.left_out:
            title = numbers.problems[place.problem]["title"]
            reasons.setdefault((place.method, row.left_out), {})[title] = None
    if reasons:
        yield "Left out:\n"
        yield "\n".join(
            f"- {METHODS[method].title} on {', '.join(titles)}: {reason}."
            for (method, reason), titles in reasons.items()
            if method in METHODS
        )


def _machines(content: Record) -> Iterator[str]:
    counts = {}
    for row in content.rows.values():
        if row.excess:
            counts.setdefault(row.machine, []).append(row)
    merged: dict[str, list] = {}
    for index, rows in sorted(counts.items()):
        machine = content.machines[index]
        versions = ", ".join(
            f"{name} {version}" for name, version in machine["versions"].items()
        )
        text = (
            f"{machine['cores']} cores of {machine['processor']}, "
            f"{machine['accelerator'] or 'no accelerator'}; {machine['system']}, "
            f"Python {machine['python']}; {versions}"
        )
        merged.setdefault(text, []).append((machine["commit"], rows))
    for text, parts in merged.items():
        rows = [row for _, part in parts for row in part]
        commits = ", ".join(dict.fromkeys(commit for commit, _ in parts if commit))
        repetitions = sorted({len(row.excess) for row in rows})
        yield (
            f"- {len(rows)} rows of {' to '.join(map(str, _ends(repetitions)))} "
            f"repetitions, {sum(row.seconds for row in rows) / 60:.0f} minutes: {text}"
            + (f"; commit {commits}" if commits else "")
            + "."
        )
    yield (
        "\nSeconds count compilation. Left rows are run, and added to the record, by\n"
        "`python -m benchmarks utility run`; records of parts are joined by\n"
        "`python -m benchmarks utility merge`."
    )


def _ends(values: Sequence[int]) -> list[int]:
    return [values[0], values[-1]] if len(values) > 1 else list(values)
