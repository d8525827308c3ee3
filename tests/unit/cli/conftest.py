"""What tests of commands share."""

import numpy as np
import pytest

SCHEMA = """\
columns.x = {center = 0, scale = 1}
target = {column = "y", center = 0, scale = 1}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a file of 400 records, and its schema."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{a},{2 * a}" for a in np.linspace(-1, 1, 400)]
    (tmp_path / "data.csv").write_text("\n".join(["x,y", *lines]))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path
