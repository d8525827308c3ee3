"""`dpjax.describe`: what it releases of a table, what that costs, and how it reads."""

import csv
import dataclasses
import io
import json
import math
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dpjax
from dpjax import accounting
from dpjax.datasets import Categorical, Numeric
from dpjax.tables.describe import _groups, _release
from tests.unit.solvers.test_diameter import check_set

NUM = 4_000
SCHEMA = {"income": None, "age": Numeric(50, 50, limit=1)}
SCHEMA |= {"town": Categorical(("Ghent", "Lier")), "owns": Categorical(("true",))}
COMMA = Categorical(("x,y", "z"))
KIND = Categorical(tuple(map(str, range(1024))))
MANY = {"frame": dict.fromkeys("ab", np.ones(3)), "schema": dict.fromkeys("ab", KIND)}
MANY |= {"by": "b"}


@pytest.fixture(scope="module")
def frame():
    """A table with missing cells, and a town that is not declared."""
    rng = np.random.default_rng(0)
    income = rng.lognormal(10.0, 0.5, NUM)
    income[::10] = np.nan
    town = rng.choice(["Ghent", " Lier", "Mol"], NUM, p=[0.5, 0.4, 0.1])
    age = rng.normal(45.0, 12.0, NUM)
    return {"income": income, "age": age, "town": town, "owns": rng.random(NUM) < 0.3}


def described(frame, schema=SCHEMA, *, key=0, epsilon=3.0, **options):
    key = jax.random.key(key)
    given = {"delta": 1e-6} | options
    return dpjax.describe(frame, schema, key=key, epsilon=epsilon, **given)


@pytest.fixture(scope="module")
def description(frame):
    return described(frame, by="town")


def test_a_data_frame_is_a_table(frame, description):
    pandas = pd.DataFrame(frame)
    for made in (pandas, pandas.convert_dtypes(), pl.DataFrame(frame), pa.table(frame)):
        assert described(made, by="town").rows == description.rows


def test_parts_share_one_budget(description):
    assert len(description.rows) == 2 * (3 * 25 + 2) + 3 * 2 + 3 * 2 * 2
    counts = [x for x in description.rows if x.statistic in ("count", "histogram")]
    assert all(row.value == int(row.value) for row in counts)
    assert description.edges["age"] == tuple(np.linspace(0.0, 100.0, 21))
    costs = description.costs
    assert math.fsum(cost.share for cost in costs) == pytest.approx(1.0)
    assert all(cost.epsilon < description.privacy.epsilon == 3.0 for cost in costs)
    assert max(costs, key=lambda cost: cost.epsilon).part == "count, mean, quantiles"
    assert "4,000 records" in description.privacy.description


@pytest.mark.quick(1)
@pytest.mark.parametrize("epsilon", [1e-5, 0.5, 1e3])
@pytest.mark.parametrize("delta", [1e-12, 0.45])
@pytest.mark.parametrize("by", ["<i>\x1b", None])
def test_odd_columns_are_described_at_any_budget(epsilon, delta, by):
    # One record, which is refused a narrow interval at every budget but the largest.
    frame = {"$x_": [np.nan], "y": ["1e400"], "<i>\x1b": [None], "w": [7]}
    schema = {"$x_": None, "y": Numeric(1e308, 1e300, limit=1e9)}
    schema |= {"w": Numeric(1e9, 1, limit=1), "<i>\x1b": Categorical(("$a^b$", "[b]"))}
    description = described(frame, schema, by=by, epsilon=epsilon, delta=delta)
    assert all(row.low < row.high for row in description.rows)
    assert not any(math.isnan(row.value) for row in description.rows)
    json.loads(description.to_json(), parse_constant=pytest.fail)
    page = description.to_html()
    assert "data:image" in page
    assert "<i>" not in page
    assert "\x1b" not in page
    assert "hidden by noise" in str(description.tables()) or epsilon > 1


def test_a_description_reads_the_same_in_every_format(description):
    lines = [*csv.DictReader(io.StringIO(description.to_csv()))]
    assert len(lines) == len(description.rows)
    assert lines[0]["column"] == "income"
    content = json.loads(description.to_json())
    assert content["rows"][0] == description.rows[0]._asdict()
    assert str(description.rows[0]).endswith("%)")
    assert content["privacy"]["epsilon"] == 3.0
    (head, numbers), (_, categories) = description.tables()
    assert head[:5] == ["column", "town", "count", "missing", "mean"]
    assert [x[:2] for x in numbers[:2]] == [["income", "Ghent"], ["income", "Lier"]]
    assert categories[0][:3] == ["town", "(all)", "Ghent"]
    page = description.to_html("a <b>")
    assert page == description.to_html("a <b>")  # a picture tells no time
    assert "a &lt;b&gt;" in page
    assert page.count("data:image/svg+xml") == 2
    assert "http" not in page.replace("http-equiv", "")


def test_a_table_of_two_columns_has_the_counts_and_means_of_each_cell(frame):
    shown = described(frame, by="town, owns", epsilon=1e6)
    groups = {x.group: x.value for x in shown.rows if x[0] + x[2] == "agemean"}
    counts = {x.of: x.value for x in shown.rows if x[1:3] == ("(all)", "count")}
    assert [*counts] == [*groups] == ["Ghent, true", "Lier, true", "(other)"]
    names, ages = np.char.strip(frame["town"]), np.clip(frame["age"], 0.0, 100.0)
    is_listed = np.isin(names, ["Ghent", "Lier"]) & frame["owns"]
    cells = np.where(is_listed, np.char.add(names, ", true"), "(other)")
    for name, count in counts.items():
        assert count == np.sum(cells == name)
        assert groups[name] == pytest.approx(ages[cells == name].mean(), rel=1e-4)
    assert shown.to_frame().column.unique().tolist() == ["town, owns", "income", "age"]
    assert "160 numbers, n = 4,000, epsilon = 1e+06" in repr(shown)


def test_what_noise_hides_is_no_number_and_no_bar(frame):
    few = {name: values[:20] for name, values in frame.items()}
    shown = described(few, by="town", epsilon=0.01)
    (_, numbers), (_, shares) = shown.tables()
    assert {x[-1] for x in (*numbers[1:3], *shares)} == {"hidden by noise"}
    income, *_ = shown.plot().axes
    assert [x.get_text() for x in income.texts] == 3 * ["hidden by noise"]


def test_differences_are_hidden_by_their_own_range(description):
    rows = [row for row in description.rows if row.statistic == "difference"]
    parts = [row.part_by_noise for row in description.rows]  # NaN where it is hidden
    assert 0 <= np.nanmin(parts) < np.nanmax(parts) <= 1
    age = next(row for row in rows if row.column == "age")
    for ends, is_seen in (((-80.0, 80.0), False), ((-50.0, 80.0), True)):
        row = age._replace(low=ends[0], high=ends[1])
        changes = {"rows": (row,), "edges": {"age": (20.0, 100.0)}}
        (_, (cells, *_)), *_ = dataclasses.replace(description, **changes).tables()
        assert (cells[-1] != "hidden by noise") == is_seen


def test_no_name_is_run_by_a_spreadsheet(description):
    name, rows = "=HYPERLINK(1)", description.rows
    rows = [x._replace(column=name) if x.column == "income" else x for x in rows]
    edges = {name: description.edges["income"], "age": description.edges["age"]}
    made = dataclasses.replace(description, rows=tuple(rows), edges=edges)
    assert f"\n'{name}," in made.to_csv()
    assert f"\n{name}," not in made.to_csv()
    assert f">&#x27;{name}<" in made.to_html()
    assert f">{name}<" not in made.to_html()


def weighted(seed, num, epsilon, weights="w"):
    rng = np.random.default_rng(seed)
    town, w = rng.choice(["Ghent", "Lier"], num), rng.uniform(0.2, 2.0, num)
    age = np.clip(rng.normal(45 + 10 * (town == "Lier") + 6 * w, 12), 0, 100)
    age[:10], w[10:20], w[20:30] = np.nan, np.nan, 9.0  # the latter count 0 and 2
    frame = {"age": age, "town": town, "w": w, "owns": rng.random(num) < 0.3}
    schema = {k: SCHEMA.get(k, Numeric(1, 1, limit=1)) for k in frame}
    options = {"epsilon": epsilon, "by": "town", "weights": weights, "key": seed}
    return frame, {row[:4]: row for row in described(frame, schema, **options).rows}


def test_weighted_numbers_are_those_of_numpy():
    frame, rows = weighted(0, NUM, 1e6)
    weights, means = np.clip(np.nan_to_num(frame["w"]), 0.0, 2.0), []
    for town in ("Ghent", "Lier"):
        own, mean = frame["town"] == town, rows["age", town, "mean", ""]
        w, x = (y[own & ~np.isnan(frame["age"])] for y in (weights, frame["age"]))
        means.append(np.average(x, weights=w))
        error = np.sqrt(np.sum(w**2 * (x - means[-1]) ** 2)) / w.sum()
        share = np.average(frame["owns"][own], weights=weights[own])
        count = rows["age", town, "count", ""].value
        known = mean.value, (mean.high - mean.low) / 3.92, count
        assert known == pytest.approx((means[-1], error, w.sum()), rel=1e-3)
        assert rows["owns", town, "share", "true"].value == pytest.approx(share, 1e-3)
    apart = rows["age", "Lier", "difference", "Ghent"]
    assert apart.value == pytest.approx(means[1] - means[0], abs=1e-3)
    assert not any(place[0] == "w" or "median" in place for place in rows)


@pytest.mark.parametrize("has_numbers", [True, False])
def test_noise_is_for_the_distance_of_two_weighted_records(monkeypatch, has_numbers):
    ends = np.float32([0, 0.02, 0.5, 1]), np.float32([-1, -0.5, 0, 0.1, 1, np.nan])
    weights, numbers = (np.tile(x.ravel(), 2) for x in np.meshgrid(*ends))
    release = mock.Mock(return_value=(np.zeros((4, 5 if has_numbers else 2)), 1.0))
    monkeypatch.setattr(_groups, "noisy_sums", release)
    monkeypatch.setattr(_groups.jax, "jit", lambda call, **_: call)
    groups = _groups.Groups(("a", "b"), np.repeat([0, 1], 24), None, None, weights)
    cells, numbers = np.arange(48) % 2, numbers if has_numbers else None
    groups.weighed(cells, 2, numbers, 1.0, jax.random.key(0))
    monkeypatch.undo()
    _, (places, rows), *_, clipping = release.call_args.args
    tables = jnp.zeros((48, 4, rows.shape[1])).at[jnp.arange(48), places].set(rows)
    check_set(tables.reshape(48, -1), clipping, 0.99)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("weights", ["w", None])
def test_releases_have_the_noise_that_is_paid(weights, size, monkeypatch):
    (frame, _), precisions = weighted(0, 300, 1.0), []

    def watch(module, name, place, share=1.0):
        def release(*args):
            precisions.append(share / float(args[place]) ** 2)
            return released(*args)

        released = getattr(module, name)
        monkeypatch.setattr(module, name, release)

    watch(_release, "group_statistics", 4)
    watch(_release, "private_edges", 2, _release.EDGES_SHARE)
    watch(_groups, "noisy_counts", 2)
    watch(_groups, "noisy_sums", 3)
    monkeypatch.setattr(_groups.jax, "jit", lambda call, **_: call)
    schema = {k: SCHEMA.get(k, Numeric(1, 1, limit=1)) for k in frame}
    schema = schema if weights else schema | {"w": None}
    persons = {"num_units": 100, "size": 3, "column": "who", "words": "person"}
    persons["placed"] = lambda rows, **_: rows  # all of them have three records
    units = None if size == 1 else SimpleNamespace(**persons)
    options = {"epsilon": 1.0, "delta": 1e-5, "by": "town", "level": 0.95}
    options |= {"weights": weights, "units": units, "num_samples": 300}
    _release.release(frame, schema, key=jax.random.key(0), **options)
    sampling = accounting.Sampling(num_steps=1)
    multiplier = size * accounting.noise_multiplier(1.0, 1e-5, sampling)
    assert sum(precisions) == pytest.approx(multiplier**-2)


@pytest.mark.quick(1)
@pytest.mark.parametrize("weights", ["w", None])
def test_intervals_of_differences_cover_and_tell_the_part_of_noise(weights):
    place = "age", "Lier", "difference", "Ghent"
    rows = [weighted(seed, 2_000, 2.0, weights)[1][place][4:] for seed in range(60)]
    values, low, high, parts = np.array(rows).T
    assert np.sum((low > 10) | (high < 10)) <= 8  # of 60: once in 200 tests
    error = np.mean(high - low) / 2 / 1.96
    assert 0.65 * error < np.std(values) < 1.2 * error
    assert 0.5 < error * np.sqrt(1 - np.mean(parts)) < 1.1  # 0.55 is by sampling


COMMA = Categorical(("x,y", "z"))
KIND = Categorical(tuple(map(str, range(1024))))
MANY = {"frame": dict.fromkeys("ab", np.ones(3)), "schema": dict.fromkeys("ab", KIND)}
MANY |= {"by": "b"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": {}}, "schema must be of one column or more"),
        ({"schema": {"rent": None}}, r"schema must be made of columns of .* \['rent'"),
        ({"schema": {"age": "number"}}, "schema must be None, Numeric or Categorical"),
        ({"by": "age"}, r"by must be a column of the schema with categories, one of"),
        ({"level": 1.0}, "level must be strictly between 0 and 1"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"max_records": 2, "delta": 0.1}, "delta must be below sample_size"),
        ({"delta": 0.0}, "delta must be"),
        ({"frame": 3}, "table must be a data frame"),
        ({"frame": {"age": np.ones((2, 2)), "town": np.ones(2)}}, "frame must be colu"),
        ({"frame": {"age": np.ones(0), "town": np.ones(0)}}, "n from 1 to 2"),
        (MANY, "at most 1,048,576 counts in column 'a'"),
        ({"weights": "income", "schema": SCHEMA}, "weights must be a column of the s"),
        ({"weights": "age", "schema": {"age": Numeric(0, 1, limit=2)}}, "weights must"),
        ({"weights": "age", "schema": SCHEMA}, r"must have a limit, unlike \['income'"),
        ({"by": "town, town"}, "by must be a column of the schema with categories"),
        ({"by": "town, a", "schema": {**SCHEMA, "a": COMMA}}, r"commas .*\['x,y'\]"),
    ],
)
def test_bad_arguments_are_refused(frame, changes, message):
    schema = {name: SCHEMA[name] for name in ("age", "town")}
    with pytest.raises(ValueError, match=message):
        described(**{"frame": frame, "schema": schema} | changes)
