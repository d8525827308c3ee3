"""Persons, not rows: neighbours that differ in all records of one person.

The records of a table are laid out as (units, k): k places for each value of a column,
in the order in which the values come up first. A unit with more records leaves out
those that come last, one with fewer leaves places empty, which hold zeros: all divisors
are units times k, and how many records there are stays private. Neighbours then differ
in up to k places, so that a method that is private for one place is private for a unit
by `dpjax.accounting.group_privacy`. A mean of bounded influences has k times the noise
for k times the places: as a mean of the units' own means would.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax.accounting import PrivacyGuarantee, group_privacy
from dpjax.cli._cells import text_of


@dataclass(frozen=True, eq=False)
class Units:
    """Whose the records of a table are.

    Attributes:
        column: the column that says it.
        size: k, the most records of a unit that count.
        num_units: how many there are; public.
        index: of the unit of each record, shape (n,).
        rank: of each record among those of its unit, shape (n,).
    """

    column: str
    size: int
    num_units: int
    index: np.ndarray
    rank: np.ndarray

    @property
    def words(self) -> str:
        """What neighbours differ in."""
        return f"group of records with one {self.column}"

    def report(self) -> dict[str, Any]:
        """Returns what is public about them, for JSON."""
        return {
            "column": self.column,
            "num_units": self.num_units,
            "max_records": self.size,
        }

    def placed(self, rows: np.ndarray, is_test: np.ndarray) -> np.ndarray:
        """Lays the rows out that are trained on, zeros where a unit has no record.

        Args:
            rows: one for each record, shape (n, ...).
            is_test: of the units, shape (num_units,).

        Returns:
            Shape (num_train_units * k, ...).
        """
        place = np.cumsum(~is_test) - 1
        is_kept = ~is_test[self.index] & (self.rank < self.size)
        shape = int(np.sum(~is_test)) * self.size, *rows.shape[1:]
        laid = np.zeros(shape, rows.dtype)
        laid[place[self.index[is_kept]] * self.size + self.rank[is_kept]] = rows[
            is_kept
        ]
        return laid


def units_of(column: str, cells: np.ndarray, size: int) -> Units:
    """Returns the units of a table; records without a value are one unit together.

    Args:
        column: its name.
        cells: the values, shape (n,).
        size: the most records of a unit that count.

    Raises:
        ValueError: if there is no record.

    Example:
        >>> units = units_of("who", np.array(["b", "a", "b"]), 2)
        >>> units.num_units, units.index.tolist(), units.rank.tolist()
        (2, [0, 1, 0], [0, 0, 1])
        >>> units.placed(np.array([3, 5, 7]), np.array([False, False])).tolist()
        [3, 7, 5, 0]
    """
    _validate.require(len(cells) > 0, "--unit", column, "a column with records")
    index_of: dict[str, int] = {}
    counts: list[int] = []
    index, rank = np.zeros((2, len(cells)), int)
    for row, cell in enumerate(map(text_of, cells.tolist())):
        unit = index_of.setdefault(cell, len(index_of))
        if unit == len(counts):
            counts.append(0)
        index[row], rank[row] = unit, counts[unit]
        counts[unit] += 1
    return Units(column, size, len(counts), index, rank)


def privacy_of_units(
    privacy: PrivacyGuarantee, units: Units | None
) -> PrivacyGuarantee:
    """Returns the guarantee for units of a training with one for records."""
    if units is None:
        return privacy
    return group_privacy(
        privacy, units.size, num_groups=units.num_units, unit=units.words
    )
