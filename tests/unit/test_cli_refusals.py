"""`dpjax train`: what it refuses, with nothing written."""

import re

import numpy as np
import pytest

from dpjax.cli import _train
from tests.unit.cli.command import refused
from tests.unit.cli.rooms import NUMBER, SCHEMA, options, run, write_rooms


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a file of 40 records and its schemas."""
    monkeypatch.chdir(tmp_path)
    return write_rooms(tmp_path)


# Options that change, none of them left empty, and words of what is said then.
BAD_OPTIONS = r"""
epsilon=0 => --epsilon must be positive and finite, got 0
epsilon=-1 => --epsilon must be positive and finite, got -1
epsilon=nan => --epsilon must be positive and finite, got nan
epsilon=abc => '--epsilon': must be a number, got 'abc'
epsilon= => '--epsilon'
delta=1 => --delta must be strictly between 0 and 1, got 1
delta=-0.1 => --delta must be strictly between 0 and 1, got -0.1
delta=0 => --delta must be strictly between 0 and 1, got 0
max_features=0 => --max-features must be an integer of at least 1, got 0
max_features=1.5 => '--max-features': must be a whole number, got '1.5'
seed=-1 => --seed must be from 0 to 2^32 - 1, got -1
loss=best => '--loss': .*'best'
loss= => --loss must be given for a file: logistic, squared, huber
model=additive max_features=2 => --max-features must be left out with --model additive
target= => --target must be given for a file: a column of ['rooms',
target=cost => --target must be a column of ['rooms', 'town', 'price', 
target=rooms => --target must be a column that is no feature
schema=none.toml => --schema must be a file that exists, got 'none.toml'
loss=logistic => --schema must be positive, the text or number
output=data.csv => --output must be a folder that can be written to
output=data.csv/x => --output must be a folder that can be written to
private_ranges=0 => --private-ranges must be strictly between 0 and 1, got 0
private_ranges=1 => --private-ranges must be strictly between 0 and 1, got 1
private_ranges=x => '--private-ranges': must be a number, got 'x'
private_ranges=0.1 => --private-ranges must be left out where the schema
"""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "additive"}, "--model must be left out with --intervals"),
        ({"max_features": 2}, "--max-features must be left out with --intervals"),
        ({"loss": "tweedie"}, "--loss must be left out with --intervals"),
        ({"unit": "town"}, "--intervals must be left out with --unit"),
    ],
)
def test_what_has_no_intervals_is_refused(folder, changes, message):
    refused(run("data.csv", *options(**changes), "--intervals"), message)


@pytest.mark.parametrize(
    ("changes", "message"), re.findall(r"^(.+) =>\s+(.+)$", BAD_OPTIONS, re.MULTILINE)
)
def test_static_mistakes(folder, changes, message):
    before = sorted(folder.rglob("*"))
    pairs = (pair.split("=") for pair in changes.split())
    given = options(**{name: value or None for name, value in pairs})
    refused(run("data.csv", *given), *message.split(".*"))
    assert sorted(folder.rglob("*")) == before


def test_mistakes_in_the_data_argument(folder, monkeypatch):
    monkeypatch.delenv("DPJAX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    (folder / "empty.csv").write_text("rooms,town,price\n")
    (folder / "one.csv").write_text("rooms,town,price\n1,2,3\n")
    (folder / "twice.csv").write_text("rooms,town,price,rooms\n1,2,3,4\n")
    np.savez("ragged.npz", rooms=np.ones(3), town=np.ones(2), price=np.ones(3))
    before = sorted(folder.rglob("*"))
    for name, *parts in [
        ("none.csv", "DATA must be a file, or one of adult, rand_hie", "'none.csv'"),
        ("empty.csv", "DATA must be a file with at least one record", "'empty.csv'"),
        ("one.csv", "--delta must be given with a single record, of which n^-1.1 is 1"),
        ("twice.csv", "DATA must be a file whose columns have distinct names"),
        ("ragged.npz", "DATA must be made of columns of one shape", "(2,)"),
        (".", "or a folder of such alone, without class.toml, number.toml"),
    ]:
        refused(run(name, *options()), *parts)
    refused(run("adult", *options()), "--schema must be left out with adult")
    refused(run("adult", *options(schema=None)), "--target must be left out with")
    named = ["--epsilon", 1, "--output", "out"]
    ranges = [*named, "--private-ranges", 0.1]
    refused(run("adult", *ranges), "--private-ranges must be left out with adult")
    for option in ("--quoted", "--row-names"):
        refused(run("adult", *named, option), f"{option} must be left out with adult")
    refused(run("credit-default", *named), "DATA must be a file, or one of adult, rand")
    refused(run("rand_hie", *named, "--loss", "logistic"), "--loss must be squared")
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("section", "num_records", "rule"),
    [
        ("rooms = {}", 19, "below 20 records, of 19"),
        ('rooms = {categories = ["1"]}', 40, "where no column is one of numbers"),
    ],
)
def test_what_an_additive_model_needs(folder, monkeypatch, section, num_records, rule):
    lines = (folder / "data.csv").read_text().splitlines()[: 1 + num_records]
    (folder / "data.csv").write_text("\n".join(lines))
    (folder / "number.toml").write_text(f"columns.{section}\ntarget = {{}}")
    before = sorted(folder.rglob("*"))
    monkeypatch.setattr(_train, "with_ranges", None)
    changes = {"model": "additive", "epsilon": 90}
    result = run("data.csv", *options(private_ranges=0.1, **changes))
    refused(result, f"--model must be linear or left out {rule}, got 'additive'")
    assert sorted(folder.rglob("*")) == before


def test_a_schema_with_an_unknown_column(folder):
    text = SCHEMA.replace("columns.rooms", "columns.floors") + NUMBER
    (folder / "number.toml").write_text(text)
    result = run("data.csv", *options())
    refused(result, "--schema must be made of columns of data.csv", "got ['floors']")
