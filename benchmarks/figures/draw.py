"""Plots of finished panels: a figure has its panels side by side."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from benchmarks.figures.panel import TITLES, Panel

# Colours of Okabe and Ito (2008), told apart by colour-blind readers too.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_GRAY = "#999999"
_LINES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def read(table: Path) -> pl.DataFrame:
    """Returns the table of a panel, from `run_panel`."""
    rows = pl.read_csv(table, schema_overrides={"curve": pl.String})
    return rows.with_columns(pl.col("curve").fill_null(""))


def draw(panels: Sequence[Panel], tables: Sequence[pl.DataFrame]) -> Figure:
    """Returns a figure: lines are means over repetitions, bands from best to worst.

    Bands are cut off below a third of the lowest mean.
    """
    figure = Figure(figsize=(4.6 * len(panels), 4.4), dpi=120, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    # Those of the tables: an older one may have other methods than the panel has now.
    every = pl.concat([table.select("method", "curve") for table in tables])
    methods = list(dict.fromkeys(map(_shown, every["method"])))
    curves = filter(None, dict.fromkeys(every["curve"]))
    lines = dict(zip(curves, _LINES, strict=False))
    for panel, table, place in zip(panels, tables, axes, strict=True):
        _draw_panel(place, panel, table, methods, lines)
    looks = [
        {"color": _COLORS[i], "marker": _MARKERS[i], "markersize": 4, "label": name}
        for i, name in enumerate(methods)
    ]
    for curve, line in lines.items():
        looks.append({"color": "#666666", "linestyle": line, "label": curve})
    if any(panel.exponent is not None for panel in panels):
        looks.append({"color": _GRAY, "linewidth": 0.8, "label": "theory"})
    num_rows = math.ceil(len(looks) / (2 * len(panels)))
    handles = [Line2D([], [], **look) for look in looks]
    look = {"loc": "outside lower center", "fontsize": "small", "frameon": False}
    figure.legend(handles=handles, ncols=math.ceil(len(looks) / num_rows), **look)
    return figure


def _shown(method: str) -> str:
    """Returns a method's name in the legend: panels say which gradients they took."""
    return method.removeprefix("stochastic ")


def _draw_panel(axes, panel, table, methods, lines) -> None:
    for (name, curve), rows in table.group_by("method", "curve", maintain_order=True):
        i, value = methods.index(_shown(str(name))), pl.col("value")
        ends = value.min().alias("low"), value.max().alias("high")
        along = rows.group_by(panel.x).agg(value.mean(), *ends).sort(panel.x)
        x = along[panel.x].to_numpy()
        look = {"color": _COLORS[i], "linestyle": lines.get(str(curve), "-")}
        look |= {"marker": _MARKERS[i], "markersize": 4, "linewidth": 1.2}
        every = max(1, len(x) // 8)
        axes.plot(x, along["value"].to_numpy(), markevery=every, **look)
        if rows["repetition"].n_unique() > 1:
            low, high = along["low"].to_numpy(), along["high"].to_numpy()
            axes.fill_between(x, low, high, color=_COLORS[i], alpha=0.12, linewidth=0)
    _draw_theory(axes, panel, table, lines)
    if panel.x != "num_steps":
        ticks = table[panel.x].unique().sort().to_list()
        if ticks[-1] > 10 * ticks[0]:
            axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.xaxis.set_minor_formatter(NullFormatter())
    points = table.group_by("method", "curve", panel.x)
    means = points.agg(pl.col("value").mean())["value"].to_numpy()
    if means.min() > 0:
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(bottom=max(table["value"].min(), means.min() / 3) / 1.2)
    else:  # a method is as good as the optimum, or better by chance
        axes.set_yscale("symlog", linthresh=np.abs(means[means != 0]).min())
    axes.set_xlabel(TITLES[panel.x])
    is_excess = panel.metric.startswith("excess")
    axes.set_ylabel(panel.metric + " over the best weights" * is_excess)
    axes.set_title(f"{panel.name}: {panel.title}", fontsize="small", loc="left")
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize="small")


def _draw_theory(axes, panel, table, lines) -> None:
    """Draws the theory's slope, if any, through the first point of the last method."""
    if panel.exponent is None:
        return
    exponents = {panel.curve_name(one): panel.exponent(one) for one in panel.settings()}
    last = table.filter(pl.col("method") == table["method"][-1])
    for (curve,), rows in last.group_by("curve", maintain_order=True):
        means = rows.group_by(panel.x).agg(pl.col("value").mean()).sort(panel.x)
        x, value = means[panel.x].to_numpy(), means["value"].to_numpy()
        look = {"linestyle": lines.get(str(curve), "-"), "linewidth": 0.8}
        theory = value[0] * (x / x[0]) ** exponents[str(curve)]
        axes.plot(x, theory, color=_GRAY, **look)
