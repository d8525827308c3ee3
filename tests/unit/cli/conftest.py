"""What tests of commands share."""

import numpy as np
import pytest

from tests.unit.cli.rooms import write_rooms

SCHEMA = """\
columns.x = {center = 0, scale = 1}
target = {column = "y", center = 0, scale = 1}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def folder(here):
    """A working directory with a file of 400 records, and its schema."""
    lines = [f"{a},{2 * a}" for a in np.linspace(-1, 1, 400)]
    (here / "data.csv").write_text("\n".join(["x,y", *lines]))
    (here / "schema.toml").write_text(SCHEMA)
    return here


@pytest.fixture
def rooms(here):
    """A working directory with 40 records of rooms and prices, and their schemas."""
    write_rooms(here)
    return here
