"""How many cells of a column can be used, for the owner of the data alone.

No guarantee covers these numbers. They are printed, and written to no file.
"""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from dpjax.tables.columns._kinds import BoundedColumn, Categorical, Numeric
from dpjax.tables.io._tables import Column, surveys
from dpjax.tables.io._texts import (
    UNDECODED,
    TextFormat,
    Texts,
    float32_of,
    is_mark,
    text_of,
)

_FAR = 5.0  # scales
_LONGEST = 30  # of a cell that is shown
_LEAST_REFERENCE = 0.01  # of the cells
_NEARLY_ALL = 0.9  # of the lines
_CURRENCY = r"[$€£¥]|[A-Z]{3}"
# Negative numbers with a minus sign of typography, in brackets, or a minus at the end.
_NEGATIVE = "[\u2212\u2013] ?(?P<a>{0})|\\( ?(?P<b>{0}) ?\\)|(?P<c>{0}) ?[-\u2212]"
_NEGATIVE = _NEGATIVE.format(r"[\d.,' ]*\d[.,]?")
# Formats of numbers, and the options that read them.
_FORMATS = {
    r"\d{1,3}(,\d{3})+(\.\d*)?": "--thousands ,",
    r"\d{1,3}(\.\d{3})+(,\d*)?": "--decimal , --thousands .",
    r"\d{1,3}('\d{3})+(\.\d*)?": '--thousands "\'"',
    r"\d{1,3}( \d{3})+(\.\d*)?": '--thousands " "',
    r"\d{1,3}( \d{3})+,\d*": '--decimal , --thousands " "',
    r"\d*,\d*": "--decimal ,",
    r"\d+(\.\d*)?": "",
}


class Cells(NamedTuple):
    """Counts of the cells of a column.

    Attributes:
        total: number of all cells.
        missing: number of cells without a value.
        unread: number of cells whose value is no number, or in no category.
        far: number of cells beyond five scales of the center, or above the maximum.
        looks: the commonest format among unread numbers, and the option that reads it.
        example: the commonest cell that is in no category.
        reference: number of cells with the most common value outside the categories, if
            it is common enough to be the reference level.
        level: the value of these cells.
        undecoded: number of missing cells whose bytes do not decode.
    """

    total: int
    missing: int
    unread: int
    far: int = 0
    looks: str = ""
    example: str = ""
    reference: int = 0
    level: str = ""
    undecoded: int = 0

    @property
    def used(self) -> int:
        """Number of cells that hold a number, or one of the categories."""
        return self.total - self.missing - self.unread - self.reference

    def of_all(self, count: int) -> str:
        """Returns "3 of 40"."""
        return f"{count:,} of {self.total:,}"


def count_cells(
    kind: Numeric | Categorical | BoundedColumn | None, column: Column
) -> Cells:
    """Counts the cells of a column; kind None is numbers of an undeclared range."""
    is_used = (kind or Numeric()).is_read(column)
    unused = count_texts(column[np.flatnonzero(~is_used)])
    texts = {text: count for text, count in unused.items() if not is_mark(text)}
    unread = sum(texts.values())
    cells = Cells(
        len(column),
        sum(unused.values()) - unread,
        unread,
        undecoded=sum(count for text, count in unused.items() if UNDECODED in text),
    )
    if kind is not None and kind.categories:
        return _of_categories(cells, texts)
    known, far = float32_of(column), 0
    if isinstance(kind, BoundedColumn):
        far = int(np.sum(known[is_used] > np.float32(kind.max)))
    elif kind is not None:
        far = int(np.sum(np.abs(known[is_used] - kind.center) > _FAR * kind.scale))
    return cells._replace(far=far, looks=_looks(texts))


def count_texts(column: Column) -> Counter[str]:
    """Counts the different texts of a column."""
    if not isinstance(column, Texts):
        return Counter(map(text_of, column.tolist()))
    texts, codes = column.distinct
    counts = np.bincount(codes, minlength=len(texts)).tolist()
    return Counter(dict(zip(texts, counts, strict=True)))


def _of_categories(cells: Cells, texts: Mapping[str, int]) -> Cells:
    common = [text[:_LONGEST] for text, _ in Counter(texts).most_common(2)]
    most = max(texts.values(), default=0)
    if cells.used == 0 or most < max(1, _LEAST_REFERENCE * cells.total):
        return cells._replace(example=next(iter(common), ""))
    return cells._replace(
        unread=cells.unread - most,
        reference=most,
        level=common[0],
        example=common[1] if len(common) > 1 else "",
    )


def _looks(texts: Mapping[str, int]) -> str:
    """Returns an example of the commonest format, and the options that read it."""
    looks: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for text, count in texts.items():
        look = _look(text)
        looks[look] += count
        examples.setdefault(look, text)
    (look, _), *_ = looks.most_common(1) or [("", 0)]
    return f"like {examples[look][:_LONGEST]} ({look})" if look else ""


def say_to_curator(console: Console, texts: Iterable[str]) -> bool:
    """Prints findings about cells under a warning; returns whether there are any."""
    lines = list(texts)
    if lines:
        console.print(
            "For the curator's eyes only, outside the guarantee (computed from the "
            "records, and written nowhere; dpjax check tells more):",
            style="yellow",
        )
    for text in lines:
        console.print(f"  {text}", style="yellow", soft_wrap=True)
    return bool(lines)


def remarks_on_lines(path: Path, text_format: TextFormat) -> Iterator[str]:
    """Yields messages about lines of a text file that may be no records as they are."""
    for name, lines in surveys(path, text_format).items():
        if lines.one_more >= _NEARLY_ALL * lines.records > 0:
            yield (
                f"{name}: {lines.one_more:,} of {lines.records:,} lines have one cell "
                "more than the header: if the first is the name of a row, as R writes "
                "it, use --row-names."
            )
        elif lines.surplus:
            yield (
                f"{name}: {lines.surplus:,} of {lines.records:,} lines have more cells "
                "than the header, which are not read: a cell with a delimiter in it "
                "needs quotes."
            )
        if lines.opened:
            how = "--quoted reads cells with line breaks"
            how = "without --quoted a line is a record" if text_format.quoted else how
            yield f"{name}: {lines.opened:,} cells begin with an open quote: {how}."
        last = lines.blank_at_end + text_format.last_lines
        if lines.total:
            yield (
                f"{name}: the last line with text begins with {lines.total!r}: if it "
                f"is a sum and no record, use --last-lines {last + 1}."
            )
        elif lines.blank_at_end:
            yield (
                f"{name}: blank lines at the end count as records "
                f"({lines.blank_at_end:,}): --last-lines {last} leaves them out."
            )
        if lines.blank > lines.blank_at_end:
            inside = lines.blank - lines.blank_at_end
            yield f"{name}: blank lines between others count as records ({inside:,})."


def undecoded(cells: Cells) -> str:
    """Returns the message about cells whose bytes do not decode."""
    return (
        f"the bytes of {cells.of_all(cells.undecoded)} cells do not decode: they count "
        "as missing. --encoding says how the file is encoded: latin-1 or cp1252, if "
        "it is of Western Europe."
    )


def _look(text: str) -> str:
    """Returns the options that read a number in text, or how to write it; else ""."""
    plain = text.replace("\u00a0", " ").replace("\u202f", " ").replace("\u2019", "'")
    if re.fullmatch(r"[+-]?[\d.,' ]+%", plain):
        return "write 0.12 for 12%"
    if negative := re.fullmatch(_NEGATIVE, plain):
        return f"write -{negative['a'] or negative['b'] or negative['c']}"
    form = (
        rf"[+-]?(?P<a>{_CURRENCY})? ?[+-]?(?P<n>[\d.,' ]*\d[.,]?) ?(?P<b>{_CURRENCY})?"
    )
    match = re.fullmatch(form, plain)
    if match is None:
        return ""
    for shape, options in _FORMATS.items():
        if re.fullmatch(shape, match["n"]):
            sign = match["a"] or match["b"]
            currency = f"--currency {shlex.quote(sign)}" if sign else ""
            both = " ".join(filter(None, [options, currency]))
            return f"try {both}" if both else ""
    return ""
