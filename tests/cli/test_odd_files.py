"""Files as people have them, through `predict` and `train`: right, or refused whole."""

import datetime
import decimal
import io

import numpy as np
import polars as pl
import pytest
from dp_accounting import NonPrivateDpEvent
from typer.testing import CliRunner

from dpjax import _csv
from dpjax.accounting import PrivacyGuarantee
from dpjax.cli._app import app
from dpjax.datasets import Categorical, Numeric
from dpjax.models import Model
from dpjax.models._shared import model_file

TOWNS = tuple(f"town {i}" for i in range(500))
MODEL = Model(
    params=np.array([2.0, *range(500), 0.5], np.float32),
    columns={"rooms": Numeric(4, 2), "town": Categorical(TOWNS)},
    target_name="price",
    target=Numeric(300, 100),
    link="identity",
    privacy=PrivacyGuarantee.of(1.0, 1e-5, dp_event=NonPrivateDpEvent()),
    method="by hand",
    data="homes.csv",
)
SCHEMA = """\
columns.rooms = {center = 4, scale = 2}
columns.town = {categories = ["town 0", "town 1"]}
target = {column = "price", center = 300, scale = 100}
"""
HEAD, ROWS = (
    ["rooms", "town", "price"],
    [["6", "town 2", "1"], ["5.5", "town 499", "2"]],
)
PRICES = [750.0, 50400.0]  # and 350 where neither is known


def text(rows=ROWS, head=HEAD, delimiter=","):
    return "\n".join([delimiter.join(row) for row in [head, *rows]]) + "\n"


def parquet(**columns):
    file = io.BytesIO()
    frame = {"rooms": [6, None], "town": ["town 2", None], "price": [1.0, 2.0]}
    pl.DataFrame(frame | columns).write_parquet(file)
    return file.getvalue()


DAYS = [datetime.datetime(2020, 1, 1)] * 2
WIDE = [f"c{i}" for i in range(700)]
KINDS = pl.Series(["town 2", None], dtype=pl.Categorical)
READ = {
    "mark": (text().encode("utf-8-sig"), [], PRICES),
    "utf-16": (text().encode("utf-16"), [], PRICES),
    "semicolons": (text(delimiter=";").encode(), [], PRICES),
    "tabs": (text(delimiter="\t").encode(), [], PRICES),
    "decimal commas": (
        text(delimiter=";").replace(".", ",").encode(),
        ["--decimal", ","],
        PRICES,
    ),
    "line breaks": (
        text([[*row, '"a\n""b"", c"'] for row in ROWS], [*HEAD, "note"]).encode(),
        [],
        PRICES,
    ),
    "an index": (
        text([[str(i), *row] for i, row in enumerate(ROWS)], ["", *HEAD]).encode(),
        [],
        PRICES,
    ),
    "dates": (
        text([[*row, "2020-01-01"] for row in ROWS], [*HEAD, "day"]).encode(),
        [],
        PRICES,
    ),
    "one row": (text(ROWS[:1]).encode(), [], PRICES[:1]),
    "wider than long": (
        text([[*WIDE, *row] for row in ROWS], [*WIDE, *HEAD]).encode(),
        [],
        PRICES,
    ),
    "500 categories": (
        text([["4", town, "1"] for town in TOWNS]).encode(),
        [],
        [350.0 + 100 * i for i in range(500)],
    ),
    "nullable integers": (parquet(), [], [750.0, 350.0]),
    "decimals": (
        parquet(rooms=[decimal.Decimal("6.00"), None]),
        [],
        [750.0, 350.0],
    ),
    "categoricals": (parquet(town=KINDS), [], [750.0, 350.0]),
    "timestamps and nested": (
        parquet(day=DAYS, nested=[[1], [2]], record=[{"a": 1}] * 2),
        [],
        [750.0, 350.0],
    ),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a model and a schema."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.npz").write_bytes(model_file(MODEL))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


def written(folder, content):
    name = "data.parquet" if content[:4] == b"PAR1" else "data.csv"
    (folder / name).write_bytes(content)
    return name


@pytest.mark.parametrize("kind", READ)
def test_predictions_of_a_file_as_it_is(folder, kind):
    content, options, prices = READ[kind]
    name = written(folder, content)
    result = CliRunner().invoke(app, ["predict", "model.npz", name, *options])
    assert result.exit_code == 0, result.stderr
    told = (folder / "predictions.csv").read_text().split()
    assert told[0] == "predicted_price"
    assert [float(cell) for cell in told[1:]] == pytest.approx(prices)


REFUSED = {
    "empty": (b"", "DATA must be a file with named columns"),
    "no records": (text([]).encode(), "DATA must be a file with at least one record"),
    "twice": (text(head=["rooms", "town", "town"]).encode(), "(not ['town'] twice)"),
    "timestamps": (parquet(rooms=DAYS), "column 'rooms' holds Datetime"),
    "nested": (parquet(town=[["town 2"]] * 2), "column 'town' holds List(String)"),
    "changing": (text().encode(), "it was written to while it was read"),
    "cut off": (parquet()[:-9], "DATA must be a readable file"),
}


@pytest.mark.parametrize("command", ["predict", "train"])
@pytest.mark.parametrize("kind", REFUSED)
def test_a_file_that_is_refused_leaves_nothing(folder, monkeypatch, kind, command):
    content, message = REFUSED[kind]
    name, blocks = written(folder, content), _csv._blocks

    def changing(path, encoding):
        for block in blocks(path, encoding):
            yield block
            if kind == "changing":
                path.write_bytes(content + b"7,town 3,3\n")

    monkeypatch.setattr(_csv, "_blocks", changing)
    before = {path.name for path in folder.rglob("*")}
    what = ["model.npz", name]
    if command == "train":
        what = [name, "--schema", "schema.toml", "--loss", "squared", "--epsilon", "1"]
        what += ["--output", "out"]
    result = CliRunner().invoke(app, [command, *what])
    assert (result.exit_code, result.stdout) == (2, ""), result.exception
    assert message in " ".join(result.stderr.split())
    assert {path.name for path in folder.rglob("*")} == before
