"""Runs `dpjax` in this process, on a small table of rooms and prices among others."""

import functools
import io
import json
import os
import re
from pathlib import Path

import numpy as np
import openpyxl
import pytest
from typer.testing import CliRunner

from dpjax.tables.cli._app import app
from dpjax.tables.cli._outputs import files


def invoke(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def words_of(text):
    """Returns the words of an output, without frames and line breaks."""
    return " ".join(text.replace("│", " ").split())


def outputs_of(*arguments):
    """Returns the exit code of a command that does not crash, and its words."""
    result = invoke(*arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, words_of(result.stdout), words_of(result.stderr)


def done(result):
    """Returns the result of a command that has done what it was asked."""
    assert result.exit_code == 0, (result.exception, result.stderr)
    return result


def refused(result, *parts):
    """Checks that a command was refused, with words that its message has."""
    assert result.exit_code == 2, result.exception
    for part in parts:
        assert part in words_of(result.stderr)


def tree(folder):
    """Returns the content of every file in a folder, and where links lead to."""
    files = {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}
    return files | {path: os.readlink(path) for path in files if path.is_symlink()}


def write_table(columns):
    """Writes texts of cells to data.csv."""
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    Path("data.csv").write_text("".join(",".join(row) + "\n" for row in rows))


def sheet(rows, **formats):
    """Returns an Excel file with these rows, formats of cells, and a second sheet."""
    book, content = openpyxl.Workbook(), io.BytesIO()
    for row in rows:
        book.active.append(row)
    for place, form in formats.items():
        book.active[place].number_format = form
    book.create_sheet().append(["another"])
    book.save(content)
    return content.getvalue()


def model_file(model):
    """Returns the content of a model's file, as the command writes it."""
    return files(model, {})["model.npz"]


def refusals(lines, run=invoke, fixture="folder"):
    """Tests lines `words of a command => message`: refused, and nothing is written."""

    @pytest.mark.parametrize(
        ("words", "message"), re.findall(r"^(.+?) =>\s+(.+)$", lines, re.MULTILINE)
    )
    def test(request, words, message):
        folder = request.getfixturevalue(fixture)
        before = tree(folder)
        refused(run(*words.split()), message)
        assert tree(folder) == before

    return test


# -- `dpjax train` on the table of the fixture `rooms` --------------------------------
run = functools.partial(invoke, "train")


def options(**changes):
    """The arguments of a good run on data.csv, some changed or, if None, left out."""
    given = {"schema": "number.toml", "target": "price", "loss": "squared"}
    given |= {"epsilon": 1, "output": "out"} | changes
    pairs = {k.replace("_", "-"): v for k, v in given.items() if v is not None}
    return [text for k, v in pairs.items() for text in (f"--{k}", v)]


def read_report(folder):
    return json.loads((folder / "report.json").read_text())


def params_of(folder):
    with np.load(folder / "out" / "model.npz") as saved:
        return saved["params"]
