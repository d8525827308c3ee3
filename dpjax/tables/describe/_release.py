"""Releases a description with one budget, divided among columns and statistics.

Noisy counts of one table are then moved to possible counts that agree with each other.
"""

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _keys, _validate
from dpjax._types import Key
from dpjax.accounting._sample import sample_budget, sample_privacy
from dpjax.batching._fixed_size import uniform_subset
from dpjax.solvers.statistics._group_means import group_statistics
from dpjax.solvers.statistics._noisy_mean import one_gaussian
from dpjax.solvers.statistics._quantile import EDGES_SHARE, private_edges
from dpjax.tables import _progress, default_delta
from dpjax.tables.columns._kinds import Categorical, Numeric
from dpjax.tables.describe._description import OTHER, Description, Row
from dpjax.tables.describe._groups import ROUNDING, Counts, Estimates, Groups, codes_of
from dpjax.tables.io._tables import Column, frame_columns, frame_names
from dpjax.tables.io._texts import float32_of

Kind = Numeric | Categorical | None
MOST_RECORDS = 2**24  # solvers count so many records
_OF_NUMBERS = 4.0  # the weight of a column of numbers in the budget; of categories, 1
_MOST_CELLS = 2**20  # largest number of counts of a column in all groups
_NUM_BINS = 20
_HISTOGRAM = 0.2  # share of the budget of a column of numbers; quantiles need more
_QUANTILES = {"median": 0.5, "quantile 0.9": 0.9}
_LARGEST, _BOUND = 1e30, 1e15  # largest edge of a histogram, and bound of means


@_progress.shown("reading the columns")
def describe(
    frame: Any,
    schema: Mapping[str, Kind],
    *,
    key: Key,
    epsilon: float,
    delta: float | None = None,
    by: str | None = None,
    weights: str | None = None,
    level: float = 0.95,
    max_records: int | None = None,
) -> Description:
    """Releases statistics of the columns of a table, each with its interval.

    A column of numbers has a count, the number of missing cells, the mean, the median,
    the 90 percent quantile, and a histogram. A column of categories has the count and
    the share of each category, and of all other cells together. With `by`, each group
    has all of these, and its mean's difference from the first group, or `reference`.

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
        weights: a column of the schema with a range of 0 or more, up to which a record
            counts; a missing weight is 0. Counts are then sums of weights, shares and
            means ratios of two noisy sums, without quantiles. Numbers need a limit.
        level: the probability of each interval.
        max_records: m, public. If n > m, m records are drawn without replacement, with
            the budget of `accounting.Sample.budget`, delta n / m below 1, and counts
            multiplied by n / m. None: all.

    Returns:
        A `Description`. Intervals cover sampling and noise, and tell the noise's part;
        they are infinite if noise hides a group.

    Raises:
        ValueError: If an argument is out of its range, or a column is missing.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input: Gaussian mechanisms, as
        of `dp_group_means`, compose exactly. Sums of weights:
        `docs/privacy/proofs/sums.md`, 1.10. Sampling: Balle et al. (2018), Theorem 9.

    Example:
        >>> import jax, numpy as np
        >>> from dpjax.datasets import Categorical
        >>> rng = np.random.default_rng(0)
        >>> frame = {"income": rng.lognormal(10.0, 0.5, 50_000),
        ...          "owns": rng.random(50_000) < 0.3}
        >>> shown = describe(frame, {"income": None, "owns": Categorical(("true",))},
        ...                  key=jax.random.key(0), epsilon=1.0, delta=1e-6)
        >>> print(*[row for row in shown.rows if row.statistic == "median"])
        21,981 (21,780 to 22,183; 48%)
    """
    check(schema, by, weights)
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
    options: dict[str, Any] = {"by": by, "weights": weights, "level": level}
    options |= {"epsilon": epsilon, "delta": delta, "num_samples": num_samples}
    described = release(columns, schema, key=key, **options)
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
    weights: str | None,  # the column of weights
    level: float,  # the probability of each interval
    units: Any = None,  # the `Units` of privacy; None: each record is one
    num_samples: int,  # n of the table
) -> Description:
    """Releases a description of columns of one shape (n,), as `describe` does.

    It checks no arguments; the command `dpjax describe` calls it with units of privacy.
    Units such as persons have k places each, with zeros where there is no record, and n
    is the number of places. All noise is k times as large: a unit moves each sum k
    times as far as one place, and Gaussian mechanisms compose exactly.

    The records may be a sample of m records, drawn without replacement from n =
    `num_samples` records. Counts and their intervals are multiplied by n / m. Intervals
    hold for the table's counts too: in the sample, a count of share p has at most the
    variance m p (1 - p) that is used. The guarantee is for the sample.
    """
    schema, columns = _crossed(schema, columns, by)
    kinds = _kinds_of(schema)
    everyone = Groups.everyone(len(next(iter(columns.values()))), units)
    if weights is not None:
        everyone = everyone.weighted(kinds.pop(weights), columns[weights])
    size = len(everyone.codes)
    each, unit = (1, "record") if units is None else (units.size, units.words)
    grouped = everyone if by is None else everyone.divided(kinds[by], columns[by])
    multiplier, privacy = one_gaussian(epsilon, delta, size // each, unit)
    weight_of = {k: 1.0 if x.categories else _OF_NUMBERS for k, x in kinds.items()}
    total = math.fsum(weight_of.values())
    releases, shares = {}, {}
    for index, (name, kind) in enumerate(kinds.items()):
        _progress.say(f"column {name}", index, len(kinds))
        groups = everyone if name == by else grouped
        share, own_key = weight_of[name] / total, jax.random.fold_in(key, index)
        own = columns[name], groups, each * multiplier / math.sqrt(share), own_key
        released = _of_categories if kind.categories else _of_numbers
        releases[name] = released(kind, *own)
        for statistic, of_column in releases[name].shares.items():
            shares[name, statistic] = share * of_column
    # Shares of one Gaussian mechanism add up: proof 7.4.
    if math.fsum(shares.values()) > 1 + 1e-9:
        raise RuntimeError("releases exceed the budget: please report this bug")
    sizes = _sizes_of(grouped, releases, by)
    scaled = statistics.NormalDist().inv_cdf(0.5 + level / 2), num_samples / size
    rows: list[Row] = []
    for name, result in releases.items():
        args = grouped, sizes, None
        if name == by:
            args = everyone, np.sum(sizes, keepdims=True), sizes[:, None]
        rows += _rows_of(name, result, *args, *scaled)
    edges = {name: result.edges for name, result in releases.items() if result.edges}
    public = tuple(rows), edges, num_samples, by, level, shares, privacy
    more = size if size < num_samples else None, weights, getattr(units, "column", None)
    return Description(*public, *more, each)


def check(schema: Mapping[str, Kind], by: str | None, weights: str | None) -> None:
    """Raises `ValueError` for columns that `describe` cannot use."""
    # Each column needs a kind and has at most 2^20 counts, `by` needs categories, and
    # weights need ranges.
    kinds = _kinds_of(schema)
    for name, kind in kinds.items():
        rule = f"None, Numeric or Categorical for column {name!r}"
        _validate.require(isinstance(kind, Numeric | Categorical), "schema", kind, rule)
    if weights is not None:
        low, high = getattr(kinds.pop(weights, None), "range", (-1.0, 0.0))
        is_fine = -1e-9 * high <= low < high <= _BOUND  # up to rounding
        rule = "a column of the schema with a limit and a range of 0 or more"
        _validate.require(is_fine, "weights", weights, rule)
        numbers = {name: x for name, x in kinds.items() if not x.categories}
        wide = [k for k, x in numbers.items() if max(map(abs, x.range)) > _BOUND]
        rule = f"left out, or columns of numbers must have a limit, unlike {wide}"
        _validate.require(not wide, "weights", weights, rule)
    _validate.require(len(kinds) > 0, "schema", schema, "of one column or more")
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
    references = (
        schema[name].reference or schema[name].categories[0] for name in names
    )
    is_listed = np.all(np.stack(indices) >= 0, axis=0)
    cells = np.ravel_multi_index(indices, [*map(len, levels)], mode="clip")
    combined = tuple(map(", ".join, itertools.product(*levels)))
    known = {"categories": combined, "reference": ", ".join(references)}
    kind = SimpleNamespace(indices=lambda column: column, **known)
    schema = {name: x for name, x in schema.items() if name not in names}
    return {by: kind} | schema, {**columns, by: np.where(is_listed, cells, -1)}


class Statistics(NamedTuple):
    """The releases of one column in G groups."""

    labels: list[str]  # the names of bins or categories
    cells: Counts  # of bins or categories, missing numbers last
    shares: dict[str, float]  # shares of the column's budget, by statistics
    counted: Counts | None = None  # of numbers, (1, G)
    # Names of means, differences (with the group compared with) and quantiles, their
    # estimates, and their ranges.
    statistics: Sequence[tuple[str, str, Estimates, tuple[float, float]]] = ()
    edges: tuple[float, ...] = ()  # of the histogram

    @property
    def size(self) -> tuple[np.ndarray, float]:
        """The number of records in each group, and the variance of its noise."""
        cells, variance = self.cells.values, self.cells.stddev**2
        if self.counted is None:
            return np.sum(cells, axis=0), len(cells) * variance
        return self.counted.values[0] + cells[-1], self.counted.stddev**2 + variance

    def known(self, sizes: np.ndarray) -> np.ndarray:
        """Returns how many of `sizes` records in groups have a value, integers (G,)."""
        if self.counted is None:
            return sizes
        total, variance = self.size
        share = self.counted.stddev**2 / variance
        known = np.rint(self.counted.values[0] - share * (total - sizes))
        return np.clip(known, 0, sizes).astype(int)


def _of_numbers(
    kind: Numeric, column: Column, groups: Groups, multiplier: float, key: Key
) -> Statistics:
    """Releases counts, means, quantiles and a histogram of numbers in every group.

    All share the budget of `multiplier`. If `kind` has no limit, and so no range, the
    histogram's part also pays for a release of its bins' edges.
    """
    mean_key, edge_key, count_key = _keys.split(key, 3)
    within, edges = kind.range, None
    if within[1] < math.inf:  # the edges of equal bins, if they differ
        ends = np.clip(within, -_LARGEST, _LARGEST)
        edges = np.linspace(ends[0], ends[1], _NUM_BINS + 1).astype(np.float32)
        edges = edges if np.all(np.diff(edges) > 0) else None
    known = float32_of(kind.numbers(column)).astype(float)
    numbers = groups.place(np.clip(known, *within).astype(np.float32))
    of_means, of_bins = (multiplier / x**0.5 for x in (1 - _HISTOGRAM, _HISTOGRAM))
    if groups.weights is not None:
        counted, means = groups.weighted_means(kind, numbers, of_means, mean_key)
        estimates = {"mean": means}
    else:
        is_open = edges is None or max(map(abs, within)) > _BOUND
        args = jnp.asarray(numbers), jnp.asarray(groups.codes), len(groups.names)
        more = tuple(_QUANTILES.values()), None if is_open else within
        moments = group_statistics(mean_key, *args, of_means, *more)
        counts = np.asarray(moments[0]["counts"], float)[None]
        noise = float(moments[2]["count_stddev"]), len(numbers)
        counted = Counts(counts, np.clip(counts, 0, len(numbers)), *noise)
        estimates = {"mean": _estimates(moments, "means")}
        for index, name in enumerate(_QUANTILES):
            estimates[name] = _estimates(moments, "quantiles", index)
    shown = [(name, "", x, within) for name, x in estimates.items()]
    if len(groups.names) > 1:
        first, reach = groups.reference, within[1] - within[0]
        values, *variances = estimates["mean"]  # errors of groups are independent
        apart = Estimates(values - values[first], *(x + x[first] for x in variances))
        shown.insert(1, ("difference", groups.names[first], apart, (-reach, reach)))
    if edges is None:
        inside = np.where(groups.codes < 0, np.float32(np.nan), numbers)
        edges = np.asarray(private_edges(edge_key, jnp.asarray(inside), of_bins))
        of_bins /= math.sqrt(1 - EDGES_SHARE)
    cells = np.searchsorted(edges[1:-1], numbers, side="left")
    cells = np.where(np.isnan(numbers), _NUM_BINS, cells)
    in_bins = groups.counted(cells, _NUM_BINS + 1, of_bins, count_key)
    ends = tuple(edges.astype(float).tolist())
    name = f"count, mean{', quantiles' * (len(estimates) > 1)}"
    shares = {name: 1 - _HISTOGRAM, "histogram": _HISTOGRAM}
    return Statistics(_bins(ends), in_bins, shares, counted, shown, ends)


def _estimates(moments: Any, name: str, *place: int) -> Estimates:
    """Returns the means or a quantile of `group_statistics`, (G,)."""
    columns = moments[0][name], moments[1][name], moments[2]["parts_by_noise"][name]
    values, errors, parts = (np.asarray(x, float)[:, *place] for x in columns)
    is_hidden = np.isinf(errors)
    squares = np.where(is_hidden, 0.0, errors) ** 2
    noise = squares * np.where(is_hidden, 0.0, parts)
    return Estimates(values, np.where(is_hidden, np.inf, squares - noise), noise)


def _of_categories(
    kind: Categorical, column: Column, groups: Groups, multiplier: float, key: Key
) -> Statistics:
    names = [*kind.categories, OTHER]
    cells = groups.place(codes_of(kind, column))
    counts = groups.counted(cells, len(names), multiplier, key)
    return Statistics(names, counts, {"counts": 1.0})


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
    groups: Groups, releases: Mapping[str, Statistics], by: str | None
) -> np.ndarray:
    """Returns estimates of the number of records in each group, integers (G,).

    Every column with these groups, and the column of groups itself (`by`), has noisy
    sizes. Their mean, weighted by inverse variances, is used for every column.
    """
    counts = [
        (x.cells.values[:, 0], x.cells.stddev**2) if name == by else x.size
        for name, x in releases.items()
    ]
    values, variances = map(np.array, zip(*counts, strict=True))
    mean = np.average(values, axis=0, weights=1 / (variances + ROUNDING))
    most = groups.steps * len(groups.codes)
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
    cells: np.ndarray | None,  # counts of categories (k, G); None: the release's
    z: float,  # the normal quantile of the intervals
    scale: float,  # n / m, which multiplies counts of a sample
) -> Iterator[Row]:
    """Yields a column's released numbers with intervals, by group, for `release`."""
    counts, shares = release.cells.estimates, release.cells.shares(groups.num_records)
    in_table = (0, groups.steps * len(groups.codes)), scale * groups.unit
    known, num_labels = release.known(sizes), len(release.labels)
    if cells is None:
        pairs = zip(release.cells.values[:num_labels].T, known, strict=True)
        cells = np.stack([*itertools.starmap(_divided, pairs)], axis=1)
    numbers: list[Any] = []
    if release.counted is not None:
        about = release.counted.estimates.at(0)
        numbers.append(("count", "", known, about, *in_table))
        numbers.append(("missing", "", sizes - known, counts.at(-1), *in_table))
    for *names, about, within in release.statistics:
        numbers.append((*names, about.values, about, within, 1.0))
    for index, (of, values) in enumerate(zip(release.labels, cells, strict=True)):
        statistic = "histogram" if release.counted else "count"
        numbers.append((statistic, of, values, counts.at(index), *in_table))
        if release.counted is None:
            share = np.where(known > 0, values / np.maximum(known, 1), 1 / num_labels)
            numbers.append(("share", of, share, shares.at(index), (0, 1), 1.0))
    for group, label in enumerate(groups.names):
        for statistic, of, values, estimates, within, times in numbers:
            if statistic == "difference" and group == groups.reference:
                continue
            # An interval reaches z standard errors to either side of the nearest
            # possible number, and is extended to the number in the row.
            center, sampling, noise = (float(x[group]) for x in estimates)
            about, value = np.clip(np.array([center, values[group]], float), *within)
            square = sampling + noise
            reach = z * math.sqrt(square)
            low, high = np.clip([about - reach, about + reach], *within)
            ends: Any = times * np.array([value, min(low, value), max(high, value)])
            part = noise / square if 0 < square < math.inf else math.nan
            yield Row(name, label, statistic, of, *ends.tolist(), part_by_noise=part)
