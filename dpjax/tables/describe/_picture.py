"""The picture of a description: a panel for each column."""

import math
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from dpjax._rounding import claim
from dpjax.tables._shapes import DARK, LIGHT, compact, short
from dpjax.tables.io._untrusted import printable

if TYPE_CHECKING:
    from dpjax.tables.describe._description import Description, Row

_WIDTH, _LINE, _AROUND, _HEAD = 4.2, 0.42, 0.75, 0.75  # inches: of a panel, and around
_THIN, _TALL = 0.24, 1.7  # of a category; the least of a panel
_MOST_LETTERS, _MOST_LINES = 18, 40
_MARKERS = "os^"  # of groups, one after the other where colors are used up
_POINTS = {"mean": ("o", 0), "median": ("D", 1), "quantile 0.9": ("^", 2)}
_HIGH = 0.62  # of a group's line, which its histogram takes; points lie below it


def plot_of(description: "Description", *, is_dark: bool) -> Any:
    """Draws each column in a panel of its own; arguments as of `Description.plot`.

    For a column of numbers every group has a line with its histogram, and below it the
    mean, median and quantile with their intervals. For categories the panel shows
    counts, or with groups the shares in each group. If there are many groups or
    categories, only the first ones are shown.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        message = 'a plot needs matplotlib: pip install "dpjax[experiments]"'
        raise ImportError(message) from error
    paper, ink, rule, colors = DARK if is_dark else LIGHT
    panels = _by(description.rows, "column")
    heights = [_height(rows, name in description.edges) for name, rows in panels]
    num = min(3, len(panels))
    tall = [max(heights[i : i + num]) for i in range(0, len(panels), num)]
    privacy = description.privacy
    facts = f"{claim(privacy.epsilon, privacy.delta, 4)}, {description.size}"
    by = "" if description.by is None else f", by {printable(description.by)}"
    head = f"{facts}{by}; lines: {100 * description.level:g} % intervals"
    lines = wrap(head, int(13 * num * _WIDTH))
    size = num * _WIDTH, sum(tall) + _HEAD + 0.2 * (len(lines) - 1)
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    figure = Figure(figsize=size, dpi=120, facecolor=paper, layout=layout)
    figure.suptitle(
        "\n".join(lines), x=0.01, ha="left", color=ink, fontsize=10, parse_math=False
    )
    grid = figure.add_gridspec(len(tall), num, height_ratios=tall)
    numbers = []
    for index, (name, rows) in enumerate(panels):
        panel = figure.add_subplot(grid[index // num, index % num], facecolor=paper)
        panel.set_title(short(name, 40), fontsize=10, color=ink, parse_math=False)
        if name in description.edges:
            numbers.append(panel)
            _draw_numbers(panel, rows, description.edges[name], colors, ink)
        else:
            _draw_categories(panel, rows, colors, ink, rule)
        panel.tick_params(colors=ink, labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color(rule)
        panel.xaxis.set_major_formatter(lambda value, _: compact(value))
        panel.locator_params(axis="x", nbins=6)
    if numbers:
        handles = [
            numbers[0].plot([], [], marker, color=colors[1 + index], markersize=4)[0]
            for marker, index in _POINTS.values()
        ]
        place = {"loc": "upper right", "ncols": 3, "frameon": False}
        figure.legend(handles, [*_POINTS], labelcolor=ink, fontsize=8, **place)
    return figure


def _by(rows: Iterable["Row"], field: str) -> list[tuple[str, list["Row"]]]:
    """Returns the rows of each column, group or statistic, in their order."""
    by_column: dict[str, list[Row]] = {}
    for row in rows:
        by_column.setdefault(getattr(row, field), []).append(row)
    return [*by_column.items()]


def _height(rows: list["Row"], is_number: bool) -> float:
    num_groups = min(len({row.group for row in rows}), _MOST_LINES)
    if is_number:
        return max(_TALL, _LINE * num_groups) + _AROUND
    num = min(len({row.of for row in rows}), _MOST_LINES)
    thin = _THIN * max(1.0, 0.35 * min(num_groups, 12))
    return max(_TALL, thin * num) + _AROUND


def _draw_numbers(
    panel: Any,
    rows: list["Row"],
    edges: Sequence[float],
    colors: tuple[str, ...],
    ink: str,
) -> None:
    groups = _by(rows, "group")[:_MOST_LINES]
    for place, (_, own) in enumerate(groups):
        bins = [row for row in own if row.statistic == "histogram"]
        counts = np.maximum([row.value for row in bins], 0.0)
        bottom = -place + (0.3 if len(groups) > 1 else 0.16)
        scale = _HIGH / max(counts.max(), 1.0)
        filled = {"baseline": bottom, "fill": True, "alpha": 0.35}
        panel.stairs(bottom + scale * counts, edges, color=colors[0], **filled)
        middles = (np.asarray(edges[1:]) + np.asarray(edges[:-1])) / 2
        ends = np.maximum([[row.low, row.high] for row in bins], 0.0)
        panel.vlines(middles, *(bottom + scale * ends.T), color=ink, linewidth=0.7)
        for name, (marker, index) in _POINTS.items():
            (row,) = (row for row in own if row.statistic == name)
            at = bottom - 0.05 - (0.09 if len(groups) > 1 else 0.05) * index
            _point(panel, row, at, colors[1 + index], marker)
    names = [short(name, _MOST_LETTERS) for name, _ in groups]
    places = [0.3 - place for place in range(len(groups))]
    if len(groups) == 1:
        names, places = [], []
    panel.set_yticks(places, names, parse_math=False)
    panel.set_ylim(-len(groups) + 1 - 0.02, 1.02 if len(groups) > 1 else 0.85)
    panel.set_xlim(edges[0], edges[-1])


def _draw_categories(
    panel: Any, rows: list["Row"], colors: tuple[str, ...], ink: str, rule: str
) -> None:
    groups = _by(rows, "group")
    statistic = "count" if len(groups) == 1 else "share"
    groups = groups[: len(_MARKERS) * len(colors)]
    for index, (group, own) in enumerate(groups):
        marker, color = _MARKERS[index // len(colors)], colors[index % len(colors)]
        panel.plot([], [], marker, color=color, label=short(group, _MOST_LETTERS))
        shown = [row for row in own if row.statistic == statistic][:_MOST_LINES]
        apart = 0.7 * (index - (len(groups) - 1) / 2) / max(len(groups), 2)
        if len(groups) == 1:
            values = [max(row.value, 0.0) for row in shown]
            panel.barh(np.arange(len(shown)), values, 0.6, color=colors[0], alpha=0.35)
        for place, row in enumerate(shown):
            _point(panel, row, place + apart, color, marker)
        names = [short(row.of, _MOST_LETTERS) for row in shown]
        panel.set_yticks(range(len(shown)), names, parse_math=False)
        panel.set_ylim(len(shown) - 0.4, -0.6)
    panel.set_xlim(left=0.0)
    panel.set_xlabel(statistic, fontsize=8, color=ink)
    panel.grid(axis="x", color=rule, linewidth=0.4, alpha=0.6)
    if len(groups) > 1:
        legend = panel.legend(fontsize=7, labelcolor=ink, framealpha=0.6)
        legend.get_frame().set(facecolor=panel.get_facecolor(), edgecolor=rule)
        for text in legend.get_texts():
            text.set_parse_math(False)


def _point(panel: Any, row: "Row", at: float, color: str, marker: str) -> None:
    """Draws a number with its interval, if that is finite."""
    if math.isfinite(row.low) and math.isfinite(row.high):
        panel.hlines(at, row.low, row.high, color=color, linewidth=1.4)
        panel.plot(row.value, at, marker, color=color, markersize=3.5, zorder=3)
