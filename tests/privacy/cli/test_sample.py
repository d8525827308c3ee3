"""`--max-records`: what is drawn of a file while it is read, and what that costs."""

import gzip
import json
from functools import partial
from typing import Any

import jax
import numpy as np
import polars as pl
import pytest

from dpjax.accounting import Sample
from dpjax.datasets import Numeric
from dpjax.tables.cli import _sources, _train
from dpjax.tables.cli._release import Release
from dpjax.tables.cli._settings import Settings
from dpjax.tables.cli._sources import Draw, encode_table
from dpjax.tables.cli._train import read_private
from tests.unit.cli.command import done, invoke, refused
from tests.unit.cli.conftest import SCHEMA

pytestmark = pytest.mark.usefixtures("compiled_quickly")

QUOTED = 'x,y\n1,"a\nb"\n\n2,"c ""d"""\n"3,e\n4,"5"6,7,8\n9\n10,f\r\n"11","g\r\nh"\n'
FRAME = pl.DataFrame(
    {
        "x": pl.Series([2**62, None, 2**62 + 1, 3, 4, 5, 6]),
        "y": pl.Series(["a", None, "b", "a", "", "nan", "c"], dtype=pl.Categorical),
        "z": [1.5, None, float("nan"), float("inf"), 2, 3, 4],
        "t": [True, None, False, True, True, True, True],
    }
)


def parquet(path):
    FRAME.write_parquet(path, row_group_size=2)


def folder(path):
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
    "folder": folder,
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
def test_what_streams_by_is_what_is_read_as_a_whole(tmp_path, monkeypatch, name):
    path = tmp_path / name
    FILES[name](path)
    names = "xyzt" if name.endswith(("parquet", "folder")) else "xy"
    columns, sample = drawn(path, names, 1000)
    assert sample is None
    count = len(columns["x"].tolist())
    np.savez(tmp_path / "places.npz", x=np.arange(count))
    monkeypatch.setattr("dpjax.tables.io._csv._BLOCK", 5)
    monkeypatch.setattr("dpjax.tables.io._tables._ROWS", 2)
    for size in (1, 3, 5, 50):
        found, sample = drawn(path, names, size)
        assert sample == ((size, count) if size < count else None)
        # Which records are drawn, and in which order, follows from their places.
        rows = np.asarray(drawn(tmp_path / "places.npz", "x", size)[0]["x"])
        assert len({*rows.tolist()}) == min(size, count)
        for column in names:
            assert cells(found[column]) == cells(columns[column], rows.astype(int))
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
    result = invoke("schema", tmp_path)
    refused(result, "DATA must be ", message)


def command(*options, data="data.csv"):
    words = ["train", data, "--schema", "schema.toml", "--loss", "squared"]
    return invoke(*words, "--epsilon", 1, "--output", "out", *options)


@pytest.fixture
def table(here):
    lines = [f"p{i % 250},{i / 500 - 1},{i}" for i in range(1000)]
    (here / "data.csv").write_text("\n".join(["who,x,y", *lines]))
    (here / "schema.toml").write_text(SCHEMA)
    return here


@pytest.mark.parametrize("unit", [None, "who"])
def test_a_run_on_a_sample(table, unit):
    size, total = (100, 1000) if unit is None else (60, 250)
    options = ["--max-records", size, "--holdout", 0.2, "--ledger", "t.toml"]
    opened = ["ledger", "open", "t.toml", "--epsilon", "3", "--delta", "0.05"]
    if unit is not None:
        options += ["--unit", "who", "--records-per-unit", 3]
        opened += ["--unit", "who"]
    done(invoke(*opened))
    result = done(command(*options))
    said = " ".join(result.stdout.split())
    what = "records" if unit is None else "values of who"
    assert f"a random sample of {total:,} {what}: a run on {size} of them may" in said
    report = json.loads((table / "out" / "report.json").read_text())
    delta = total**-1.1
    epsilon, own = Sample(total, size).budget(1.0, delta)
    assert report["sample"] == {
        "unit": unit,
        "num_records": total,
        "max_records": size,
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


def test_of_many_cells_a_sample_is_the_default(table, monkeypatch):
    monkeypatch.setattr(_sources, "MOST_CELLS", 400)
    result = done(command("--unit", "who", "--records-per-unit", 1))
    size = 133  # a name is a cell, too
    assert f"a run on {size} of them" in " ".join(result.stdout.split())
    sample = json.loads((table / "out" / "report.json").read_text())["sample"]
    assert sample["max_records"] == size


def test_of_persons_the_first_records_in_random_places(table):
    asked: dict[str, Any] = {"source": "data.csv", "epsilon": 1.0, "loss": "squared"}
    asked |= {"schema": table / "schema.toml", "max_records": 40, "unit": "who"}
    (table / "names.txt").write_text("\n".join(f"p{i}" for i in range(200, 300)))
    for names, total in ((None, 250), (table / "names.txt", 100)):
        settings = Settings(**asked, records_per_unit=2, unit_names=names)
        read = read_private(settings, jax.random.key(3))
        assert read.sample == (40, total)
        found = encode_table(read).targets.reshape(40, 2)
        is_there = found[:, 1] > 0
        numbers = np.rint(found[is_there]).astype(int)
        assert (numbers[:, 1] - numbers[:, 0] == 250).all()  # the first two of each
        assert set(numbers[:, 0]) <= {*range(250)}
        assert (np.diff(numbers[:, 0]) < 0).any()  # not by their names
        assert is_there.all() == (names is None)
        assert not found[~is_there].any()
        assert names is None or (numbers[:, 0] >= 200).all()


def test_no_more_records_than_may_be_drawn_are_no_sample(table):
    found = []
    for more in ([], ["--max-records", 1000]):
        done(command("--seed", 3, "--unit", "who", *more))
        found.append((table / "out" / "report.json").read_text())
    assert found[0] == found[1]


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
