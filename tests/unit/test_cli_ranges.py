"""`dpjax train --private-ranges`: what it costs, and what it changes."""

import numpy as np
import polars as pl
import pytest

from tests.unit.cli.command import done, refused
from tests.unit.cli.rooms import (
    NUMBER,
    ODD_LINES,
    options,
    params_of,
    read_report,
    run,
    write_rooms,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a file of 40 records and its schemas."""
    monkeypatch.chdir(tmp_path)
    return write_rooms(tmp_path)


OPEN = """
[columns.rooms]

[columns.town]
categories = ["Ghent", "Lier"]

[target]
"""


@pytest.fixture
def many(folder):
    """A file of 4,000 records, and a schema without numbers."""
    rng = np.random.default_rng(1)
    rooms = rng.normal(40, 10, 4_000)
    prices = 1e5 + 500 * rooms + 2e3 * rng.standard_t(2.1, 4_000)
    frame = pl.DataFrame({"rooms": rooms, "town": ["Ghent"] * 4_000, "price": prices})
    frame.write_csv(folder / "data.csv")
    (folder / "number.toml").write_text(OPEN)
    return folder


@pytest.mark.slow
def test_private_ranges_count_in_the_guarantee(many):
    result = done(run("data.csv", *options(private_ranges=0.25, delta=1e-4)))
    report = read_report(many / "out")
    total, ranges = report["privacy"], report["ranges"]
    assert (total["epsilon"], total["delta"]) == (1.0, pytest.approx(1e-4))
    part = ranges["privacy"]
    assert (part["epsilon"], part["delta"]) == (0.25, 2.5e-5)
    assert "any one of the 4,000 records" in total["description"]
    assert "e^1 = 2.72" in total["description"]
    shown = " ".join(result.stdout.split())
    assert "epsilon = 1, delta = 0.0001" in shown
    assert "epsilon = 0.25, delta = 2.5e-05 is for the centers and scales of 2" in shown
    assert set(ranges["columns"]) == {"rooms", "price"}
    assert ranges["columns"]["rooms"]["center"] == pytest.approx(40, rel=0.1)
    assert 10 < ranges["columns"]["rooms"]["scale"] < 40
    assert ranges["columns"]["price"]["center"] == pytest.approx(1.2e5, rel=0.1)
    assert ranges["is_informative"]
    scale = ranges["columns"]["price"]["scale"]
    assert report["target_unit"] == f"price / {scale:g}"
    # The training has three quarters, so more noise than with all of it.
    noise = report["stats"]["noise_multiplier"]
    written = "center = 40\nscale = 10\n[columns.town]"
    text = OPEN.replace("[columns.town]", written).rstrip() + "\n" + NUMBER
    (many / "number.toml").write_text(text)
    done(run("data.csv", *options(delta=1e-4)))
    report = read_report(many / "out")
    assert report["stats"]["noise_multiplier"] < 0.8 * noise
    assert "ranges" not in report
    refused(
        run("data.csv", *options(private_ranges=0.25)),
        "--private-ranges must be left out where the schema leaves no center",
    )


@pytest.mark.slow
def test_ranges_of_odd_columns(folder):
    (folder / "number.toml").write_text(OPEN)
    lines = (folder / "data.csv").read_text().splitlines()
    (folder / "data.csv").write_text("\n".join([lines[0], *ODD_LINES * 8]) + "\n")
    changes = {"private_ranges": 0.1}
    result = done(run("data.csv", *options(**changes)))
    assert "may be mere noise" in " ".join(result.stderr.split())
    assert np.isfinite(params_of(folder)).all()
