"""Files as people have them, through `predict` and `train`: right, or refused whole."""

import datetime
import decimal
import io

import numpy as np
import polars as pl
import pytest
from dp_accounting import NonPrivateDpEvent

from dpjax.accounting import PrivacyGuarantee
from dpjax.datasets import Categorical, Numeric
from dpjax.models import Model
from tests.unit.cli.command import done, invoke, model_content, tree, words_of
from tests.unit.cli.test_files import BAD, GOOD, HEAD, ROWS, text

MODEL = Model(
    params=np.array([2.0, 1.0, -1.0, *[0.0] * 500, 0.5], np.float32),
    columns={
        "rooms": Numeric(4, 2),
        "town": Categorical(("Lier", "Mons", *map(str, range(500)))),
    },
    target_name="price",
    target=Numeric(300, 100),
    link="identity",
    privacy=PrivacyGuarantee.of(1.0, 1e-5, dp_event=NonPrivateDpEvent()),
    method="by hand",
    data="homes.csv",
)
SCHEMA = """\
columns.rooms = {center = 4, scale = 2}
columns.town = {categories = ["Lier", "Mons"]}
target = {column = "price", center = 300, scale = 100}
"""
PRICES = [100.0 * (i % 7) - 50 + (0, 100, -100)[i % 3] for i in range(60)]


def parquet(**columns):
    file = io.BytesIO()
    frame = {"rooms": [6, None], "town": ["Lier", None], "price": [1.0, 2.0]}
    pl.DataFrame(frame | columns).write_parquet(file)
    return file.getvalue()


DAYS, WIDE = [datetime.datetime(2020, 1, 1)] * 2, [f"c{i}" for i in range(700)]
KINDS = pl.Series(["Lier", None], dtype=pl.Categorical)
WIDER = text([[*WIDE, *row] for row in ROWS], [*WIDE, *HEAD]).encode()
READ = {name: (*case, PRICES) for name, case in GOOD.items()}
READ |= {
    "one row": (text(ROWS[:1]).encode(), [], PRICES[:1]),
    "wider than long": (WIDER, [], PRICES),
    "nullable integers": (parquet(), [], [650.0, 350.0]),
    "decimals": (parquet(rooms=[decimal.Decimal("6.00"), None]), [], [650.0, 350.0]),
    "categoricals": (parquet(town=KINDS), [], [650.0, 350.0]),
    "timestamps and nested": (
        parquet(day=DAYS, nested=[[1], [2]], record=[{"a": 1}] * 2),
        [],
        [650.0, 350.0],
    ),
}


@pytest.fixture
def folder(here):
    """A working directory with a model and a schema."""
    (here / "model.npz").write_bytes(model_content(MODEL))
    (here / "schema.toml").write_text(SCHEMA)
    return here


def written(folder, content):
    name = "data.parquet" if content[:4] == b"PAR1" else "data.csv"
    (folder / name).write_bytes(content)
    return name


@pytest.mark.parametrize("kind", READ)
def test_predictions_of_a_file_as_it_is(folder, kind):
    content, options, prices = READ[kind]
    options = ["--encoding", options] if isinstance(options, str) else options
    name = written(folder, content)
    done(invoke("predict", "model.npz", name, *options))
    told = (folder / "predictions.csv").read_text().split()
    assert told[0] == "predicted_price"
    assert [float(cell) for cell in told[1:]] == pytest.approx(prices)


REFUSED = BAD | {
    "timestamps": (parquet(rooms=DAYS), "column 'rooms' holds timestamp[us]"),
    "nested": (parquet(town=[["Lier"]] * 2), "column 'town' holds large_list"),
    "cut off": (parquet()[:-9], "DATA must be a readable file"),
}


@pytest.mark.parametrize("command", ["predict", "train"])
@pytest.mark.parametrize("kind", REFUSED)
def test_a_file_that_is_refused_leaves_nothing(folder, kind, command):
    content, message = REFUSED[kind]
    name = written(folder, content)
    before = tree(folder)
    what = ["model.npz", name]
    if command == "train":
        what = [name, "--schema", "schema.toml", "--loss", "squared", "--epsilon", "1"]
        what += ["--output", "out"]
    result = invoke(command, *what)
    assert (result.exit_code, result.stdout) == (2, ""), result.exception
    assert message in words_of(result.stderr)
    assert tree(folder) == before
