"""What tests of commands share."""

import numpy as np
import pytest

ROOMS = """\
columns.rooms = {center = 4, scale = 2}
columns.town = {categories = ["Ghent", "Lier"]}
target = """
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
def rooms(here, monkeypatch):
    """A working directory with 40 records of rooms and prices, and their schemas.

    The only data sets are these, one of a single record, and those of the package.
    """
    monkeypatch.delenv("DPJAX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    (here / "one.csv").write_text("rooms,town,price\n1,2,3\n")
    rng = np.random.default_rng(0)
    rooms = rng.integers(1, 8, 40)
    towns = rng.choice(["Ghent", "Lier", "Mons"], 40)
    prices = 100 + 50 * rooms + 30 * rng.standard_t(2.1, 40)
    rows = zip(rooms, towns, prices, strict=True)
    lines = [f'{r},"{t}",{p:.1f},{"yes" if p > 300 else "no"}' for r, t, p in rows]
    (here / "data.csv").write_text("\n".join(["rooms,town,price,sold", *lines]) + "\n")
    (here / "number.toml").write_text(f"{ROOMS}{{center = 300, scale = 100}}")
    (here / "class.toml").write_text(f'{ROOMS}{{positive = "yes"}}')
    return here
