"""The plots of README and the site, drawn from the records, light and dark.

Lightness, markers and hatches tell all that colours do: plots can be read in grey.
"""

import hashlib
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from PIL import Image, PngImagePlugin

from benchmarks import intervals, winners
from benchmarks.comparison import Numbers
from benchmarks.page import number
from benchmarks.record import RESULTS, ROOT, read
from benchmarks.speed.measure import Results, results
from benchmarks.utility import predictions
from dpjax._files import check_folder, write_whole

FOLDER = ROOT.parent / "docs" / "plots"


class Theme(NamedTuple):
    """What is drawn on; colors are from the strongest contrast to the weakest.

    `paper` is behind text; the background is the page's.
    """

    name: str
    ink: str
    paper: str
    colors: tuple[str, ...]


THEMES = (
    Theme("light", "#1f2328", "#ffffff", ("#00497a", "#c2410c", "#3f8f6b", "#e0a458")),
    Theme("dark", "#e6edf3", "#0d1117", ("#a6dcff", "#f28c5b", "#4d9e7c", "#8a6530")),
)
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # letters, not their outlines, which take twice the bytes
    "svg.hashsalt": "dpjax",  # the same file from the same record
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
}


def save_png(figure: Figure, path: Path) -> None:
    """Writes a PNG of 256 colours, which is half the size; fewer change the palette."""
    png, small, about = io.BytesIO(), io.BytesIO(), PngImagePlugin.PngInfo()
    about.add_text("Description", drawn(figure))
    figure.savefig(png, format="png")
    image = Image.open(png).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    image.save(small, "png", optimize=True, pnginfo=about)
    write_whole(path, small.getvalue())


def drawn(figure: Figure) -> str:
    """Returns a digest of the numbers and words in a figure, which its file holds."""
    found: list[str] = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            found += getattr(axis.get_major_formatter(), "seq", ())
        words = (*axes.texts, axes.xaxis.label, axes.yaxis.label)
        found += [axes.get_title(loc="left"), *(one.get_text() for one in words)]
        found += [str(one.get_label()) for one in (*axes.lines, *axes.patches)]
        shapes = [line.get_xydata() for line in axes.lines]
        for one in axes.patches:
            shapes.append(one.get_patch_transform().transform(one.get_path().vertices))
        for one in axes.collections:
            shapes += [path.vertices for path in one.get_paths()]
        found += [f"{x:.4g}" for shape in shapes for x in np.ravel(shape)]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


def write(folder: Path | None = None) -> list[Path]:
    """Draws every plot in every theme and returns the files."""
    folder = FOLDER if folder is None else folder
    check_folder("output", folder)
    plots: dict[str, tuple[Callable[[Figure, Theme], None], tuple[float, float]]] = {
        "predictions": (_predictions, (7.2, 3.6)),
        "winners": (_winners, (7.2, 4.2)),
        "intervals": (_intervals, (7.2, 3.9)),
        "speed": (_speed, (7.2, 6.4)),
    }
    paths = []
    for name, (plot, size) in plots.items():
        for theme in THEMES:
            inks = ("text.", "axes.edge", "axes.label", "xtick.", "ytick.")
            colors = {f"{one}color": theme.ink for one in inks}
            with matplotlib.rc_context(STYLE | colors):
                figure = Figure(figsize=size, layout="constrained")
                figure.patch.set_alpha(0)
                plot(figure, theme)
                svg, about = io.BytesIO(), {"Date": None, "Description": drawn(figure)}
                figure.savefig(svg, format="svg", metadata=about)
            path = folder / f"{name}-{theme.name}.svg"
            # Hundredths of a point and no indents: a quarter of the bytes less.
            text = re.sub(rb"(\.\d\d)\d+", rb"\1", svg.getvalue())
            text = re.sub(rb"\s*\n\s*", b"\n", text)
            write_whole(path, text)
            paths.append(path)
    return paths


def _axes(figure: Figure, *size: int, **options: Any) -> Any:
    found = figure.subplots(*size, **options)
    for axes in np.ravel(found):
        axes.patch.set_alpha(0)
        axes.set_axisbelow(True)
    return found


def _legend(figure: Figure, handles: list[Any]) -> None:
    look = {"loc": "outside lower center", "ncols": 2, "fontsize": "small"}
    figure.legend(handles=handles, **look)


# Of predictions: method of the record, words, marker, line.
CURVES = (
    (predictions.ADDITIVE, "dp_additive_model: nothing to set", "o", "-"),
    (predictions.LINEAR, "dp_linear_model: nothing to set", "s", "--"),
    (predictions.EBM, "DP-EBM at its defaults", "^", "-."),
)
CEILINGS = (
    ("additive", "additive model, not private", (0, (6, 1, 1, 1))),
    ("linear", "linear model, not private", (0, (5, 3))),
    ("trees", "boosted trees, not private", (0, (1, 1))),
)


def _predictions(figure: Figure, theme: Theme) -> None:
    """Test loss on credit default and Adult against epsilon, beside no privacy."""
    numbers = Numbers(read(predictions.PATH))
    grid = _axes(figure, 1, 2)
    words = {"credit_default": "Who will not pay"}
    words["adult"] = "Who earns more than $50,000"
    for axes, name in zip(grid, words, strict=True):
        looks = zip(CURVES, theme.colors, strict=False)
        for (method, label, marker, line), color in looks:
            found = {e: numbers.of(name, method, e) for e in numbers.epsilons}
            points = [(e, one.mean, 2 * one.error) for e, one in found.items() if one]
            x, y, error = zip(*points, strict=True)
            look = {"color": color, "marker": marker, "linestyle": line}
            axes.errorbar(x, y, error, markersize=6, capsize=2, label=label, **look)
        for method, label, dashes in CEILINGS:
            (found, *_) = (numbers.of(name, method, e) for e in numbers.epsilons)
            if found is not None:
                look = {"color": theme.ink, "lw": 1, "linestyle": dashes}
                axes.axhline(found.mean, label=label, **look)
        axes.set_xscale("log")
        axes.set_xticks(numbers.epsilons, [f"{one:g}" for one in numbers.epsilons])
        axes.minorticks_off()
        axes.set_xlabel("epsilon: more private to the left")
        title = f"{words[name]}: {numbers.facts[name]['n']:,} records"
        axes.set_title(title, fontsize="small", loc="left")
    grid[0].set_ylabel("test loss")
    handles, _ = grid[0].get_legend_handles_labels()
    _legend(figure, handles[len(CEILINGS) :] + handles[: len(CEILINGS)])  # curves first


# Method of the record: sign in a cell, words, index of the colour, hatch.
KINDS = {
    winners.NOTHING_TO_SET: ("A", "dp_linear_model: nothing to set", 0, ""),
    winners.CLIPPING: ("C", "clipping, best of 5 settings in hindsight", 1, "//"),
    winners.TRUNCATION: ("T", "smoothed truncation, best of 5 likewise", 2, "--"),
    winners.SELECTION: ("F", "dp_linear_model with 10 features chosen", 3, "xx"),
    winners.ZERO: ("0", "weights of zero: learn nothing", None, ""),
}


def _winners(figure: Figure, theme: Theme) -> None:
    """The method of least excess risk in every cell: all, and what anyone can run."""
    content = read(winners.PATH)
    cells: dict[tuple[float, int], dict[str, np.ndarray]] = {}
    for (*place, method), row in content.rows.items():
        cells.setdefault(tuple(place), {})[method] = np.array(row["excess"])
    hindsight = {winners.CLIPPING, winners.TRUNCATION}
    grid = _axes(figure, 1, 2, sharey=True)
    words = "nothing chosen in hindsight", "with settings chosen in hindsight"
    for axes, title, left_out in zip(grid, words, (hindsight, set()), strict=True):
        _map(axes, cells, left_out, theme)
        axes.set_title(title, fontsize="medium", loc="left")
        axes.set_xlabel("features a record, d/n")
    grid[0].set_ylabel("tail index: lighter tails upwards")
    handles = []
    for sign, words, color, hatch in KINDS.values():
        look = {"facecolor": "none" if color is None else theme.colors[color]}
        look |= {"edgecolor": theme.ink if color is None else theme.paper}
        handles.append(Patch(hatch=hatch, label=f"{sign}: {words}", **look))
    _legend(figure, handles)


def _map(axes, cells, left_out, theme) -> None:
    tails = sorted({tail for tail, _ in cells})
    sizes = sorted({size for _, size in cells})
    for (tail, size), methods in cells.items():
        excess = {name: one for name, one in methods.items() if name not in left_out}
        best, second = sorted(excess, key=lambda name: excess[name].mean())[:2]
        lead = excess[second] - excess[best]  # of the same data
        is_narrow = lead.mean() < 2 * lead.std(ddof=1) / len(lead) ** 0.5
        sign, _, color, hatch = KINDS[best]
        x, y = sizes.index(size), tails.index(tail)
        look = {"facecolor": "none" if color is None else theme.colors[color]}
        look |= {"edgecolor": theme.paper, "hatch": hatch, "lw": 1}
        axes.add_patch(Rectangle((x, y), 1, 1, **look))
        share = 100 * excess[best].mean() / excess[winners.ZERO].mean()
        text = f"{sign}{'?' * int(is_narrow)} {share:.{1 if share < 1 else 2}g}%"
        box = {"boxstyle": "round,pad=0.2", "fc": theme.paper, "ec": "none"}
        look = {"ha": "center", "va": "center", "fontsize": "x-small"}
        axes.text(x + 0.5, y + 0.5, text, color=theme.ink, bbox=box, **look)
    axes.set(xlim=(0, len(sizes)), ylim=(0, len(tails)))
    shares = [f"{size / winners.NUM_SAMPLES:g}" for size in sizes]
    axes.set_xticks(np.arange(len(sizes)) + 0.5, shares)
    axes.set_yticks(np.arange(len(tails)) + 0.5, [f"{tail:g}" for tail in tails])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _intervals(figure: Figure, theme: Theme) -> None:
    """Intervals of one coefficient at epsilon 1, a line a repetition."""
    content, truth = read(intervals.PATH), float(intervals.WEIGHTS[0])
    methods = intervals.PLAIN, intervals.NAIVE, intervals.OURS
    errors = [x for x in content.rows[1.0, intervals.OURS]["errors"] if x is not None]
    span = 4 * intervals.QUANTILE * float(np.median(errors))  # wider ones reach out
    grid = _axes(figure, 1, len(methods), sharex=True, sharey=True)
    grid[0].set_xlim(truth - span, truth + span)
    grid[0].set_xticks(truth + 0.1 * np.arange(-1, 2))
    for axes, method in zip(grid, methods, strict=True):
        row = content.rows[1.0, method]
        errors = [np.inf if x is None else x for x in row["errors"]]
        half = np.minimum(intervals.QUANTILE * np.array(errors), 3 * span)
        middle = np.array(row["estimates"])
        is_held = np.abs(middle - truth) <= half
        num_held = int(is_held.sum())
        lines = np.stack([middle - half, middle + half, np.full_like(half, np.nan)], 1)
        places = np.repeat(np.arange(len(half)), 3).reshape(lines.shape)
        widths = zip((is_held, ~is_held), theme.colors, (1.0, 2.5), strict=False)
        for chosen, color, width in widths:
            x, y = lines[chosen].ravel(), places[chosen].ravel()
            axes.plot(x, y, color=color, linewidth=width, solid_capstyle="butt")
        axes.axvline(truth, color=theme.ink, lw=1, linestyle=(0, (1, 1)))
        title = f"{method}:\n{num_held} of {len(half)} hold it"
        axes.set_title(title, fontsize="medium", loc="left")
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
    grid[1].set_xlabel("a coefficient of 1 and its intervals of 95%; thick: missed")


MODELS = {
    "gradient-mlp": "a small dense network, batch 256",
    "gradient-convolutional": "a convolutional network, batch 256",
    "gradient-transformer": "a transformer",
}
# Package of the record: index of the colour, hatch.
HATCHES = {
    "jax": (None, ""),
    "dpjax": (0, ""),
    "jax_privacy": (1, "//"),
    "optax": (3, "xx"),
    "opacus": (2, "--"),
}


def _speed(figure: Figure, theme: Theme) -> None:
    """Milliseconds a private gradient, a panel a model; peers at their best."""
    cases = results(read(RESULTS / "cpu.json"))
    bars = {name: list(_bars(cases[name])) for name in MODELS}
    heights = {"height_ratios": [len(one) for one in bars.values()]}
    grid = _axes(figure, len(MODELS), 1, gridspec_kw=heights)
    for axes, (name, title) in zip(grid, MODELS.items(), strict=True):
        names, packages, values = zip(*bars[name], strict=True)
        kinds = [HATCHES[package] for package in packages]
        look = {"hatch": [hatch for _, hatch in kinds]}
        look["color"] = ["none" if i is None else theme.colors[i] for i, _ in kinds]
        edges = [theme.ink if i is None else theme.paper for i, _ in kinds]
        shown = axes.barh(range(len(names)), values, 0.7, edgecolor=edges, **look)
        texts = [f"{number(value)} ms" for value in values]
        axes.bar_label(shown, texts, padding=4, fontsize="small")
        axes.set_yticks(range(len(names)), names, fontsize="small")
        axes.invert_yaxis()
        axes.set_xlim(0, 1.2 * max(values))
        axes.tick_params(axis="x", labelsize="small")
        axes.set_title(title, fontsize="medium", loc="left")
    grid[-1].set_xlabel("milliseconds a gradient: shorter is better")


def _bars(case: Results) -> Iterator[tuple[str, str, float]]:
    words = {
        "plain gradient": "not private",
        "Truncation": "dpjax, truncation",
        "Clipping": "dpjax, clipping",
        "SmoothedTruncation, beta 1": "dpjax, smoothed truncation",
        "optax differentially_private_aggregate": "optax, clipping",
        "Opacus, hooks": "Opacus, clipping",
        "Opacus, ghost clipping": "Opacus, ghost clipping",
    }
    for one in case.methods:
        if one.name in words:
            yield words[one.name], one.package, 1e3 * one.seconds
    peers = [one for one in case.methods if one.package == "jax_privacy"]
    if peers:
        best = min(peers, key=lambda one: one.seconds)
        yield "jax_privacy, best microbatch", best.package, 1e3 * best.seconds
