"""The page of deep networks: every number and verdict comes from its record."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import comparison, page
from benchmarks.comparison import WORDS, Summary, geometric_mean
from benchmarks.deep import methods
from benchmarks.deep.methods import BARS, PATH, TITLES
from benchmarks.page import listed, number, table
from benchmarks.record import Record, read

OURS, BAR = "adaptive_refit", "hindsight"
AT_MOST = 1.05
LEARNT = 0.9  # of the constant's loss, or less, where the bar learns more than little
Cell = tuple[str, float]  # a task at an epsilon


class Numbers(comparison.Numbers):
    """The record's numbers, as the page asks for them."""

    def cells(self, *, is_made: bool) -> list[Cell]:
        """Returns the cells of real tasks, or of made ones, in a fixed order."""
        cells = {(task, epsilon) for task, _, epsilon in self.rows}
        return sorted(x for x in cells if self.facts[x[0]]["is_made"] is is_made)

    @property
    def titles(self) -> dict[str, str]:
        """The titles of those methods that ran, ours in bold."""
        ran = {method for _, method, _ in self.rows}
        titles = TITLES | {OURS: f"**{TITLES[OURS]}**"}
        return {name: title for name, title in titles.items() if name in ran}

    def ratio(self, cell: Cell, method: str, bar: str = BAR) -> float | None:
        """Returns a method's test loss over the bar's; None without either."""
        ours, other = (self.of(cell[0], one, cell[1]) for one in (method, bar))
        return None if ours is None or other is None else ours.mean / other.mean

    def constant(self, cell: Cell) -> float | None:
        """Returns the best constant's test loss over the bar's; None without a bar."""
        bar = self.of(cell[0], BAR, cell[1])
        return None if bar is None else self.facts[cell[0]]["constant_loss"] / bar.mean


def write(output: Path | None = None) -> list[Path]:
    """Writes the page, and returns its path."""
    return [page.write("DEEP.md", parts(read(PATH), PATH), output)]


def parts(content: Record, path: Path) -> dict[str, page.Part]:
    """Returns the parts of the page of a record that lies there."""
    numbers = Numbers(content)
    cells = numbers.cells(is_made=False)
    grid = methods.NORMS, methods.RATES, methods.STEPS
    at_edge, num_choices = _at_the_edge(numbers)
    names = *("batches", "num_steps", "num_bands", "peak", "least_noise"), "adam_rate"
    names += "first", "tail", "head_share"
    constants = {name: getattr(methods, name.upper()) for name in names}
    return constants | {
        "source": page.source(path),
        **dict(zip(("norms", "rates", "counts"), map(listed, grid), strict=True)),
        "settings": int(np.prod([len(values) for values in grid])),
        "keys": methods.NUM_CHOICE_KEYS,
        "lowest": 1 - methods.MOST_LONG,
        "highest": 1 - methods.LEAST_LONG,
        "ours": TITLES[OURS],
        "bar": TITLES[BAR],
        "learnt": LEARNT,
        "verdicts": table(["asked", "found", "holds"], _verdicts(numbers, cells)),
        "means": _means(numbers, cells),
        "losers": "\n".join(_losers(numbers, cells)),
        "published": _published(numbers),
        "tasks": _tasks(numbers, cells),
        "made": _tasks(numbers, numbers.cells(is_made=True)),
        "at_edge": at_edge,
        "num_choices": num_choices,
        "choices": table(["task", *numbers.header], _choices(numbers)),
        "machines": page.machines(content),
    }


def _verdicts(numbers: Numbers, cells: Sequence[Cell]) -> Iterator[list[str]]:
    for bar in BARS:
        by_task: dict[str, list[float]] = {}
        for cell in cells:
            if (ratio := numbers.ratio(cell, OURS, bar)) is not None:
                by_task.setdefault(cell[0], []).append(ratio)
        ratios = [ratio for some in by_task.values() for ratio in some]
        mean, ahead = geometric_mean(ratios), sum(ratio < 1 for ratio in ratios)
        tasks = sum((geometric_mean(some) or 1) < 1 for some in by_task.values())
        against = f"{TITLES[OURS]} against {TITLES[bar]}"
        against = "(not asked) " * (bar != BAR) + against
        yield [
            f"{against}: test loss at most {AT_MOST} times, geometric mean",
            "" if mean is None else f"{mean:.3f} over {len(ratios)}",
            WORDS[None if mean is None else mean <= AT_MOST],
        ]
        yield [
            f"{against}: ahead for half of the tasks, over all epsilon",
            f"{tasks} of {len(by_task)}; {ahead} of {len(ratios)} with epsilon",
            WORDS[2 * tasks >= len(by_task) if by_task else None],
        ]


def _means(numbers: Numbers, cells: Sequence[Cell]) -> str:
    epsilons = sorted({epsilon for _, epsilon in cells})
    groups = [[cell for cell in cells if cell[1] == one] for one in epsilons]
    learnt = [cell for cell in cells if (numbers.constant(cell) or 0) > 1 / LEARNT]

    def row(title: str, ratio_of: Callable[[Cell], float | None]) -> list[str]:
        found = {cell: r for cell in cells if (r := ratio_of(cell)) is not None}
        means = [
            geometric_mean([found[cell] for cell in group if cell in found])
            for group in (*groups, cells, learnt)
        ]
        ahead = f"{sum(ratio < 1 for ratio in found.values())} of {len(found)}"
        return [title, *("" if x is None else f"{x:.3f}" for x in means), ahead]

    rows = [
        row(title, partial(numbers.ratio, method=method))
        for method, title in numbers.titles.items()
    ]
    rows.append(row("best constant of the training set, not private", numbers.constant))
    header = [f"epsilon {epsilon:g}" for epsilon in epsilons]
    return table(["method", *header, "all", "much learnt", "ahead"], rows)


def _losers(numbers: Numbers, cells: Sequence[Cell]) -> Iterator[str]:
    """Says of every method where it is behind the bar, beyond two standard errors."""
    for method in (name for name in numbers.titles if name not in BARS):
        behind: dict[str, list[str]] = {}
        worst = (1.0, "")
        for task, epsilon in cells:
            ours, bar = (numbers.of(task, one, epsilon) for one in (method, BAR))
            if not (ours and bar):
                continue
            if ours.mean - bar.mean > 2 * np.hypot(ours.error, bar.error):
                title = numbers.facts[task]["title"]
                behind.setdefault(title, []).append(f"{epsilon:g}")
                where = f"{title} at epsilon {epsilon:g}"
                worst = max(worst, (ours.mean / bar.mean, where))
        where = "; ".join(f"{t} ({', '.join(e)})" for t, e in behind.items())
        text = f"{where}. Worst: {worst[0]:.2f} times, {worst[1]}" if where else "none"
        yield f"- {TITLES[method]}: {text}."


def _published(numbers: Numbers) -> str:
    """Returns the accuracies, in percent, of what has nothing to set."""

    def shown(*place: Any) -> str:
        row = numbers.rows.get(place)
        return "" if row is None else f"{100 * row['facts']['accuracy']:.1f}"

    rows = [
        [facts["title"], title, *(shown(task, method, x) for x in numbers.epsilons)]
        for task, facts in numbers.facts.items()
        for method, title in methods.UNTUNED.items()
        if facts["loss"] != "squared" and not facts["is_made"]
    ]
    rows = [row for row in rows if any(row[2:])]
    return table(["task", "method", *numbers.header], rows)


def _tasks(numbers: Numbers, cells: Sequence[Cell]) -> Iterator[str]:
    for name in dict.fromkeys(task for task, _ in cells):
        facts = numbers.facts[name]
        yield (
            f"### {page.capitalized(facts['title'])}\n\n"
            f"{facts['model'].capitalize()}, {facts['d']:,} parameters, "
            f"{facts['loss']} loss; n = {facts['n']:,},\n"
            f"delta = {facts['delta']:.1e}; {facts['num_test']:,} test records. "
            f"The best constant: {number(facts['constant_loss'])};\n"
            f"without noise: {number(facts['noiseless_loss'])}."
        )
        yield comparison.table_of_problem(
            *(numbers, name, numbers.titles, "test loss", _loss),
            is_rival=lambda method: method not in BARS,
        )


def _loss(one: Summary) -> str:
    digits = 4 if one.mean < 1e4 else 3
    error = f"{one.error:.1g}" if one.error < 10 else f"{one.error:.0f}"
    return f"{one.mean:.{digits}g} ± {error}"


def _at_the_edge(numbers: Numbers) -> tuple[int, int]:
    """Returns for how many choices a larger grid might have been harder to beat."""
    rows = [row for place, row in numbers.rows.items() if place[1] in BARS]
    edges = [(grid[0], grid[-1]) for grid in (methods.NORMS, methods.RATES)]
    count = sum(
        any(x in edge for x, edge in zip(row["facts"].values(), edges, strict=False))
        for row in rows
    )
    return count, len(rows)


def _choices(numbers: Numbers) -> Iterator[list[str]]:
    for name, facts in numbers.facts.items():
        for bar in BARS:
            if (chosen := numbers.chosen(name, bar)) is not None:
                yield [f"{facts['title']}: {TITLES[bar]}", *chosen]
