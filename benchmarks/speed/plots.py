"""The plots of the pages."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.page import number
from benchmarks.plots import save_png
from benchmarks.speed import floor
from benchmarks.speed.case import Case, Measurement
from benchmarks.speed.command import Results

# Colours of Okabe and Ito (2008), told apart by colour-blind readers too; and markers.
PACKAGES = {
    "dpjax": ("#0072B2", "o"),
    "jax": ("#000000", "s"),
    "jax_privacy": ("#D55E00", "D"),
    "optax": ("#E69F00", "^"),
    "opacus": ("#009E73", "v"),
    "numpy": ("#CC79A7", "P"),
    "scipy": ("#56B4E9", "X"),
}
SERIES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"))


def compare(
    path: Path,
    cases: Sequence[Case],
    found: Mapping[str, Results],
    value_of: Callable[[Measurement], float | None],
    label: str,
) -> bool:
    """Draws a number of every method, a panel a case; false where there is none."""
    shown = []
    for case in cases:
        methods = found[case.name].methods if case.name in found else ()
        pairs = [(one, value) for one in methods if (value := value_of(one))]
        if pairs:
            shown.append((case, pairs))
    if not shown:
        return False
    columns = min(len(shown), 2)
    rows = [
        max(len(pairs) for _, pairs in shown[i : i + columns])
        for i in range(0, len(shown), columns)
    ]
    figure = Figure(
        figsize=(5.6 * columns, sum(0.24 * count + 1.1 for count in rows)),
        dpi=96,
        layout="constrained",
    )
    grid = figure.subplots(
        len(rows), columns, squeeze=False, gridspec_kw={"height_ratios": rows}
    )
    for axes in grid.flat[len(shown) :]:
        axes.set_axis_off()
    for axes, (case, pairs) in zip(grid.flat, shown, strict=False):
        _panel(axes, case.title, pairs, label)
    for row in grid:  # lines as far apart as beside them
        axes_limits = [axes.get_ylim()[0] for axes in row]
        for axes in row:
            axes.set_ylim(max(axes_limits), -0.6)
    used = {one.package for _, pairs in shown for one, _ in pairs}
    handles = [
        Line2D([], [], color=color, marker=marker, linestyle="", label=name)
        for name, (color, marker) in PACKAGES.items()
        if name in used
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    save_png(figure, path)
    return True


def _show_log_ticks(axis: Any) -> None:
    low, high = axis.get_view_interval()
    ticks = [1, 2, 5] if high < 100 * low else [1]
    axis.set_major_locator(LogLocator(subs=ticks))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _panel(
    axes: Axes, title: str, pairs: Sequence[tuple[Measurement, float]], label: str
) -> None:
    values = [value for _, value in pairs]
    left, right = min(values) / 2, max(values) * 3
    for place, (one, value) in enumerate(pairs):
        color, marker = PACKAGES[one.package]
        axes.hlines(place, left, value, color=color, linewidth=1, alpha=0.5)
        axes.plot(value, place, color=color, marker=marker, markersize=6)
        axes.annotate(
            number(value),
            (value, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize="x-small",
        )
    axes.set_yticks(
        range(len(pairs)), [one.name for one, _ in pairs], fontsize="x-small"
    )
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    axes.set_xscale("log")
    axes.set_xlim(left, right)
    _show_log_ticks(axes.xaxis)
    axes.set_xlabel(label, fontsize="small")
    axes.tick_params(axis="x", labelsize="x-small")
    axes.grid(axis="x", alpha=0.3, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(textwrap.fill(title, 52), fontsize="small", loc="left")


def curves(path: Path, cases: Sequence[Case], found: Mapping[str, Results]) -> bool:
    """Draws times along each axis, and the least where known, a panel a case.

    Cases that were not measured are left out; false where none was.
    """
    cases = [one for one in cases if one.name in found and found[one.name].methods]
    if not cases:
        return False
    columns = 2
    rows = -(-len(cases) // columns)
    figure = Figure(figsize=(11.2, 3.0 * rows), dpi=96, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(cases) :]:
        axes.set_axis_off()
    for axes, case in zip(grid.flat, cases, strict=False):
        _curves_panel(axes, found[case.name], case)
    save_png(figure, path)
    return True


def _curves_panel(axes: Axes, found: Results, case: Case) -> None:
    lines: dict[str, list[Measurement]] = {}
    for one in found.methods:
        lines.setdefault(one.series, []).append(one)
    has_least = False
    for (name, points), (color, marker) in zip(lines.items(), SERIES, strict=False):
        x = [one.x or 0.0 for one in points]
        low, high = zip(*(one.quartiles for one in points), strict=True)
        axes.fill_between(
            x, [1e3 * t for t in low], [1e3 * t for t in high], color=color, alpha=0.2
        )
        axes.plot(
            x,
            [1e3 * one.seconds for one in points],
            color=color,
            marker=marker,
            markersize=5,
            label=name,
        )
        least = [
            1e3 * floor.least(found.run["floor"], one.work).seconds
            for one in points
            if one.work
        ]
        has_least |= bool(least)
        axes.plot(
            x[: len(least)],
            least,
            color=color,
            linestyle="--",
            marker=marker,
            markersize=3,
            linewidth=1,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    _show_log_ticks(axes.xaxis)
    _show_log_ticks(axes.yaxis)
    axes.set_xlabel(case.axis, fontsize="small")
    axes.set_ylabel("ms a call", fontsize="small")
    axes.tick_params(labelsize="x-small")
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if has_least:
        axes.plot(
            [], [], color="#666666", linestyle="--", linewidth=1, label="least time"
        )
    axes.legend(
        loc="center left", bbox_to_anchor=(1, 0.5), fontsize="x-small", frameon=False
    )
    axes.set_title(case.title, fontsize="small", loc="left")
