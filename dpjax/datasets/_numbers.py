"""A column as numbers, with what is none."""

import numpy as np

from dpjax.datasets._encoding import Numeric


def numbers_of(column: np.ndarray) -> np.ndarray:
    """Returns a column in float32, NaN where `Numeric` finds no number.

    Such a cell becomes 0 whatever the centre; a number does so for one centre at most.
    """
    around_zero, around_one = (
        Numeric(center).encode(column)[:, 0] for center in (0.0, 1.0)
    )
    is_missing = (around_zero == 0) & (around_one == 0)
    return np.where(is_missing, np.float32(np.nan), around_zero)
