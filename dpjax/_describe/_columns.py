"""Releases the statistics of one column, in every group."""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from dpjax import _keys
from dpjax._tables import Column
from dpjax._texts import float32_of
from dpjax._types import Key
from dpjax.accounting import noise_multiplier_to_epsilon
from dpjax.datasets import Categorical, Numeric
from dpjax.solvers import dp_group_means, dp_histogram
from dpjax.solvers._shared import EDGES_SHARE, private_edges

OTHER = "(other)"  # cells in none of the categories, missing ones included
ALL = "(all)"
NUM_BINS = 20
Place = Callable[[np.ndarray], np.ndarray]

_HISTOGRAM = 0.2  # of the budget of a column of numbers; quantiles need most
_QUANTILES = {"median": 0.5, "quantile 0.9": 0.9}
_LARGEST = 1e30  # of an edge
_BLOCK = 2**16  # records whose categories are compared at once
_LEAST_COUNT = 4.0  # stddevs of a noisy number, below which no share is known
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
        epsilon = noise_multiplier_to_epsilon(self.multiplier, delta, num_steps=1)
        return {"epsilon": epsilon * (1 - _SLACK), "delta": delta}


class Groups(NamedTuple):
    """The group of each record.

    Attributes:
        names: of the groups.
        codes: of the records at their places, shape (n,); -1 where there is no record.
        place: as of `release`.
        num_records: the size of a single group, if it is public.
    """

    names: tuple[str, ...]
    codes: np.ndarray
    place: Place
    num_records: int | None

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
        """Releases how many records of each group lie in each cell.

        Returns:
            Counts and their standard errors, shape (num_cells, G), the noise's standard
            deviation and its multiplier.
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


class Found(NamedTuple):
    """The releases of one column.

    Attributes:
        statistics: the name of each, its category or bin, and values and standard
            errors of the groups.
        shares: of the column's budget, by statistics.
        multipliers: noise multipliers of all releases.
        edges: those of the histogram.
    """

    statistics: list[tuple[str, str, np.ndarray, np.ndarray]]
    shares: dict[str, float]
    multipliers: list[float]
    edges: tuple[float, ...] = ()


def of_numbers(
    kind: Numeric | None, column: Column, groups: Groups, budget: Budget, key: Key
) -> Found:
    """Releases counts, means, quantiles and a histogram of numbers in every group."""
    mean_key, edge_key, count_key = _keys.split(key, 3)
    numbers = groups.place(float32_of(column))
    moments = dp_group_means(
        numbers,
        groups.codes,
        key=mean_key,
        num_groups=len(groups.names),
        quantiles=[*_QUANTILES.values()],
        **budget.part(1 - _HISTOGRAM).pair,
    )
    values, errors = moments.params, moments.standard_errors
    assert isinstance(errors, dict)
    found = [
        (statistic, "", np.asarray(values[name]), np.asarray(errors[name]))
        for statistic, name in (("count", "counts"), ("mean", "means"))
    ]
    for index, statistic in enumerate(_QUANTILES):
        value, error = (np.asarray(x["quantiles"])[:, index] for x in (values, errors))
        found.append((statistic, "", value, error))
    multipliers = [float(moments.stats["noise_multiplier"])]

    of_bins, edges = budget.part(_HISTOGRAM), _public_edges(kind)
    if edges is None:
        inside = np.where(groups.codes < 0, np.float32(np.nan), numbers)
        released = private_edges(edge_key, jnp.asarray(inside), of_bins.multiplier)
        edges = np.asarray(released)
        multipliers.append(of_bins.part(EDGES_SHARE).multiplier)
        of_bins = of_bins.part(1 - EDGES_SHARE)
    cells = np.searchsorted(edges[1:-1], numbers, side="left")
    cells = np.where(np.isnan(numbers), NUM_BINS, cells)
    counts, errors, _, multiplier = groups.counted(
        cells, NUM_BINS + 1, of_bins, count_key
    )
    found.insert(1, ("missing", "", counts[-1], errors[-1]))
    shown = tuple(edges.astype(float).tolist())
    for index, label in enumerate(_bins(shown)):
        found.append(("histogram", label, counts[index], errors[index]))
    shares = {"count, mean, quantiles": 1 - _HISTOGRAM, "histogram": _HISTOGRAM}
    return Found(found, shares, [*multipliers, multiplier], shown)


def of_categories(
    kind: Categorical, column: Column, groups: Groups, budget: Budget, key: Key
) -> Found:
    """Releases the count and the share of each category in every group."""
    names = (*kind.categories, OTHER)
    cells = groups.place(_codes(kind, column))
    counts, errors, stddev, multiplier = groups.counted(cells, len(names), budget, key)
    shares, share_errors = _shares(counts, errors, stddev, groups.num_records)
    found = []
    for index, name in enumerate(names):
        found.append(("count", name, counts[index], errors[index]))
        found.append(("share", name, shares[index], share_errors[index]))
    return Found(found, {"counts": 1.0}, [multiplier])


def _public_edges(kind: Numeric | None) -> np.ndarray | None:
    """Returns edges within the limit of a column, if it has one and they differ."""
    if kind is None or kind.limit == math.inf:
        return None
    reach = kind.scale * kind.limit
    ends = np.clip([kind.center - reach, kind.center + reach], -_LARGEST, _LARGEST)
    edges = np.linspace(ends[0], ends[1], NUM_BINS + 1).astype(np.float32)
    return edges if np.all(np.diff(edges) > 0) else None


def _shares(
    counts: np.ndarray, errors: np.ndarray, stddev: float, num_records: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns shares of counts (k, G) in their groups, and their standard errors.

    If the number of records N is not public, it is the sum of the counts. The noise of
    a share p = c / N then has variance ((1 - p)^2 + (k - 1) p^2) stddev^2 / N^2.
    """
    if num_records is not None:
        return np.clip(counts / num_records, 0.0, 1.0), errors / num_records
    k = len(counts)
    total = np.sum(counts, axis=0, dtype=float)
    known = np.maximum(total, 1.0)
    shares = np.clip(counts / known, 0.0, 1.0)
    noise = ((1 - shares) ** 2 + (k - 1) * shares**2) * (stddev**2 + 1 / 12) / known**2
    sampling = shares * (1 - shares) / known
    is_seen = total > _LEAST_COUNT * stddev * math.sqrt(k)
    return shares, np.where(is_seen, np.sqrt(noise + sampling), np.inf)


def _codes(kind: Categorical, column: Column) -> np.ndarray:
    """Returns the index of each cell's category, the last one for others."""
    codes = np.full(len(column), len(kind.categories), np.int32)
    for start in range(0, len(column), _BLOCK):
        rows, found = np.nonzero(kind.encode(column[start : start + _BLOCK]))
        codes[start + rows] = found
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
