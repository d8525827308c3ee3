"""`dpjax describe`: refused before it costs, paid once, and written whole."""

import json
import os
import tomllib
from pathlib import Path

import pytest

from dpjax.cli import _describe
from tests.cli.command import done, invoke, refusals

SCHEMA = """\
columns.x = {center = 0, scale = 1, limit = 2}
columns.job = {categories = ["cook", "smith"]}
columns.y = {}
exposure = {column = "years", max = 1}
"""


@pytest.fixture
def folder(folder):
    """A working directory with a file of 400 records of 100 persons, and a ledger."""
    lines = [
        f"{i % 100},{i / 200 - 1},{('cook', 'smith', '')[i % 3]},{i},.5"
        for i in range(400)
    ]
    (folder / "data.csv").write_text("\n".join(["who,x,job,y,years", *lines]))
    (folder / "schema.toml").write_text(SCHEMA)
    opened()
    return folder


def describe(*options, source="data.csv", schema="schema.toml", epsilon=2.0):
    what = [source, "--schema", schema, "--epsilon", epsilon, "--output", "out"]
    return invoke("describe", *what, *options)


def opened(*options):
    assert not invoke(
        "ledger", "t.toml", "--epsilon", 9, "--delta", ".1", *options
    ).exit_code


def runs():
    return tomllib.loads(Path("t.toml").read_text()).get("runs", [])


test_what_is_wrong_costs_nothing = refusals(
    """
--epsilon -1 => --epsilon must be positive
--level 95 => --level must be strictly between 0 and 1
--by x => --by must be a column of the schema with categories, of ['jo
--records-per-unit 2 => --records-per-unit must be left out wi
--unit job => --unit must be a column of
--target z => --target must be a column of
--seed 1 --ledger t.toml => --ledger must be left out with --seed
--ledger none.toml => --ledger must be a file
--ledger t.toml --epsilon 99 =>
  affords one run of Gaussian noise, as of linear-model, of about
--ledger t.toml --unit who => --unit must be None, as in --ledger
--output data.csv => --output must be a folder
--checkpoint out/kept => --checkpoint must be apart from --output
""",
    run=describe,
)


def test_files_and_ledger(folder):
    result = done(describe("--by", "job", "--ledger", "t.toml", "--dark"))
    assert sorted(os.listdir("out")) == _describe._NAMES
    content = json.loads(Path("out/description.json").read_text())
    assert content["by"] == "job"
    assert [*content["edges"]] == ["x", "y", "years"]
    assert content["edges"]["years"][::20] == [0.0, 1.0]
    assert content["edges"]["x"][::20] == [-2.0, 2.0]
    (paid,) = runs()
    assert paid["method"] == "Description"
    assert paid["parts"][0].startswith("description, epsilon = 2, delta = ")
    assert "Replacing any one of the 400 records" in " ".join(result.stdout.split())


@pytest.mark.parametrize("broken", ["release", "_contents", "_show"])
def test_a_run_that_was_stopped_goes_on(folder, broken, monkeypatch):
    options = "--ledger", "t.toml", "--checkpoint", "kept"
    numbers, release = [], _describe.release

    def seen(*arguments, **named):
        found = release(*arguments, **named)
        numbers.append([row.value for row in found.rows])
        return fails() if broken == "release" else found

    def fails(*_, **__):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(_describe, broken, fails)
        patch.setattr(_describe, "release", seen)
        assert describe(*options).exit_code == 2
    is_released = broken == "_show"
    assert Path("out").exists() == is_released
    assert Path("kept").exists() != is_released
    if is_released:
        return  # what was paid for has been written
    done(describe(*options))
    content = json.loads(Path("out/description.json").read_text())
    assert [row["value"] for row in content["rows"]] == numbers[0]
    assert len(runs()) == 1
    assert not Path("kept").exists()


def test_persons_are_bounded(folder):
    Path("t.toml").unlink()
    opened("--unit", "who")
    unit = "--unit", "who", "--records-per-unit", 3, "--ledger", "t.toml"
    done(describe(*unit, epsilon=8.0))
    content = json.loads(Path("out/description.json").read_text())
    assert content["num_samples"] == 300  # places, three a person
    assert content["unit"]["records_per_unit"] == 3
    assert content["privacy"]["epsilon"] == pytest.approx(8.0)
    assert "any one of the 100 groups" in content["privacy"]["description"]
    (row,) = (x for x in content["rows"] if x["column"] + x["statistic"] == "xcount")
    assert row["low"] < 300 < row["high"]
    assert len(runs()) == 1
