"""Counts of records by group, or sums of their weights, with their errors.

Errors have variances by sampling and by noise, so that intervals tell both parts.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._types import Key
from dpjax.solvers.statistics._group_means import noisy_sums
from dpjax.solvers.statistics._noisy_mean import SetClipping
from dpjax.solvers.statistics._quantile import noisy_counts
from dpjax.tables.columns._kinds import BoundedColumn, Categorical, Numeric
from dpjax.tables.describe._description import OTHER
from dpjax.tables.io._tables import Column

ROUNDING = 1 / 12  # the variance of rounding to integers
_LEAST_COUNT = 4.0  # below so many stddevs of its noise a count gives no share
# Sums of weights are integers in this part of the largest weight. Squared weights, from
# which errors follow, are summed beside them, times this number.
_STEPS, _OF_SQUARES = 1024, 1 / 3


class Estimates(NamedTuple):
    """Estimates and the variances of their errors, of G groups: (G,) or (k, G)."""

    values: np.ndarray
    sampling: np.ndarray  # variances by sampling, infinite if noise hides the value
    noise: np.ndarray  # variances by noise

    def at(self, index: int) -> "Estimates":
        """Returns the estimates of a cell, (G,)."""
        return Estimates(*(x[index] for x in self))


class Counts(NamedTuple):
    """Noisy counts of records in k cells of G groups, or sums of their weights."""

    values: np.ndarray  # (k, G), in the unit of `Groups`
    squares: np.ndarray  # (k, G), sums of squared weights
    stddev: float  # of the noise of a count
    num_places: int  # n

    @property
    def estimates(self) -> Estimates:
        """The counts, (k, G), with their errors."""
        sampling = self.squares - np.maximum(self.values, 0.0) ** 2 / self.num_places
        noise = np.full_like(sampling, self.stddev**2 + ROUNDING)
        return Estimates(self.values, np.maximum(sampling, 0.0), noise)

    def shares(self, num_records: int | None) -> Estimates:
        """Returns the share of each cell in its group, (k, G).

        A share is p = c / N, for a noisy count c. N is the group's public number of
        records, or if that is None the sum of its k counts: then the noise of p has
        variance ((1 - p)^2 + (k - 1) p^2) stddev^2 / N^2, and errors are infinite
        unless N is above its noise.
        """
        k, squares, total = len(self.values), self.squares, np.sum(self.values, axis=0)
        known = np.maximum(total, 1.0) if num_records is None else num_records
        shares = np.clip(self.values / known, 0.0, 1.0)
        rest = np.sum(squares, axis=0) - squares
        sampling = ((1 - shares) ** 2 * squares + shares**2 * rest) / known**2
        noise = np.full_like(shares, (self.stddev**2 + ROUNDING)) / known**2
        if num_records is None:
            noise *= (1 - shares) ** 2 + (k - 1) * shares**2
            is_seen = total > _LEAST_COUNT * self.stddev * math.sqrt(k)
            sampling = np.where(is_seen, sampling, np.inf)
        return Estimates(shares, sampling, noise)


class Groups(NamedTuple):
    """A division of records into groups, such as regions, each with own statistics."""

    names: tuple[str, ...]
    codes: np.ndarray  # (n,), the group at each place, or -1 without a record
    place: Any  # moves an array (n,) of records to the places of their units
    num_records: int | None  # the size of a single group, if it is public
    weights: np.ndarray | None = None  # (n,), from 0 to 1
    unit: float = 1.0  # of counts: one record, or a part of the largest weight
    steps: int = 1  # so many units are the largest weight
    reference: int = 0  # the group with which others are compared

    @classmethod
    def everyone(cls, num_records: int, units: Any) -> "Groups":
        """Returns all records as one group; `units` as for `release`."""
        ones = np.ones(num_records, np.int32)
        if units is None:
            return cls(("(all)",), ones - 1, lambda rows: rows, num_records)
        all_units = {"is_chosen": np.ones(units.num_units, bool), "size": units.size}
        place = partial(units.placed, **all_units)
        return cls(("(all)",), place(ones) - 1, place, None)

    def weighted(self, kind: Numeric, column: Column) -> "Groups":
        """Returns the groups with weights of their records; their sum is private."""
        most = kind.range[1]
        weights = self.place(BoundedColumn("", most).shares(column))
        more = {"weights": weights, "unit": most / _STEPS, "steps": _STEPS}
        return self._replace(num_records=None, **more)

    def divided(self, kind: Categorical, column: Column) -> "Groups":
        """Returns a group for each category of a column, and one for other cells."""
        codes = np.where(self.codes < 0, -1, self.place(codes_of(kind, column)))
        names = *kind.categories, OTHER
        first = names.index(kind.reference or names[0])
        return Groups(names, codes, self.place, None, *self[4:7], first)

    def counted(
        self, cells: np.ndarray, num_cells: int, multiplier: float, key: Key
    ) -> Counts:
        """Releases counts of records by group (G groups) and by bin or category.

        `cells` (n,) has each record's bin or category, from 0 to `num_cells` - 1. A
        record is in one of all counts: a replaced one moves them by sqrt(2).
        """
        if self.weights is not None:
            return self.weighed(cells, num_cells, None, multiplier, key)[0]
        joint = (self.codes * num_cells + cells)[self.codes >= 0].astype(int)
        exact = np.bincount(joint, minlength=len(self.names) * num_cells)
        args = jnp.asarray(exact, "int32"), multiplier, len(cells)
        noisy, _, stddev = noisy_counts(key, *args)
        values = np.asarray(noisy, float).reshape(-1, num_cells).T
        squares = np.clip(values, 0, len(cells))
        return Counts(values, squares, float(stddev), len(cells))

    def weighed(
        self,
        cells: np.ndarray,  # as for `counted`
        num_cells: int,
        numbers: np.ndarray | None,  # (n,), t within ±1, or NaN, which counts nowhere
        multiplier: float,
        key: Key,
    ) -> tuple[Counts, np.ndarray, np.ndarray]:
        """Releases sums of weights w in the cells of each group, and moments of t.

        Returns counts; sums of w and w t, (2, k, G); and of w^2, w^2 t and w^2 t^2, (3,
        k, G), in units of the largest weight. Without numbers t is left out.

        Privacy:
            A Gaussian mechanism under replace-one: a record adds (w, w t, c w^2, c w^2
            t, c w^2 t^2) in its cell, with w in [0, 1] and |t| <= 1. No two such
            vectors have a negative product: they differ by sqrt(2) norms.
        """
        num = 1 if numbers is None else 2
        t = np.zeros(cells.shape, np.float32) if numbers is None else numbers
        is_known = (self.codes >= 0) & ~np.isnan(t)
        both: Any = self.weights, t
        w, t = (np.where(is_known, x, np.float32(0)) for x in both)
        rows = [w * t**power for power in range(num)]
        rows += [_OF_SQUARES * w**2 * t**power for power in range(2 * num - 1)]
        norm = math.sqrt(num + _OF_SQUARES**2 * (2 * num - 1))
        joint = np.where(is_known, self.codes * num_cells + cells, 0)
        records = jnp.asarray(joint, "int32"), jnp.asarray(np.stack(rows, axis=1))
        args = len(self.names) * num_cells, multiplier, SetClipping(norm)
        released = jax.jit(noisy_sums, static_argnums=2)(key, records, *args)
        sums, stddev = (np.asarray(x, float) for x in released)
        sums, stddev = sums.reshape(-1, num_cells, len(rows)).T, float(stddev)
        squares = sums[num:] / _OF_SQUARES
        at_most = np.maximum(squares[0], 0.0) + stddev / _OF_SQUARES
        of_counts = _STEPS * sums[0], _STEPS**2 * at_most, _STEPS * stddev
        return Counts(*of_counts, len(joint)), sums[:num], squares

    def weighted_means(
        self, kind: Numeric, numbers: np.ndarray, multiplier: float, key: Key
    ) -> tuple[Counts, Estimates]:
        """Releases weighted means as ratios of noisy sums, with the sums of weights.

        A mean m = sum w t / sum w has the error sum w (t - m) / sum w, by sampling.
        """
        low, high = kind.range
        middle, reach = low / 2 + high / 2, high / 2 - low / 2
        numbers = np.clip((numbers - middle) / reach, -1.0, 1.0).astype(np.float32)
        args = np.zeros(len(numbers), int), 1, numbers, multiplier, key
        counts, (weights, products), moments = self.weighed(*args)
        stddev = counts.stddev / _STEPS
        total = np.maximum(weights[0], stddev)
        mean = np.clip(products[0] / total, -1.0, 1.0)
        powers = np.stack([mean**2, -2 * mean, np.ones_like(mean)])
        # One stddev more than its noise may hide, so that no interval is too short.
        off = stddev / _OF_SQUARES * np.sqrt(np.sum(powers**2, axis=0))
        squares = np.maximum(np.sum(powers * moments[:, 0], axis=0), 0.0) + off
        hidden = np.where(weights[0] > _LEAST_COUNT * stddev, 0.0, np.inf)
        scale, noise = (reach / total) ** 2, stddev**2 * (1 + mean**2)
        means = middle + reach * mean, scale * squares + hidden, scale * noise
        return counts, Estimates(*means)


def codes_of(kind: Categorical, column: Column) -> np.ndarray:
    """Returns the index of each cell's category, the number of categories if none."""
    indices = kind.indices(column)
    return np.where(indices < 0, len(kind.categories), indices).astype(np.int32)
