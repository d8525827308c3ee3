"""The page of the papers' figures, from the tables that `dpjax figures run` wrote."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from benchmarks.plots import save_png
from benchmarks.text import number, table
from dpjax.experiments.figures import Panel, Size, draw, panels, read

ROOT = Path(__file__).parent
PAPERS = {
    "000": "l1 regression",
    "001": "strongly convex and convex losses",
    "002": "several parties",
    "003": "moments of order below two",
    "004": "high dimensions",
}
INTRODUCTION = """\
# The papers' figures, measured again

Written by `python -m benchmarks figures FOLDER` from the tables that `dpjax figures run
NAME` wrote to FOLDER. Lines are means over repetitions, bands go from the best to the
worst. All private methods of a panel get the same epsilon, with delta = n^-1.1 where
they spend one; "tight" takes the noise that the guarantee needs, "paper" the printed
constants, whatever they guarantee: what they really give stands beside them. Excess
risks are over the best weights that are known, those that made the data or the optimum
without privacy. Axes that a paper does not print are ours.

A **quick** run has at most 10,000 records, 200 features and 3 repetitions, and three
points along an axis; a **full** run the sizes of the paper, and 20 repetitions unless
fewer are said.
"""
CHOICE = """\
At the last point of each panel's axis, for its largest curve: the best private method,
and how many times larger the others' error is. Weights of zero need no records: a
method that is no better has learnt nothing at that size.

What decides: a bound on the whole gradient (clipping) takes noise for one vector; a
bound on each of d coordinates (truncation, winsorization, smoothed truncation) takes
sqrt(d) times as much, and is worth it only where n epsilon is large against d. In
return clipping is biased wherever gradients are longer than its norm: it scales a whole
record down for one large coordinate, and no budget or number of records cures that.
With hundreds of features neither is the way, if the answer is sparse or in an l1 ball:
choosing (Frank-Wolfe, hard thresholding) pays log d. Clipping has a norm to guess, and
here one that suits unit scales; the others take a bound on a moment.
"""


def write_page(folder: Path, output: Path | None = None) -> list[Path]:
    """Writes FIGURES.md and a plot a figure, and returns the files.

    Args:
        folder: of tables, `NAME.csv`.
        output: folder of the page; by default this one.

    Raises:
        ValueError: where the folder holds no table.
    """
    output = ROOT if output is None else output
    tables = {
        panel.name: read(folder / f"{panel.name}.csv")
        for panel in panels().values()
        if (folder / f"{panel.name}.csv").exists()
    }
    if not tables:
        raise ValueError(f"folder = {str(folder)!r}: must hold tables of figures")
    plots = output / "plots" / "figures"
    plots.mkdir(parents=True, exist_ok=True)
    parts = [INTRODUCTION, "## Which method\n", CHOICE, *_choice(tables)]
    files = [output / "FIGURES.md"]
    paper = ""
    for figure in dict.fromkeys(panel.figure for panel in panels().values()):
        chosen = [one for one in panels().values() if one.figure == figure]
        if figure[:3] != paper:
            paper = figure[:3]
            parts.append(f"## {paper}: {PAPERS[paper]}\n")
        parts.append(f"### Figure {figure}\n")
        measured = [one for one in chosen if one.name in tables]
        if measured:
            path = plots / f"{figure}.png"
            save_png(draw(measured, [tables[one.name] for one in measured]), path)
            files.append(path)
            parts.append(f"![{figure}](plots/figures/{figure}.png)\n")
        for panel in chosen:
            parts += _panel(panel, tables.get(panel.name))
    files[0].write_text("\n".join(parts))
    return files


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
    is_full = rows["records"].max() == max(one.num_samples for one in panel.settings())
    kind = Size.FULL if is_full else Size.QUICK
    yield (
        f"A {kind} run: n = {rows['records'].max():,}, {repetitions} repetitions, "
        f"from {panel.x} = {first:,} to {last:,}.\n"
    )
    means = rows.group_by("curve", "method", panel.x, maintain_order=True).agg(
        pl.col("value").mean(), pl.col("epsilon_spent").first()
    )
    if panel.reported:
        yield _agreement(panel, means)
    shown = []
    for (curve, method), points in means.group_by(
        "curve", "method", maintain_order=True
    ):
        along = points.sort(panel.x)
        spent = float(along["epsilon_spent"][-1])
        values = along["value"]
        privacy = "none" if spent == float("inf") else spent
        shown.append([curve, method, values[0], values[-1], privacy])
    header = ["", "method", f"at {first:,}", f"at {last:,}", "epsilon, really"]
    yield table(header, shown)


def _choice(tables: dict[str, pl.DataFrame]) -> Iterator[str]:
    rows, wins = [], Counter()
    for name, found in tables.items():
        panel = panels()[name]
        curve = found["curve"].unique(maintain_order=True)[-1]
        last = found.filter(
            (pl.col("curve") == curve)
            & (pl.col(panel.x) == found[panel.x].max())
            & (pl.col("epsilon_spent") < float("inf"))
        )
        means = last.group_by("method", maintain_order=True).agg(pl.col("value").mean())
        errors: dict[str, float] = {
            method.removeprefix("stochastic "): value
            for method, value in means.iter_rows()
        }
        best = min(errors, key=lambda method: errors[method])
        wins[best.split(",")[0]] += 1
        others = [
            errors.get("zero"),
            errors.get("DP-GD, clipping", errors.get("clipped mean")),
            _of(errors, "tight"),
            _of(errors, "paper"),
        ]
        ratios = [None if x is None else x / errors[best] for x in others]
        rows.append([name, panel.problem, curve, best, errors[best], *ratios])
    counts = ", ".join(f"{name} {count}" for name, count in wins.most_common())
    yield f"Best in how many of {len(rows)} panels: {counts}.\n"
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
        parts.append(
            f"with {name} constants it {way} from {number(first)} to "
            f"{number(last)}{verdict}"
        )
    if len(along) == 2:
        ratio = along["printed"][1] / along["tight"][1]
        parts.append(f"tight constants divide it by {number(ratio)} in the end")
    return f"Here, over all curves: {'; '.join(parts)}.\n"


def _of(errors: dict[str, float], calibration: str) -> float | None:
    found = [x for method, x in errors.items() if method.endswith(calibration)]
    return min(found, default=None)
