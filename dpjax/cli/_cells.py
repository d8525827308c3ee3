"""What the cells of a column are good for: counted for their owner alone.

No guarantee covers these numbers. They go to the terminal, and into no file.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from rich.console import Console

from dpjax._tables import text_of
from dpjax.datasets import Categorical, Numeric
from dpjax.datasets._shared import numbers_of
from dpjax.models._shared import BoundedColumn

# What people write where there is no value.
_MARKS = {"", "na", "n/a", "#n/a", "nan", "null", "none", "?", "-", "--", "."}
_FAR = 5.0  # scales
_LONGEST = 30  # of a cell that is shown
_AMOUNT = r"[+-]?\d[\d.,' ]*"
# Numbers that are no plain ones: what they look like, and how to write them.
_FORMATS = {
    "like $1200 (write 1200)": rf"-?[$€£¥] ?{_AMOUNT}|{_AMOUNT} ?[$€£¥]",
    "like 12% (write 0.12)": rf"{_AMOUNT}%",
    "like 1,200 (write 1200)": r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?",
    "like 1.200,5 or 2,5 (write 1200.5 or 2.5)": r"[+-]?[\d.' ]+,\d*",
    "like 1 200 (write 1200)": r"[+-]?\d{1,3}([ ']\d{3})+(\.\d*)?",
}


class Cells(NamedTuple):
    """How many cells of a column are what.

    Attributes:
        total: all of them.
        missing: without a value.
        unread: with one that is no number, or none of the categories.
        far: numbers beyond five scales of the centre, or above the maximum.
        looks: what most of the unread numbers look like, if it is known.
        example: the commonest cell that is none of the categories.
    """

    total: int
    missing: int
    unread: int
    far: int = 0
    looks: str = ""
    example: str = ""

    @property
    def used(self) -> int:
        """How many hold a number, or one of the categories."""
        return self.total - self.missing - self.unread

    def said(self, count: int) -> str:
        """Returns "3 of 40"."""
        return f"{count:,} of {self.total:,}"


def count_cells(
    kind: Numeric | Categorical | BoundedColumn | None, column: np.ndarray
) -> Cells:
    """Counts the cells of a column of a kind; None is numbers of an open range."""
    known = np.zeros(0)
    if isinstance(kind, Categorical):
        is_used = kind.encode(column).any(axis=1)
    else:
        known = numbers_of(column)
        is_used = ~np.isnan(known)
        if isinstance(kind, BoundedColumn):
            is_used &= known >= 0
    texts = [text_of(cell) for cell in column[~is_used].tolist()]
    held = [text for text in texts if not is_mark(text)]
    counts = len(column), len(texts) - len(held), len(held)
    if isinstance(kind, Categorical):
        (most, _), *_ = Counter(held).most_common(1) or [("", 0)]
        return Cells(*counts, example=most[:_LONGEST])
    looks = [_look(text) for text in held]
    most = max(set(looks), key=looks.count, default="")
    far = 0
    if isinstance(kind, BoundedColumn):
        far = int(np.sum(known[is_used] > np.float32(kind.max)))
    elif kind is not None:
        far = int(np.sum(np.abs(known[is_used] - kind.center) > _FAR * kind.scale))
    return Cells(*counts, far, most)


def say_to_curator(console: Console, texts: Iterable[str]) -> bool:
    """Prints what is said of cells, marked as such; tells if there is any."""
    found = list(texts)
    if found:
        console.print(
            "For the curator's eyes only, outside the guarantee (of the records, "
            "written nowhere; dpjax check tells more):",
            style="yellow",
        )
    for text in found:
        console.print(f"  {text}", style="yellow", soft_wrap=True)
    return bool(found)


def is_mark(text: str) -> bool:
    """Tells whether a text stands for a missing value."""
    return text.lower() in _MARKS


def _look(text: str) -> str:
    plain = text.replace("\u00a0", " ").replace("\u202f", " ")
    return next((k for k, form in _FORMATS.items() if re.fullmatch(form, plain)), "")
