"""The page of utility, of its record, and what `python -m benchmarks utility` runs."""

import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import comparison, page
from benchmarks.comparison import Suite, Summary, Verdict, key_of, keys_of, short
from benchmarks.page import number, table
from benchmarks.record import RESULTS, Record, Row, read, rounded
from benchmarks.utility import predictions, problems, sklearn, tuning, untuned
from benchmarks.utility.hindsight import grid
from benchmarks.utility.methods import METHODS, Method
from benchmarks.utility.peers import LeftOut
from benchmarks.utility.problems import Problem

PATH = RESULTS / "utility.json"
EPSILONS = (0.1, 0.5, 1.0, 2.0, 8.0)
SEED = 19
OURS, BAR, CONSTANT = "dp_linear_model", "hindsight", "constant"
WIDE_BAR = "hindsight_wide"
RIVALS = (
    *("adassp", "adassp_quantile", "boosted_adassp", "tukey_em"),
    *("diffprivlib_linear", "diffprivlib_logistic", "diffprivlib_logistic_unit"),
)
FLOOR = 0.002  # of the excess of zero weights, added to both sides of a ratio


class Numbers(comparison.Numbers):
    """The record's numbers, as the page asks for them."""

    def names(self, *, is_real: bool | None = None) -> list[str]:
        """Returns the problems, all or of one kind, in the order of their tables."""
        return predictions.names(self, is_real=is_real)

    def ratio(self, problem, method, epsilon, bar=BAR) -> float | None:
        """Returns a method's ratio to the bar; None without either."""
        ours, other = (self.of(problem, one, epsilon) for one in (method, bar))
        if ours is None or other is None:
            return None
        floor = FLOOR * self.facts[problem]["zero_excess"]
        return (max(ours.mean, 0) + floor) / (max(other.mean, 0) + floor)

    def geometric_mean(self, problems, method, epsilon, bar=BAR):
        """Returns the mean of the ratios over those problems that have one."""
        found = (self.ratio(problem, method, epsilon, bar) for problem in problems)
        ratios = [ratio for ratio in found if ratio is not None]
        mean = comparison.geometric_mean(ratios)
        return None if mean is None else (mean, len(ratios))


def write(output: Path | None = None) -> list[Path]:
    """Writes the page, and returns its path."""
    return [page.write("UTILITY.md", parts(read(PATH), PATH), output)]


def parts(content: Record, path: Path) -> dict[str, page.Part]:
    """Returns the parts of the page of a record that lies there."""
    numbers = Numbers(content)
    return {
        "source": page.source(path),
        "settings": len(grid()),
        "wide": len(grid(is_wide=True)),
        "means": _means(numbers),
        "verdicts": comparison.verdicts_table("`dp_linear_model`", verdicts(numbers)),
        "problems": _problems(numbers),
        **predictions.parts(),
        **sklearn.parts(),
        **tuning.parts(),
        "choices": table(["data", *numbers.header], _choices(numbers)),
        **_seconds(numbers),
        "left_out": _left_out(numbers),
        "machines": page.machines(content),
    }


def _means(numbers: Numbers) -> Iterator[str]:
    for is_real, title in ((True, "Real data"), (False, "Made data")):
        problems = numbers.names(is_real=is_real)
        rows = []
        for method in METHODS.values():
            mean_at = partial(numbers.geometric_mean, problems, method.name)
            means = [mean_at(epsilon) for epsilon in numbers.epsilons]
            if method.name != BAR and any(means):
                counts = max(mean[1] for mean in means if mean)
                cells = ("" if mean is None else short(mean[0]) for mean in means)
                rows.append([method.title, *cells, str(counts)])
        if rows:
            titles = "; ".join(numbers.facts[name]["title"] for name in problems)
            yield f"**{title}**: {titles}."
            yield table(["method", *numbers.header, "sets"], rows)


def _cell(one: Summary) -> str:
    text = short(one.mean)
    if abs(one.mean) < 1e5 and one.error > 1e-9 * abs(one.mean):
        error = f"{one.error:.0f}" if one.error >= 10 else f"{one.error:.1g}"
        text += f" ± {error}"
    return text


def _problems(numbers: Numbers) -> Iterator[str]:
    titles = {name: method.title for name, method in METHODS.items()}
    for name in numbers.names():
        facts = numbers.facts[name]
        few, constant = facts["max_features"], number(facts["intercept_excess"])
        yield (
            f"### {page.capitalized(facts['title'])}\n\n"
            f"n = {facts['n']:,}, d = {facts['d']:,}, {facts['loss']} loss,\n"
            f"delta = {facts['delta']:.1e}; {facts['num_test']:,} test records"
            + (f"; at most {few} features where a method can choose" if few else "")
            + f".\nZero weights: {number(facts['zero_excess'])}"
            + (f"; the best constant: {constant}" if facts["has_intercept"] else "")
            + ". Bold: the best private method."
        )
        yield comparison.table_of_problem(
            *(numbers, name, titles, "excess test risk", _cell),
            is_rival=lambda method: METHODS[method].is_private,
        )


def _choices(numbers: Numbers) -> Iterator[list[str]]:
    for name in numbers.names():
        for bar, words in ((BAR, ""), (WIDE_BAR, ", wider grid")):
            if (chosen := numbers.chosen(name, bar)) is not None:
                yield [numbers.facts[name]["title"] + words, *chosen]


def _seconds(numbers: Numbers) -> dict[str, str]:
    """Returns the seconds of a run of each method."""
    found = {}
    for name in METHODS:
        rows = [row for place, row in numbers.rows.items() if place[1] == name]
        runs = sum(len(row["excess"]) for row in rows)
        seconds = sum(row["seconds"] for row in rows)
        found[f"seconds_{name}"] = number(seconds / runs) if runs else ""
    return found


def _left_out(numbers: Numbers) -> str:
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for (problem, method, _), row in sorted(numbers.rows.items(), key=lambda x: x[0]):
        if row.get("left_out") and method in METHODS:
            where = reasons.setdefault((method, row["left_out"]), {})
            where[numbers.facts[problem]["title"]] = None
    lines = ["Left out:\n"]
    for (method, reason), titles in reasons.items():
        lines.append(f"- {METHODS[method].title} on {', '.join(titles)}: {reason}.")
    return "\n".join(lines) if reasons else ""


def verdicts(numbers: Numbers) -> Iterator[Verdict]:
    """Judges what the solver without settings was asked to reach."""
    real, made = (numbers.names(is_real=kind) for kind in (True, False))
    within, every = "within two standard errors", "every real set, epsilon"
    for epsilon in (1.0, 2.0, 8.0):
        asked = f"{every} {epsilon:g}: at most hindsight, {within}"
        yield _no_worse(numbers, real, BAR, epsilon, asked)
        yield _at_most(numbers, real, epsilon, 0.6, "real sets")
    yield _at_most(numbers, real, 0.1, 1.3, "real sets")
    for epsilon in (1.0, 2.0, 8.0):  # not asked, but fairer
        asked = f"(not asked) {every} {epsilon:g}: at most hindsight on the wider grid,"
        yield _no_worse(numbers, real, WIDE_BAR, epsilon, f"{asked} {within}")
        where = "(not asked) real sets, against the wider grid"
        yield _at_most(numbers, real, epsilon, 1.0, where, WIDE_BAR)
    for epsilon in numbers.epsilons:
        asked = f"{every} {epsilon:g}: at most the private constant plus its own "
        asked += "standard error"
        yield _no_worse(numbers, real, CONSTANT, epsilon, asked)
    yield _at_most(numbers, made, 0.1, 3.0, "made sets")
    for epsilon in numbers.epsilons:
        if epsilon >= 0.5:
            yield _at_most(numbers, made, epsilon, 1.5, "made sets")
    asked = "sparse, epsilon 1: excess at least 50 times below hindsight"
    ours, bar = (numbers.of("sparse", one, 1.0) for one in (OURS, BAR))
    if ours is None or bar is None:
        yield Verdict(asked, "", None)
    else:
        factor = bar.mean / ours.mean if ours.mean > 0 else math.inf
        yield Verdict(asked, f"{factor:.0f} times", factor >= 50)
    for rival in RIVALS:
        yield _leads(numbers, rival)


def _no_worse(numbers, problems, other, epsilon, asked) -> Verdict:
    def holds(_, ours: Summary, bar: Summary) -> bool:
        errors = 2 * math.hypot(ours.error, bar.error)
        return ours.mean <= bar.mean + (ours.error if other == CONSTANT else errors)

    place = numbers, problems, (OURS, other), epsilon
    return comparison.judged(*place, asked, holds, lambda one: short(one.mean))


def _at_most(numbers, problems, epsilon, bound, where, bar=BAR) -> Verdict:
    mean = numbers.geometric_mean(problems, OURS, epsilon, bar)
    asked = f"{where}, epsilon {epsilon:g}: geometric mean at most {bound:g}"
    if mean is None:
        return Verdict(asked, "", None)
    return Verdict(asked, f"{short(mean[0])} over {mean[1]} sets", mean[0] <= bound)


def _leads(numbers, rival) -> Verdict:
    asked = f"every epsilon: ahead of {METHODS[rival].title}, geometric mean"
    found, holds, three = [], [], (rival, OURS, BAR)
    for epsilon in numbers.epsilons:
        names = numbers.names()
        shared = [x for x in names if len(numbers.column(x, three, epsilon)) == 3]
        if shared:
            pair = (numbers.geometric_mean(shared, x, epsilon) for x in (OURS, rival))
            ours, other = (mean for mean, _ in pair)
            found.append(f"{epsilon:g}: {short(ours)} against {short(other)}")
            holds.append(ours < other)
    return Verdict(asked, "; ".join(found), all(holds) if holds else None)


# -- What runs -------------------------------------------------------------------------


def run_named(methods, judge, problem, method, *how):
    """Returns the row and the problem's facts; None where it is not served."""
    data = problems.problem(problem)
    if not methods[method].serves(data):
        return None
    return run_one(methods[method], data, *how, judge), facts(data)


def judged(method: Method, data: Problem, params: np.ndarray) -> dict[str, list[float]]:
    """Returns the excess of each column of weights."""
    excess = data.excess(params, row_norm=method.row_norm)
    return {"excess": [rounded(x) for x in excess]}


def run_one(method, data, epsilon, repetitions, judge=judged) -> Row:
    """Runs a method's repetitions, with keys that depend on all that is run."""
    keys = keys_of(key_of(SEED, data.name, method.name, epsilon), repetitions)
    start = time.perf_counter()
    try:
        found, taken = method.fit(data, keys, epsilon)
    except LeftOut as reason:
        return {"excess": [], "seconds": 0.0, "facts": {}, "left_out": str(reason)}
    seconds = time.perf_counter() - start
    return {
        **judge(method, data, np.asarray(found)),
        "seconds": round(seconds, 3),
        "facts": {name: rounded(value) for name, value in taken.items()},
    }


def facts(data: Problem) -> dict[str, Any]:
    """What the page says of a problem."""
    names = "title loss delta is_real max_features zero_excess intercept_excess"
    known = {name: getattr(data, name) for name in names.split()}
    known |= dict(zip(("n", "d"), data.shape, strict=True))
    known |= {"num_test": len(data.test_targets)}
    known |= {"has_intercept": data.intercept is not None}
    return known | {"reference_risk": data.reference_risk}


def _suite(methods, names, epsilons, repetitions, path, packages=(), judge=judged):
    others = [name for name in problems.NAMES if name not in names]
    settings = methods, names, epsilons, repetitions, path, packages, others
    return Suite(partial(run_named, methods, judge), *settings)


PARTS = {
    "run": _suite(METHODS, problems.NAMES, EPSILONS, 10, PATH),
    "predictions": _suite(
        *(predictions.METHODS, problems.NAMES, predictions.EPSILONS, 5),
        *(predictions.PATH, ("interpret-core", "scikit-learn"), predictions.judged),
    ),
    "sklearn": _suite(
        *(sklearn.METHODS, sklearn.PROBLEMS, (1.0,), 5, sklearn.PATH),
        ("diffprivlib", "scikit-learn"),
    ),
    "tuning": _suite(tuning.METHODS, tuning.PROBLEMS, (1.0,), 10, tuning.PATH),
    "untuned": untuned.SUITE,
}
