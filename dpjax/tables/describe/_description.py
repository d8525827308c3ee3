"""A released description of a table: rows, as JSON, CSV, HTML or a picture."""

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpjax.accounting import (
    PrivacyGuarantee,
    Sampling,
    noise_multiplier,
    noise_multiplier_to_epsilon,
)
from dpjax.accounting._sample import sample_budget, subsampled_epsilon
from dpjax.tables.describe._page import page_of
from dpjax.tables.describe._picture import plot_of
from dpjax.tables.io._untrusted import harmless, printable

_OF_NUMBERS = ("count", "missing", "mean", "median", "quantile 0.9")
_OF_CATEGORIES = ("count", "share")
COUNTS = "count", "missing", "histogram"
OTHER = "(other)"  # cells in none of the categories, missing ones included


class Row(NamedTuple):
    """One released number.

    Attributes:
        column: of the table.
        group: the name of the group, "(all)" without groups.
        statistic: "count", "missing", "mean", "median", "quantile 0.9", "share" or
            "histogram", which counts the records in a bin.
        of: the category or the bin, or "".
        value: in the column's units, and within its limit. Counts are integers from 0
            to n, those of a sample times n / m. They add up: those of a group's bins
            to its count, this and missing cells to the group, and groups to n.
        low: the lower end of the interval, of possible values; if noise hides the
            value the least one, which is -inf for numbers without a limit.
        high: the upper end.
    """

    column: str
    group: str
    statistic: str
    of: str
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        half = (self.high - self.low) / 2
        if not half < math.inf:
            return "hidden by noise"
        digits = 0
        if self.statistic not in COUNTS and half > 0:
            digits = min(max(1 - math.floor(math.log10(half)), 0), 12)
        form = f",.{digits}f" if abs(self.value) < 1e15 else ".6g"
        ends = " to ".join(f"{end:{form}}" for end in (self.low, self.high))
        return f"{self.value:{form}} ({ends})"


class Cost(NamedTuple):
    """The share of the budget of one part of a description.

    Attributes:
        column: of the table.
        part: the released statistics.
        share: of the budget, in zCDP; all shares add up to 1.
        epsilon: of this part alone, at the delta of the description. These add up to
            more than the epsilon of the description.
    """

    column: str
    part: str
    share: float
    epsilon: float


@dataclass(frozen=True)
class Description:
    """A private description of a table; everything in it is released, or public.

    Attributes:
        rows: the released numbers, by column and group.
        edges: of the histograms, by column; the outer bins are open.
        num_samples: n; with units of privacy the number of places for their records.
        sample_size: m, if a sample of m records was described.
        by: the column of groups, if there are any.
        level: the probability of each interval.
        shares: of the budget, in zCDP, by column and statistics.
        privacy: the guarantee of the whole description.
        unit: the column that names the units of privacy, such as persons, if there are.
        records_per_unit: how many records of a unit count.
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

    @property
    def size(self) -> str:
        """Names the number of records, or units, of the table."""
        if self.unit is None:
            return f"n = {self.num_samples:,}"
        number = self.num_samples // self.records_per_unit
        return f"{number:,} values of {printable(self.unit)}"

    @property
    def reading(self) -> str:
        """Says in words how to read the numbers."""
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
        """Returns what each part costs."""
        given = self.privacy.epsilon, self.privacy.delta
        sizes = self.num_samples, self.sample_size or self.num_samples
        prob = sizes[1] / sizes[0]
        own = sample_budget(*given, num_samples=sizes[0], sample_size=sizes[1])
        multiplier = noise_multiplier(*own, Sampling(num_steps=1))
        costs = []
        for (column, name), share in self.shares.items():
            part = multiplier / math.sqrt(share)
            epsilon = noise_multiplier_to_epsilon(part, own[1], Sampling(num_steps=1))
            epsilon = subsampled_epsilon(epsilon, prob)
            costs.append(Cost(column, name, share, epsilon))
        return costs

    def tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """Returns readable tables of the columns of numbers and of categories.

        Returns:
            The header and the lines of each table that is not empty, without
            histograms.
        """
        cells: dict[bool, dict[tuple[str, ...], dict[str, str]]] = {True: {}, False: {}}
        for row in self.rows:
            if row.statistic != "histogram":
                is_number = row.column in self.edges
                line = cells[is_number].setdefault((row.column, row.group, row.of), {})
                line[row.statistic] = str(row)
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
        """Returns the description for JSON; an infinite end is None."""
        rows = [
            {k: x if isinstance(x, str) or math.isfinite(x) else None for k, x in cells}
            for cells in (row._asdict().items() for row in self.rows)
        ]
        privacy = self.privacy
        return {
            "num_samples": self.num_samples,
            "sample_size": self.sample_size,
            "by": self.by,
            "level": self.level,
            "rows": rows,
            "edges": {name: list(edges) for name, edges in self.edges.items()},
            "costs": [cost._asdict() for cost in self.costs],
            "privacy": {
                "epsilon": privacy.epsilon,
                "delta": privacy.delta,
                "relation": privacy.relation.name,
                "description": privacy.description,
            },
        }

    def to_json(self) -> str:
        """Returns the description as JSON."""
        return json.dumps(self.content(), indent=2, ensure_ascii=False) + "\n"

    def to_csv(self) -> str:
        """Returns the rows as CSV, with a header.

        A name that a spreadsheet would run as a formula has an apostrophe before it.
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
        """Returns a self-contained page, with the picture if matplotlib is installed.

        Args:
            title: of the page.
        """
        return page_of(self, title)

    def plot(self, *, is_dark: bool = False) -> Any:
        """Draws histograms, means and shares with their intervals, by matplotlib.

        Args:
            is_dark: whether to draw light on dark.

        Returns:
            The `matplotlib.figure.Figure`.

        Raises:
            ImportError: without matplotlib.
        """
        return plot_of(self, is_dark=is_dark)
