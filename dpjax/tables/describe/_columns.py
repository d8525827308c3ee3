"""Releases the statistics of one column, in every group."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from dpjax import _keys
from dpjax._types import Key
from dpjax.accounting import Sampling, noise_multiplier_to_epsilon
from dpjax.solvers import dp_group_means, dp_histogram
from dpjax.solvers.statistics._histogram import EDGES_SHARE, private_edges
from dpjax.tables.columns._kinds import Categorical, Numeric
from dpjax.tables.describe._description import OTHER
from dpjax.tables.io._tables import Column
from dpjax.tables.io._texts import float32_of

ALL = "(all)"
NUM_BINS = 20
Place = Callable[[np.ndarray], np.ndarray]

_HISTOGRAM = 0.2  # of the budget of a column of numbers; quantiles need most
_QUANTILES = {"median": 0.5, "quantile 0.9": 0.9}
_LARGEST, _BOUND = 1e30, 1e15  # of an edge, and of a bound of means
_BLOCK = 2**16  # records whose categories are compared at once
# The relative amount by which a solver's epsilon is lowered: its multiplier, computed
# to 1e-9, is then at least the intended one.
_SLACK = 1e-8


class Budget(NamedTuple):
    """The budget of a part, as the noise multiplier of one Gaussian mechanism."""

    multiplier: float
    delta: float

    def part(self, share: float) -> "Budget":
        """Returns the budget of a part, by its share of inverse squared multipliers."""
        return self._replace(multiplier=self.multiplier / math.sqrt(share))

    @property
    def pair(self) -> dict[str, float]:
        """Epsilon and delta for which a solver's multiplier is at least this one."""
        # With a multiplier of about 0.4 / delta, epsilon would be zero.
        delta = min(self.delta, 0.1 / self.multiplier)
        epsilon = noise_multiplier_to_epsilon(
            self.multiplier, delta, Sampling(num_steps=1)
        )
        return {"epsilon": epsilon * (1 - _SLACK), "delta": delta}


class Groups(NamedTuple):
    """The group of each record."""

    names: tuple[str, ...]
    codes: np.ndarray  # of records at their places, (n,); -1 where there is no record
    place: Place  # as of `release`
    num_records: int | None  # the size of a single group, if it is public

    @classmethod
    def everyone(cls, num_records: int, place: Place | None) -> "Groups":
        """Returns all records as one group."""
        is_public, place = place is None, place or (lambda rows: rows)
        codes = place(np.ones(num_records, np.int32)) - 1
        return cls((ALL,), codes, place, num_records if is_public else None)

    def divided(self, kind: Categorical, column: Column) -> "Groups":
        """Returns a group for each category of a column, and a last one for others."""
        codes = np.where(self.codes < 0, -1, self.place(_codes(kind, column)))
        return self._replace(
            names=(*kind.categories, OTHER), codes=codes, num_records=None
        )

    def counted(
        self, cells: np.ndarray, num_cells: int, budget: Budget, key: Key
    ) -> tuple[np.ndarray, np.ndarray, float, float]:
        """Releases counts of records in each cell of each group, shape (num_cells, G).

        Returns these and their standard errors, the noise's stddev and multiplier.
        """
        joint = np.where(self.codes < 0, np.nan, self.codes * num_cells + cells)
        total = len(self.names) * num_cells
        edges = np.arange(total + 1, dtype=np.float32) - 0.5
        joint = joint.astype(np.float32)
        released = dp_histogram(joint, key=key, edges=edges, **budget.pair)
        tables = (released.params, released.standard_errors)
        counts, errors = (np.asarray(x).reshape(-1, num_cells).T for x in tables)
        stats = released.stats
        return counts, errors, float(stats["stddev"]), float(stats["noise_multiplier"])


class Statistics(NamedTuple):
    """The releases of one column in G groups."""

    labels: list[str]  # the names of bins or categories
    cells: np.ndarray  # records in each, and last of missing numbers, shape (k, G)
    errors: np.ndarray  # their standard errors
    stddev: float  # of the noise of one
    shares: dict[str, float]  # of the column's budget, by statistics
    multipliers: list[float]  # noise multipliers of all releases
    # Of a column of numbers how many there are (G,), standard errors, noise's stddev.
    counted: tuple[np.ndarray, np.ndarray, float] | None = None
    # Its means and quantiles: names, values and standard errors.
    statistics: Sequence[tuple[str, np.ndarray, np.ndarray]] = ()
    edges: tuple[float, ...] = ()  # of the histogram
    within: tuple[float, float] = (-math.inf, math.inf)  # which numbers are possible

    @property
    def known(self) -> tuple[np.ndarray, float]:
        """The number of cells with a number or a category, and its variance."""
        cells, variance = self.cells[: len(self.labels)], self.stddev**2
        total, variance = np.sum(cells, axis=0, dtype=float), len(cells) * variance
        if self.counted is None:
            return total, variance
        counts, _, stddev = self.counted
        share = variance / (variance + stddev**2)
        return share * counts + (1 - share) * total, share * stddev**2

    @property
    def sizes(self) -> np.ndarray:
        """The number of records in each group."""
        return self.known[0] + (0 if self.counted is None else self.cells[-1])

    @property
    def size_variance(self) -> float:
        """The variance of the noise of `sizes`."""
        return self.known[1] + (0 if self.counted is None else self.stddev**2)

    def divided(self, group: int, size: int) -> tuple[int, int]:
        """Returns how many records of a group of that size are known and missing."""
        if self.counted is None:
            return size, 0
        excess = float(self.sizes[group]) - size
        known, variance = float(self.known[0][group]), self.known[1]
        known = round(known - excess * variance / self.size_variance)
        known = min(max(known, 0), size)
        return known, size - known


def of_numbers(
    kind: Numeric, column: Column, groups: Groups, budget: Budget, key: Key
) -> Statistics:
    """Releases counts, means, quantiles and a histogram of numbers in every group."""
    mean_key, edge_key, count_key = _keys.split(key, 3)
    within = kind.range
    edges = _public_edges(within)
    clipped = np.clip(float32_of(column).astype(float), *within)
    numbers = groups.place(clipped.astype(np.float32))
    moments = dp_group_means(
        numbers,
        groups.codes,
        key=mean_key,
        num_groups=len(groups.names),
        quantiles=[*_QUANTILES.values()],
        bounds=None if edges is None or max(map(abs, within)) > _BOUND else within,
        **budget.part(1 - _HISTOGRAM).pair,
    )
    values, errors = moments.params, moments.standard_errors
    assert isinstance(errors, dict)
    counts, count_errors = (np.asarray(x["counts"]) for x in (values, errors))
    counted = counts, count_errors, float(moments.stats["count_stddev"])
    more = [("mean", np.asarray(values["means"]), np.asarray(errors["means"]))]
    for index, statistic in enumerate(_QUANTILES):
        value, error = (np.asarray(x["quantiles"])[:, index] for x in (values, errors))
        more.append((statistic, value, error))
    multipliers = [float(moments.stats["noise_multiplier"])]

    of_bins = budget.part(_HISTOGRAM)
    if edges is None:
        inside = np.where(groups.codes < 0, np.float32(np.nan), numbers)
        released = private_edges(edge_key, jnp.asarray(inside), of_bins.multiplier)
        edges = np.asarray(released)
        multipliers.append(of_bins.part(EDGES_SHARE).multiplier)
        of_bins = of_bins.part(1 - EDGES_SHARE)
    cells = np.searchsorted(edges[1:-1], numbers, side="left")
    cells = np.where(np.isnan(numbers), NUM_BINS, cells)
    in_bins = groups.counted(cells, NUM_BINS + 1, of_bins, count_key)
    shown = tuple(edges.astype(float).tolist())
    shares = {"count, mean, quantiles": 1 - _HISTOGRAM, "histogram": _HISTOGRAM}
    table = *in_bins[:3], shares, [*multipliers, in_bins[3]]
    return Statistics(_bins(shown), *table, counted, more, shown, within)


def of_categories(
    kind: Categorical, column: Column, groups: Groups, budget: Budget, key: Key
) -> Statistics:
    """Releases the count of each category in every group."""
    names = [*kind.categories, OTHER]
    cells = groups.place(_codes(kind, column))
    counts, errors, stddev, multiplier = groups.counted(cells, len(names), budget, key)
    return Statistics(names, counts, errors, stddev, {"counts": 1.0}, [multiplier])


def _public_edges(within: tuple[float, float]) -> np.ndarray | None:
    """Returns edges within a range, if it ends and they differ."""
    if within[1] == math.inf:
        return None
    ends = np.clip(within, -_LARGEST, _LARGEST)
    edges = np.linspace(ends[0], ends[1], NUM_BINS + 1).astype(np.float32)
    return edges if np.all(np.diff(edges) > 0) else None


def _codes(kind: Categorical, column: Column) -> np.ndarray:
    """Returns the index of each cell's category, the last one for others."""
    codes = np.full(len(column), len(kind.categories), np.int32)
    for start in range(0, len(column), _BLOCK):
        rows, places = np.nonzero(kind.encode(column[start : start + _BLOCK]))
        codes[start + rows] = places
    return codes


def _bins(edges: tuple[float, ...]) -> list[str]:
    """Returns the names of bins; the outer ones are open.

    Example:
        >>> _bins((0.0, 1.0, 2.5, 4.0))
        ['up to 1', '1 to 2.5', 'above 2.5']
    """
    inner = [f"{edge:.6g}" for edge in edges[1:-1]]
    between = [f"{low} to {high}" for low, high in itertools.pairwise(inner)]
    return [f"up to {inner[0]}", *between, f"above {inner[-1]}"]
