"""A column of amounts that a model multiplies or weighs by."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpjax import _validate
from dpjax.tables.columns._encoding import Numeric
from dpjax.tables.io._tables import Column
from dpjax.tables.io._texts import float32_of


@dataclass(frozen=True)
class BoundedColumn:
    """A column of amounts from zero to a public maximum: an exposure, or a weight.

    Args:
        column: its name.
        max: the largest amount, positive, public.

    Raises:
        ValueError: If the maximum is not positive and finite.

    Example:
        >>> import numpy as np
        >>> years = BoundedColumn("years", 2.0)
        >>> years.shares(np.array(["1", "9", "-1", "?", ""])).tolist()
        [0.5, 1.0, 0.0, 0.0, 0.0]
    """

    column: str
    max: float
    categories: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        _validate.positive(max=self.max)

    def is_read(self, cells: Column) -> np.ndarray:
        """Returns which cells hold a finite number from zero on, shape (n,)."""
        known = float32_of(cells)
        return np.asarray(np.isfinite(known) & (known >= 0), bool)

    def shares(self, cells: Column) -> np.ndarray:
        """Returns each cell divided by the maximum.

        Args:
            cells: text or numbers, shape (n,).

        Returns:
            float32 in [0, 1], shape (n,): larger cells count as the maximum; cells that
            are negative or do not parse count as zero.
        """
        return np.clip(Numeric(scale=self.max).encode(cells)[:, 0], 0.0, 1.0)
