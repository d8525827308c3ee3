"""Releases a description: one budget, divided among columns and statistics."""

import math
import statistics
from collections.abc import Mapping
from typing import Any

import jax

from dpjax import _validate
from dpjax._default_delta import default_delta
from dpjax._describe._columns import (
    NUM_BINS,
    Budget,
    Groups,
    Place,
    of_categories,
    of_numbers,
)
from dpjax._describe._description import Description, Row
from dpjax._tables import Column, frame_columns, frame_names
from dpjax._types import Key
from dpjax.accounting import PrivacyGuarantee, gaussian_event, noise_multiplier
from dpjax.datasets import Categorical, Numeric

Kind = Numeric | Categorical | None
MOST_RECORDS = 2**24  # that solvers count
# A column of numbers has four times the budget of one of categories: quantiles need it.
_OF_NUMBERS, _OF_CATEGORIES = 4.0, 1.0
_MOST_CELLS = 2**20  # of a column, with all groups


def describe(
    frame: Any,
    schema: Mapping[str, Kind],
    *,
    key: Key,
    epsilon: float,
    delta: float | None = None,
    by: str | None = None,
    level: float = 0.95,
) -> Description:
    """Releases what the columns of a table hold, each number with its interval.

    Of a column of numbers: how many there are, how many cells are missing, the mean,
    the median, the 90 per cent quantile, and a histogram. Of a column of categories:
    the count and the share of each, and of all others together; of a truth value, with
    one category, that is its share. All of it in every group, if there are groups.

    Args:
        frame: a data frame of pandas or polars, or a mapping of arrays of shape (n,),
            n at most 2^24 and public. A mean is over the cells that hold a number.
        schema: the columns to describe, and what is public about each: None for
            numbers, `datasets.Numeric` with a limit for numbers in a public range,
            which a histogram then divides, or `datasets.Categorical`.
        key: a typed key.
        epsilon: privacy parameter of all together, positive.
        delta: privacy parameter in (0, 1); n^-1.1 by default.
        by: a column of categories in the schema; records of others are a group too.
        level: the probability of each interval.

    Returns:
        A `Description`, with `rows`, its guarantee `privacy`, and `costs` of the parts,
        which `to_json`, `to_csv`, `to_html` and `plot` show. Intervals count sampling
        and noise, as of `solvers.dp_group_means` and `solvers.dp_histogram`; they are
        infinite where noise hides a group.

    Raises:
        ValueError: where an argument is out of its range, or a column is not there.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input: of each column
        `dp_group_means` and `dp_histogram`, Gaussian mechanisms, which compose exactly
        with each other and among columns. Their inverse squared noise multipliers add
        up to that of the budget.

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
        income median 22,015 (21,839 to 22,190)
        owns true 0.3024 (0.2983 to 0.3065)
        owns (other) 0.6978 (0.6938 to 0.7019)

    Reference:
        As of `solvers.dp_group_means` and `solvers.dp_histogram`.
    """
    check(schema, by)
    known = frame_names(frame)
    unknown = [name for name in schema if name not in known]
    _validate.require(not unknown, "schema", unknown, f"made of columns of {known}")
    columns = frame_columns(frame, [*schema])
    shapes = {name: column.shape for name, column in columns.items()}
    shape, *others = {*shapes.values()}
    is_table = not others and len(shape) == 1 and 0 < shape[0] <= MOST_RECORDS
    rule = "columns of one shape (n,), n from 1 to 2^24"
    _validate.require(is_table, "frame", shapes, rule)
    return release(
        columns,
        schema,
        key=key,
        epsilon=epsilon,
        delta=default_delta(shape[0]) if delta is None else delta,
        by=by,
        level=level,
    )


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
) -> Description:
    """Releases a description of columns of one shape (n,), as `describe` does.

    The rows of a table may be laid out by `place`, at public places with zeros where
    there is no record. Neighbours then differ in one place, and n is their number.
    """
    _validate.typed_key(key)
    _validate.positive(epsilon=epsilon)
    _validate.probability(delta=delta, level=level)
    everyone = Groups.everyone(len(next(iter(columns.values()))), place)
    num_samples = len(everyone.codes)
    privacy = guarantee(num_samples, epsilon, delta)
    grouped = everyone
    if by is not None:
        grouped = everyone.divided(_categorical(schema[by]), columns[by])
    budget = Budget(noise_multiplier(epsilon, delta, num_steps=1), delta)
    z = statistics.NormalDist().inv_cdf(0.5 + level / 2)
    whole = math.fsum(map(_weight, schema.values()))
    rows, edges, shares, multipliers = [], {}, {}, []
    for index, (name, kind) in enumerate(schema.items()):
        groups = everyone if name == by else grouped
        share, own_key = _weight(kind) / whole, jax.random.fold_in(key, index)
        arguments = columns[name], groups, budget.part(share), own_key
        if isinstance(kind, Categorical):
            found = of_categories(kind, *arguments)
        else:
            found = of_numbers(kind, *arguments)
            edges[name] = found.edges
        multipliers += found.multipliers
        for what, part in found.shares.items():
            shares[name, what] = share * part
        for group, group_name in enumerate(groups.names):
            for statistic, of, values, errors in found.statistics:
                value, reach = float(values[group]), z * float(errors[group])
                place_in_table = name, group_name, statistic, of
                rows.append(Row(*place_in_table, value, value - reach, value + reach))
    if math.fsum(one**-2 for one in multipliers) > budget.multiplier**-2:
        raise RuntimeError("The releases cost more than the budget.")
    return Description(tuple(rows), edges, num_samples, by, level, shares, privacy)


def guarantee(num_samples: int, epsilon: float, delta: float) -> PrivacyGuarantee:
    """Returns the guarantee of a description: it follows from n and the budget."""
    multiplier = noise_multiplier(epsilon, delta, num_steps=1)
    return PrivacyGuarantee.of(
        epsilon, delta, dp_event=gaussian_event(multiplier), num_samples=num_samples
    )


def check(schema: Mapping[str, Kind], by: str | None) -> None:
    """Checks what is said of columns.

    Raises:
        ValueError: where a kind is none, by is no column of categories, or a column
            has too many cells.
    """
    _validate.require(len(schema) > 0, "schema", schema, "at least one column long")
    for name, kind in schema.items():
        is_kind = kind is None or isinstance(kind, Numeric | Categorical)
        rule = f"None, Numeric or Categorical for column {name!r}"
        _validate.require(is_kind, "schema", kind, rule)
    known = [name for name, kind in schema.items() if isinstance(kind, Categorical)]
    rule = f"a column of the schema with categories, of {known}"
    _validate.require(by is None or by in known, "by", by, rule)
    num_groups = 1 if by is None else len(_categorical(schema[by]).categories) + 1
    for name, kind in schema.items():
        cells = kind.categories if isinstance(kind, Categorical) else range(NUM_BINS)
        num_cells = 1 + len(cells)
        num_cells *= 1 if name == by else num_groups
        rule = f"of {_MOST_CELLS:,} cells at most in column {name!r}, with all groups"
        _validate.require(num_cells <= _MOST_CELLS, "schema", num_cells, rule)


def _weight(kind: Kind) -> float:
    return _OF_CATEGORIES if isinstance(kind, Categorical) else _OF_NUMBERS


def _categorical(kind: Kind) -> Categorical:
    assert isinstance(kind, Categorical)  # as has been checked
    return kind
