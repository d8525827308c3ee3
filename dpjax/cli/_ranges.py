"""Centres and scales that the schema leaves open, bought from the budget."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from dp_accounting import ComposedDpEvent

from dpjax import _validate
from dpjax._rounding import sum_up
from dpjax._types import Key
from dpjax.accounting import PrivacyGuarantee
from dpjax.cli._runs import Run
from dpjax.cli._sources import Table
from dpjax.datasets import Numeric
from dpjax.solvers import dp_center_and_scale


@dataclass(frozen=True, eq=False)
class Ranges:
    """Released centres and scales, and what they have cost.

    Attributes:
        num_samples: from how many records.
        columns: centre and scale of each column, by its name.
        privacy: the guarantee for all of them.
        rank_error: by how many records their quantiles err at most, with probability
            0.99.
        is_informative: whether that is few enough.
    """

    num_samples: int
    columns: Mapping[str, Numeric]
    privacy: PrivacyGuarantee
    rank_error: float
    is_informative: bool


def buy_ranges(table: Table, *, key: Key, epsilon: float, delta: float) -> Ranges:
    """Buys the centres and scales of a table's open columns, from training records.

    Raises:
        ValueError: if no column is open.
    """
    names = table.open_columns()
    _validate.require(
        len(names) > 0,
        "--private-ranges",
        "given",
        "left out where the schema leaves no center and scale open",
    )
    columns = [_numbers(table.columns[name][~table.is_test]) for name in names]
    solution = dp_center_and_scale(
        np.stack(columns, axis=1), key=key, epsilon=epsilon, delta=delta
    )
    centers, scales = (np.asarray(x, np.float64).tolist() for x in solution.params)
    kinds = map(Numeric, centers, scales)
    return Ranges(
        num_samples=table.num_samples,
        columns=dict(zip(names, kinds, strict=True)),
        privacy=solution.privacy,
        rank_error=float(solution.stats["rank_error"]),
        is_informative=bool(jnp.asarray(solution.stats["is_informative"])),
    )


def charge(run: Run, ranges: Ranges | None) -> Run:
    """Returns a private run whose guarantee counts the ranges of its records too.

    Basic composition: epsilons add up, and so do deltas.
    """
    if ranges is None or not run.is_private:
        return run
    parts = ranges.privacy, run.solution.privacy
    # A tuple, where a list is declared: an event of a guarantee must be hashable.
    events: Any = tuple(part.dp_event for part in parts)
    total = PrivacyGuarantee.of(
        sum_up(*(part.epsilon for part in parts)),
        sum_up(*(part.delta for part in parts)),
        dp_event=ComposedDpEvent(events),
        num_samples=ranges.num_samples,
    )
    solution = dataclasses.replace(run.solution, privacy=total)
    return dataclasses.replace(run, solution=solution)


def _numbers(column: np.ndarray) -> np.ndarray:
    """Returns a column in float32, NaN where `Numeric` finds no number.

    Such a cell becomes 0 whatever the centre; a number does so for one centre at most.
    """
    around_zero, around_one = (
        Numeric(center).encode(column)[:, 0] for center in (0.0, 1.0)
    )
    is_missing = (around_zero == 0) & (around_one == 0)
    return np.where(is_missing, np.float32(np.nan), around_zero)
