"""Persons, not rows: what neighbours differ in, and what it costs."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import polars as pl
import pytest
from rich.console import Console

from dpjax._tables import read_columns
from dpjax.accounting import gaussian_stddev
from dpjax.cli._check import warn_curator
from dpjax.cli._plan import Budget, Plan
from dpjax.cli._runs import fit, training_privacy
from dpjax.cli._schema import Schema
from dpjax.cli._settings import Settings
from dpjax.cli._sources import Table, encode_table
from dpjax.cli._spending import planned, prices
from dpjax.cli._train import read_private
from dpjax.cli._units import name_of, privacy_of_units, read_names, units_of
from dpjax.datasets import Numeric
from tests.unit.cli.command import done, invoke
from tests.unit.refusals import refused


def table(people, size=3, names=None):
    """A table of one record for each entry: (who, value)."""
    who, x = (np.array(column, object) for column in zip(*people, strict=True))
    columns = {"x": x, "y": x}
    schema = Schema({"x": Numeric(0, 1)}, Numeric(0, 1))
    plain = Table("t", columns, schema, "y", np.zeros(len(x), bool))
    return plain.by_unit(units_of("who", who, size, names))


PEOPLE = [(f"p{i % 40}", 1.0 + i) for i in range(100)]


def without(who, others=()):
    """The people with other records for one of them."""
    rest = [one for one in PEOPLE if one[0] != who]
    return [(who, x) for x in others[:1]] + rest + [(who, x) for x in others[1:]]


def changed(first, second, holdout):
    """The units of which two tables differ, where shapes and all others agree."""
    tables = [one.held_out(holdout) if holdout else one for one in (first, second)]
    is_test = tables[0].is_test
    units = []
    for name, chosen, size in (
        ("features", ~is_test, 3),
        ("test_features", is_test, 1),
    ):
        one, other = (getattr(encode_table(data), name) for data in tables)
        assert one.shape == other.shape
        differ = np.flatnonzero((one != other).any(axis=1))
        units += [*np.flatnonzero(chosen)[np.unique(differ // size)]]
    return units


NAMES = sorted({who for who, _ in PEOPLE})


@pytest.mark.parametrize("others", [[], [7.0], [1e38] * 3, ["nan", 5, 6, 7, 8, 9, 10]])
@pytest.mark.parametrize("who", ["p0", "p23", "p9"])
@pytest.mark.parametrize("holdout", [None, 0.3])
@pytest.mark.parametrize("names", [None, NAMES])
def test_neighbours_differ_in_the_places_of_one_person(names, holdout, who, others):
    # Others come up in another order, too: the one's first record comes first.
    first, second = table(PEOPLE, names=names), table(without(who, others), names=names)
    if names is None and not others:
        assert second.units.num_units == 39  # as is public: that all have a record
    else:
        assert changed(first, second, holdout) == [NAMES.index(who)]


@pytest.mark.parametrize("holdout", [None, 0.3])
def test_who_is_renamed_is_two_persons_of_a_list(holdout):
    names = [*NAMES, "p99"]
    for name, units in (("p99", {9, 40}), ("p7", {9, 37}), ("stranger", {9})):
        renamed = [(name if who == "p17" else who, x) for who, x in PEOPLE]
        found = changed(
            table(PEOPLE, names=names), table(renamed, names=names), holdout
        )
        assert {9} <= set(found) <= units


def test_names_do_not_depend_on_the_type_of_their_column(tmp_path):
    # One missing cell makes floats of integers, in what holds the records.
    of = {"i.npz": np.array([7, 10, 9]), "f.npz": np.array([7.0, 10.0, np.nan])}
    for name, cells in of.items():
        np.savez(tmp_path / name, who=cells)
    (tmp_path / "i.csv").write_text("who\n7\n10\n9\n")
    (tmp_path / "f.csv").write_text("who\n7.0\n10.0\n\n")
    for name in ("i.npz", "f.npz", "i.csv", "f.csv"):
        cells = read_columns(tmp_path / name, ["who"])["who"]
        assert [*map(name_of, cells)][:2] == ["7", "10"]
    far = [2**62, 2**62 + 1, None]  # one name as float64
    pl.DataFrame({"who": far}).write_parquet(tmp_path / "i.parquet")
    cells = read_columns(tmp_path / "i.parquet", ["who"])["who"]
    assert units_of("who", cells, 1).num_units == 3


def test_places_hold_the_first_records_and_zeros():
    data = encode_table(table(PEOPLE))
    assert data.features.shape == (120, 2)
    assert data.features[:3].tolist() == [[1, 1], [41, 1], [81, 1]]
    # Of p39 there are two records, and nothing stands for a third.
    last = 3 * NAMES.index("p39")
    assert data.features[last : last + 3].tolist() == [[40, 1], [80, 1], [0, 0]]
    assert data.targets[last : last + 3].tolist() == [40, 80, 0]
    surplus = encode_table(table(PEOPLE, size=1))
    assert [f"p{x - 1:g}" for x in surplus.features[:, 0]] == NAMES
    unknown = units_of("who", np.array([None, "", "a", " "], object), 2)
    assert unknown.num_units == 2  # those without a value are one together


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"delta": 1e-4},
        pytest.param({"max_features": 1}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_person_gets_what_is_asked(options):
    asked = {"source": "t", "epsilon": 2.0, "loss": "squared", "unit": "who"} | options
    people, settings = table(PEOPLE), Settings(**asked)
    data = encode_table(people)
    plan = planned(settings, data, people)
    record = training_privacy(plan, data)
    assert record.epsilon == pytest.approx(2 / 3)
    found = privacy_of_units(record, people.units)
    assert 2.0 * (1 - 1e-9) < found.epsilon <= 2.0
    delta = options.get("delta", 40**-1.1)
    assert delta * (1 - 1e-9) <= found.delta <= delta
    words = "Replacing any one of the 40 groups of records with one who by any others, "
    words += "at least one, with the same who, changes"
    assert words in found.description
    event: Any = record.dp_event
    noise = event.event.noise_multiplier
    assert noise >= 3 * gaussian_stddev(2.0, delta, sensitivity=1.0)
    _, parts = prices(settings, people)
    assert parts == {"training": found}


@pytest.mark.slow
def test_empty_places_have_no_weight():
    rng = np.random.default_rng(0)
    features = np.c_[rng.normal(size=4000), np.ones(4000)].astype(np.float32)
    features[::2] = 0.0
    targets = 3 * features[:, 0] + 10 * features[:, 1]
    plan = Plan(loss="squared", power=None, budget=Budget(50.0, 1e-5), arguments={})
    rows = features, targets, features[:, 1], None
    solution = fit(plan, rows, key=jax.random.key(0))
    assert np.allclose(solution.params, [3, 10], atol=0.2)


@pytest.mark.slow
def test_persons_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = [
        f"{i % 300},{x},{300 + 100 * x}" for i, x in enumerate(rng.normal(size=900))
    ]
    (tmp_path / "data.csv").write_text("\n".join(["who,x,y", *lines]))
    text = "columns.x = {center = 0, scale = 1}\n"
    text += "target = {column = 'y', center = 300, scale = 100}"
    (tmp_path / "schema.toml").write_text(text)
    what = ["train", "data.csv", "--schema", "schema.toml", "--loss", "squared"]
    what += ["--epsilon", 4, "--unit", "who", "--records-per-unit", 2, "--holdout", 0.2]
    (tmp_path / "names.txt").write_text("\n".join(map(str, range(300))))
    what += ["--unit-names", "names.txt", "--output", "out"]
    opened = "ledger open t.toml --epsilon 40 --delta 0.05 --unit who"
    done(invoke(*opened.split()))
    result = done(invoke(*what, "--ledger", "t.toml"))
    shown = " ".join(result.stdout.split())
    assert "n = 240 values of who, 2 places each" in shown
    words = "groups of records with one who by any others, or none, with the same who,"
    assert f"Replacing any one of the 300 {words} changes" in shown
    assert "The list of values of who that was given is public; whether one of" in shown
    assert "On 60 records held out, by a budget of their own of epsilon = 4" in shown
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    public = report["unit"].pop("public")
    assert public.startswith(
        "The list of values of who that was given is public; whether one"
    )
    assert report["unit"] == {"column": "who", "num_units": 300, "records_per_unit": 2}
    assert report["privacy"]["epsilon"] == pytest.approx(4.0)
    description = report["evaluation"]["privacy"]["description"]
    assert f"any one of the 60 {words}" in description


def test_nobody_on_a_list_need_have_a_record(tmp_path):
    path, schema, names = (tmp_path / x for x in ("data.csv", "s.toml", "names.txt"))
    path.write_text("who,x,y,z\n")
    text = "columns = {x = {center = 0, scale = 1}, z = {categories = ['a']}}\n"
    schema.write_text(text + "target = {column = 'y', center = 0, scale = 1}")
    names.write_text("\n".join(NAMES))
    asked = {"source": str(path), "epsilon": 1.0, "loss": "squared", "schema": schema}
    asked |= {"unit": "who", "records_per_unit": 2, "holdout": 0.3}
    read = read_private(Settings(unit_names=names, **asked), jax.random.key(0))
    warn_curator(Console(quiet=True), read)
    data = encode_table(read)
    assert (data.features.shape, data.test_features.shape) == ((56, 3), (12, 3))
    assert not np.vstack([data.features, data.test_features]).any()
    with pytest.raises(ValueError, match="a file with at least one record"):
        read_private(Settings(**asked), jax.random.key(0))


test_what_persons_cannot_have_is_refused = refused(
    lambda options: Settings(
        **{"source": "t", "epsilon": 1.0, "unit": "who"} | options
    ),
    ({"private_ranges": 0.1}, "--private-ranges must be left out with --unit"),
    (
        {"unit": None, "records_per_unit": 3},
        "--records-per-unit must be left out without",
    ),
    ({"unit": None, "unit_names": Path("x")}, "--unit-names must be left out with"),
    ({"records_per_unit": 0}, "--records-per-unit must be"),
)


@pytest.mark.parametrize("unit", ["x", "y", "z"])
def test_a_wrong_column_is_refused(tmp_path, unit):
    (tmp_path / "data.csv").write_text("who,x,y\n1,2,3\n")
    schema = tmp_path / "schema.toml"
    schema.write_text(
        "columns.x = {center = 0, scale = 1}\ntarget = {column = 'y', "
        "center = 0, scale = 1}"
    )
    what = ["train", tmp_path / "data.csv", "--schema", schema, "--loss", "squared"]
    what += ["--epsilon", 1, "--unit", unit, "--output", tmp_path / "out"]
    refused = invoke(*what)
    assert refused.exit_code == 2
    message = "--unit must be a column of ['who', 'x', 'y'] that is neither a feature"
    assert message in " ".join(refused.stderr.split())


@pytest.mark.parametrize("content", [None, b" \n", b"\xff"])
def test_a_wrong_list_of_names_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "names.txt").write_bytes(content)
    with pytest.raises(ValueError, match="--unit-names must be a "):
        read_names(tmp_path / "names.txt")
