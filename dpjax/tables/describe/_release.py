"""Releases a description: one budget, divided among columns and statistics.

Noisy counts of one table are then made to agree: possible numbers, and rows of them.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from dpjax import _keys, _validate
from dpjax._types import Key
from dpjax.accounting import (
    PrivacyGuarantee,
    Sampling,
    gaussian_event,
    noise_multiplier,
)
from dpjax.accounting._sample import sample_budget, sample_privacy
from dpjax.batching._fixed_size import uniform_subset
from dpjax.tables import _progress, default_delta
from dpjax.tables.columns._kinds import Categorical, Numeric
from dpjax.tables.describe import _columns
from dpjax.tables.describe._description import Description, Row
from dpjax.tables.io._tables import Column, frame_columns, frame_names

Kind = Numeric | Categorical | None
MOST_RECORDS = 2**24  # that solvers count
# A column of numbers has four times the budget of one of categories: quantiles need it.
_OF_NUMBERS, _OF_CATEGORIES = 4.0, 1.0
_MOST_CELLS = 2**20  # of a column, with all groups
_LEAST_COUNT = 4.0  # stddevs of a noisy number, below which no share is known


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
    the 90 per cent quantile, and a histogram. A column of categories has the count and
    the share of each category, and of all others together. With groups, every group has
    all of these.

    Args:
        frame: a pandas or polars data frame, an Arrow table, or a mapping of arrays of
            shape (n,), n public and at most 2^24. Cells are converted one by one, by
            the declared type of their column. A mean is over those that hold a number.
        schema: the columns to describe, and what is public about each: None for
            numbers, `datasets.Numeric` with a limit for numbers in a public range,
            which the bins of the histogram divide, or `datasets.Categorical`.
        key: a typed key.
        epsilon: privacy parameter of the whole description, positive.
        delta: privacy parameter in (0, 1); n^-1.1 by default.
        by: a column of categories in the schema; others form one more group.
        level: the probability of each interval.
        max_records: m, public. Of more, m are drawn without replacement and described
            with the budget of `accounting.Sample.budget`; delta n / m must be below 1.
            Their counts and intervals are multiplied by n / m. None: all.

    Returns:
        A `Description` with `rows`, the guarantee `privacy`, and the `costs` of its
        parts; `to_json`, `to_csv`, `to_html` and `plot` show them. Intervals count
        sampling and noise; they are infinite if noise hides a group.

    Raises:
        ValueError: If an argument is out of its range, or a column is missing.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input. Each column is released
        by `dp_group_means` and `dp_histogram`, whose Gaussian mechanisms compose
        exactly: their inverse squared noise multipliers add up to that of the budget.
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

    Reference:
        As for `solvers.dp_group_means` and `solvers.dp_histogram`.
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
    by: str | None,
    level: float,
    place: _columns.Place | None = None,
    num_samples: int | None = None,
) -> Description:
    """Releases a description of columns of one shape (n,), as `describe` does.

    `place` may lay out the rows of a table at public places, with zeros where there is
    no record. Neighbors then differ in one place, and n is the number of places.

    The rows may be a sample of m records, drawn without replacement from `num_samples`.
    They are as independent as those of the table, so n / m times an interval for m p is
    an interval for n p. It also covers the count of the table itself: given the table,
    the count of the sample has variance m p (1 - p) (n - m) / (n - 1), at most the m p
    (1 - p) that is used. The guarantee is for the sample.
    """
    everyone = _columns.Groups.everyone(len(next(iter(columns.values()))), place)
    size = len(everyone.codes)
    num_samples = num_samples or size
    kinds = _kinds_of(schema)
    grouped = everyone
    if by is not None:
        by_kind = Categorical(kinds[by].categories)
        grouped = everyone.divided(by_kind, columns[by])
    multiplier = noise_multiplier(epsilon, delta, Sampling(num_steps=1))
    budget = _columns.Budget(multiplier, delta)
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
        if isinstance(kind, Categorical):
            releases[name] = _columns.of_categories(kind, *arguments)
        else:
            releases[name] = _columns.of_numbers(kind, *arguments)
        for part_name, part in releases[name].shares.items():
            shares[name, part_name] = share * part
    multipliers = (x for result in releases.values() for x in result.multipliers)
    if math.fsum(x**-2 for x in multipliers) > budget.multiplier**-2:
        raise RuntimeError("The releases cost more than the budget.")
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
        guarantee(size, epsilon, delta),
        size if size < num_samples else None,
    )


def guarantee(num_samples: int, epsilon: float, delta: float) -> PrivacyGuarantee:
    """Returns the guarantee of a description, from n and the budget."""
    event = gaussian_event(noise_multiplier(epsilon, delta, Sampling(num_steps=1)))
    return PrivacyGuarantee.of(epsilon, delta, dp_event=event, num_samples=num_samples)


def check(schema: Mapping[str, Kind], by: str | None) -> None:
    """Requires kinds of columns, `by` of categories, and few cells in each column."""
    _validate.require(len(schema) > 0, "schema", schema, "at least one column long")
    kinds = _kinds_of(schema)
    for name, kind in kinds.items():
        rule = f"None, Numeric or Categorical for column {name!r}"
        is_kind = isinstance(kind, Numeric | Categorical)
        _validate.require(is_kind, "schema", kind, rule)
    known = [name for name, kind in kinds.items() if kind.categories]
    rule = f"a column of the schema with categories, of {known}"
    _validate.require(by is None or by in known, "by", by, rule)
    num_groups = 1 if by is None else len(kinds[by].categories) + 1
    for name, kind in kinds.items():
        num_cells = 1 + (len(kind.categories) or _columns.NUM_BINS)
        num_cells *= 1 if name == by else num_groups
        rule = f"of {_MOST_CELLS:,} cells at most in column {name!r}, with all groups"
        _validate.require(num_cells <= _MOST_CELLS, "schema", num_cells, rule)


def _kinds_of(schema: Mapping[str, Kind]) -> dict[str, Numeric | Categorical]:
    return {name: Numeric() if x is None else x for name, x in schema.items()}


def _sizes_of(
    groups: _columns.Groups,
    releases: Sequence[_columns.Statistics],
    own: _columns.Statistics | None,
) -> np.ndarray:
    """Returns one number of records for each group, integers of shape (G,).

    It is the mean of what the columns with these groups say, and `own` that names them,
    each by its inverse variance, such that all groups have the public number of records
    together, or at most that of places.
    """
    counts = [(release.sizes, release.size_variance) for release in releases]
    if own is not None:
        counts.append((own.cells[:, 0], own.stddev**2))
    weights = [1 / (variance + 1 / 12) for _, variance in counts]
    values = np.array([value for value, _ in counts], float)
    mean = np.average(values, axis=0, weights=weights)
    most = len(groups.codes)
    if groups.num_records is not None or np.sum(np.maximum(mean, 0.0)) > most:
        return _divided(mean, most)
    return np.rint(np.maximum(mean, 0.0)).astype(int)


def _divided(counts: np.ndarray, total: int) -> np.ndarray:
    """Returns the nearest counts that are not negative and have a sum, as integers.

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
    order = np.argsort(down - exact, kind="stable")
    down[order[: max(num_up, 0)]] += 1
    return down


def _rows_of(
    name: str,
    release: _columns.Statistics,
    groups: _columns.Groups,
    sizes: np.ndarray,
    z: float,
    scale: float,
    *,
    cells: np.ndarray | None = None,
) -> Iterator[Row]:
    """Yields the rows of a column, by groups: possible numbers, and their intervals.

    An interval has z standard errors on either side of what was released, moved to the
    nearest possible number, which is no farther from the truth, and holds the number
    that agrees with the others. Counts are of a sample, to be multiplied by `scale`;
    `cells` are those of a single group, where they are known.
    """
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
            about, value = np.clip(np.array([values[group], value], float), *within)
            reach = z * float(errors[group])
            low, high = np.clip([about - reach, about + reach], *within)
            ends = times * np.array([value, min(low, value), max(high, value)])
            yield Row(name, group_name, statistic, of, *ends.tolist())


def _shares(
    release: _columns.Statistics, num_records: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns shares of counts (k, G) in their groups, and their standard errors.

    If the number of records N is not public, it is the sum of the counts. The noise of
    a share p = c / N then has variance ((1 - p)^2 + (k - 1) p^2) stddev^2 / N^2.
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
