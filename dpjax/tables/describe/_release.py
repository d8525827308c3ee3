"""Releases a description with one budget, divided among columns and statistics.

Noisy counts of one table are then moved to possible counts that agree with each other.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _keys, _validate
from dpjax._types import Key
from dpjax.accounting import Sampling, noise_multiplier_to_epsilon
from dpjax.accounting._sample import sample_budget, sample_privacy
from dpjax.batching._fixed_size import uniform_subset
from dpjax.solvers import dp_group_means, dp_histogram
from dpjax.solvers.statistics._noisy_mean import one_gaussian
from dpjax.solvers.statistics._quantile import EDGES_SHARE, private_edges
from dpjax.tables import _progress, default_delta
from dpjax.tables.columns._kinds import Categorical, Numeric
from dpjax.tables.describe._description import OTHER, Description, Row
from dpjax.tables.io._tables import Column, frame_columns, frame_names
from dpjax.tables.io._texts import float32_of

Kind = Numeric | Categorical | None
MOST_RECORDS = 2**24  # solvers count so many records
# Weights of columns in the budget: the quantiles of a column of numbers need more.
_OF_NUMBERS, _OF_CATEGORIES = 4.0, 1.0
_MOST_CELLS = 2**20  # largest number of counts of a column in all groups
_NUM_BINS = 20
Place = Callable[[np.ndarray], np.ndarray]

_HISTOGRAM = 0.2  # share of the budget of a column of numbers; quantiles need more
_QUANTILES = {"median": 0.5, "quantile 0.9": 0.9}
_LARGEST, _BOUND = 1e30, 1e15  # largest edge of a histogram, and bound of means
# A solver's epsilon is lowered by this relative amount, so that its noise multiplier,
# computed to 1e-9, is at least the intended noise multiplier.
_SLACK = 1e-8
_LEAST_COUNT = 4.0  # below so many stddevs of its noise a count gives no share


@_progress.shown("reading the columns")
def describe(
    frame: Any,
    schema: Mapping[str, Kind],
    *,
    key: Key,
    epsilon: float,
    delta: float | None = None,
    by: str | None = None,
    level: float = 0.95,
    max_records: int | None = None,
) -> Description:
    """Releases statistics of the columns of a table, each with its interval.

    A column of numbers has a count, the number of missing cells, the mean, the median,
    the 90 percent quantile, and a histogram. A column of categories has the count and
    the share of each category, and of all other cells together. With `by`, each group
    has all of these.

    Args:
        frame: a pandas or polars data frame, an Arrow table, or a mapping of arrays of
            shape (n,), n public and at most 2^24. Cells are converted one by one, by
            the declared type of their column. A mean is over the cells with a number.
        schema: the columns to describe, with the public constants of each: None for
            numbers, `datasets.Numeric` with a limit for numbers in a public range,
            which the bins of the histogram divide, or `datasets.Categorical`.
        key: a typed key.
        epsilon: privacy parameter of the whole description, positive.
        delta: privacy parameter in (0, 1); n^-1.1 by default.
        by: a column of categories in the schema, which are the groups, or several, such
            as "region, sex": their combinations. Other records form one more group.
        level: the probability of each interval.
        max_records: m, public. If n > m, m records are drawn without replacement and
            described with the budget of `accounting.Sample.budget`; delta n / m must be
            below 1. Their counts and intervals are multiplied by n / m. None: all.

    Returns:
        A `Description` with `rows`, the guarantee `privacy`, and the `costs` of its
        parts; `to_json`, `to_csv`, `to_html` and `plot` show them. Intervals cover
        sampling and noise; they are infinite if noise hides a group.

    Raises:
        ValueError: If an argument is out of its range, or a column is missing.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input. Each column is released
        by `dp_group_means` and `dp_histogram`. Their Gaussian mechanisms compose
        exactly: their inverse squared noise multipliers add up to the budget's.
        `max_records` amplifies by sampling without replacement (Balle, Barthe, Gaboardi
        2018, Theorem 9).

    Example:
        >>> import jax, numpy as np
        >>> from dpjax.datasets import Categorical
        >>> rng = np.random.default_rng(0)
        >>> frame = {"income": rng.lognormal(10.0, 0.5, 50_000),
        ...          "owns": rng.random(50_000) < 0.3}
        >>> shown = describe(frame, {"income": None, "owns": Categorical(("true",))},
        ...                  key=jax.random.key(0), epsilon=1.0, delta=1e-6)
        >>> print(*[row for row in shown.rows if row.statistic == "median"])
        21,981 (21,780 to 22,183)
    """
    check(schema, by)
    _validate.typed_key(key)
    _validate.positive(epsilon=epsilon)
    _validate.probability(level=level)
    known = frame_names(frame)
    unknown = [name for name in schema if name not in known]
    _validate.require(not unknown, "schema", unknown, f"made of columns of {known}")
    columns: Mapping[str, Column] = frame_columns(frame, [*schema])
    shapes = {name: column.shape for name, column in columns.items()}
    shape, *differing = {*shapes.values()}
    is_table = not differing and len(shape) == 1 and shape[0] > 0
    num_samples = size = shape[0] if is_table else 1
    if max_records is not None:
        _validate.count(max_records=max_records)
        size = min(max_records, num_samples)
    rule = "columns of one shape (n,), n from 1 to 2^24, or max_records up to that"
    _validate.require(is_table and size <= MOST_RECORDS, "frame", shapes, rule)
    delta = default_delta(num_samples) if delta is None else delta
    _validate.probability(delta=delta)
    sizes: dict[str, Any] = {"num_samples": num_samples, "sample_size": size}
    epsilon, delta = sample_budget(epsilon, delta, **sizes)
    if size < num_samples:
        sample_key, key = _keys.split(key)
        rows = np.asarray(uniform_subset(sample_key, num_samples, size))
        columns = {name: column[rows] for name, column in columns.items()}
    options: dict[str, Any] = {"by": by, "level": level, "num_samples": num_samples}
    described = release(
        columns, schema, key=key, epsilon=epsilon, delta=delta, **options
    )
    privacy = sample_privacy(described.privacy, **sizes, unit="record")
    return replace(described, privacy=privacy)


def release(
    columns: Mapping[str, Column],
    schema: Mapping[str, Kind],
    *,
    key: Key,
    epsilon: float,
    delta: float,
    by: str | None,  # the column of groups, or columns
    level: float,  # the probability of each interval
    place: Place | None = None,
    num_samples: int,  # n of the table
) -> Description:
    """Releases a description of columns of one shape (n,), as `describe` does.

    It checks no arguments; the command `dpjax describe` calls it with units of privacy.
    For units such as persons `place` moves an array (n,) of records to places, the same
    public number for each unit, with zeros at places without a record. The guarantee
    is then for one place, which the caller converts, and n is the number of places.

    The records may be a sample of m records, drawn without replacement from n =
    `num_samples` records. Counts and their intervals are multiplied by n / m. Intervals
    hold for the table's counts too: in the sample, a count of share p has at most the
    variance m p (1 - p) that is used. The guarantee is for the sample.
    """
    schema, columns = _crossed(schema, columns, by)
    everyone = Groups.everyone(len(next(iter(columns.values()))), place)
    size = len(everyone.codes)
    kinds = _kinds_of(schema)
    grouped = everyone if by is None else everyone.divided(kinds[by], columns[by])
    multiplier, privacy = one_gaussian(epsilon, delta, size)
    budget = Budget(multiplier, delta)
    weight_of = {
        name: _OF_CATEGORIES if kind.categories else _OF_NUMBERS
        for name, kind in kinds.items()
    }
    weights = math.fsum(weight_of.values())
    releases, shares = {}, {}
    for index, (name, kind) in enumerate(kinds.items()):
        _progress.say(f"column {name}", index, len(schema))
        groups = everyone if name == by else grouped
        share, own_key = weight_of[name] / weights, jax.random.fold_in(key, index)
        arguments = columns[name], groups, budget.part(share), own_key
        release_column = _of_categories if kind.categories else _of_numbers
        releases[name] = release_column(kind, *arguments)
        for part_name, part in releases[name].shares.items():
            shares[name, part_name] = share * part
    # Gaussian mechanisms compose exactly: sum_i 1 / z_i^2 is 1 / z^2 of the budget.
    multipliers = (x for result in releases.values() for x in result.multipliers)
    if math.fsum(x**-2 for x in multipliers) > budget.multiplier**-2:
        raise RuntimeError("releases exceed the budget: please report this bug")
    apart = [result for name, result in releases.items() if name != by]
    sizes = _sizes_of(grouped, apart, None if by is None else releases[by])
    scaled = statistics.NormalDist().inv_cdf(0.5 + level / 2), num_samples / size
    rows: list[Row] = []
    for name, result in releases.items():
        if name == by:
            total = np.sum(sizes, keepdims=True)
            rows += _rows_of(name, result, everyone, total, *scaled, cells=sizes)
        else:
            rows += _rows_of(name, result, grouped, sizes, *scaled)
    return Description(
        tuple(rows),
        {name: result.edges for name, result in releases.items() if result.edges},
        num_samples,
        by,
        level,
        shares,
        privacy,
        size if size < num_samples else None,
    )


def check(schema: Mapping[str, Kind], by: str | None) -> None:
    """Raises `ValueError` for a schema or a column `by` that `describe` cannot use."""
    # Each column needs a kind and has at most 2^20 counts, and `by` needs categories.
    _validate.require(len(schema) > 0, "schema", schema, "of one column or more")
    kinds = _kinds_of(schema)
    for name, kind in kinds.items():
        rule = f"None, Numeric or Categorical for column {name!r}"
        _validate.require(isinstance(kind, Numeric | Categorical), "schema", kind, rule)
    known = [name for name, kind in kinds.items() if kind.categories]
    rule = f"a column of the schema with categories, one of {known}, or several"
    names = _columns_of_groups(schema, by)
    is_fine = {*names} <= {*known} and len({*names}) == len(names)
    _validate.require(is_fine, "by", by, rule)
    commas = [x for name in names[1:] for x in kinds[name].categories if "," in x]
    rule = f"of columns without commas in their categories, which {commas} have"
    _validate.require(not commas, "by", by, rule)
    num_groups = math.prod(len(kinds[name].categories) for name in names) + 1
    for name, kind in kinds.items():
        num_cells = 1 if name in names else 1 + (len(kind.categories) or _NUM_BINS)
        num_cells *= num_groups if names else 1
        rule = f"of at most {_MOST_CELLS:,} counts in column {name!r}, for all groups"
        _validate.require(num_cells <= _MOST_CELLS, "schema", num_cells, rule)


def _kinds_of(schema: Mapping[str, Kind]) -> dict[str, Any]:
    return {name: Numeric() if x is None else x for name, x in schema.items()}


def _columns_of_groups(schema: Mapping[str, Kind], by: str | None) -> list[str]:
    """Returns the columns that `by` names: none, one, or several with commas."""
    names = [] if by is None else [by]
    return names if by is None or by in schema else [x.strip() for x in by.split(",")]


def _crossed(
    schema: Mapping[str, Any], columns: Mapping[str, Column], by: str | None
) -> tuple[Mapping[str, Any], Mapping[str, Column]]:
    """Returns schema and columns, where one replaces several columns of groups."""
    names = _columns_of_groups(schema, by)
    if by is None or len(names) < 2:
        return schema, columns
    levels = [schema[name].categories for name in names]
    indices = [schema[name].indices(columns[name]) for name in names]
    is_listed = np.all(np.stack(indices) >= 0, axis=0)
    cells = np.ravel_multi_index(indices, [*map(len, levels)], mode="clip")
    combined = tuple(map(", ".join, itertools.product(*levels)))
    kind = SimpleNamespace(categories=combined, indices=lambda column: column)
    schema = {name: x for name, x in schema.items() if name not in names}
    return {by: kind} | schema, {**columns, by: np.where(is_listed, cells, -1)}


class Budget(NamedTuple):
    """The budget of a part, as the noise multiplier of one Gaussian mechanism."""

    multiplier: float
    delta: float

    def part(self, share: float) -> "Budget":
        """Returns the budget of a part, by its share of inverse squared multipliers."""
        return self._replace(multiplier=self.multiplier / math.sqrt(share))

    @property
    def pair(self) -> dict[str, float]:
        """The arguments `epsilon` and `delta` by which a solver adds this noise."""
        # Delta is lowered if necessary, because with a multiplier of about 0.4 / delta
        # epsilon would be zero.
        delta = min(self.delta, 0.1 / self.multiplier)
        epsilon = noise_multiplier_to_epsilon(
            self.multiplier, delta, Sampling(num_steps=1)
        )
        return {"epsilon": epsilon * (1 - _SLACK), "delta": delta}


class Groups(NamedTuple):
    """A division of records into groups, such as regions, each with own statistics."""

    names: tuple[str, ...]
    codes: np.ndarray  # (n,), the group at each place, or -1 without a record
    place: Place  # as for `release`
    num_records: int | None  # the size of a single group, if it is public

    @classmethod
    def everyone(cls, num_records: int, place: Place | None) -> "Groups":
        """Returns all records as one group."""
        is_public, place = place is None, place or (lambda rows: rows)
        codes = place(np.ones(num_records, np.int32)) - 1
        return cls(("(all)",), codes, place, num_records if is_public else None)

    def divided(self, kind: Categorical, column: Column) -> "Groups":
        """Returns a group for each category of a column, and one for other cells."""
        codes = np.where(self.codes < 0, -1, self.place(_codes(kind, column)))
        return self._replace(
            names=(*kind.categories, OTHER), codes=codes, num_records=None
        )

    def counted(
        self, cells: np.ndarray, num_cells: int, budget: Budget, key: Key
    ) -> tuple[np.ndarray, np.ndarray, float, float]:
        """Releases counts of records by group (G groups) and by bin or category.

        `cells` (n,) has each record's bin or category, from 0 to `num_cells` - 1.
        Returns counts and standard errors, each (num_cells, G), and the stddev of the
        noise and its noise multiplier.
        """
        joint = np.where(self.codes < 0, np.nan, self.codes * num_cells + cells)
        edges = np.arange(len(self.names) * num_cells + 1, dtype=np.float32) - 0.5
        joint = joint.astype(np.float32)
        released = dp_histogram(joint, key=key, edges=edges, **budget.pair)
        tables = (released.params, released.standard_errors)
        counts, errors = (np.asarray(x).reshape(-1, num_cells).T for x in tables)
        stats = released.stats
        return counts, errors, float(stats["stddev"]), float(stats["noise_multiplier"])


class Statistics(NamedTuple):
    """The releases of one column in G groups."""

    labels: list[str]  # the names of bins or categories
    cells: np.ndarray  # (k, G) counts of bins or categories, missing numbers last
    errors: np.ndarray  # standard errors of the counts
    stddev: float  # of the noise of one count
    shares: dict[str, float]  # shares of the column's budget, by statistics
    multipliers: list[float]  # noise multipliers of all releases
    # Counts of numbers (G,), their standard errors, and the stddev of their noise.
    counted: tuple[np.ndarray, np.ndarray, float] | None = None
    # Names, values and standard errors of means and quantiles.
    statistics: Sequence[tuple[str, np.ndarray, np.ndarray]] = ()
    edges: tuple[float, ...] = ()  # of the histogram
    within: tuple[float, float] = (-math.inf, math.inf)  # the range of the numbers

    @property
    def known(self) -> tuple[np.ndarray, float]:
        """Noisy counts (G,) of records with a value, by group, and their variance."""
        # Two releases count numbers: their mean has inverse variances as weights.
        cells, variance = self.cells[: len(self.labels)], self.stddev**2
        total, variance = np.sum(cells, axis=0, dtype=float), len(cells) * variance
        if self.counted is None:
            return total, variance
        counts, _, stddev = self.counted
        share = variance / (variance + stddev**2)
        return share * counts + (1 - share) * total, share * stddev**2

    @property
    def size(self) -> tuple[np.ndarray, float]:
        """The number of records in each group, and the variance of its noise."""
        known, variance = self.known
        if self.counted is None:
            return known, variance
        return known + self.cells[-1], variance + self.stddev**2

    def divided(self, group: int, size: int) -> tuple[int, int]:
        """Returns how many of a group's `size` records have a value, and have none.

        They add up to `size`, as noisy counts do not; `group` is an index below G.
        """
        if self.counted is None:
            return size, 0
        (sizes, total), (known, variance) = self.size, self.known
        excess = float(sizes[group]) - size
        known = round(float(known[group]) - excess * variance / total)
        known = min(max(known, 0), size)
        return known, size - known


def _of_numbers(
    kind: Numeric, column: Column, groups: Groups, budget: Budget, key: Key
) -> Statistics:
    """Releases counts, means, quantiles and a histogram of numbers in every group.

    All are for the rows of `describe`, and share `budget`. If `kind` has no limit, and
    so no public range, the histogram's part also pays for a release of its bins' edges.
    """
    mean_key, edge_key, count_key = _keys.split(key, 3)
    within, edges = kind.range, None
    if within[1] < math.inf:  # the edges of equal bins, if they differ
        ends = np.clip(within, -_LARGEST, _LARGEST)
        edges = np.linspace(ends[0], ends[1], _NUM_BINS + 1).astype(np.float32)
        edges = edges if np.all(np.diff(edges) > 0) else None
    known = float32_of(kind.numbers(column))
    clipped = np.clip(known.astype(float), *within)
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
    cells = np.where(np.isnan(numbers), _NUM_BINS, cells)
    in_bins = groups.counted(cells, _NUM_BINS + 1, of_bins, count_key)
    shown = tuple(edges.astype(float).tolist())
    shares = {"count, mean, quantiles": 1 - _HISTOGRAM, "histogram": _HISTOGRAM}
    table = *in_bins[:3], shares, [*multipliers, in_bins[3]]
    return Statistics(_bins(shown), *table, counted, more, shown, within)


def _of_categories(
    kind: Categorical, column: Column, groups: Groups, budget: Budget, key: Key
) -> Statistics:
    names = [*kind.categories, OTHER]
    cells = groups.place(_codes(kind, column))
    counts, errors, stddev, multiplier = groups.counted(cells, len(names), budget, key)
    return Statistics(names, counts, errors, stddev, {"counts": 1.0}, [multiplier])


def _codes(kind: Categorical, column: Column) -> np.ndarray:
    """Returns the index of each cell's category, the number of categories if none."""
    indices = kind.indices(column)
    return np.where(indices < 0, len(kind.categories), indices).astype(np.int32)


def _bins(edges: tuple[float, ...]) -> list[str]:
    """Returns names of a histogram's bins, from its edges; the outer bins are open.

    Example:
        >>> _bins((0.0, 1.0, 2.5, 4.0))
        ['up to 1', '1 to 2.5', 'above 2.5']
    """
    inner = [f"{edge:.6g}" for edge in edges[1:-1]]
    between = [f"{low} to {high}" for low, high in itertools.pairwise(inner)]
    return [f"up to {inner[0]}", *between, f"above {inner[-1]}"]


def _sizes_of(
    groups: Groups, releases: Sequence[Statistics], own: Statistics | None
) -> np.ndarray:
    """Returns estimates of the number of records in each group, integers (G,).

    Every column with these groups, and the column of groups itself (`own`), has noisy
    sizes. Their mean, weighted by inverse variances, is used for every column.
    """
    counts = [release.size for release in releases]
    if own is not None:
        counts.append((own.cells[:, 0], own.stddev**2))
    weights = [1 / (variance + 1 / 12) for _, variance in counts]
    values = np.array([value for value, _ in counts], float)
    mean = np.average(values, axis=0, weights=weights)
    most = len(groups.codes)
    # Sizes add up to a public number of records, or at most to the number of places.
    if groups.num_records is not None or np.sum(np.maximum(mean, 0.0)) > most:
        return _divided(mean, most)
    return np.rint(np.maximum(mean, 0.0)).astype(int)


def _divided(counts: np.ndarray, total: int) -> np.ndarray:
    """Returns the nearest nonnegative integers to `counts` that add up to `total`.

    So noisy counts become consistent. It reads released and public numbers only.

    Example:
        >>> _divided(np.array([60, 44, -20]), 100)
        array([58, 42,  0])

    Reference:
        Wang, Lopuhaa-Zwakenberg, Li, Skoric, Li (2020), "Locally differentially private
        frequency estimation with consistency", Norm-Sub.
    """
    ordered = np.sort(counts.astype(float))[::-1]
    taken_off = (np.cumsum(ordered) - total) / np.arange(1, len(ordered) + 1)
    excess = taken_off[np.nonzero(ordered >= taken_off)[0][-1]]
    exact = np.maximum(counts - excess, 0.0)
    down = np.floor(exact).astype(int)
    num_up = total - int(np.sum(down))
    down[np.argsort(down - exact, kind="stable")[: max(num_up, 0)]] += 1
    return down


def _rows_of(
    name: str,  # of the column
    release: Statistics,  # of the column
    groups: Groups,
    sizes: np.ndarray,  # (G,), numbers of records in the groups
    z: float,  # the normal quantile of the intervals
    scale: float,  # n / m, which multiplies counts of a sample
    *,
    cells: np.ndarray | None = None,  # counts of the categories; None: the release's
) -> Iterator[Row]:
    """Yields a column's released numbers with intervals, by group, for `release`."""
    in_table = (0, len(groups.codes)), scale
    shares, share_errors = _shares(release, groups.num_records)
    for group, (group_name, size) in enumerate(zip(groups.names, sizes, strict=True)):
        known, missing = release.divided(group, int(size))
        own = release.cells[: len(release.labels), group]
        agreed = _divided(own, known) if cells is None else cells
        numbers: list[Any] = []
        if release.counted is not None:
            numbers.append(("count", "", known, release.counted[:2], *in_table))
            about = release.cells[-1], release.errors[-1]
            numbers.append(("missing", "", missing, about, *in_table))
        for statistic, *about in release.statistics:
            value = about[0][group]
            numbers.append((statistic, "", value, about, release.within, 1.0))
        for index, (of, count) in enumerate(zip(release.labels, agreed, strict=True)):
            about = release.cells[index], release.errors[index]
            statistic = "count" if release.counted is None else "histogram"
            numbers.append((statistic, of, count, about, *in_table))
            if release.counted is None:
                share = count / known if known else 1 / len(own)
                about = shares[index], share_errors[index]
                numbers.append(("share", of, share, about, (0, 1), 1.0))
        for statistic, of, value, (values, errors), within, times in numbers:
            # An interval reaches z standard errors to either side of the nearest
            # possible number, and is extended to the number in the row.
            about, value = np.clip(np.array([values[group], value], float), *within)
            reach = z * float(errors[group])
            low, high = np.clip([about - reach, about + reach], *within)
            ends = times * np.array([value, min(low, value), max(high, value)])
            yield Row(name, group_name, statistic, of, *ends.tolist())


def _shares(
    release: Statistics, num_records: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the shares (k, G) of k categories in G groups, and standard errors.

    A share is p = c / N, for a noisy count c. N is the group's public `num_records`, or
    if that is None the sum of its k counts: then the noise of p has variance ((1 - p)^2
    + (k - 1) p^2) stddev^2 / N^2, and errors are infinite unless N is above its noise.
    """
    counts, stddev = release.cells, release.stddev
    if num_records is not None:
        return counts / num_records, release.errors / num_records
    k = len(counts)
    total = np.sum(counts, axis=0, dtype=float)
    known = np.maximum(total, 1.0)
    shares = np.clip(counts / known, 0.0, 1.0)
    noise = ((1 - shares) ** 2 + (k - 1) * shares**2) * (stddev**2 + 1 / 12) / known**2
    sampling = shares * (1 - shares) / known
    is_seen = total > _LEAST_COUNT * stddev * math.sqrt(k)
    return shares, np.where(is_seen, np.sqrt(noise + sampling), np.inf)
