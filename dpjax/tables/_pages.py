"""Pages of text, tables and pictures: HTML that needs no other file.

All text is escaped, because names and sentences may come from a stranger's file. A page
of HTML has no scripts, and forbids the browser to load anything.
"""

import base64
import importlib.resources
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np

from dpjax._lazy import optional
from dpjax.tables.io._untrusted import harmless, printable

_NUMBER = re.compile(r"-?\d|-?inf\b|hidden by noise|$")
# A grid ends at the range of its column, if that is within the first number of scales
# from the center, else at the second: most records are within two scales.
_FARTHEST, _USUAL = 4.0, 2.0
# Sizes in a plot, in inches: a panel of one column of four, the space around its axes,
# and the space for a category's name.
_WIDTH, _HEIGHT, _GAP, _LEFT, _TITLE, _BELOW = 2.9, 1.7, 0.3, 0.9, 0.35, 0.35
_NAME, _LETTER, _LINE = 0.17, 0.07, 0.2
_MOST_NAMES, _MOST_LETTERS = 64, 32
_MOST_PIXELS = 60_000  # matplotlib draws less than 2^16
Style = tuple[str, str, str, tuple[str, ...]]  # paper, ink, lines behind, colors
LIGHT = "#ffffff", "#1f2328", "#d0d7de", ("#00497a", "#c2410c", "#3f8f6b", "#b07d2b")
DARK = "#0d1117", "#e6edf3", "#3d444d", ("#a6dcff", "#f28c5b", "#4d9e7c", "#d9b36c")


class Text(NamedTuple):
    """A paragraph, which may be a warning."""

    text: str
    is_warning: bool = False


class Rows(NamedTuple):
    """A table: the titles of its columns, and the cells of its lines."""

    head: Sequence[str]
    lines: Sequence[Sequence[str]]


class Picture(NamedTuple):
    """A matplotlib figure, its description, and the same figure for dark pages."""

    figure: Any
    caption: str
    dark: Any = None


Block = str | Text | list[str] | Rows | Picture  # a title, and a list of sentences


def html_of(title: str, blocks: Iterable[Block]) -> str:
    """Returns a page of HTML; dark screens show the dark variants of pictures."""
    template = importlib.resources.files("dpjax.tables").joinpath("_page.html")
    head, title = template.read_text("utf-8"), _html(title)
    first = f"{head}<title>{title}</title></head><body><h1>{title}</h1>"
    return "\n".join([first, html_blocks(blocks), "</body></html>\n"])


def html_blocks(blocks: Iterable[Block]) -> str:
    """Returns a part of a page of HTML."""
    return "\n".join(map(_html_block, blocks))


def _html_block(block: Block) -> str:
    """Returns one block of a page, such as a paragraph, table or picture, as HTML."""
    match block:
        case Text(text, is_warning):
            mark = ' class="warning"' if is_warning else ""
            return f"<p{mark}>{_html(text)}</p>"
        case Rows(head, lines):
            marks = [
                ' class="n"' if all(map(_NUMBER.match, cells)) else ""
                for _, *cells in zip(head, *lines, strict=True)
            ]
            rows = [_html_row("th", head, marks)]
            rows += [_html_row("td", line, marks) for line in lines]
            return f"<table>{''.join(rows)}</table>"
        case Picture(figure, caption, dark):
            image = f'<img src="{_svg_url(figure)}" alt="{_html(caption)}">'
            if dark is not None:
                media = "screen and (prefers-color-scheme:dark)"
                image = f'<source media="{media}" srcset="{_svg_url(dark)}">{image}'
            return f"<picture>{image}</picture>"
        case str():
            return f"<h2>{_html(block)}</h2>"
    return f"<ul>{''.join(f'<li>{_html(text)}</li>' for text in block)}</ul>"


def _html_row(tag: str, cells: Sequence[str], marks: Sequence[str]) -> str:
    row = ""
    for cell, mark in zip(map(harmless, cells), marks, strict=True):
        if mark and tag == "td":  # a line may end before an interval only
            cell = cell.replace(" ", "\xa0").replace("\xa0(", " (")
        row += f"<{tag}{mark}>{_html(cell)}</{tag}>"
    return f"<tr>{row}</tr>"


def _html(text: str) -> str:
    return escape(printable(text))


def _svg_url(figure: Any) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(image_of(figure)).decode()}"


def image_of(figure: Any, form: str = "svg") -> bytes:
    """Returns a figure as SVG or PNG, the same bytes whenever it is drawn."""
    import matplotlib

    content, more = io.BytesIO(), {"metadata": {"Date": None}} if form == "svg" else {}
    with matplotlib.rc_context({"svg.hashsalt": "dpjax"}):
        figure.savefig(content, format=form, **more)
    return content.getvalue()


def figures() -> Any:
    """Returns matplotlib's `Figure`, or raises `ImportError` with advice."""
    return optional("matplotlib.figure", "plots need matplotlib", "experiments").Figure


class Shape(NamedTuple):
    """The contribution of a column to a model's score, which is before the link."""

    # Numbers of the column, between which the function is linear, or categories, (m,).
    grid: np.ndarray
    # The contribution at each entry, (m,), or (m, K) for K classes. It is zero at the
    # column's center, and for a category that is not in the grid.
    values: np.ndarray

    @classmethod
    def of_number(
        cls,
        curve: Callable[[np.ndarray], Any],  # (m,) to contributions to the score (m,)
        knots: tuple[float, ...],  # () for a straight line
        *,
        center: float,  # in the user's units
        scale: float,  # in the user's units
        limit: float,  # half the column's range, or infinite
    ) -> "Shape":
        """Returns a numeric column's curve, for a plot: at knots and at (near) ends.

        All but center and scale are in scales from the center, (x - center) / scale.
        """
        end = limit if limit <= _FARTHEST else _USUAL
        grid = np.sort([-end, *(knot for knot in knots if abs(knot) < end), end])
        return cls(center + scale * grid, np.asarray(curve(grid), np.float64))


def plot(
    shapes: Mapping[Any, Shape],  # contributions of columns to a score, by title
    outputs: list[str],  # the names of K classes, for a legend; [] for one output
    axis_label: str,  # of the shared axis
    *,
    title: Sequence[str] = (),  # lines above the panels
    is_factor: bool = False,
    is_dark: bool = False,  # light on dark
    # Intervals by title: grid, lower and upper ends (m,); drawn where they are finite.
    bands: Mapping[Any, tuple[np.ndarray, np.ndarray, np.ndarray]] | None = None,
) -> Any:
    """Returns a matplotlib figure of an additive model, with a panel for each shape.

    Of more than 64 categories a panel shows those with the largest values. With
    `is_factor` the axis shows exponentials of the values.
    """
    figure_of = figures()
    paper, ink, rule, colors = DARK if is_dark else LIGHT
    ends = {name: np.stack(pair) for name, (_, *pair) in (bands or {}).items()}
    drawn = (_Panel.of(name, shape, ends.get(name)) for name, shape in shapes.items())
    rows = list(_rows(drawn))
    depths = [max(panel.depth for panel in row) for row in rows]
    width = _LEFT + _GAP + _WIDTH * max(sum(x.span for x in row) for row in rows)
    titles = [part for line in title for part in wrap(printable(line), int(12 * width))]
    # The resolution falls with the height, because matplotlib limits the pixels.
    height = sum(depths) + len(rows) * (_TITLE + _HEIGHT) + 0.1 + _LINE * len(titles)
    dpi = min(150.0, _MOST_PIXELS / height)
    figure = figure_of(figsize=(width, height), dpi=dpi, facecolor=paper)
    text: dict[str, Any] = {"color": ink, "parse_math": False}
    place = 0.15 / width, 1 - 0.1 / height
    figure.text(*place, "\n".join(titles), va="top", fontsize=10, **text)
    panels, bottom = [], height - 0.1 - _LINE * len(titles)
    for row, depth in zip(rows, depths, strict=True):
        bottom, left = bottom - _TITLE - _HEIGHT, _LEFT
        for name, shape, span, _, band in row:
            size = (span * _WIDTH - _GAP) / width, _HEIGHT / height
            shared = panels[0] if panels else None
            box = (left / width, bottom / height, *size)
            panel = figure.add_axes(box, sharey=shared, facecolor=paper)
            lines = _draw(panel, shape, colors, band)
            panel.set_title(name, fontsize=10, **text)
            panel.axhline(0.0, color=rule, linewidth=0.8, zorder=0)
            panel.grid(axis="y", color=rule, linewidth=0.4, alpha=0.6)
            panel.set_axisbelow(True)
            panel.tick_params(colors=ink, labelsize=8)
            dress(panel, rule)
            panel.tick_params(labelleft=left == _LEFT)
            if left == _LEFT:
                panel.set_ylabel(short(axis_label, 30), fontsize=8, **text)
            if not panels and len(lines) > 1:
                names = [short(name, _MOST_LETTERS) for name in outputs]
                legend = panel.legend(lines, names, fontsize=8, labelcolor=ink)
                legend.get_frame().set(facecolor=paper, edgecolor=rule)
            panels.append(panel)
            left += span * _WIDTH
        bottom -= depth
    if is_factor:
        # Ticks stand at factors of 1, 2 and 5 times a power of ten.
        low, high = panels[0].get_ylim()
        ticks = np.log([digit * 10.0**k for k in range(-9, 10) for digit in (1, 2, 5)])
        ticks = ticks[(low < ticks) & (ticks < high)]
        if 3 <= len(ticks) <= 9:
            panels[0].set_yticks(ticks)
        panels[0].yaxis.set_major_formatter(
            lambda value, _: f"x {math.exp(min(value, 700.0)):.3g}"
        )
    return figure


class _Panel(NamedTuple):
    """A panel of a figure, before it is drawn: a shape with its intervals."""

    title: str
    shape: Shape
    span: int = 1  # its width, in panels of normal width
    depth: float = _BELOW  # the space below the axes, in inches
    band: np.ndarray | None = None  # (2, m), the ends of intervals

    @classmethod
    def of(cls, name: Any, shape: Shape, band: np.ndarray | None) -> "_Panel":
        """Returns the panel of column `name` for `plot`, with its width and depth."""
        # `band` (2, m) has the ends of intervals; None: there are none. Of more than 64
        # categories the panel has those with the largest values.
        num, title = len(shape.grid), short(name, 40)
        if shape.grid.dtype.kind == "f":
            return cls(title, shape, band=band)
        if num > _MOST_NAMES:
            sizes = np.abs(shape.values).reshape(num, -1).max(axis=1)
            largest = np.sort(np.argsort(-sizes, kind="stable")[:_MOST_NAMES])
            shape = Shape(shape.grid[largest], shape.values[largest])
            band = None if band is None else band[:, largest]
            title += f" ({_MOST_NAMES} of {num:,})"
        span = math.ceil((_NAME * len(shape.grid) + _GAP) / _WIDTH)
        longest = max(len(short(name, _MOST_LETTERS)) for name in shape.grid)
        return cls(title, shape, span, 0.2 + _LETTER * longest, band)


def _rows(panels: Iterable[_Panel]) -> Iterator[list[_Panel]]:
    """Yields rows of panels for `plot`: four normal widths at most, or one panel."""
    row: list[_Panel] = []
    for panel in panels:
        if row and sum(drawing.span for drawing in row) + panel.span > 4:
            yield row
            row = []
        row.append(panel)
    yield row


def _draw(
    panel: Any, shape: Shape, colors: tuple[str, ...], band: np.ndarray | None
) -> list[Any]:
    """Draws a column's effect on `panel`; returns lines, by output, for a legend.

    It is a curve, or bars of categories, at m numbers, with intervals `band` (2, m).
    """
    panel.set_prop_cycle(color=colors)
    is_known = np.zeros(len(shape.grid), bool)
    if band is not None:
        is_known = np.isfinite(band).all(axis=0)
        band = np.where(is_known, band, 0.0)
    if shape.grid.dtype.kind == "f":
        lines = panel.plot(shape.grid, shape.values, "-", linewidth=1.5)
        if band is not None:
            style = {"where": is_known, "color": colors[0], "linewidth": 0}
            panel.fill_between(shape.grid, *band, alpha=0.2, **style)
        panel.margins(x=0.0)
        panel.locator_params(axis="x", nbins=5)
        panel.xaxis.set_major_formatter(lambda value, _: compact(value))
        return lines
    places = np.arange(len(shape.grid))
    step = 140 / max(len(places), 4)  # points, two thirds of the space of a category
    lines = panel.plot(places, shape.values, "_", markersize=step, markeredgewidth=1.8)
    if band is not None:
        style = {"color": colors[0], "linewidth": step, "alpha": 0.2}
        panel.vlines(places[is_known], *band[:, is_known], **style)
    names = [short(name, _MOST_LETTERS) for name in shape.grid]
    panel.set_xticks(places, names, rotation=90, parse_math=False)
    panel.set_xlim(-0.7, len(places) - 0.3)
    return lines


def dress(panel: Any, rule: str) -> None:
    """Draws the frame of a panel at its left and bottom alone, in the color `rule`."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color(rule)


def compact(number: float) -> str:
    """Returns a number as a short text for an axis, such as "25k" for 25,000."""
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if 10 * unit <= abs(number) < 1e9 or (unit == 1e6 and 1e6 <= abs(number) < 1e9):
            return f"{number / unit:g}{letter}"
    return f"{number:g}"


def short(name: Any, most: int) -> str:
    """Returns a printable name of at most `most` characters."""
    text = printable(str(name))
    return text if len(text) <= most else f"{text[: most - 1]}…"
