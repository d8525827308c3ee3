"""`dpjax train`: what it refuses, with nothing written."""

import re

import numpy as np
import pytest

from tests.unit.cli.command import refused, tree
from tests.unit.cli.rooms import NUMBER, SCHEMA, options, run

# Options that change, none of them left empty, and words of the message then.
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
power=1.5 => --power must be left out without --loss tweedie
loss=tweedie power=2 => --power must be strictly between 1 and 2
unit=price => --unit must be a column of ['rooms', 'town', 'price', 'sold'] that is nei
unit=rooms => --unit must be a column of
unit=z => --unit must be a column of
unit=sold private_ranges=0.1 => --private-ranges must be left out with --unit
unit=sold records_per_unit=0 => --records-per-unit must be
records_per_unit=3 => --records-per-unit must be left out without
unit_names=x => --unit-names must be left out without --unit
max_records=0 => --max-records must be an integer of at least 1
max_records=20 delta=0.5 => --delta must be below sample_size
output=. => another file than DATA
intervals=yes model=additive => --model must be left out with --intervals
intervals=yes max_features=2 => --max-features must be left out with --intervals
intervals=yes loss=tweedie => --loss must be left out with --intervals
intervals=yes unit=town => --intervals must be left out with --unit
"""


@pytest.mark.parametrize(
    ("changes", "message"), re.findall(r"^(.+) =>\s+(.+)$", BAD_OPTIONS, re.MULTILINE)
)
def test_static_mistakes(rooms, changes, message):
    before = tree(rooms)
    pairs = dict(pair.split("=") for pair in changes.split())
    flags = ["--intervals"] * bool(pairs.pop("intervals", None))
    given = options(**{name: value or None for name, value in pairs.items()})
    data = "." if changes == "output=." else "data.csv"
    refused(run(data, *given, *flags), *message.split(".*"))
    assert tree(rooms) == before


@pytest.mark.parametrize("content", [None, b" \n", b"\xff"])
def test_a_wrong_list_of_names_is_refused(rooms, content):
    if content is not None:
        (rooms / "names.txt").write_bytes(content)
    given = options(unit="sold", unit_names="names.txt")
    refused(run("data.csv", *given), "--unit-names must be a ")


def test_mistakes_in_the_data_argument(rooms, monkeypatch):
    monkeypatch.delenv("DPJAX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(rooms / "cache"))
    (rooms / "empty.csv").write_text("rooms,town,price\n")
    (rooms / "one.csv").write_text("rooms,town,price\n1,2,3\n")
    (rooms / "twice.csv").write_text("rooms,town,price,rooms\n1,2,3,4\n")
    np.savez("ragged.npz", rooms=np.ones(3), town=np.ones(2), price=np.ones(3))
    before = tree(rooms)
    for name, *parts in [
        ("none.csv", "DATA must be a file, or one of adult, rand_hie", "'none.csv'"),
        ("empty.csv", "DATA must be a file with at least one record", "'empty.csv'"),
        ("one.csv", "--delta must be given with a single record, of which n^-1.1 is 1"),
        ("twice.csv", "DATA must be a file whose columns have distinct names"),
        ("ragged.npz", "DATA must be made of columns of one shape", "(2,)"),
        (".", "or a folder of such alone, without class.toml, number.toml"),
    ]:
        refused(run(name, *options()), *parts)
    for words, message in (
        ("adult", "--schema must be left out with adult"),
        ("adult --target price", "--target must be left out with"),
        ("adult --private-ranges 0.1", "--private-ranges must be left out with adult"),
        ("adult --quoted", "--quoted must be left out with adult"),
        ("adult --row-names", "--row-names must be left out with adult"),
        ("adult --loss gamma", "another than poisson, gamma or tweedie for adult"),
        ("credit-default", "DATA must be a file, or one of adult, rand"),
        ("rand_hie --loss logistic", "--loss must be squared"),
    ):
        own = ["--schema", "number.toml"] * (words == "adult")
        refused(run(*words.split(), *own, "--epsilon", 1, "--output", "out"), message)
    assert tree(rooms) == before


@pytest.mark.parametrize(
    ("section", "num_records", "rule"),
    [
        ("rooms = {}", 19, "below 20 records, of 19"),
        ('rooms = {categories = ["1"]}', 40, "where no column is one of numbers"),
    ],
)
def test_what_an_additive_model_needs(rooms, monkeypatch, section, num_records, rule):
    lines = (rooms / "data.csv").read_text().splitlines()[: 1 + num_records]
    (rooms / "data.csv").write_text("\n".join(lines))
    (rooms / "number.toml").write_text(f"columns.{section}\ntarget = {{}}")
    before = tree(rooms)
    monkeypatch.setattr("dpjax.tables.cli._train.plan_training", None)
    given = options(private_ranges=0.1, model="additive", epsilon=90)
    message = f"--model must be linear or left out {rule}, got 'additive'"
    refused(run("data.csv", *given), message)
    assert tree(rooms) == before


def test_a_schema_with_an_unknown_column(rooms):
    text = SCHEMA.replace("columns.rooms", "columns.floors") + NUMBER
    (rooms / "number.toml").write_text(text)
    result = run("data.csv", *options())
    refused(result, "--schema must be made of columns of data.csv", "got ['floors']")
