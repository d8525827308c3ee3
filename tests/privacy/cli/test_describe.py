"""`dpjax describe`, and samples that a run draws: what they cost, paid once."""

import gzip
import json
import os
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import polars as pl
import pytest

import dpjax
from dpjax.datasets import Categorical, Numeric
from dpjax.tables.cli import _describe, _sources, _train
from dpjax.tables.cli._release import Release
from dpjax.tables.cli._settings import Settings
from dpjax.tables.cli._sources import Draw, encode_table
from dpjax.tables.cli._train import read_private
from tests.unit.cli import conftest
from tests.unit.cli.command import done, invoke, refusals, refused, sheet
from tests.unit.test_statement import fits

pytestmark = pytest.mark.usefixtures("compiled_quickly")
DESCRIBED = """\
columns.x = {center = 0, scale = 1, limit = 2}
columns.job = {categories = ["cook", "smith"]}
columns.y = {}
exposure = {column = "years", max = 1}
"""
here = conftest.here
QUOTED = 'x,y\n1,"a\nb"\n\n2,"c ""d"""\n"3,e\n4,"5"6,7,8\n9\n10,f\r\n"11","g\r\nh"\n'
FRAME = pl.DataFrame(
    {
        "x": pl.Series([2**62, None, 2**62 + 1, 3, 4, 5, 6]),
        "y": pl.Series(["a", None, "b", "a", "", "nan", "c"], dtype=pl.Categorical),
        "z": [1.5, None, float("nan"), float("inf"), 2, 3, 4],
        "t": [True, None, False, True, True, True, True],
    }
)


@pytest.fixture
def folder(here):
    """A working directory with a file of 400 records of 100 persons, and a ledger."""
    jobs = "cook", "smith", ""
    lines = [f"{i % 100},{i / 200 - 1},{jobs[i % 3]},{i},.5" for i in range(400)]
    (here / "data.csv").write_text("\n".join(["who,x,job,y,years", *lines]))
    (here / "schema.toml").write_text(DESCRIBED)
    opened()
    return here


def describe(*options, source="data.csv", schema="schema.toml", epsilon=2.0):
    what = [source, "--schema", schema, "--epsilon", epsilon, "--output", "out"]
    return invoke("describe", *what, *options)


def opened(*options):
    words = "open t.toml --epsilon 9 --delta .1"
    done(invoke("ledger", *words.split(), *options))


def runs():
    return tomllib.loads(Path("t.toml").read_text()).get("runs", [])


def check_told_sample(result, unit, size, total):
    what = "records" if unit is None else "values of who"
    told = f"a random sample of {total:,} {what}: a run on {size} of them may"
    assert told in " ".join(result.stdout.split())


test_wrong_arguments_of_describe_are_refused_by_name = refusals(
    """
--epsilon -1 => --epsilon must be positive
--level 95 => --level must be strictly between 0 and 1
--by x => --by must be a column of the schema with categories, one of ['jo
--weights z => --weights must be a column of the schema with a limit
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
--ledger t.toml --unit who => --unit must be left out, as in --ledger
--output data.csv => --output must be a folder
--checkpoint out/kept => --checkpoint must be apart from --output
""",
    run=describe,
)


def test_a_description_is_written_and_paid_in_the_ledger(folder):
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
    schema = {"x": Numeric(0, 1, limit=2), "job": Categorical(("cook", "smith"))}
    schema |= {"y": None, "years": Numeric(0.5, 0.5, limit=1)}
    frame, key = pd.read_csv("data.csv"), jax.random.key(3)
    same = dpjax.describe(frame, schema, key=key, epsilon=2.0)
    assert json.loads(same.to_json())["rows"] == content["rows"]


@pytest.mark.parametrize(
    ("broken", "sample"),
    [("_contents", ["--max-records", 100]), ("show_units_and_sample", [])],
)
def test_a_run_that_was_stopped_goes_on(folder, broken, sample, monkeypatch):
    options = *sample, "--ledger", "t.toml", "--checkpoint", "kept"
    released, release = [], _describe.release

    def seen(*arguments, **named):
        released.append(release(*arguments, **named))
        return released[-1]

    def fails(*_, **__):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(_describe, broken, fails)
        patch.setattr(_describe, "release", seen)
        assert describe(*options).exit_code == 2
    is_released = broken == "show_units_and_sample"
    assert Path("out").exists() == is_released
    assert Path("kept").exists() != is_released
    if is_released:
        return  # what was paid for has been written
    done(describe(*options))
    content = json.loads(Path("out/description.json").read_text())
    values = [row.value for row in released[0].rows]
    assert [row["value"] for row in content["rows"]] == values
    assert len(runs()) == 1
    assert not Path("kept").exists()


def test_records_of_a_person_are_bounded_and_paid_for_at_once(folder):
    Path("t.toml").unlink()
    opened("--unit", "who")
    unit = "--unit", "who", "--records-per-unit", 3, "--ledger", "t.toml"
    done(describe(*unit, epsilon=8.0))
    content = json.loads(Path("out/description.json").read_text())
    assert (content["num_samples"], content["unit"]["records_per_unit"]) == (300, 3)
    assert content["privacy"]["epsilon"] == pytest.approx(8.0)
    row = next(x for x in content["rows"] if x["column"] + x["of"] == "jobcook")
    noise = row["part_by_noise"] * ((row["high"] - row["low"]) / 2 / 1.96) ** 2
    stddev = dpjax.accounting.gaussian_stddev(8.0, 100**-1.1, sensitivity=26**0.5)
    assert noise == pytest.approx((3 * stddev) ** 2 + 1 / 12, rel=1e-3)
    assert "any one of the 100 groups" in content["privacy"]["description"]
    assert fits(content)
    unit = dpjax.read_guarantee("out/description.json").unit
    assert unit.startswith("group of records with one who by any others")
    (row,) = (x for x in content["rows"] if x["column"] + x["statistic"] == "xcount")
    assert row["low"] < 300 <= row["high"]
    assert len(runs()) == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("unit", [None, "who"])
def test_a_sample_speaks_for_the_file(folder, unit):
    size, total, each = (100, 400, 1) if unit is None else (50, 100, 2)
    # Without a seed an interval of 95 percent would fail in one run of twenty.
    options = ["--max-records", size, "--ledger", "t.toml", "--by", "job"]
    options += ["--level", ".99999"]
    if unit is not None:
        Path("t.toml").unlink()
        opened("--unit", "who")
        options += ["--unit", "who", "--records-per-unit", each]
    check_told_sample(done(describe(*options)), unit, size, total)
    content = json.loads(Path("out/description.json").read_text())
    delta = total**-1.1
    epsilon, own = dpjax.accounting.Sample(total, size).budget(2.0, delta)
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


def parquet(path):
    FRAME.write_parquet(path, row_group_size=2)


def in_folder(path):
    path.mkdir()
    parquet(path / "b.parquet")
    (path / "a.csv").write_text("y,z,x,t\n1,2,3.5,true\nNA,1e400,,\n")
    (path / "_SUCCESS").touch()
    (path / ".c.csv").touch()
    (path / "empty.csv").write_text("x,y,z,t\n")


def written(content):
    return lambda path: path.write_bytes(content)


FILES = {
    "quoted.csv": written(QUOTED.encode()),
    "utf16.csv": written(QUOTED.encode("utf-16")),
    "big.csv": written(QUOTED.encode("utf-16-be")),
    "bytes.tsv": written(b'x\ty\n\xff\t1\n\xef\xbb\xbf2\t"\n\xe9\t\xe9\n'),
    "zipped.csv.gz": written(gzip.compress(QUOTED.encode())),
    "one.csv": written(b"x,y\n1,2"),
    "header.csv": written(b"x,y"),
    "groups.parquet": parquet,
    "one_group.parquet": FRAME.write_parquet,
    "none.parquet": lambda path: FRAME.clear().write_parquet(path),
    "arrays.npz": partial(np.savez, x=np.arange(9), y=np.array([*"abcdefghi"])),
    "folder": in_folder,
    "sheet.xlsx": written(sheet([["x", "y"], [2, "a"], [], ["0.5", None], [7, "b"]])),
}
PLAIN = Settings(source="x", epsilon=1.0).text_format


def drawn(path, names, size):
    draw = Draw(size=size, key=jax.random.key(5))
    columns, units, sample = draw.read(path, [*names], PLAIN)
    assert units is None
    return columns, sample


def cells(column, rows=...):
    numbers = Numeric(limit=1e30).encode(column)[rows].tobytes()
    return np.array(column.tolist(), object)[rows].astype(str).tolist(), numbers


@pytest.mark.parametrize("name", FILES)
def test_a_sample_of_a_stream_holds_the_cells_of_the_whole_file(
    tmp_path, monkeypatch, name
):
    path = tmp_path / name
    FILES[name](path)
    names = "xyzt" if name.endswith(("parquet", "folder")) else "xy"
    columns, sample = drawn(path, names, 1000)
    assert sample is None
    count = len(columns["x"].tolist())
    np.savez(tmp_path / "places.npz", x=np.arange(count))
    monkeypatch.setattr("dpjax.tables.io._csv._BLOCK", 5)
    monkeypatch.setattr("dpjax.tables.io._csv._ROWS", 2)
    monkeypatch.setattr("dpjax.tables.io._tables._ROWS", 2)
    for size in (1, 3, 5, 50):
        sampled, sample = drawn(path, names, size)
        assert sample == ((size, count) if size < count else None)
        # Which records are drawn, and in which order, follows from their places.
        rows = np.asarray(drawn(tmp_path / "places.npz", "x", size)[0]["x"])
        assert len({*rows.tolist()}) == min(size, count)
        for column in names:
            assert cells(sampled[column]) == cells(columns[column], rows.astype(int))
    if name == "folder":
        assert columns["x"].tolist()[:4] == ["3.5", "", str(2**62), ""]
        assert [str(cell) for cell in columns["z"].tolist()][:3:2] == ["2", "1.5"]
        assert count == 9


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "or a folder of such"),
        ({"a.txt": "x,y\n1,2\n"}, "or a folder of such"),
        ({"a.csv": "x,y\n1,2\n", "b.csv": "x,z\n1,2\n"}, "a folder of files with the"),
    ],
)
def test_folders_that_are_refused(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    refused(invoke("schema", tmp_path), "DATA must be ", message)


def command(*options, data="data.csv"):
    words = ["train", data, "--schema", "schema.toml", "--loss", "squared"]
    return invoke(*words, "--epsilon", 1, "--output", "out", *options)


@pytest.fixture
def table(here):
    lines = [f"p{i % 250},{i / 500 - 1},{i}" for i in range(1000)]
    (here / "data.csv").write_text("\n".join(["who,x,y", *lines]))
    (here / "schema.toml").write_text(conftest.SCHEMA)
    return here


@pytest.mark.parametrize("unit", [None, "who"])
def test_a_run_on_a_sample_costs_what_was_asked_of_the_file(table, unit):
    size, total = (100, 1000) if unit is None else (60, 250)
    options = ["--max-records", size, "--holdout", 0.2, "--ledger", "t.toml"]
    units = [] if unit is None else ["--unit", "who"]
    options += [*units, "--records-per-unit", 3] if units else []
    words = "ledger open t.toml --epsilon 3 --delta 0.05"
    done(invoke(*words.split(), *units))
    check_told_sample(done(command(*options)), unit, size, total)
    report = json.loads((table / "out" / "report.json").read_text())
    delta = total**-1.1
    epsilon, own = dpjax.accounting.Sample(total, size).budget(1.0, delta)
    sizes = {"unit": unit, "num_records": total, "max_records": size}
    assert report["sample"] == sizes | {
        "budget": {"epsilon": 1.0, "delta": delta},
        "budget_of_sample": {"epsilon": epsilon, "delta": own},
    }
    assert report["num_samples"] == (80 if unit is None else 48 * 3)
    for privacy in (report["privacy"], report["evaluation"]["privacy"]):
        assert 0.999 < privacy["epsilon"] <= 1
        assert 0.999 * delta < privacy["delta"] <= delta
        assert f"any one of the {total:,} " in privacy["description"]
    assert f"records = {total}" in (table / "t.toml").read_text()
    # Two samples are two runs, and are drawn anew.
    first = (table / "out" / "model.npz").read_bytes()
    done(command(*options))
    assert (table / "out" / "model.npz").read_bytes() != first
    assert command(*options).exit_code == 2  # it is the third of epsilon = 1


def test_a_description_of_many_cells_is_of_a_sample(folder, monkeypatch):
    monkeypatch.setattr(_sources, "MOST_CELLS", 400)
    check_told_sample(done(describe()), None, 100, 400)


def test_a_run_on_many_cells_is_on_a_sample(table, monkeypatch):
    monkeypatch.setattr(_sources, "MOST_CELLS", 400)
    result = done(command("--unit", "who", "--records-per-unit", 1))
    check_told_sample(result, "who", 133, 250)  # a name is a cell, too
    sample = json.loads((table / "out" / "report.json").read_text())["sample"]
    assert sample["max_records"] == 133


def test_a_sample_of_persons_holds_their_first_records_in_random_places(table):
    asked: dict[str, Any] = {"source": "data.csv", "epsilon": 1.0, "loss": "squared"}
    asked |= {"schema": table / "schema.toml", "max_records": 40, "unit": "who"}
    (table / "names.txt").write_text("\n".join(f"p{i}" for i in range(200, 300)))
    for names, total in ((None, 250), (table / "names.txt", 100)):
        settings = Settings(**asked, records_per_unit=2, unit_names=names)
        read = read_private(settings, jax.random.key(3))
        assert read.sample == (40, total)
        targets = encode_table(read).targets.reshape(40, 2)
        is_there = targets[:, 1] > 0
        numbers = np.rint(targets[is_there]).astype(int)
        assert (numbers[:, 1] - numbers[:, 0] == 250).all()  # the first two of each
        assert set(numbers[:, 0]) <= {*range(250)}
        assert (np.diff(numbers[:, 0]) < 0).any()  # not by their names
        assert is_there.all() == (names is None)
        assert not targets[~is_there].any()
        assert names is None or (numbers[:, 0] >= 200).all()


def test_no_more_records_than_may_be_drawn_are_no_sample(table):
    reports = set()
    for more in ([], ["--max-records", 1000]):
        done(command("--seed", 3, "--unit", "who", *more))
        reports.add((table / "out" / "report.json").read_text())
    assert len(reports) == 1


def test_a_run_that_goes_on_keeps_its_sample(table, monkeypatch):
    options = ["--max-records", 100, "--checkpoint", "kept"]
    drawn, read, write = [], _train.read_private, Release.write

    def kept(*args):
        drawn.append(read(*args))
        return drawn[-1]

    def killed(*args):
        if len(drawn) == 1:
            raise KeyboardInterrupt
        write(*args)

    monkeypatch.setattr(_train, "read_private", kept)
    monkeypatch.setattr(Release, "write", killed)
    codes = [command(*options).exit_code for _ in range(3)]
    assert (codes[0] != 0, codes[1:]) == (True, [0, 0])
    first, again, anew = (one.columns["x"].tolist() for one in drawn)
    assert first == again != anew
    assert not (table / "kept").exists()
