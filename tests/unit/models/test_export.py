"""Models in other languages predict as they do, from every kind of raw cell."""

import functools
import sqlite3
import sys
from contextlib import closing

import jax
import numpy as np
import pytest

from dpjax.datasets import Categorical, Numeric
from dpjax.solvers import Curves
from dpjax.tables.columns._kinds import BoundedColumn
from dpjax.tables.models._model import model_file
from tests.unit.cli import command
from tests.unit.cli.command import done, refusals
from tests.unit.models import test_model

# Names and categories of which a careless writer makes code.
NUMBER, TEXT = 'a"b\\\n--x;{y}%s', "t'); DROP TABLE t; --\\\n/*é"
TOWNS = ("Ghent", 'O\'Brien\\\n-- "x"', "0.5", "1", "\\", "{Lier}")
COLUMNS = {
    "rooms": Numeric(4, 2, limit=3.0),
    NUMBER: Numeric(1.5e9, 1e-3),
    TEXT: Categorical(TOWNS),
    "sold": Categorical(("false", "true", "no"), "no"),
}
WEIGHTS = [0.1, 3e-4, 1.1, -1 / 3, 0.3, 5e-5, 7.0, -0.7, 0.4, 0.9, -0.2]
WEIGHTS = np.array(WEIGHTS)
BENT = Curves(
    WEIGHTS.astype(np.float32),
    np.array([[0.5, 0.1, -1.5, 0.7], [-0.3, 0.2, 0.0, 1.0]], np.float32),
    *((-5.0, -1.0, 0.5, 2.0), (0, 1), 10),
)
LABELS = {"link": "logit", "target": Categorical(("yes",))}
AMOUNTS = {"link": "log", "target": Numeric(0, 10)}
CLASSES = {"link": "softmax", "target": Categorical(("a'", "b", "c"))}
CLASSES["params"] = jax.tree.map(lambda x: np.stack([x, 0.1 * x, -x], -1), BENT)
VARIANTS = {
    "linear": {},
    "curves": {"params": BENT},
    "labels": LABELS,
    "curves of labels": {"params": BENT, **LABELS},
    "amounts": AMOUNTS,
    "exposed": {"params": BENT, **AMOUNTS, "exposure": BoundedColumn("rooms", 5.0)},
    "classes": CLASSES | {"params": CLASSES["params"].slopes},
    "curves of classes": CLASSES,
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
model = functools.partial(
    test_model.model,
    **{"params": WEIGHTS, "columns": COLUMNS, "target_unit": ""},
    **{"method": 'coding: utf-7"""\nimport os', "data": "coding: utf-7\u2028*/"},
)
MISSING = {"sqlite": [None, "?"], "duckdb": [None, np.nan]}
EXPOSED = {"link": "log", "target": Numeric(), "exposure": BoundedColumn("a", 1.0)}
SORTS = {"a": Categorical(("x",))}
NUL = "a name or category must be UTF-8 text without NUL"


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


def by_database(engine, content):
    """Selects the expression from the table, with one missing number or another."""
    kinds = {"O": "VARCHAR", "f": "DOUBLE PRECISION"}
    columns = {name: kinds[column.dtype.kind] for name, column in TABLE.items()}
    cells = zip(*(column.tolist() for column in TABLE.values()), strict=True)
    rows = [
        [at, *(MISSING[engine][at % 2] if cell != cell else cell for cell in row)]
        for at, row in enumerate(cells)
    ]
    query = f"SELECT {content.decode()} FROM t AS record ORDER BY place"
    with connected(engine, {"score": "INTEGER"} | columns, rows) as database:
        return [value for (value,) in database.execute(query).fetchall()]


def connected(engine, columns, rows):
    """Returns a database with a table of these rows, and places, for a `with` block."""
    if engine == "sqlite":
        connection = sqlite3.connect(":memory:")
    else:
        duckdb = pytest.importorskip("duckdb", reason="duckdb runs the SQL")
        connection = duckdb.connect()
    names = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
    connection.execute(f"CREATE TABLE t (place INTEGER, {names})")
    command = f"INSERT INTO t VALUES ({', '.join('?' * (len(columns) + 1))})"
    connection.executemany(command, [[place, *row] for place, row in enumerate(rows)])
    return closing(connection)


def session_of(made):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime runs the model")
    pytest.importorskip("onnx", reason="onnx writes the model")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return runtime.InferenceSession(made.export("onnx"), options)


def agrees(made, runner):
    if runner == "onnx":
        (scores,) = session_of(made).run(None, TABLE)
    else:
        scores = by_database(runner, made.export("sql"))
    expected = made.predict(TABLE)
    if made.link == "softmax" and runner != "onnx":  # of the most probable class
        scores = np.eye(3)[[made.target.categories.index(x) for x in scores]]
        expected = expected == expected.max(axis=1, keepdims=True)
    scores = np.array(scores, np.float64)
    assert scores.shape == expected.shape
    # Features are rounded to float32 in dpjax, and to float64 elsewhere.
    unit = getattr(made.target, "scale", 1.0)
    np.testing.assert_allclose(scores, expected, rtol=1e-6, atol=1e-6 * unit)


@pytest.mark.parametrize("runner", [*MISSING, "onnx"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_models_in_other_languages_predict_as_the_model_does(variant, runner):
    agrees(model(**VARIANTS[variant]), runner)


def test_constants_and_numbers_are_written_exactly():
    for engine in MISSING:
        agrees(model(params=np.array([0.1]), columns={}), engine)
    assert b"(-0.3333333333333333e0)" in model().export("sql")
    # No line is a formula of a spreadsheet.
    assert not any(line.startswith(("=", "+", "@")) for line in sql().splitlines())


def of(columns, **changes):
    """Changes to a model of these columns, with a weight for each feature."""
    sizes = [len(kind.names(name)) for name, kind in columns.items()]
    return {"params": np.zeros(sum(sizes) + 1), "columns": columns, **changes}


@pytest.mark.parametrize(
    ("changes", "form", "message"),
    [
        ({}, "c", "format must be onnx or sql, got 'c'"),
        ({"params": np.full(11, np.nan)}, "sql", "params must be finite"),
        (of({"a\0": Numeric()}), "sql", NUL),
        (of({"\ud800": Numeric()}), "onnx", NUL),
        (of({"a": Numeric(), "A": Numeric()}), "sql", "distinct without case"),
        (of({}), "onnx", "columns must be one or more"),
        (of(SORTS, **EXPOSED), "sql", "exposure must be a column of numbers"),
    ],
)
def test_models_that_are_refused(changes, form, message):
    if form == "onnx":
        pytest.importorskip("onnx", reason="onnx writes the model")
    with pytest.raises(ValueError, match=message):
        model(**changes).export(form)


BIG = "9007199254740993"  # 2^53 + 1, no number of float64
CELL_COLUMNS = {
    "values": Categorical(("1", "0", "0.5", "7", "-3", BIG, "1e+16", "Ghent", "-0.3")),
    "truths": Categorical(("true",)),
    "towns": Categorical(("Ghent", "é", "a\n=1+1", "x01", "1E5", "'")),
    "codes": Categorical(("01", "02", "7", "1E5", "Lier")),
    "amount": Numeric(4.0, 2.0, limit=30.0),
    "far": Numeric(),
}
SIZE = sum(len(kind.names("")) for kind in CELL_COLUMNS.values())
CELL_WEIGHTS = 0.1 + np.sqrt(np.arange(1.0, SIZE + 2))
CELL_MODEL = model(params=CELL_WEIGHTS, columns=CELL_COLUMNS, target=Numeric())
PLAIN = ["1", "0", "7", "-3", BIG, "0.5", "-0.3", "true", "True", "Ghent", "ghent"]
PLAIN += ["", "nan", "?", "é", "a\n=1+1", "x01", "1E5", "'", "01", "02", "Lier", "2"]
SPELLED = ["1.00", "+1", "-1", "1.", "001", "1e0", "1e+00", "1.0e+00", "0.10e+01"]
SPELLED += ["1E+00", "10e-01", "tRUE", "fALSE", "+0.5", "0.50", ".5", "5e-01", "7.000"]
SPELLED += ["-0", "-0.0", "00", "1_8", "1,5", "inf", "-inf", "-3.0", "--3", "+-3"]
SPELLED += [f"+{BIG}", f"{BIG}.0", "9007199254740992", "1e", "e5", "1e+", "+", "."]
SPELLED += ["1.2.3", "-e5", "1.0e+16", "1e16", "10000000000000000", "0x1", "1e400"]
SPELLED += ["1e-400", "12e+03", "2.5E-01", "6e-1", ".5e1", "5.e1", "-.5", "=1+1"]
SPELLED += ["NULL", "1 2", "\u0663", "\ufffd", "1e+5"]
BLANKS = ["\tGhent\n", "\u2003Ghent\xa0", " 1 ", "\r\n7\r\n", "\x1c-3", "\x85tRUE"]
BLANKS += ["  ", "\t", " 0.50", "6.5 ", "\u30001"]
TEXTS = [*PLAIN, *SPELLED, *BLANKS]
REALS = [1.0, 0.5, -0.3, 0.1 + 0.2, 7.0, -3.0, 1e16, 1e15 + 0.5, 123456789012345.6]
REALS += [6.25, 1e300, -0.0, None, 2.0]
WHOLES = [1, 0, 7, -3, int(BIG), int(BIG) - 1, 10**16, 2, None, 100000]
KINDS = {
    "TEXT": (TEXTS, "sqlite", object),
    "VARCHAR": ([*TEXTS, None], "duckdb", object),
    "REAL": (REALS, "sqlite", np.float64),
    "DOUBLE": (REALS, "duckdb", np.float64),
    "FLOAT": ([1.0, 0.5, 7.0, 0.1, None, -3.0], "duckdb", np.float32),
    "NUMERIC": (WHOLES, "sqlite", None),
    "BIGINT": (WHOLES[:-2], "duckdb", np.int64),
    "INTEGER": ([1, 0, 7, -3, 2], "duckdb", np.int32),
    "DECIMAL(18, 2)": ([1, 0, 0.5, 7, -3, -0.3, None, 2.25], "duckdb", object),
    "BOOLEAN": ([True, False], "duckdb", bool),
    "": ([*REALS, *WHOLES, *TEXTS, b"Ghent"], "sqlite", None),
}
invoke = functools.partial(command.invoke, "export")


@functools.cache
def sql():
    return CELL_MODEL.export("sql").decode()


def same_cells(engine, kind, cells):
    """Returns a database with a table whose columns have the same cells, as above."""
    columns = dict.fromkeys(CELL_COLUMNS, kind)
    return connected(engine, columns, [[cell] * len(columns) for cell in cells])


def predicted(cells, dtype):
    is_number = np.issubdtype(dtype, np.number)
    cells = [np.nan if cell is None and is_number else cell for cell in cells]
    column = np.array(cells, dtype if is_number or dtype is bool else object)
    return CELL_MODEL.predict(dict.fromkeys(CELL_COLUMNS, column))


@pytest.mark.parametrize("kind", KINDS)
def test_databases_read_each_cell_as_predict_does(kind):
    cells, engine, dtype = KINDS[kind]
    query = f'SELECT "far", {sql()} FROM t AS record ORDER BY place'
    with same_cells(engine, kind, cells) as connection:
        stored, scores = zip(*connection.execute(query).fetchall(), strict=True)
    if dtype is None:  # a type for each cell
        expected = np.concatenate([predicted([cell], type(cell)) for cell in stored])
    else:
        expected = predicted(stored, dtype)
    is_wrong = ~(abs(scores - expected) <= 1e-6 * np.maximum(abs(expected), 1.0))
    assert not [cell for cell, wrong in zip(stored, is_wrong, strict=True) if wrong]


@pytest.mark.parametrize("engine", MISSING)
def test_a_column_that_is_not_there_is_an_error(engine):
    for name in CELL_COLUMNS:
        with same_cells(engine, "VARCHAR", ["1"]) as connection:
            connection.execute(f'ALTER TABLE t DROP COLUMN "{name}"')
            with pytest.raises(Exception, match=name):
                connection.execute(f"SELECT {sql()} FROM t AS record").fetchall()


def test_a_runtime_reads_each_cell_as_predict_does_or_stops():
    session = session_of(CELL_MODEL)
    for text in TEXTS:
        cells = np.array([text], object)
        numbers = dict.fromkeys(["amount", "far"], np.array([1.0]))
        table = dict.fromkeys(CELL_COLUMNS, cells) | numbers
        try:
            (scores,) = session.run(None, table)
        except Exception as why:
            message, scores = str(why), None
        if scores is None:
            assert "without blanks, as the model writes them" in message
            assert text not in PLAIN
        else:
            expected = CELL_MODEL.predict(table)
            np.testing.assert_allclose(scores, expected, err_msg=repr(text))


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


test_bad_exports_are_refused = refusals(
    """
out => Missing option '--format'
out --format sql --output m.py => a file that ends in .sql
m.sql --format sql --output m.sql => another file than MODEL
out --format onnx => needs onnx: pip install "dpjax[export]"
""",
    run=invoke,
)
