"""The page of the papers' figures, from the tables that `figures run` wrote."""

import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from benchmarks import page
from benchmarks.figures.catalogue import figures as all_figures
from benchmarks.figures.catalogue import panels
from benchmarks.figures.draw import draw, read
from benchmarks.figures.panel import Panel, Size
from benchmarks.page import number, table
from benchmarks.plots import save_png
from benchmarks.record import ROOT
from dpjax._files import write_whole

PAPERS = {
    "000": "l1 regression",
    "001": "strongly convex and convex losses",
    "002": "several parties",
    "003": "moments of order below two",
    "004": "high dimensions",
    "all": "estimators beside each other",
    "new": "the papers' successors",
}


def write(output: Path | None = None, folder: Path | None = None) -> list[Path]:
    """Keeps a folder's tables, and writes FIGURES.md and a plot a figure from all kept.

    `output` is the folder of the page; a quick run does not take a full run's place.
    """
    output = ROOT if output is None else output
    kept = output / "results" / "figures"
    if folder is not None:
        _keep(folder, kept)
    paths = {name: kept / f"{name}.parquet" for name in panels()}
    tables = {x: pl.read_parquet(path) for x, path in paths.items() if path.exists()}
    num_full = sum(_is_full(panels()[name], rows) for name, rows in tables.items())
    estimators = {name: tables[name] for name in tables if name.startswith("all")}
    methods = {name: tables[name] for name in tables if name not in estimators}
    files: list[Path] = []
    parts = {
        "panels": len(panels()),
        "num_full": num_full,
        "num_quick": len(tables) - num_full,
        "num_left": len(panels()) - len(tables),
        "choice": _choice(methods),
        "estimators": _estimators(estimators),
        "figures": list(_figures(tables, output, files)),
    }
    return [page.write("FIGURES.md", parts, output / "FIGURES.md"), *files]


def _figures(tables, output, files) -> Iterator[str]:
    """Yields every figure; draws those that were measured, and adds their files."""
    paper = ""
    for figure, chosen in all_figures().items():
        if figure[:3] != paper:
            paper = figure[:3]
            yield f"## {paper}: {PAPERS[paper]}"
        yield f"### Figure {figure}"
        measured = [one for one in chosen if one.name in tables]
        if measured:
            files.append(output / "plots" / "figures" / f"{figure}.png")
            save_png(draw(measured, [tables[one.name] for one in measured]), files[-1])
            yield f"![{figure}](plots/figures/{figure}.png)"
        for panel in chosen:
            yield from _panel(panel, tables.get(panel.name))


def _keep(folder: Path, kept: Path) -> None:
    found = [one for one in panels().values() if (folder / f"{one.name}.csv").exists()]
    if not found:
        raise ValueError(f"folder = {str(folder)!r}: must hold tables of figures")
    for panel in found:
        rows, path = read(folder / f"{panel.name}.csv"), kept / f"{panel.name}.parquet"
        was_full = path.exists() and _is_full(panel, pl.read_parquet(path))
        if _is_full(panel, rows) or not was_full:
            rows.write_parquet(content := io.BytesIO())
            write_whole(path, content.getvalue())  # it may have taken a night


def _panel(panel: Panel, rows: pl.DataFrame | None) -> Iterator[str]:
    yield f"**{panel.name}**: {panel.title}; {panel.metric}.\n"
    if panel.substitute:
        yield f"{panel.problem} stands for {panel.substitute}, which is not bundled.\n"
    if panel.reported:
        yield f"The paper: {panel.reported}.\n"
    if rows is None:
        yield "Not yet run.\n"
        return
    first, last = rows[panel.x].min(), rows[panel.x].max()
    repetitions = rows["repetition"].n_unique()
    is_full = _is_full(panel, rows)
    yield (
        f"A {Size.FULL if is_full else Size.QUICK} run: n = {rows['records'].max():,}, "
        f"{repetitions} repetitions, from {panel.x} = {first:,} to {last:,}."
        + ("" if is_full else " The full run: not yet run.")
        + "\n"
    )
    means = rows.group_by("curve", "method", panel.x, maintain_order=True).agg(
        pl.col("value").mean(), pl.col("epsilon_spent").first()
    )
    if panel.reported:
        yield _agreement(panel, means)
    shown = []
    groups = means.group_by("curve", "method", maintain_order=True)
    for (curve, method), points in groups:
        along = points.sort(panel.x)
        spent, values = float(along["epsilon_spent"][-1]), along["value"]
        privacy = "none" if spent == float("inf") else spent
        shown.append([curve, method, values[0], values[-1], privacy])
    header = ["", "method", f"at {first:,}", f"at {last:,}", "epsilon, really"]
    yield table(header, shown)


def _is_full(panel: Panel, rows: pl.DataFrame) -> bool:
    """Whether rows hold every point of a panel at the paper's sizes."""
    asked = {
        (panel.curve_name(setting), setting.num_samples, getattr(setting, panel.x))
        for setting in panel.settings()
    }
    return asked <= set(rows.select("curve", "records", panel.x).unique().iter_rows())


def _choice(tables: dict[str, pl.DataFrame]) -> Iterator[str]:
    rows, wins, value = [], Counter(), pl.col("value").mean()
    spent = pl.col("epsilon_spent")
    for name, found in tables.items():
        panel = panels()[name]
        curve = found["curve"].unique(maintain_order=True)[-1]
        is_last = pl.col(panel.x) == found[panel.x].max()
        last = found.filter(pl.col("curve") == curve, is_last, spent < float("inf"))
        method = pl.col("method").str.strip_prefix("stochastic ")
        means = last.group_by(method, maintain_order=True).agg(value, spent.first())
        errors = dict(means.select("method", "value").iter_rows())
        asked = means.filter(~pl.col("method").str.ends_with("paper"))
        within = max(asked["epsilon_spent"]) * (1 + 1e-9)
        best = means.filter(spent <= within).sort("value")["method"][0]
        wins["clipping" if "clip" in best else best.split(",")[0]] += 1
        tight, paper = (
            min((x for y, x in errors.items() if y.endswith(ending)), default=None)
            for ending in ("tight", "paper")
        )
        clipping = next((errors[one] for one in errors if "clip" in one), None)
        others = errors.get("zero"), clipping, tight, paper
        least = errors[best]
        ratios = [x / least if x is not None and least > 0 else None for x in others]
        rows.append([name, panel.problem, curve, best, least, *ratios])
    yield _counts(wins, "panels")
    header = ["panel", "data", "", "best", "error", "zero", "clipping", "tight"]
    yield table([*header, "paper"], rows)


def _agreement(panel: Panel, means: pl.DataFrame) -> str:
    """Says how the error goes here, and whether the paper says so, where it does."""
    along, parts = {}, []
    for name, ending in (("printed", "paper"), ("tight", "tight")):
        rows = means.filter(pl.col("method").str.ends_with(ending))
        if not rows.height:
            continue
        mean = rows.group_by(panel.x).agg(pl.col("value").mean()).sort(panel.x)
        first, last = along[name] = mean["value"][0], mean["value"][-1]
        way = "falls" if last < first else "grows"
        verdict = {"": "", way: ", as there"}.get(panel.direction, ", NOT as there")
        ends = f"from {number(first)} to {number(last)}"
        parts.append(f"with {name} constants it {way} {ends}{verdict}")
    if len(along) == 2:
        ratio = along["printed"][1] / along["tight"][1]
        parts.append(f"tight constants divide it by {number(ratio)} in the end")
    return f"Here, over all curves: {'; '.join(parts)}.\n"


def _estimators(tables: dict[str, pl.DataFrame]) -> Iterator[str]:
    """Yields the errors of figures all-1 and all-2, the least in bold."""
    rows, wins, methods = [], Counter(), panels()["all-1a"].methods
    short = {method: method.removeprefix("DP-GD, best ") for method in methods}
    for name, found in tables.items():
        points = found.group_by("curve", "epsilon", maintain_order=True)
        for (curve, epsilon), point in points:
            means = point.group_by("method").agg(pl.col("value").mean())
            errors = dict(means.iter_rows())
            least = min(errors, key=lambda method: errors[method])
            wins[short[least]] += 1
            shown = {method: errors[method] for method in methods}
            shown[least] = f"**{number(errors[least])}**"
            size = f"{point['records'][0]:,}"
            rows.append([panels()[name].problem, size, curve, epsilon, *shown.values()])
    yield _counts(wins, "rows")
    yield table(["data", "n", "", "epsilon", *short.values()], rows)


def _counts(wins: Counter, where: str) -> str:
    counts = ", ".join(f"{name} {count}" for name, count in wins.most_common())
    return f"Best in how many of {wins.total()} {where}: {counts}.\n"
