"""A released description of a table, with its forms: JSON, CSV, HTML and a picture."""

import csv
import io
import itertools
import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np

from dpjax import accounting
from dpjax._lazy import to_frame
from dpjax._rounding import claim, rounded_up
from dpjax.accounting import PrivacyGuarantee, Sampling
from dpjax.accounting._sample import sample_budget, subsampled_epsilon
from dpjax.tables import _pages
from dpjax.tables._statement import Statement
from dpjax.tables.io._untrusted import harmless, printable

_OF_NUMBERS = ("count", "missing", "mean", "median", "quantile 0.9")
_OF_CATEGORIES = ("count", "share")
COUNTS = "count", "missing", "histogram"
HIDDEN = "hidden by noise"
OTHER = "(other)"  # cells in none of the categories, missing cells included
# Sizes in the picture, in inches: a panel, a line, and the space around them.
_WIDTH, _LINE, _AROUND, _HEAD = 4.2, 0.42, 0.75, 0.75
_THIN, _TALL = 0.24, 1.7  # height of a category, and smallest height of a panel
_MOST_LETTERS, _MOST_LINES = 18, 40
_MARKERS = "os^"  # a group takes the next marker when all colors are used
_POINTS = {"mean": ("o", 0), "median": ("D", 1), "quantile 0.9": ("^", 2)}
_SHARES = 0.0, 1.0  # the range of shares
_HIGH = 0.62  # height of a histogram in its group's line; points lie below it


class Row(NamedTuple):
    """One released number.

    Attributes:
        column: the name of the column.
        group: the name of the group, "(all)" without groups.
        statistic: "count", "missing", "mean", "median", "quantile 0.9", "share" or
            "histogram", which counts the records in a bin.
        of: the category or the bin, or "".
        value: the number, in the column's units and within its limit. Counts are
            integers from 0 to n; counts of a sample are multiplied by n / m. Counts add
            up: the bins of a group to its count, this count and the missing cells to
            the size of the group, and the sizes of all groups to n.
        low: the lower end of the interval, which holds possible values only. If noise
            hides the value, it is the smallest possible value, or -inf for numbers
            without a limit.
        high: the upper end of the interval.
    """

    column: str
    group: str
    statistic: str
    of: str
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Returns value and interval as text, rounded by the interval's width."""
        half = (self.high - self.low) / 2
        if not half < math.inf:
            return HIDDEN
        digits = 0
        if self.statistic not in COUNTS and half > 0:
            digits = min(max(1 - math.floor(math.log10(half)), 0), 12)
        form = f",.{digits}f" if abs(self.value) < 1e15 else ".6g"
        ends = " to ".join(f"{end:{form}}" for end in (self.low, self.high))
        return f"{self.value:{form}} ({ends})"


class Cost(NamedTuple):
    """The share of the privacy budget that one part of a description cost."""

    column: str
    part: str  # the names of the released statistics
    share: float  # the share of the budget in zCDP; all shares add up to 1
    # Epsilon of this part alone, at the description's delta. Epsilons of all parts add
    # up to more than the epsilon of the description.
    epsilon: float


@dataclass(frozen=True)
class Description:
    """A private description of a table; everything in it is released or public.

    Attributes:
        rows: the released numbers, by column and group.
        edges: edges of the histograms, by column; the outer bins are open.
        num_samples: n, the number of records. With units of privacy it is the number of
            units times `records_per_unit`.
        sample_size: m, if a sample of m records was described, or None.
        by: the column of groups, or None.
        level: the probability of each interval.
        shares: shares of the budget in zCDP, by column and statistics.
        privacy: the guarantee of the whole description.
        unit: the column that names the units of privacy, such as persons, or None.
        records_per_unit: the largest number of records of a unit that count.
    """

    rows: tuple[Row, ...]
    edges: Mapping[str, tuple[float, ...]]
    num_samples: int
    by: str | None
    level: float
    shares: Mapping[tuple[str, str], float]
    privacy: PrivacyGuarantee
    sample_size: int | None = None
    unit: str | None = None
    records_per_unit: int = 1
    to_frame = to_frame

    def __repr__(self) -> str:
        cost = claim(self.privacy.epsilon, self.privacy.delta)
        return f"<Description: {len(self.rows):,} numbers, {self.size}, {cost}>"

    def _table(self) -> tuple[tuple[str, ...], tuple[Row, ...]]:
        return Row._fields, self.rows

    def _repr_html_(self) -> str:
        tables = [_pages.Rows(head, lines) for head, lines in self.tables()]
        texts = _pages.Text(self.reading), _pages.Text(str(self.privacy))
        return _pages.html_blocks([*tables, *texts])

    @property
    def size(self) -> str:
        """The number of records, or of units, in words."""
        if self.unit is None:
            return f"n = {self.num_samples:,}"
        number = self.num_samples // self.records_per_unit
        return f"{number:,} values of {printable(self.unit)}"

    @property
    def reading(self) -> str:
        """Sentences on how to read intervals, other categories and units of privacy."""
        text = f"In brackets: {100 * self.level:g} % intervals, of sampling and noise."
        if any(row.of == OTHER for row in self.rows):
            text += f" {OTHER}: cells in none of the listed categories, be it another "
            text += "level or no value."
        if self.unit is not None:
            text += f" Everything is about the first {self.records_per_unit} records of"
            text += f" each value of {printable(self.unit)}; others count nowhere."
        return text

    @property
    def costs(self) -> list[Cost]:
        """The share of the budget of each released part, and its epsilon by itself."""
        size, once = self.sample_size or self.num_samples, Sampling(num_steps=1)
        given = self.privacy.epsilon, self.privacy.delta
        own = sample_budget(*given, num_samples=self.num_samples, sample_size=size)
        multiplier, costs = accounting.noise_multiplier(*own, once), []
        for (column, name), share in self.shares.items():
            part = multiplier / math.sqrt(share)
            epsilon = accounting.noise_multiplier_to_epsilon(part, own[1], once)
            epsilon = subsampled_epsilon(epsilon, size / self.num_samples)
            costs.append(Cost(column, name, share, epsilon))
        return costs

    def tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """Returns a table of numbers and one of categories, as (titles, rows of texts).

        They are for pages and terminals, without histograms and without empty tables.
        """
        cells: dict[bool, dict[tuple[str, ...], dict[str, str]]] = {True: {}, False: {}}
        for row in self.rows:
            if row.statistic != "histogram":
                is_number = row.column in self.edges
                line = cells[is_number].setdefault((row.column, row.group, row.of), {})
                is_shown = _is_shown(row, self.edges.get(row.column, _SHARES))
                line[row.statistic] = str(row) if is_shown else HIDDEN
        pages = []
        for is_number, names in ((True, _OF_NUMBERS), (False, _OF_CATEGORIES)):
            keep = [0, *[1] * (self.by is not None), *[2] * (not is_number)]
            head = [["column", str(self.by), "category"][i] for i in keep]
            lines = [
                [*(key[i] for i in keep), *(line[name] for name in names)]
                for key, line in cells[is_number].items()
            ]
            if lines:
                pages.append(([*head, *names], lines))
        return pages

    def content(self) -> dict[str, Any]:
        """Returns the description as a dict for JSON; an infinite end is None."""
        rows = [
            {k: x if isinstance(x, str) or math.isfinite(x) else None for k, x in cells}
            for cells in (row._asdict().items() for row in self.rows)
        ]
        names = "num_samples", "sample_size", "by", "level"
        return {name: getattr(self, name) for name in names} | {
            "rows": rows,
            "edges": {name: list(edges) for name, edges in self.edges.items()},
            "costs": [cost._asdict() for cost in self.costs],
            "privacy": Statement.of(self.privacy).content(),
        }

    def to_json(self) -> str:
        """Returns the description as JSON."""
        return json.dumps(self.content(), indent=2, ensure_ascii=False) + "\n"

    def to_csv(self) -> str:
        """Returns the rows as CSV, with a header.

        A name that a spreadsheet would run as a formula gets an apostrophe before it.
        """
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(
            [*map(harmless, row[:4]), *(f"{x:.9g}" for x in row[4:])]
            for row in self.rows
        )
        return text.getvalue()

    def to_html(self, title: str = "Private description") -> str:
        """Returns a self-contained page, with a picture if matplotlib is installed."""
        blocks = [_pages.Text(str(self.privacy)), *numbers_of(self)]
        return _pages.html_of(title, [*blocks, "What each part cost", costs_of(self)])

    def plot(self, *, is_dark: bool = False) -> Any:
        """Draws histograms, means and shares with their intervals, with matplotlib.

        Every column has a panel. For a column of numbers every group has a line with
        its histogram and, below it, the mean, median and quantile. For categories the
        panel shows counts, or with groups the shares in each group. If there are many
        groups or categories, the first are shown.

        Args:
            is_dark: whether to draw light on dark.

        Returns:
            The `matplotlib.figure.Figure`.

        Raises:
            ImportError: Without matplotlib.
        """
        figure_of = _pages.figures()
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        paper, ink, rule, _ = style = _pages.DARK if is_dark else _pages.LIGHT
        text: dict[str, Any] = {"color": ink, "fontsize": 10, "parse_math": False}
        panels = _by(self.rows, "column")
        panels.sort(key=lambda panel: panel[0] not in self.edges)  # numbers come first
        heights = []
        for name, rows in panels:
            levels = {row.group for row in rows}, {row.of for row in rows}
            num_groups, num_names = (min(len(x), _MOST_LINES) for x in levels)
            thin = _THIN * max(1.0, 0.35 * min(num_groups, 12)) * num_names
            needed = _LINE * num_groups if name in self.edges else thin
            heights.append(max(_TALL, needed) + _AROUND)
        num = min(3, len(panels))
        tall = [max(heights[i : i + num]) for i in range(0, len(panels), num)]
        facts = f"{claim(self.privacy.epsilon, self.privacy.delta, 4)}, {self.size}"
        by = "" if self.by is None else f", by {printable(self.by)}"
        head = f"{facts}{by}; lines: {100 * self.level:g} % intervals"
        lines = wrap(head, int(13 * num * _WIDTH))
        size = num * _WIDTH, sum(tall) + _HEAD + 0.2 * (len(lines) - 1)
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
        figure = figure_of(figsize=size, dpi=120, facecolor=paper, layout=layout)
        figure.suptitle("\n".join(lines), x=0.01, ha="left", **text)
        grid = figure.add_gridspec(len(tall), num, height_ratios=tall)
        marks = {}
        for index, (name, rows) in enumerate(panels):
            panel = figure.add_subplot(grid[index // num, index % num], facecolor=paper)
            panel.set_title(_pages.short(name, 40), **text)
            if name in self.edges:
                _draw_numbers(panel, rows, self.edges[name], style)
            else:
                _draw_categories(panel, rows, style)
            handles, labels = panel.get_legend_handles_labels()
            marks |= dict(zip(labels, handles, strict=True))
            panel.tick_params(colors=ink, labelsize=8)
            _pages.dress(panel, rule)
            panel.xaxis.set_major_formatter(lambda value, _: _pages.compact(value))
            panel.locator_params(axis="x", nbins=6)
        legend = {"labelcolor": ink, "fontsize": 8, "frameon": False}
        legend |= {"loc": "outside lower left", "ncols": 3 * num}
        for label in figure.legend(marks.values(), [*marks], **legend).get_texts():
            label.set_parse_math(False)
        return figure


def numbers_of(description: Description) -> list[_pages.Block]:
    """Returns blocks of a page on a description: how to read it, tables, a picture."""
    blocks: list[_pages.Block] = [
        _pages.Text(
            f"{description.reading} Counts have noise, and then are moved to the "
            "nearest possible ones that agree with each other. Numbers of a column "
            "with a limit are clipped to it. Without one, the outer bins of a "
            "histogram hold all that lies beyond."
        ),
        *(_pages.Rows(head, lines) for head, lines in description.tables()),
    ]
    try:
        dark, light = (description.plot(is_dark=dark) for dark in (True, False))
    except ImportError:
        return blocks
    return [*blocks, _pages.Picture(light, "Histograms, and the numbers above", dark)]


def costs_of(description: Description) -> _pages.Rows:
    """Returns a table of the cost of each part."""
    head = ["column", "what", "share of the budget", "epsilon by itself"]
    costs = [
        [cost.column, cost.part, rounded_up(cost.share, 3), rounded_up(cost.epsilon, 3)]
        for cost in description.costs
    ]
    return _pages.Rows(head, costs)


def _by(rows: Iterable[Row], field: str) -> list[tuple[str, list[Row]]]:
    """Groups rows by a field, such as "column" or "group", in their order."""
    groups = itertools.groupby(rows, operator.attrgetter(field))
    return [(name, [*own]) for name, own in groups]


def _is_shown(row: Row, edges: Sequence[float]) -> bool:
    """Tells whether a number's interval leaves out an end of its column's range."""
    tolerance = 1e-6 * (edges[-1] - edges[0])
    is_inside = row.low > edges[0] + tolerance or row.high < edges[-1] - tolerance
    return is_inside or row.statistic in COUNTS


def _draw_numbers(
    panel: Any, rows: list[Row], edges: Sequence[float], style: _pages.Style
) -> None:
    """Draws a numeric column on axes `panel`: each group's histogram and statistics."""
    _, ink, rule, colors = style
    groups = _by(rows, "group")[:_MOST_LINES]
    for place, (_, own) in enumerate(groups):
        bins = [row for row in own if row.statistic == "histogram"]
        bottom = 0.3 - place
        values, low, high = np.array([[x.value, x.low, x.high] for x in bins]).T
        if np.max(values) <= np.max(high - values):  # noise is as high as all bins
            middle, size = (edges[0] + edges[-1]) / 2, (edges[-1] - edges[0], bottom)
            panel.bar(middle, _HIGH, *size, hatch="////", fc="none", ec=rule, lw=0)
            text = {"color": ink, "fontsize": 8, "ha": "center", "va": "center"}
            text["backgroundcolor"] = panel.get_facecolor()
            panel.text(middle, bottom + _HIGH / 2, HIDDEN, **text)
        else:
            scale = _HIGH / high.max()
            filled = {"baseline": bottom, "fill": True, "alpha": 0.35}
            panel.stairs(bottom + scale * values, edges, color=colors[0], **filled)
            middles = (np.asarray(edges[1:]) + np.asarray(edges[:-1])) / 2
            ends = bottom + scale * low, bottom + scale * high
            panel.vlines(middles, *ends, color=ink, linewidth=0.7)
        for name, (marker, index) in _POINTS.items():
            (row,) = (row for row in own if row.statistic == name)
            at = bottom - 0.05 - 0.09 * index
            mark = {"color": colors[1 + index], "marker": marker, "label": name}
            _point(panel, row, at, edges, **mark)
    if len(groups) > 1:
        names = [_pages.short(name, _MOST_LETTERS) for name, _ in groups]
        panel.set_yticks(0.3 - np.arange(len(groups)), names, parse_math=False)
    else:
        panel.set_yticks([])
    panel.set_ylim(-len(groups) + 0.98, 1.02)
    panel.set_xlim(edges[0], edges[-1])


def _draw_categories(panel: Any, rows: list[Row], style: _pages.Style) -> None:
    """Draws counts of categories on axes `panel`, or with groups shares in each."""
    _, ink, rule, colors = style
    groups = _by(rows, "group")
    statistic = "count" if len(groups) == 1 else "share"
    groups = groups[: len(_MARKERS) * len(colors)]
    for index, (group, own) in enumerate(groups):
        marker, color = _MARKERS[index // len(colors)], colors[index % len(colors)]
        shown = [row for row in own if row.statistic == statistic][:_MOST_LINES]
        label = _pages.short(group, _MOST_LETTERS) if len(groups) > 1 else None
        mark = {"color": color, "marker": marker, "label": label}
        apart = 0.7 * (index - (len(groups) - 1) / 2) / max(len(groups), 2)
        if len(groups) == 1:
            values = [row.value for row in shown]
            panel.barh(np.arange(len(shown)), values, 0.6, color=colors[0], alpha=0.35)
        for place, row in enumerate(shown):
            _point(panel, row, place + apart, _SHARES, **mark)
        names = [_pages.short(row.of, _MOST_LETTERS) for row in shown]
        panel.set_yticks(range(len(shown)), names, parse_math=False)
        panel.set_ylim(len(shown) - 0.4, -0.6)
    panel.set_xlim(left=0.0)
    panel.set_xlabel(statistic, fontsize=8, color=ink)
    panel.grid(axis="x", color=rule, linewidth=0.4, alpha=0.6)


def _point(
    panel: Any, row: Row, at: float, edges: Sequence[float], *, color: str, **mark: Any
) -> None:
    """Draws a number and its interval, unless noise hides them, with a mark."""
    x, y = (row.value, at) if _is_shown(row, edges) else ([], [])
    panel.plot(x, y, color=color, linestyle="", markersize=3.5, zorder=3, **mark)
    if x != []:
        panel.hlines(at, row.low, row.high, color=color, linewidth=1.4)
