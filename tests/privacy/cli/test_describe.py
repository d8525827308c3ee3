"""`dpjax describe`: refused before it costs, paid once, and written whole."""

import json
import os
import tomllib
from pathlib import Path

import jax
import pandas as pd
import pytest

import dpjax
from dpjax.accounting import Sample
from dpjax.datasets import Categorical, Numeric
from dpjax.tables.cli import _describe, _sources
from tests.unit.cli.command import done, invoke, refusals

pytestmark = pytest.mark.usefixtures("compiled_quickly")

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
    words = "open t.toml --epsilon 9 --delta .1"
    done(invoke("ledger", *words.split(), *options))


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
--max-records 0 => --max-records must be an integer of at least 1
--max-records 16777217 => --max-records must be at most 16,777,216
--unit who --max-records 4194305 => --max-records must be at most 4,194,304, with 4
--max-records 2 --delta .01 => --delta must be below sample_size
--seed 1 --ledger t.toml => --ledger must be left out with --seed
--ledger none.toml => --ledger must be a file
--ledger t.toml --epsilon 99 =>
  Error: What is left affords one run of Gaussian noise, as of a linear model, of about
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


def test_a_seeded_run_is_that_of_the_function(folder):
    # No more records than may be drawn are no sample.
    done(describe("--seed", 3, "--max-records", 400))
    content = json.loads(Path("out/description.json").read_text())
    schema = {
        "x": Numeric(0, 1, limit=2),
        "job": Categorical(("cook", "smith")),
        "y": None,
        "years": Numeric(0.5, 0.5, limit=1),
    }
    frame, key = pd.read_csv("data.csv"), jax.random.key(3)
    same = dpjax.describe(frame, schema, key=key, epsilon=2.0)
    assert json.loads(same.to_json())["rows"] == content["rows"]


@pytest.mark.parametrize(
    ("broken", "sample"),
    [("_contents", ["--max-records", 100]), ("_show", [])],
)
def test_a_run_that_was_stopped_goes_on(folder, broken, sample, monkeypatch):
    options = *sample, "--ledger", "t.toml", "--checkpoint", "kept"
    numbers, release = [], _describe.release

    def seen(*arguments, **named):
        found = release(*arguments, **named)
        numbers.append([row.value for row in found.rows])
        return found

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
    assert row["low"] < 300 <= row["high"]
    assert len(runs()) == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("unit", [None, "who"])
def test_a_sample_speaks_for_the_file(folder, unit):
    size, total, each = (100, 400, 1) if unit is None else (50, 100, 2)
    # Without a seed an interval of 95 per cent would fail in one run of twenty.
    options = ["--max-records", size, "--ledger", "t.toml", "--by", "job"]
    options += ["--level", ".99999"]
    if unit is not None:
        Path("t.toml").unlink()
        opened("--unit", "who")
        options += ["--unit", "who", "--records-per-unit", each]
    result = done(describe(*options))
    said = " ".join(result.stdout.split())
    what = "values of who" if unit else "records"
    assert f"a random sample of {total} {what}: a run on {size} of them may" in said
    content = json.loads(Path("out/description.json").read_text())
    delta = total**-1.1
    epsilon, own = Sample(total, size).budget(2.0, delta)
    assert content["sample"]["budget_of_sample"] == {"epsilon": epsilon, "delta": own}
    assert content["num_samples"] == total * each
    assert content["sample_size"] == size * each
    privacy = content["privacy"]
    assert 0.999 * 2 < privacy["epsilon"] <= 2
    assert 0.999 * delta < privacy["delta"] <= delta
    assert f"any one of the {total} " in privacy["description"]
    costs = [cost["epsilon"] for cost in content["costs"]]
    assert 0 < min(costs) < max(costs) < 2
    rows = [row for row in content["rows"] if row["column"] == "job"]
    counts = {row["of"]: row for row in rows if row["statistic"] == "count"}
    assert counts["cook"]["low"] < total * each / 3 < counts["cook"]["high"]
    (paid,) = runs()
    assert paid["parts"][0].startswith("description, epsilon = 2, delta = ")
    assert f"records = {total}\n" in Path("t.toml").read_text()
    done(invoke("report", "out"))
    assert f"Sample: {size} of them" in Path("out/report.html").read_text()


def test_of_many_cells_a_sample_is_the_default(folder, monkeypatch):
    monkeypatch.setattr(_sources, "MOST_CELLS", 400)
    result = done(describe())
    assert "a run on 100 of them" in " ".join(result.stdout.split())
