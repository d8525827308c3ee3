"""Releases a description: one budget, divided among columns and statistics."""

import math
import statistics
from collections.abc import Mapping
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
from dpjax.tables import _progress
from dpjax.tables._default_delta import default_delta
from dpjax.tables.columns._encoding import Categorical, Numeric
from dpjax.tables.describe._agreement import rows_of, sizes_of
from dpjax.tables.describe._columns import (
    NUM_BINS,
    Budget,
    Groups,
    Place,
    of_categories,
    of_numbers,
)
from dpjax.tables.describe._description import Description, Row
from dpjax.tables.io._tables import Column, frame_columns, frame_names

Kind = Numeric | Categorical | None
MOST_RECORDS = 2**24  # that solvers count
# A column of numbers has four times the budget of one of categories: quantiles need it.
_OF_NUMBERS, _OF_CATEGORIES = 4.0, 1.0
_MOST_CELLS = 2**20  # of a column, with all groups


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
        by: a column of categories in the schema; records of other categories form one
            more group.
        level: the probability of each interval.
        max_records: m, public. If n is larger, m records are drawn without replacement
            and described with the budget of `accounting.Sample.budget`; delta n / m
            must be below 1. Counts of the sample and their intervals are multiplied by
            n / m. None: all records.

    Returns:
        A `Description` with `rows`, the guarantee `privacy`, and the `costs` of its
        parts; `to_json`, `to_csv`, `to_html` and `plot` show them. Intervals count
        sampling and noise, as in `solvers.dp_group_means` and `solvers.dp_histogram`;
        they are infinite if noise hides a group.

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
        >>> for row in shown.rows:
        ...     if row.statistic in ("median", "share"):
        ...         print(row.column, row.of or row.statistic, row)
        income median 21,981 (21,780 to 22,183)
        owns true 0.3023 (0.2983 to 0.3065)
        owns (other) 0.6977 (0.6938 to 0.7019)

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
    description = release(
        columns,
        schema,
        key=key,
        epsilon=epsilon,
        delta=delta,
        by=by,
        level=level,
        num_samples=num_samples,
    )
    privacy = sample_privacy(description.privacy, **sizes, unit="record")
    return replace(description, privacy=privacy)


def release(
    columns: Mapping[str, Column],
    schema: Mapping[str, Kind],
    *,
    key: Key,
    epsilon: float,
    delta: float,
    by: str | None,
    level: float,
    place: Place | None = None,
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
    everyone = Groups.everyone(len(next(iter(columns.values()))), place)
    size = len(everyone.codes)
    num_samples = num_samples or size
    privacy = guarantee(size, epsilon, delta)
    grouped = everyone
    if by is not None:
        kind = Categorical(_categories_of(schema[by]))
        grouped = everyone.divided(kind, columns[by])
    budget = Budget(noise_multiplier(epsilon, delta, Sampling(num_steps=1)), delta)
    z = statistics.NormalDist().inv_cdf(0.5 + level / 2)
    weights = math.fsum(map(_weight, schema.values()))
    releases, shares = {}, {}
    for index, (name, kind) in enumerate(schema.items()):
        _progress.say(f"column {name}", index, len(schema))
        groups = everyone if name == by else grouped
        share, own_key = _weight(kind) / weights, jax.random.fold_in(key, index)
        arguments = columns[name], groups, budget.part(share), own_key
        if isinstance(kind, Categorical):
            result = of_categories(kind, *arguments)
        else:
            result = of_numbers(kind, *arguments)
        releases[name] = result
        for part_name, part in result.shares.items():
            shares[name, part_name] = share * part
    multipliers = (x for result in releases.values() for x in result.multipliers)
    if math.fsum(x**-2 for x in multipliers) > budget.multiplier**-2:
        raise RuntimeError("The releases cost more than the budget.")
    apart = [result for name, result in releases.items() if name != by]
    sizes = sizes_of(grouped, apart, None if by is None else releases[by])
    rows: list[Row] = []
    for name, result in releases.items():
        scaled = z, num_samples / size
        if name == by:
            total = np.sum(sizes, keepdims=True)
            rows += rows_of(name, result, everyone, total, *scaled, cells=sizes)
        else:
            rows += rows_of(name, result, grouped, sizes, *scaled)
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


def guarantee(num_samples: int, epsilon: float, delta: float) -> PrivacyGuarantee:
    """Returns the guarantee of a description, from n and the budget."""
    multiplier = noise_multiplier(epsilon, delta, Sampling(num_steps=1))
    return PrivacyGuarantee.of(
        epsilon, delta, dp_event=gaussian_event(multiplier), num_samples=num_samples
    )


def check(schema: Mapping[str, Kind], by: str | None) -> None:
    """Checks the schema.

    Raises:
        ValueError: If a kind has a wrong type, by is not a column of categories, or a
            column has too many cells.
    """
    _validate.require(len(schema) > 0, "schema", schema, "at least one column long")
    for name, kind in schema.items():
        is_kind = kind is None or isinstance(kind, Numeric | Categorical)
        rule = f"None, Numeric or Categorical for column {name!r}"
        _validate.require(is_kind, "schema", kind, rule)
    known = [name for name, kind in schema.items() if _categories_of(kind)]
    rule = f"a column of the schema with categories, of {known}"
    _validate.require(by is None or by in known, "by", by, rule)
    num_groups = 1 if by is None else len(_categories_of(schema[by])) + 1
    for name, kind in schema.items():
        num_cells = 1 + (len(_categories_of(kind)) or NUM_BINS)
        num_cells *= 1 if name == by else num_groups
        rule = f"of {_MOST_CELLS:,} cells at most in column {name!r}, with all groups"
        _validate.require(num_cells <= _MOST_CELLS, "schema", num_cells, rule)


def _weight(kind: Kind) -> float:
    return _OF_CATEGORIES if _categories_of(kind) else _OF_NUMBERS


def _categories_of(kind: Kind) -> tuple[str, ...]:
    return () if kind is None else kind.categories
