"""Every kind of cell counts in other languages as in `predict`, or is an error."""

import functools
import sqlite3

import numpy as np
import pytest
from dp_accounting import NonPrivateDpEvent

from dpjax.accounting import PrivacyGuarantee
from dpjax.datasets import Categorical, Numeric
from dpjax.models import Model

duckdb = pytest.importorskip("duckdb", reason="duckdb runs the SQL")
runtime = pytest.importorskip("onnxruntime", reason="onnxruntime runs the model")

BIG = "9007199254740993"  # 2^53 + 1, no number of float64
COLUMNS = {
    "values": Categorical(("1", "0", "0.5", "7", "-3", BIG, "1e+16", "Ghent", "-0.3")),
    "truths": Categorical(("true",)),
    "towns": Categorical(("Ghent", "é", "a\n=1+1", "x01", "1E5", "'")),
    "codes": Categorical(("01", "02", "7", "1E5", "Lier")),
    "amount": Numeric(4.0, 2.0, limit=30.0),
    "far": Numeric(),
}
PRIVACY = PrivacyGuarantee.of(np.inf, 0.0, dp_event=NonPrivateDpEvent())
SIZE = sum(len(kind.names("")) for kind in COLUMNS.values())
MODEL = Model(
    **{"params": 0.1 + np.sqrt(np.arange(1.0, SIZE + 2)), "columns": COLUMNS},
    **{"target_name": "y", "target": Numeric(), "link": "identity"},
    privacy=PRIVACY,
)
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
    "TEXT": (TEXTS, sqlite3, object),
    "VARCHAR": ([*TEXTS, None], duckdb, object),
    "REAL": (REALS, sqlite3, np.float64),
    "DOUBLE": (REALS, duckdb, np.float64),
    "FLOAT": ([1.0, 0.5, 7.0, 0.1, None, -3.0], duckdb, np.float32),
    "NUMERIC": (WHOLES, sqlite3, None),
    "BIGINT": (WHOLES[:-2], duckdb, np.int64),
    "INTEGER": ([1, 0, 7, -3, 2], duckdb, np.int32),
    "DECIMAL(18, 2)": ([1, 0, 0.5, 7, -3, -0.3, None, 2.25], duckdb, object),
    "BOOLEAN": ([True, False], duckdb, bool),
    "": ([*REALS, *WHOLES, *TEXTS, b"Ghent"], sqlite3, None),
}


@functools.cache
def sql():
    return MODEL.export("sql").decode()


def connected(engine):
    return engine.connect(*([":memory:"] if engine is sqlite3 else []))


def table_of(connection, kind, cells):
    """Makes a table whose columns have the same cells."""
    names = ", ".join(f'"{name}" {kind}' for name in COLUMNS)
    connection.execute(f"CREATE TABLE t (place INTEGER, {names})")
    marks = ", ".join("?" * (len(COLUMNS) + 1))
    for place, cell in enumerate(cells):
        row = [place, *[cell] * len(COLUMNS)]
        connection.execute(f"INSERT INTO t VALUES ({marks})", row)


def predicted(cells, dtype):
    is_number = np.issubdtype(dtype, np.number)
    cells = [np.nan if cell is None and is_number else cell for cell in cells]
    column = np.array(cells, dtype if is_number or dtype is bool else object)
    return MODEL.predict(dict.fromkeys(COLUMNS, column))


@pytest.mark.parametrize("kind", KINDS)
def test_databases_read_each_cell_as_predict_does(kind):
    cells, engine, dtype = KINDS[kind]
    connection = connected(engine)
    table_of(connection, kind, cells)
    query = f'SELECT "far", {sql()} FROM t AS record ORDER BY place'
    stored, scores = zip(*connection.execute(query).fetchall(), strict=True)
    if dtype is None:  # a type for each cell
        expected = np.concatenate([predicted([cell], type(cell)) for cell in stored])
    else:
        expected = predicted(stored, dtype)
    is_wrong = ~(abs(scores - expected) <= 1e-6 * np.maximum(abs(expected), 1.0))
    assert not [cell for cell, wrong in zip(stored, is_wrong, strict=True) if wrong]


@pytest.mark.parametrize("engine", [sqlite3, duckdb], ids=["sqlite", "duckdb"])
def test_a_column_that_is_not_there_is_an_error(engine):
    for name in COLUMNS:
        connection = connected(engine)
        table_of(connection, "VARCHAR", ["1"])
        connection.execute(f'ALTER TABLE t DROP COLUMN "{name}"')
        with pytest.raises((sqlite3.Error, duckdb.Error), match=name):
            connection.execute(f"SELECT {sql()} FROM t AS record").fetchall()


def test_a_runtime_reads_each_cell_as_predict_does_or_stops():
    pytest.importorskip("onnx", reason="onnx writes the model")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = runtime.InferenceSession(MODEL.export("onnx"), options)
    for text in TEXTS:
        cells = np.array([text], object)
        numbers = dict.fromkeys(["amount", "far"], np.array([1.0]))
        table = dict.fromkeys(COLUMNS, cells) | numbers
        try:
            (scores,) = session.run(None, table)
        except Exception as why:
            message, scores = str(why), None
        if scores is None:
            assert "without blanks, as the model writes them" in message
            assert text not in PLAIN
        else:
            np.testing.assert_allclose(scores, MODEL.predict(table), err_msg=repr(text))


def test_no_line_of_sql_begins_with_a_formula():
    assert not any(line.startswith(("=", "+", "@")) for line in sql().splitlines())
