"""Models in other languages predict as they do, from the same raw cells."""

import functools
import sqlite3
import sys

import numpy as np
import pytest
from dp_accounting import NonPrivateDpEvent

from dpjax.accounting import PrivacyGuarantee
from dpjax.datasets import Categorical, Numeric
from dpjax.models import Model
from dpjax.models._shared import BoundedColumn, model_file
from dpjax.solvers import Curves
from tests.unit.cli import command
from tests.unit.cli.command import done, refusals

# Names and categories of which a careless writer makes code.
NUMBER, TEXT = 'a"b\\\n--x;{y}%s', "t'); DROP TABLE t; --\\\n/*é"
TOWNS = ("Ghent", 'O\'Brien\\\n-- "x"', "0.5", "1", "\\", "{Lier}")
COLUMNS = {
    "rooms": Numeric(4, 2, limit=3.0),
    NUMBER: Numeric(1.5e9, 1e-3),
    TEXT: Categorical(TOWNS),
    "sold": Categorical(("true",)),
}
PRIVACY = PrivacyGuarantee.of(1.0, 1e-5, dp_event=NonPrivateDpEvent(), num_samples=40)
WEIGHTS = np.array([0.1, 3e-4, 1.1, -1 / 3, 0.3, 5e-5, 7.0, -0.7, 0.9, -0.2])
BENT = Curves(
    WEIGHTS.astype(np.float32),
    np.array([[0.5, 0.1, -1.5, 0.7], [-0.3, 0.2, 0.0, 1.0]], np.float32),
    *((-5.0, -1.0, 0.5, 2.0), (0, 1), 9),
)
LABELS = {"link": "logit", "target": Categorical(("yes",))}
AMOUNTS = {"link": "log", "target": Numeric(0, 10)}
VARIANTS = {
    "linear": {},
    "curves": {"params": BENT},
    "labels": LABELS,
    "curves of labels": {"params": BENT, **LABELS},
    "amounts": AMOUNTS,
    "exposed": {"params": BENT, **AMOUNTS, "exposure": BoundedColumn("rooms", 5.0)},
}
NAN, INF = np.nan, np.inf
ROOMS = [6.0, NAN, 4.0, -2.0, 10.0, 2.0, 1e300, -1e300, 5.1, INF, 3.3, -INF]
FAR = [1.5e9, 1.5e9 + 7e-4, NAN, 1e300, -1e300, 1.5e9 - 0.003, 0.0, 1.6e9, 3e35, -3e35]
CELLS = [*TOWNS, "", "Mons", "1.0", "true", "nan", "ghent"]
TABLE = {
    "rooms": np.array(ROOMS),
    NUMBER: np.array([*FAR, INF, 1.7e308]),
    TEXT: np.array(CELLS, object),
    "sold": np.array(["true", "1", "True", "no", "", "1.0"] * 2, object),
}


def model(**changes):
    given = {
        **{"params": WEIGHTS, "columns": COLUMNS, "privacy": PRIVACY},
        **{"target_name": "price", "target": Numeric(300, 100), "link": "identity"},
        **{"method": 'coding: utf-7"""\nimport os', "data": "coding: utf-7\u2028*/"},
    }
    return Model(**given | changes)


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


def by_database(connection, content, table, missing):
    """Selects the expression from a table; missing numbers are one value or another."""
    kinds = {"O": "VARCHAR", "f": "DOUBLE PRECISION"}
    names = ", ".join(f"{quoted(k)} {kinds[v.dtype.kind]}" for k, v in table.items())
    connection.execute(f"CREATE TABLE t (place INTEGER, score INTEGER, {names})")
    marks = ", ".join("?" * (len(table) + 2))
    rows = zip(*(column.tolist() for column in table.values()), strict=True)
    for at, row in enumerate(rows):
        cells = [missing[at % 2] if cell != cell else cell for cell in row]
        connection.execute(f"INSERT INTO t VALUES ({marks})", [at, at, *cells])
    query = f"SELECT {content.decode()} FROM t AS record ORDER BY place"
    return [value for (value,) in connection.execute(query).fetchall()]


def by_sqlite(content, table):
    return by_database(sqlite3.connect(":memory:"), content, table, [None, "?"])


def by_duckdb(content, table):
    duckdb = pytest.importorskip("duckdb", reason="duckdb runs the SQL")
    return by_database(duckdb.connect(), content, table, [None, np.nan])


def by_onnx(content, table):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime runs the model")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(content, options)
    (output,) = session.get_outputs()
    (found,) = session.run([output.name], table)
    return found


RUNNERS = {
    "sqlite": ("sql", by_sqlite),
    "duckdb": ("sql", by_duckdb),
    "onnx": ("onnx", by_onnx),
}


def agrees(made, name, table):
    form, run = RUNNERS[name]
    if form == "onnx":
        pytest.importorskip("onnx", reason="onnx writes the model")
    expected = made.predict(table)
    found = np.array(run(made.export(form), table), np.float64)
    assert found.shape == expected.shape
    # Features are rounded to float32 in dpjax, and to float64 elsewhere.
    unit = getattr(made.target, "scale", 1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * unit)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_all_languages_predict_as_the_model_does(variant, runner):
    agrees(model(**VARIANTS[variant]), runner, TABLE)


def test_constants_and_numbers_are_written_exactly():
    for runner in ("sqlite", "duckdb"):
        agrees(model(params=np.array([0.1]), columns={}), runner, TABLE)
    assert b"(-0.3333333333333333e0)" in model().export("sql")


def of(columns, **changes):
    """Changes to a model of these columns, with a weight for each feature."""
    sizes = [len(kind.names(name)) for name, kind in columns.items()]
    return {"params": np.zeros(sum(sizes) + 1), "columns": columns, **changes}


EXPOSED = {"link": "log", "target": Numeric(), "exposure": BoundedColumn("a", 1.0)}
NUL = "columns must be text without NUL"


@pytest.mark.parametrize(
    ("changes", "form", "message"),
    [
        ({}, "c", "format must be onnx or sql, got 'c'"),
        ({"params": np.full(10, np.nan)}, "sql", "params must be finite"),
        (of({"a\0": Numeric()}), "sql", NUL),
        (of({"": Numeric()}), "sql", NUL),
        (of({"\ud800": Numeric()}), "onnx", NUL),
        (of({"a": Categorical(("x\0", "y"))}), "sql", NUL),
        (of({"a": Numeric(), "A": Numeric()}), "sql", "differ in any case"),
        (of({}), "onnx", "columns must be not empty"),
        (
            of({"a": Categorical(("x",))}, **EXPOSED),
            *("sql", "exposure must be no column of categories"),
        ),
    ],
)
def test_models_that_are_refused(changes, form, message):
    if form == "onnx":
        pytest.importorskip("onnx", reason="onnx writes the model")
    with pytest.raises(ValueError, match=message):
        model(**changes).export(form)


invoke = functools.partial(command.invoke, "export")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    (tmp_path / "out").mkdir()
    for path in (tmp_path / "out" / "model.npz", tmp_path / "m.sql"):
        path.write_bytes(model_file(model()))
    return tmp_path


def test_the_command_writes_what_the_model_exports(folder):
    result = invoke("out", "--format", "sql")
    assert (result.exit_code, result.stdout) == (0, "wrote model.sql\n")
    assert (folder / "model.sql").read_bytes() == model().export("sql")
    done(invoke("out", "--format", "sql", "--output", "a/b.sql"))
    assert (folder / "a" / "b.sql").read_bytes() == model().export("sql")


test_what_export_refuses = refusals(
    """
none.npz --format sql => none.npz
out => Missing option '--format'
out --format c => Invalid value for '--format'
out --format sql --output m.py => a file that ends in .sql
m.sql --format sql --output m.sql => another file than MODEL
out --format onnx => needs onnx: pip install "dpjax[export]"
""",
    run=invoke,
)
