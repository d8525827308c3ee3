"""Tables of the pages, computed from the records under benchmarks/results."""

from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median

import polars as pl

from benchmarks import comparison, intervals
from benchmarks.comparison import short
from benchmarks.figures.catalogue import panels
from benchmarks.page import table
from benchmarks.record import RESULTS, read
from benchmarks.utility import predictions, tuning
from benchmarks.utility.methods import METHODS
from benchmarks.utility.page import BAR, OURS, PATH, Numbers

# Epsilons that the pages show, of those that are recorded.
EPSILONS = (0.1, 1.0, 8.0)


def write_tables(folder: Path) -> None:
    """Writes every table that a page includes into a folder."""
    numbers = Numbers(read(PATH))
    (folder / "predictions.md").write_text(_predictions())
    (folder / "intervals.md").write_text(_intervals())
    (folder / "utility_means.md").write_text(_means(numbers))
    (folder / "utility_sets.md").write_text(_sets(numbers))
    (folder / "tuning.md").write_text(tuning.parts()["tuning"])
    kept = {
        path.stem: pl.read_parquet(path)
        for path in sorted((RESULTS / "figures").glob("*.parquet"))
    }
    estimators = {name: rows for name, rows in kept.items() if name.startswith("all")}
    papers = {name: rows for name, rows in kept.items() if name not in estimators}
    (folder / "estimators.md").write_text(_estimators(estimators))
    (folder / "papers.md").write_text(_papers(papers))


def _predictions() -> str:
    """Returns test losses on real data at epsilon 1, a row a method."""
    numbers = comparison.Numbers(read(predictions.PATH))
    problems = predictions.names(numbers, is_real=True)
    rows = []
    for method in predictions.METHODS.values():
        found = [numbers.of(name, method.name, 1.0) for name in problems]
        cells = ("" if one is None else predictions.cell(one) for one in found)
        rows.append([method.title, *cells])
    titles = (numbers.facts[name]["title"] for name in problems)
    return table(["method", *titles], rows)


def _intervals() -> str:
    """Returns how often intervals hold a coefficient, a row an epsilon and method."""
    kept, rows = read(intervals.PATH).rows, []
    methods = intervals.PLAIN, intervals.NAIVE, intervals.OURS
    for epsilon, method in product(sorted({place[0] for place in kept}), methods):
        row, plain = kept[epsilon, method], kept[epsilon, intervals.PLAIN]
        pairs = list(zip(row["held"], row["finite"], strict=True))
        infinite = 1 - sum(row["finite"]) / sum(plain["finite"])
        both = zip(row["width"], plain["width"], strict=True)
        cells = (
            f"{sum(row['held']) / sum(row['finite']):.1%}",
            f"{min(held / finite for held, finite in pairs if finite):.0%}",
            f"{infinite:.1%}",
            f"{median(a / b for a, b in both if a):.2f}",
        )
        rows.append([f"{epsilon:g}", method, *cells])
    header = ["epsilon", "interval", "hold it", "of the worst coefficient", "infinite"]
    return table([*header, "width"], rows)


def _means(numbers: Numbers) -> str:
    problems = numbers.names(is_real=True)
    rows = []
    for method in METHODS.values():
        means = [
            numbers.geometric_mean(problems, method.name, epsilon)
            for epsilon in EPSILONS
        ]
        if method.name == BAR or None in means:
            continue
        cells = [short(mean[0]) for mean in means if mean]
        rows.append([method.title, *cells, str(min(m[1] for m in means if m))])
    header = ["method", *(f"epsilon {one:g}" for one in EPSILONS), "data sets"]
    return table(header, rows)


def _sets(numbers: Numbers) -> str:
    header = ["data set", "n", "d", f"`{OURS}`", "clipping", "best"]
    return table(header, list(_set_rows(numbers)))


def _set_rows(numbers: Numbers) -> Iterator[list[str]]:
    for name in numbers.names():
        facts = numbers.facts[name]
        found = {
            method: one.mean
            for method in METHODS
            if (one := numbers.of(name, method, 1.0)) is not None
            and not method.startswith(("hindsight", "optimum"))
        }
        best = min(found, key=found.__getitem__)
        bar = numbers.of(name, BAR, 1.0)
        yield [
            facts["title"],
            f"{facts['n']:,}",
            f"{facts['d']:,}",
            short(found[OURS]),
            "" if bar is None else short(bar.mean),
            METHODS[best].title,
        ]


def _estimators(kept: dict[str, pl.DataFrame]) -> str:
    wins = Counter()
    for rows in kept.values():
        for _, case in rows.group_by("curve", "epsilon", maintain_order=True):
            means = case.group_by("method").agg(pl.col("value").mean()).sort("value")
            wins[means["method"][0].removeprefix("DP-GD, best ")] += 1
    return table(
        ["estimator", f"best in how many of {wins.total()} cases"],
        [[name, str(count)] for name, count in wins.most_common()],
    )


def _papers(kept: dict[str, pl.DataFrame]) -> str:
    """Returns medians over a paper's panels of ratios of errors at the last point."""
    found: dict[str, list[dict[str, float]]] = {}
    for name, rows in kept.items():
        found.setdefault(name[:3], []).append(_last_errors(panels()[name].x, rows))
    body = []
    for paper, cases in found.items():
        with_tight = [case for case in cases if "tight" in case]
        if with_tight:
            cells = [
                _median_ratio(with_tight, "zero", "tight"),
                _median_ratio(with_tight, "tight", "clipping"),
                _median_ratio(with_tight, "printed", "tight"),
                _most([case["spent"] for case in with_tight if "spent" in case]),
            ]
            body.append([paper, str(len(with_tight)), *cells])
    header = [
        *("paper", "panels", "error of weights of zero over the paper's method"),
        *("the paper's method over clipping in hindsight", "printed over needed noise"),
        "epsilon of printed noise over the asked one, at most",
    ]
    return table(header, body)


def _last_errors(x: str, rows: pl.DataFrame) -> dict[str, float]:
    """Returns mean errors at the last point of the largest curve, by kind of method.

    And under "spent" how many times the asked epsilon printed constants give.
    """
    curve = rows["curve"].unique(maintain_order=True)[-1]
    last = rows.filter((pl.col("curve") == curve) & (pl.col(x) == rows[x].max()))
    last = last.filter(pl.col("epsilon_spent") < float("inf"))
    means = last.group_by("method").agg(
        pl.col("value").mean(), pl.col("epsilon_spent").first()
    )
    errors: dict[str, float] = {}
    asked = printed = 0.0
    for method, value, spent in means.iter_rows():
        kind = _kind(method)
        errors[kind] = min(value, errors.get(kind, value))
        if kind == "printed":
            printed = max(printed, spent)
        else:
            asked = max(asked, spent)
    if printed:
        errors["spent"] = printed / asked
    return errors


def _kind(method: str) -> str:
    endings = {"tight": "tight", "paper": "printed", "zero": "zero"}
    for ending, kind in endings.items():
        if method.endswith(ending):
            return kind
    return "clipping" if "clip" in method else method


def _median_ratio(cases: list[dict[str, float]], over: str, under: str) -> float | None:
    ratios = [one[over] / one[under] for one in cases if {over, under} <= one.keys()]
    return median(ratios) if ratios else None


def _most(values: list[float]) -> float | None:
    return max(values, default=None)
