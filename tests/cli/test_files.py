"""Tables as people have them, through `dpjax schema` and `dpjax check`."""

import datetime
import tomllib

import numpy as np
import polars as pl
import pytest

from tests.cli import command
from tests.cli.command import words_of

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
        [],
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
def test_a_file_is_read_as_it_is(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    content, options = GOOD[name]
    options = ["--encoding", options] if isinstance(options, str) else options
    (tmp_path / "data.csv").write_bytes(content)
    # From names alone: what is to be filled in is accepted, and told.
    given = ["data.csv", *options, "--target", "price"]
    assert invoke("schema", *given, "--output", "names.toml")[0] == 0
    schema = tomllib.loads((tmp_path / "names.toml").read_text())
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
    (tmp_path / "schema.toml").write_text(shown)
    code, shown, _ = invoke("check", *given, "--schema", "schema.toml")
    assert code == 0
    assert "Nearly every column can be used." in words_of(shown)
    assert words_of(shown).count("0% 0%") == 3


BAD = {
    "empty": (b"", "DATA must be a file with named columns"),
    "twice": (b"town,rooms,town\n1,2,3\n", "distinct names (not ['town'] twice)"),
    "no records": (text([]).encode(), "DATA must be a file with at least one record"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    content, message = BAD[name]
    (tmp_path / "data.csv").write_bytes(content)
    options = ["--from-data", "--output", "schema.toml"]
    code, shown, said = invoke("schema", "data.csv", *options)
    assert (code, shown) == (2, "")
    assert message in said
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]


def test_many_categories_times_and_one_row(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [[f"c{i}", str(i % 9), "2020-01-01", "7"] for i in range(500)]
    head = ["code", "OpTime", "start_date", "price"]
    (tmp_path / "data.csv").write_text(text(rows, head))
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
    frame.write_parquet(tmp_path / "data.parquet")
    shown = invoke("schema", "data.parquet", "--target", "price")[1]
    assert "# [columns.time] is left out: it holds times or dates." in shown
    assert set(tomllib.loads(shown)["columns"]) == {"start_date"}
    content = tomllib.loads(invoke("schema", "data.parquet", *given)[1])
    assert content["target"] == {"column": "price", "scale": 100.0}
    (tmp_path / "data.csv").write_text(text(ROWS[:1]))
    assert invoke("schema", "data.csv", "--from-data")[0] == 0
