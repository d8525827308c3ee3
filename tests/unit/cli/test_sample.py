"""`--max-records`: what is drawn of a file while it is read, and what that costs."""

import gzip
import json
from typing import Any

import jax
import numpy as np
import polars as pl
import pytest

from dpjax import _csv, _tables
from dpjax._reservoir import Tags
from dpjax._tables import column_names, read_columns
from dpjax._texts import PLAIN, Texts, numbers_of
from dpjax.accounting import Sample, noise_multiplier
from dpjax.cli import _sample, _train
from dpjax.cli._sample import Draw
from dpjax.cli._settings import Settings
from dpjax.cli._sources import encode_table
from dpjax.cli._train import read_private
from tests.unit.cli.command import done, invoke, refused

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
    "arrays.npz": lambda path: np.savez(
        path, x=np.arange(9), y=np.array([*"abcdefghi"])
    ),
    "folder": folder,
}


def cells(column):
    """The cells of a column, and what they are read as."""
    if isinstance(column, Texts):
        return column.tolist(), column.is_number, column.numbers.tobytes()
    return str(column.dtype), column.tobytes()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size", [1, 3, 5, 50])
def test_what_streams_by_is_what_is_read_as_a_whole(tmp_path, monkeypatch, name, size):
    path, key = tmp_path / name, jax.random.key(5)
    FILES[name](path)
    names = column_names(path)
    whole = read_columns(path, names, least=0)
    count = len(whole[names[0]])
    order = np.lexsort(Tags(jax.random.key(5)).following(count).T[::-1])
    rows = order[:size] if size < count else np.arange(count)
    monkeypatch.setattr(_csv, "_BLOCK", 5)
    monkeypatch.setattr(_tables, "_ROWS", 2)
    columns, units, sample = Draw(size=size, key=key).read(path, names, PLAIN)
    assert units is None
    assert (sample is None) == (count <= size)
    assert sample in (None, (size, count))
    for one in names:
        assert cells(columns[one]) == cells(whole[one][rows])
    if name == "folder":
        assert whole["x"].tolist()[:4] == ["3.5", "", str(2**62), ""]
        assert numbers_of(whole["z"])[[0, 2]].tolist() == [2, 1.5]
        assert np.isnan(numbers_of(whole["z"])[[1, 3, 4, 5]]).all()
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
    with pytest.raises(ValueError, match=f"DATA must be .*{message}"):
        column_names(tmp_path)


SCHEMA = """\
columns.x = {center = 0, scale = 1}
target = {column = "y", center = 0, scale = 2}
"""


def command(*options, data="data.csv"):
    words = ["train", data, "--schema", "schema.toml", "--loss", "squared"]
    return invoke(*words, "--epsilon", 1, "--output", "out", *options)


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A working directory with a file of 1,000 records of 250 persons."""
    monkeypatch.chdir(tmp_path)
    lines = [f"p{i % 250},{i / 500 - 1},{i}" for i in range(1000)]
    (tmp_path / "data.csv").write_text("\n".join(["who,x,y", *lines]))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


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


def test_curves_of_a_sample(table):
    words = ["train", "data.csv", "--schema", "schema.toml", "--loss", "squared"]
    words += ["--model", "additive", "--epsilon", 80, "--max-records", 600]
    done(invoke(*words, "--output", "out"))
    report = json.loads((table / "out" / "report.json").read_text())
    own = report["sample"]["budget_of_sample"]
    assert report["method"] == "DP additive model"
    assert report["num_samples"] == 600
    multiplier = noise_multiplier(own["epsilon"], own["delta"], num_steps=1)
    assert report["stats"]["noise_multiplier"] == pytest.approx(multiplier, rel=1e-6)
    assert 0.999 * 80 < report["privacy"]["epsilon"] <= 80
    assert "any one of the 1,000 records" in report["privacy"]["description"]


@pytest.mark.parametrize("unit", [[], ["--unit", "who", "--records-per-unit", 1]])
def test_of_many_cells_a_sample_is_the_default(table, monkeypatch, unit):
    monkeypatch.setattr(_sample, "MOST_CELLS", 400)
    result = done(command(*unit))
    size = 133 if unit else 200  # a name is a cell, too
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
        numbers = np.rint(2 * found[is_there]).astype(int)
        assert (numbers[:, 1] - numbers[:, 0] == 250).all()  # the first two of each
        assert set(numbers[:, 0]) <= {*range(250)}
        assert (np.diff(numbers[:, 0]) < 0).any()  # not by their names
        assert is_there.all() == (names is None)
        assert not found[~is_there].any()
        assert names is None or (numbers[:, 0] >= 200).all()


@pytest.mark.parametrize("options", [[], ["--unit", "who"]])
def test_no_more_records_than_may_be_drawn_are_no_sample(table, options):
    found = []
    for more in ([], ["--max-records", 1000]):
        done(command("--seed", 3, *options, *more))
        found.append((table / "out" / "report.json").read_text())
    assert found[0] == found[1]


def test_a_run_that_goes_on_keeps_its_sample(table, monkeypatch):
    options = ["--max-records", 100, "--checkpoint", "kept"]
    drawn, read, write = [], _train.read_private, _train.write_release

    def kept(*args):
        drawn.append(read(*args))
        return drawn[-1]

    def killed(*args):
        if len(drawn) == 1:
            raise KeyboardInterrupt
        write(*args)

    monkeypatch.setattr(_train, "read_private", kept)
    monkeypatch.setattr(_train, "write_release", killed)
    codes = [command(*options).exit_code for _ in range(3)]
    assert (codes[0] != 0, codes[1:]) == (True, [0, 0])
    first, again, anew = (one.columns["x"].tolist() for one in drawn)
    assert first == again != anew
    assert not (table / "kept").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-records", 0], "--max-records must be an integer of at least 1"),
        (["--max-records", 20, "--delta", 0.02], "--delta must be below sample_size"),
        (["--max-records", 20, "--unit", "x"], "--unit must be a column of"),
    ],
)
def test_bad_input_is_named(table, options, message):
    refused(command(*options), message)
    assert "another file than DATA" in command("--output", ".", data=".").stderr
    assert not (table / "out").exists()
