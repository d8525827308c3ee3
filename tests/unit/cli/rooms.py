"""A small table of rooms and prices, and runs of `dpjax train` on it."""

import json

import numpy as np

from tests.unit.cli.command import invoke

SCHEMA = """
[columns.rooms]
center = 4
scale = 2

[columns.town]
categories = ["Ghent", "Lier"]

[target]
"""
NUMBER = "center = 300\nscale = 100\n"


def run(*arguments):
    """Runs `dpjax train` with these arguments; no file may be left half-written."""
    result = invoke("train", *arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def options(**changes):
    """The arguments of a good run on data.csv, some changed or, if None, left out."""
    given = {
        "schema": "number.toml",
        "target": "price",
        "loss": "squared",
        "epsilon": 1,
        "output": "out",
    } | changes
    pairs = {k.replace("_", "-"): v for k, v in given.items() if v is not None}
    return [text for k, v in pairs.items() for text in (f"--{k}", v)]


def read_report(folder):
    return json.loads((folder / "report.json").read_text())


def params_of(folder):
    with np.load(folder / "out" / "model.npz") as saved:
        return saved["params"]
