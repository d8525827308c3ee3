"""Tables as people have them, through `dpjax schema` and `dpjax check`."""

import datetime
import tomllib

import numpy as np
import polars as pl
import pytest

from tests.unit.cli import command
from tests.unit.cli.command import words_of

HEAD = ["town", "rooms", "price"]
ROWS = [
    [["Ghent", "Lier", "Mons"][i % 3], str(i % 7), f"{1000 + i}.5"] for i in range(60)
]


def text(rows=ROWS, head=HEAD, delimiter=","):
    return "\n".join([delimiter.join(row) for row in [head, *rows]]) + "\n"


def invoke(*arguments):
    result = command.invoke(*arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, words_of(result.stderr)


GOOD = {
    "plain": (text().encode(), []),
    "mark": (text().encode("utf-8-sig"), []),
    "utf-16": (text().encode("utf-16"), []),
    "latin-1": (text().replace("Ghent", "Ghént").encode("latin-1"), "latin-1"),
    "semicolons": (text(delimiter=";").encode(), []),
    "tabs": (text(delimiter="\t").encode(), []),
    "bars": (text(delimiter="|").encode(), []),
    "windows": (text().replace("\n", "\r\n").encode(), []),
    "decimal commas": (
        text(delimiter=";").replace(".5", ",5").encode(),
        ["--decimal", ","],
    ),
    "euros": (
        text(
            [[a, b, f"1.{i:03},5 EUR"] for i, (a, b, _) in enumerate(ROWS)],
            delimiter=";",
        ).encode(),
        ["--decimal", ",", "--thousands", ".", "--currency", "EUR"],
    ),
    "line breaks": (
        text(
            [['"G\n""h"", ent"' if a == "Ghent" else a, *b] for a, *b in ROWS]
        ).encode(),
        ["--quoted"],
    ),
    "an index": (
        text([[str(i), *r] for i, r in enumerate(ROWS)], ["", *HEAD]).encode(),
        [],
    ),
    "all quoted": (
        text([[f'"{x}"' for x in r] for r in ROWS], [f'"{x}"' for x in HEAD]).encode(),
        [],
    ),
    "dates": (
        text([[*r, "2020-01-01"] for r in ROWS], [*HEAD, "start_date"]).encode(),
        [],
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_file_is_read_as_it_is(here, name):
    content, options = GOOD[name]
    options = ["--encoding", options] if isinstance(options, str) else options
    (here / "data.csv").write_bytes(content)
    # From names alone: what is to be filled in is accepted, and told.
    given = ["data.csv", *options, "--target", "price"]
    assert invoke("schema", *given, "--output", "names.toml")[0] == 0
    schema = tomllib.loads((here / "names.toml").read_text())
    assert schema["columns"]["town"] == {"categories": ["FILL IN"]}
    code, shown, _ = invoke("check", *given, "--schema", "names.toml")
    assert code == 0
    assert "its categories are still to be listed" in " ".join(shown.split())
    code, shown, _ = invoke("schema", *given, "--from-data")
    assert code == 0
    schema = tomllib.loads(shown)
    assert set(schema["columns"]) == {"town", "rooms"}
    assert len(schema["columns"]["town"]["categories"]) == 3
    assert schema["target"]["center"] == 1e3
    (here / "schema.toml").write_text(shown)
    code, shown, _ = invoke("check", *given, "--schema", "schema.toml")
    assert code == 0
    assert "Nearly every column can be used." in words_of(shown)
    assert words_of(shown).count("0% 0%") == 3


ADVICE = {
    "row names": (
        text([[f'"{i}"', *row] for i, row in enumerate(ROWS)]),
        "60 of 60 lines have one cell more than the header",
        ["--row-names"],
    ),
    "surplus cells": (
        text([["Gh,ent", *row[1:]] for row in ROWS[:2]] + ROWS),
        "data.csv: 2 of 62 lines have more cells than the header, which are not read",
        None,
    ),
    "line breaks": (
        text([['"G\nhent"', *ROWS[0][1:]], *ROWS]),
        "1 cells begin with an open quote: --quoted reads cells with line breaks",
        ["--quoted"],
    ),
    "an open quote": (
        text([['"G\nhent"', *ROWS[0][1:]], *ROWS, ['"inch', "1", "2"]]),
        "1 cells begin with an open quote: without --quoted a line is a record",
        None,
    ),
    "a sum": (
        text([*ROWS, ["Total:", "", "99"]]) + ",,\n\n",
        "begins with 'Total': if it is a sum and no record, use --last-lines 3",
        ["--last-lines", 3],
    ),
    "blank lines at the end": (
        text() + "\n;\n\n".replace(";", ","),
        "blank lines at the end count as records (3): --last-lines 3",
        ["--last-lines", 3],
    ),
    "blank lines": (
        text([*ROWS[:3], [""], *ROWS]),
        "blank lines between others count as records (1)",
        None,
    ),
}


@pytest.mark.parametrize("kind", ADVICE)
def test_lines_are_told_by_what_looks_at_records(here, kind):
    content, message, options = ADVICE[kind]
    (here / "data.csv").write_text(content)
    schema = 'columns.rooms = {center = 3, scale = 2}\ntarget = {column = "price"'
    (here / "schema.toml").write_text(schema + ", center = 1000, scale = 50}")
    given = ["--quoted"] if kind == "an open quote" else []

    def told(*options):
        shown = invoke("schema", "data.csv", "--from-data", *given, *options)
        check = ["check", "data.csv", "--schema", "schema.toml"]
        checked = invoke(*check, *given, *options)
        assert (shown[0], checked[0]) == (0, 0)
        return message in shown[2], message in words_of(checked[1])

    assert told() == (True, True)
    if options is not None:
        assert told(*options) == (False, False)
    # What looks at the header alone tells nothing.
    assert invoke("schema", "data.csv", "--target", "price")[2] == ""


def test_a_schema_says_that_cells_are_quoted(here):
    content, _ = GOOD["line breaks"]
    (here / "data.csv").write_bytes(content)
    given = "data.csv", "--target", "price"
    invoke("schema", *given, "--from-data", "--quoted", "--output", "schema.toml")
    assert "\nquoted = true" in (here / "schema.toml").read_text()
    shown = invoke("check", *given, "--schema", "schema.toml")[1]
    assert "Nearly every column can be used." in words_of(shown)
    written = (here / "schema.toml").read_text().replace("quoted = true", "")
    (here / "schema.toml").write_text(written)
    assert "--quoted" in invoke("check", *given, "--schema", "schema.toml")[1]


def test_a_title_above_the_header_is_told(here):
    (here / "data.csv").write_text("Sales of 2023\n" + text())
    code, _, said = invoke("schema", "data.csv")
    assert code == 0
    assert (
        "'Sales of 2023'. If this is a title above the header, --skip-lines 1" in said
    )
    _, shown, said = invoke("schema", "data.csv", "--skip-lines", 1)
    assert set(tomllib.loads(shown)["columns"]) == {"town", "rooms", "price"}
    assert said == ""


BAD = {
    "empty": (b"", "DATA must be a file with named columns"),
    "twice": (b"town,rooms,town\n1,2,3\n", "distinct names (not ['town'] twice)"),
    "no records": (text([]).encode(), "DATA must be a file with at least one record"),
}


def test_many_categories_times_and_one_row(here):
    rows = [[f"c{i}", str(i % 9), "2020-01-01", "7"] for i in range(500)]
    head = ["code", "OpTime", "start_date", "price"]
    (here / "data.csv").write_text(text(rows, head))
    given = "--target", "price", "--from-data", "--loss", "gamma"
    content = tomllib.loads(invoke("schema", "data.csv", *given)[1])
    assert content["columns"] == {"OpTime": {"center": 4.0, "scale": 3.0}}
    frame = pl.DataFrame(
        {
            "start_date": np.arange(9.0),
            "time": [datetime.datetime(2020, 1, 1)] * 9,
            "nested": [[1]] * 9,
            "price": np.arange(9.0) * 40 - 100,
        }
    )
    frame.write_parquet(here / "data.parquet")
    shown = invoke("schema", "data.parquet", "--target", "price")[1]
    assert "# [columns.time] is left out: it holds times or dates." in shown
    assert set(tomllib.loads(shown)["columns"]) == {"start_date"}
    content = tomllib.loads(invoke("schema", "data.parquet", *given)[1])
    assert content["target"] == {"column": "price", "scale": 100.0}
    (here / "data.csv").write_text(text(ROWS[:1]))
    assert invoke("schema", "data.csv", "--from-data")[0] == 0
