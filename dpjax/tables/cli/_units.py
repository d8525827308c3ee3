"""Units of privacy, such as persons: neighboring tables differ in one unit's records.

In a neighboring table, other records under the same name replace those of one name.
Names are public: either the names that occur, so that each is known to have a record,
or a public list, where a name may have no record.

The records are laid out as (units, k): k places for each name, by sorted names, so that
the places of a name depend on no record. They hold the first k records of the unit, or
zeros, and further records are left out: all divisors are units times k, and the number
of records stays private. Neighbors differ in up to k places of one unit, which are all
for training or all for tests. All noise is Gaussian, and k times that for one record; a
mean has k times as many places, so that its noise is that of a mean of unit means.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax.tables.io._texts import Texts, is_missing, text_of

_WHOLE = re.compile(r"([+-]?[0-9]+)\.0?")


@dataclass(frozen=True, eq=False)
class Units:
    """The units of privacy, such as persons, that own the records of a table."""

    column: str  # with the names of units
    size: int  # k, the largest number of records of a unit that count
    num_units: int  # public
    index: np.ndarray  # (n,), of each record's unit; -1 for a record of no unit
    rank: np.ndarray  # (n,), of each record among the records of its unit
    is_listed: bool = False  # the names are a public list, not the names that occur

    @property
    def words(self) -> str:
        """The difference between neighboring tables, in words."""
        number = "or none" if self.is_listed else "at least one"
        return (
            f"group of records with one {self.column} by any others, {number}, with "
            f"the same {self.column},"
        )

    @property
    def public(self) -> str:
        """A sentence on what is public on units of privacy, and what is protected."""
        if self.is_listed:
            return (
                f"The list of values of {self.column} that was given is public; "
                "whether one of them has records, how many and which, is protected."
            )
        return (
            f"Which values of {self.column} have a record is public; how many records "
            "each has, and what they hold, is protected."
        )

    def report(self) -> dict[str, Any]:
        """Returns the public facts about the units, for JSON."""
        return {
            "column": self.column,
            "num_units": self.num_units,
            "records_per_unit": self.size,
            "public": self.public,
        }

    def placed(self, rows: np.ndarray, is_chosen: np.ndarray, size: int) -> np.ndarray:
        """Lays out rows of chosen units, `size` places each; empty places are zeros."""
        place = np.cumsum(is_chosen) - 1
        is_kept = (self.index >= 0) & is_chosen[self.index] & (self.rank < size)
        laid = np.zeros((int(np.sum(is_chosen)) * size, *rows.shape[1:]), rows.dtype)
        places = place[self.index[is_kept]] * size + self.rank[is_kept]
        laid[places] = rows[is_kept]
        return laid


def units_of(
    column: str,
    cells: Iterable[Any] | Texts,  # of the column
    size: int,  # the largest number of records of a unit that count
    names: Iterable[str] | None = None,  # of all units, as `name_of` writes them
    order: Sequence[str] | None = None,  # the units that count; None: all, sorted
) -> Units:
    """Returns the units of privacy of a table, from the column with their names.

    A unit, such as a person, owns the records with its name. Names that are not in
    `names` are no unit. Without `names` all names that occur are units, and the records
    without a value are one unit.
    """
    distinct, codes = named(cells)
    ordered = order or sorted(set(distinct if names is None else names))
    index_of = {name: index for index, name in enumerate(ordered)}
    counts = [0] * (len(ordered) + 1)  # the last counts records of no unit
    index, rank = np.zeros((2, len(codes)), int)
    for row, code in enumerate(codes.tolist()):
        unit = index_of.get(distinct[code], -1)
        index[row], rank[row] = unit, counts[unit]
        counts[unit] += 1
    return Units(column, size, len(ordered), index, rank, names is not None)


def named(cells: Iterable[Any] | Texts) -> tuple[list[str], np.ndarray]:
    """Returns names of units, and for each of n cells the index of its unit's name."""
    # A name may be in the list several times, if cells spell it in several ways.
    if isinstance(cells, Texts):
        texts, codes = cells.distinct
    elif isinstance(cells, np.ndarray) and cells.dtype != object:
        texts, codes = np.unique(cells, return_inverse=True)
    else:
        texts = [*cells]
        codes = np.arange(len(texts))
    return [name_of(text) for text in texts], codes


def name_of(cell: Any) -> str:
    """Returns the name of a unit, such as a person, in one spelling for all types.

    A column of integers is read as floats if a cell is missing, which must not change
    the names in the other cells.
    """
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    text = text_of(cell)
    if is_missing(text):
        return ""
    integer = _WHOLE.fullmatch(text)
    return integer[1] if integer else text


def read_names(path: Path) -> list[str]:
    """Returns the names of units in a public list, one per line; raises without any."""
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, ValueError) as why:
        rule = f"a text file in UTF-8 with one name a line, got {str(path)!r}: {why}."
        raise ValueError(f"--unit-names must be {rule}") from None
    names = [name for name in map(name_of, lines) if name]
    rule = "a file with at least one name, one per line"
    _validate.require(bool(names), "--unit-names", str(path), rule)
    return names
