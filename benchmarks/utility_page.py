"""Writes UTILITY.md from its record; every number and verdict comes from there."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import utility_sklearn, utility_tuning
from benchmarks.text import number, source, table
from benchmarks.utility_hindsight import grid
from benchmarks.utility_methods import METHODS
from benchmarks.utility_record import Place, Record, Row
from benchmarks.utility_verdict import BAR, WIDE_BAR, Numbers, Summary, short, verdicts

HEAD = """\
# What a private linear model without settings is worth

Excess test risk of every method, at the same epsilon and delta = n^-1.1, under
replace-one. Written by `python -m benchmarks utility page` from
{source}.
"""
TEXT = """\
Real data are scaled by public constants only (`dpjax.datasets`), and their excess is
over the non-private optimum of the training set, on the test set: it may fall below
zero, as fitting the training set exactly is not what generalises best. Made data are
judged by the weights that made them. Squared loss is half the square.

The bar is clipped gradient descent whose norm, step (0.03 to 300, by half decades) and
number of steps (10 to 300) are the best of {settings} settings by the very test risk
that is reported, on keys of their own, and which does not pay for that: nobody can run
it. As the best setting for BlogFeedback lies outside that grid, a wider one stands
beside it ({wide} settings, steps from 0.001, norms to 3,000); ratios are to the first.
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


def page(content: Record, path: Path) -> str:
    """Returns the page of a record that lies there."""
    numbers = Numbers(content)
    parts = [
        HEAD.format(source=source(path)),
        TEXT.format(settings=len(grid()), wide=len(grid(is_wide=True))),
        *_means(numbers),
        CHECKS,
        _verdicts(numbers),
        "## Every data set\n",
        *_problems(numbers),
        *utility_sklearn.section(),
        *utility_tuning.section(),
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
            titles = "; ".join(numbers.problems[name]["title"] for name in problems)
            yield f"**{title}**: {titles}.\n"
            header = ["method", *_headers(numbers), "sets"]
            yield table(header, rows)


def _headers(numbers: Numbers) -> list[str]:
    return [f"epsilon {epsilon:g}" for epsilon in numbers.epsilons]


def _mean_cell(mean: tuple[float, int] | None) -> str:
    return "" if mean is None else short(mean[0])


def _cell(one: Summary | None, is_best: bool) -> str:
    if one is None:
        return ""
    text = short(one.mean)
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


def _verdicts(numbers: Numbers) -> str:
    words = {True: "yes", False: "**no**", None: "not recorded"}
    found = list(verdicts(numbers))
    rows = [[one.asked, one.found, words[one.holds]] for one in found]
    return table(["asked of `dp_linear_model`", "found", "holds"], rows)


def _choices(numbers: Numbers) -> str:
    rows = []
    for name in numbers.names():
        for bar, grid_name in ((BAR, ""), (WIDE_BAR, ", wider grid")):
            places = [Place(name, bar, epsilon) for epsilon in numbers.epsilons]
            taken = [numbers.rows.get(place) for place in places]
            if any(taken):
                title = numbers.problems[name]["title"] + grid_name
                rows.append([title, *map(_setting, taken)])
    return table(["data", *_headers(numbers)], rows)


def _setting(row: Row | None) -> str:
    if row is None:
        return ""
    return " / ".join(f"{value:g}" for value in row.facts.values())


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
