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
from dpjax.accounting import PrivacyGuarantee
from dpjax.accounting._sample import sample_budget, subsampled_epsilon
from dpjax.tables import _pages
from dpjax.tables._statement import Statement
from dpjax.tables.io._untrusted import harmless, printable

COUNTS = "count", "missing", "histogram"
HIDDEN = "hidden by noise"
OTHER = "(other)"  # cells in none of the categories, missing cells included
# Sizes in the picture, in inches: a panel, a line, and the space around them.
_WIDTH, _LINE, _AROUND, _HEAD = 4.2, 0.42, 0.75, 0.75
_TALL = 2.45  # smallest height of a panel and its surroundings
_MOST_LETTERS, _MOST_LINES, _MOST_NAMES = 18, 40, 24
_POINTS = {"mean": ("o", 0), "median": ("D", 1), "quantile 0.9": ("^", 2)}
_SHARES = 0.0, 1.0  # the range of shares
_MARKERS = "os^"  # a group takes the next marker when all colors are used
_HIGH = 0.62  # height of a histogram in its group's line; points lie below it


class Row(NamedTuple):
    """One released number.

    Attributes:
        column: the name of the column.
        group: the name of the group, "(all)" without groups.
        statistic: "count", "missing", "mean", "difference" of means, "median",
            "quantile 0.9", "share" or "histogram", which counts the records in a bin.
        of: the category, the bin, the group whose mean was subtracted, or "".
        value: the number, in the column's units and within its limit. Counts are
            integers from 0 to n; counts of a sample are multiplied by n / m. Counts add
            up: the bins of a group to its count, this count and the missing cells to
            the size of the group, and the sizes of all groups to n. With weights they
            are sums of weights, and add up to a private number.
        low: the lower end of the interval, which holds possible values only. If noise
            hides the value, it is the smallest possible value, or -inf for numbers
            without a limit.
        high: the upper end of the interval.
        part_by_noise: the noise's part of the interval's squared width, from 0 to 1;
            the rest is sampling. NaN if noise hides the value.
    """

    column: str
    group: str
    statistic: str
    of: str
    value: float
    low: float
    high: float
    part_by_noise: float = math.nan

    def __str__(self) -> str:
        """Returns value, interval and part by noise; rounded by the width."""
        half = (self.high - self.low) / 2
        if not half < math.inf:
            return HIDDEN
        digits = 0
        is_count = self.statistic in COUNTS and float(self.value).is_integer()
        if not is_count and half > 0:
            digits = min(max(1 - math.floor(math.log10(half)), 0), 12)
        form = f",.{digits}f" if abs(self.value) < 1e15 else ".6g"
        ends = " to ".join(f"{end:{form}}" for end in (self.low, self.high))
        part = self.part_by_noise
        noise = "" if math.isnan(part) else f"; {part:.0%}"
        return f"{self.value:{form}} ({ends}{noise})"


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
        weights: the column of weights, or None.
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
    weights: str | None = None
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
        text = f"In brackets: {100 * self.level:g} % intervals, of sampling and noise, "
        text += "and the noise's part of their squared width. For a census, which has "
        text += "no sampling, the square root of this part of the width is enough."
        if of := {row.of for row in self.rows if row.statistic == "difference"}:
            text += f" Differences are from the mean of {printable(of.pop())}."
        if self.weights is not None:
            text += f" Records count by {printable(self.weights)}: counts are sums of "
            text += "weights, and shares and means are ratios of two sums with noise."
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
        size, costs = self.sample_size or self.num_samples, []
        given = self.privacy.epsilon, self.privacy.delta
        own = sample_budget(*given, num_samples=self.num_samples, sample_size=size)
        stddev = accounting.gaussian_stddev(*own, sensitivity=1.0)
        for (column, name), share in self.shares.items():
            of_part = stddev / math.sqrt(share), own[1]
            epsilon = accounting.gaussian_epsilon(*of_part, sensitivity=1.0)
            epsilon = subsampled_epsilon(epsilon, size / self.num_samples)
            costs.append(Cost(column, name, share, epsilon))
        return costs

    def tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """Returns a table of numbers and one of categories, as (titles, rows of texts).

        They are for pages and terminals, without histograms and without empty tables.
        """
        pages = []
        shown = [row for row in self.rows if row.statistic != "histogram"]
        for is_number in (True, False):
            cells: dict[tuple[str, ...], dict[str, str]] = {}
            rows = [row for row in shown if is_number == (row.column in self.edges)]
            names = [*dict.fromkeys(row.statistic for row in rows)]
            for row in rows:
                key = row.column, row.group, row.of * (not is_number)
                is_seen = _is_shown(row, self.edges.get(row.column, _SHARES))
                text = str(row) if is_seen else HIDDEN
                cells.setdefault(key, {})[row.statistic] = text
            keep = [0, *[1] * (self.by is not None), *[2] * (not is_number)]
            head = [["column", str(self.by), "category"][i] for i in keep]
            lines = [
                [*(key[i] for i in keep), *(line.get(name, "") for name in names)]
                for key, line in cells.items()
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
        names = "num_samples", "sample_size", "by", "weights", "level"
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
        """Draws histograms, means and quantiles with their intervals, with matplotlib.

        A column of numbers has a panel in which every group has a line with its
        histogram and, below it, mean, median and quantile; one of categories has the
        share of each in each group. Of many groups or categories the first are shown.

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
        num, tall = min(3, len(panels)), []
        for _, rows in panels:
            of_groups = len(_by(rows, "group"))
            names = sum(row.statistic == "share" for row in rows) / of_groups
            tall.append(_LINE * max(min(of_groups, _MOST_LINES), names / 2) + _AROUND)
        tall = [max(_TALL, *tall[i : i + num]) for i in range(0, len(panels), num)]
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
            panel = figure.add_subplot(grid[divmod(index, num)], facecolor=paper)
            panel.set_title(_pages.short(name, 40), **text)
            panel.tick_params(colors=ink, labelsize=8)
            _pages.dress(panel, rule)
            if name in self.edges:
                _draw_numbers(panel, rows, self.edges[name], style)
            else:
                _draw_categories(panel, rows, style)
            handles, labels = panel.get_legend_handles_labels()
            marks |= dict(zip(labels, handles, strict=True))
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
    """Tells whether a number's interval leaves out an end of its possible range."""
    low, high = edges[0], edges[-1]
    if row.statistic == "difference":
        low, high = low - high, high - low
    tolerance = 1e-6 * (high - low)
    is_inside = row.low > low + tolerance or row.high < high - tolerance
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
            reach = bottom + scale * low, bottom + scale * high
            panel.vlines(middles, *reach, color=ink, linewidth=0.7)
        for name, (marker, index) in _POINTS.items():
            about = [row for row in own if row.statistic == name]
            mark = {"marker": marker, "label": name, "color": colors[1 + index]}
            _points(panel, about, [bottom - 0.05 - 0.09 * index], edges, **mark)
    labels = [_pages.short(name, _MOST_LETTERS) for name, _ in groups]
    num = len(groups) if len(groups) > 1 else 0  # one group needs no name
    panel.set_yticks(0.3 - np.arange(num), labels[:num], parse_math=False)
    panel.set_ylim(-len(groups) + 0.98, 1.02)
    panel.set_xlim(edges[0], edges[-1])
    panel.xaxis.set_major_formatter(lambda value, _: _pages.compact(value))
    panel.locator_params(axis="x", nbins=6)


def _draw_categories(panel: Any, rows: list[Row], style: _pages.Style) -> None:
    """Draws the share of each category in each group on axes `panel`."""
    _, ink, _, colors = style
    groups = _by(rows, "group")[: len(_MARKERS) * len(colors)]
    for index, (group, own) in enumerate(groups):
        shown = [row for row in own if row.statistic == "share"][:_MOST_NAMES]
        places = np.arange(len(shown)) + 0.7 * ((index + 0.5) / len(groups) - 0.5)
        color, marker = colors[index % len(colors)], _MARKERS[index // len(colors)]
        mark = {"label": _pages.short(group, _MOST_LETTERS)} if len(groups) > 1 else {}
        _points(panel, shown, places, _SHARES, color=color, marker=marker, **mark)
        names = [_pages.short(row.of, _MOST_LETTERS) for row in shown]
        panel.set_yticks(range(len(names)), names, parse_math=False)
        panel.set_ylim(len(names) - 0.4, -0.6)
    panel.set_xlim(left=0.0)
    panel.set_xlabel("share", fontsize=8, color=ink)


def _points(panel: Any, rows: list[Row], at: Any, edges: Any, **mark: Any) -> None:
    """Draws numbers and intervals that noise does not hide, at the heights `at`."""
    pairs = zip(rows, at, strict=True)
    shown = [(x.value, x.low, x.high, y) for x, y in pairs if _is_shown(x, edges)]
    values, low, high, places = np.array(shown).reshape(-1, 4).T
    panel.plot(values, places, linestyle="", markersize=3.5, zorder=3, **mark)
    panel.hlines(places, low, high, color=mark["color"], linewidth=1.4)
