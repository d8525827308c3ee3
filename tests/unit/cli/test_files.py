"""Files as people have them: read as they are by every command, or refused."""

import datetime
import tomllib

import numpy as np
import polars as pl
import pytest

from dpjax.datasets import Categorical
from tests.unit.cli.command import done, invoke, model_file, outputs_of, sheet
from tests.unit.models.test_model import ROOMS, model

SCHEMA = """\
columns.rooms = {center = 4, scale = 2}
columns.town = {categories = ["Lier", "Mons"]}
target = {column = "price", center = 300, scale = 100}
"""
HEAD = ["town", "rooms", "price"]
NAMES = ["Ghent", "Lier", "Mons"]
ROWS = [[NAMES[i % 3], str(i % 7), f"{1000 + i}.5"] for i in range(60)]
PRICES = [100.0 * (i % 7) - 50 + (0, 100, -100)[i % 3] for i in range(60)]
TOWNS = Categorical(("Lier", "Mons", *map(str, range(500))))
WEIGHTS = np.array([2.0, 1.0, -1.0, *[0.0] * 500, 0.5], np.float32)
MODEL = model(params=WEIGHTS, columns={"rooms": ROOMS, "town": TOWNS})


def text(rows=ROWS, head=HEAD, delimiter=","):
    return "\n".join([delimiter.join(row) for row in [head, *rows]]) + "\n"


PLAIN = text()
EUROS = [[a, b, f"1.{i:03},5 EUR"] for i, (a, b, _) in enumerate(ROWS)]
EUROS = text(EUROS, delimiter=";")
BREAKS = [['"G\n""h"", ent"' if a == "Ghent" else a, *b] for a, *b in ROWS]
NUMBERED = [[str(i), *row] for i, row in enumerate(ROWS)]
PERCENTS = text([[a, f"{b}00 %", c] for a, b, c in ROWS])
IN_SHEET = [[a, int(b), float(c)] for a, b, c in ROWS]
IN_EXCEL = "--skip-lines 1 --last-lines 1"
QUOTED = [[f'"{cell}"' for cell in row] for row in (HEAD, *ROWS)]
DATED = [[*row, "2020-01-01"] for row in ROWS]
GOOD = {  # contents, and options that they need
    "plain": (PLAIN.encode(), ""),
    "latin-1": (PLAIN.replace("Gh", "Ghé").encode("latin-1"), "--encoding latin-1"),
    "euros": (EUROS.encode(), "--decimal , --thousands . --currency EUR"),
    "line breaks": (text(BREAKS).encode(), "--quoted"),
    "an index": (text(NUMBERED, ["", *HEAD]).encode(), ""),
    "all quoted": (text(QUOTED[1:], QUOTED[0]).encode(), ""),
    "percents": (PERCENTS.encode(), "--percent"),
    "a sheet": (sheet([["Sales"], HEAD, *IN_SHEET, ["Total"]]), IN_EXCEL),
    "dates": (text(DATED, [*HEAD, "start_date"]).encode(), ""),
}
ODD = {
    "a title": [["Sales", "of 2023"], [""], HEAD, *ROWS],
    "row names": [[f'"{i}"', *row] for i, row in enumerate(ROWS)],
    "surplus cells": [["Gh,ent", *row[1:]] for row in ROWS[:2]] + ROWS,
    "line breaks": [['"G\nhent"', *ROWS[0][1:]], *ROWS],
    "a sum": [*ROWS, ["Total:", "", "99"], ["", "", ""], [""]],
    "blank lines": [*ROWS[:3], [""], *ROWS],
}
ADVICE = {  # what is told of these rows, and the options that end that
    "a title": "line 3 looks like the header: if a title is above it, use --skip-lines",
    "row names": "60 of 60 lines have one cell more than the header",
    "surplus cells": "data.csv: 2 of 62 lines have more cells than the header, which",
    "line breaks": "1 cells begin with an open quote: --quoted reads cells with line",
    "a sum": "begins with 'Total': if it is a sum and no record, use --last-lines 3",
    "blank lines": "blank lines between others count as records (1)",
}
ENDS = {
    "a title": "--skip-lines 2",
    "row names": "--row-names",
    "line breaks": "--quoted",
    "a sum": "--last-lines 3",
}
PROPOSED = ["euros", "line breaks", "dates", "percents", "a sheet"]
READ = {name: (*case, PRICES) for name, case in GOOD.items()}
READ["one row"] = text(ROWS[:1]).encode(), "", PRICES[:1]


@pytest.mark.parametrize("kind", ODD)
def test_odd_lines_are_reported_by_commands_that_read_records(here, kind):
    def told(*options):
        shown = outputs_of("schema", "data.csv", "--from-data", *options)
        checked = outputs_of("check", "data.csv", "--schema", "schema.toml", *options)
        messages = shown[2], checked[1]
        return shown[0], checked[0], *(ADVICE[kind] in message for message in messages)

    head, *rows = [HEAD, *ODD[kind]] if kind != "a title" else ODD[kind]
    (here / "data.csv").write_text(text(rows, head))
    (here / "schema.toml").write_text(SCHEMA.replace("columns.town", "# "))
    # A title names no column of the schema: the option is told before the error.
    assert told() == (0, 2 * (kind == "a title"), True, True)
    if kind in ENDS:
        assert told(*ENDS[kind].split()) == (0, 0, False, False)
    # What looks at the header alone tells nothing.
    assert done(invoke("schema", "data.csv")).stderr == ""


def written(here, kind):
    """Returns the name of a file that it writes, with the content of this kind."""
    name = "data.xlsx" if kind == "a sheet" else "data.csv"
    (here / name).write_bytes(READ[kind][0])
    return name


@pytest.mark.parametrize("name", PROPOSED)
def test_a_proposed_schema_fits_its_file(here, name):
    options, asked = GOOD[name][1].split(), [written(here, name), "--target", "price"]
    # From names alone: what is to be filled in is accepted, and told.
    done(invoke("schema", *asked, *options, "--output", "names.toml"))
    shown = outputs_of("check", *asked, *options, "--schema", "names.toml")[1]
    assert "its categories are still to be listed" in shown
    given = [*asked, *options, "--from-data"]
    done(invoke("schema", *given, "--output", "schema.toml"))
    schema = tomllib.loads((here / "schema.toml").read_text())
    assert schema.get("quoted", False) == (name == "line breaks")
    assert set(schema["columns"]) == {"town", "rooms"}
    assert len(schema["columns"]["town"]["categories"]) == 3
    assert schema["target"]["center"] == 1e3
    options = [x for x in options if x != "--quoted"]  # as the schema says
    shown = outputs_of("check", *asked, *options, "--schema", "schema.toml")[1]
    assert "Nearly every column can be used." in shown


def test_a_title_above_the_header_is_reported(here):
    (here / "data.csv").write_text("Sales of 2023\n" + PLAIN)
    code, _, shown = outputs_of("schema", "data.csv")
    title = "'Sales of 2023'. If this is a title above the header, --skip-lines 1"
    assert (code, title in shown) == (0, True)
    result = invoke("schema", "data.csv", "--skip-lines", 1)
    assert set(tomllib.loads(result.stdout)["columns"]) == {"town", "rooms", "price"}
    assert result.stderr == ""


def test_columns_of_many_categories_and_of_times_are_left_out_of_a_schema(here):
    rows = [[f"c{i}", str(i % 9), "2020-01-01", "7"] for i in range(500)]
    head = ["code", "OpTime", "start_date", "price"]
    (here / "data.csv").write_text(text(rows, head))
    given = "--target", "price", "--from-data", "--loss", "gamma"
    content = tomllib.loads(invoke("schema", "data.csv", *given).stdout)
    assert content["columns"] == {"OpTime": {"center": 4.0, "scale": 3.0}}
    columns = {
        "start_date": np.arange(9.0),
        "time": [datetime.datetime(2020, 1, 1)] * 9,
        "nested": [[1]] * 9,
        "price": np.arange(9.0) * 40 - 100,
    }
    pl.DataFrame(columns).write_parquet(here / "data.parquet")
    shown = invoke("schema", "data.parquet", "--target", "price").stdout
    assert "# [columns.time] is left out: it holds times or dates." in shown
    assert set(tomllib.loads(shown)["columns"]) == {"start_date"}
    content = tomllib.loads(invoke("schema", "data.parquet", *given).stdout)
    assert content["target"] == {"column": "price", "scale": 100.0}
    (here / "data.csv").write_text(text(ROWS[:1]))
    done(invoke("schema", "data.csv", "--from-data"))


@pytest.mark.parametrize("kind", READ)
def test_a_file_is_predicted_in_its_own_format(here, kind):
    _, options, prices = READ[kind]
    (here / "model.npz").write_bytes(model_file(MODEL))
    done(invoke("predict", "model.npz", written(here, kind), *options.split()))
    title, *cells = (here / "predictions.csv").read_text().split()
    assert title == "predicted_price"
    assert [float(cell) for cell in cells] == pytest.approx(prices)
