"""`dpjax train --private-ranges`: what it costs, and what it changes."""

import numpy as np
import polars as pl
import pytest

from dpjax import load_model
from tests.unit.cli.command import done, words_of
from tests.unit.cli.rooms import options, params_of, read_report, run

OPEN = """
[columns.rooms]

[columns.town]
categories = ["Ghent", "Lier"]

[target]
"""
ODD_LINES = ['nan,"Ghent,1e38,yes', "", "inf,Lier", "1e39,?,abc,maybe,5", "-1e38,,,"]


def test_private_ranges_count_in_the_guarantee(rooms):
    rng = np.random.default_rng(1)
    sizes = rng.normal(40, 10, 4_000)
    prices = 1e5 + 500 * sizes + 2e3 * rng.standard_t(2.1, 4_000)
    frame = pl.DataFrame({"rooms": sizes, "town": ["Ghent"] * 4_000, "price": prices})
    frame.write_csv(rooms / "data.csv")
    (rooms / "number.toml").write_text(OPEN)
    result = done(run("data.csv", *options(private_ranges=0.25, delta=1e-4)))
    report = read_report(rooms / "out")
    total, ranges = report["privacy"], report["ranges"]
    assert (total["epsilon"], total["delta"]) == (1.0, pytest.approx(1e-4))
    part = ranges["privacy"]
    assert (part["epsilon"], part["delta"]) == (0.25, 2.5e-5)
    assert "any one of the 4,000 records" in total["description"]
    assert "e^1 = 2.72" in total["description"]
    shown = words_of(result.stdout)
    assert "epsilon = 1, delta = 0.0001" in shown
    assert "epsilon = 0.25, delta = 2.5e-05 is for the centers and scales of 2" in shown
    assert set(ranges["columns"]) == {"rooms", "price"}
    assert ranges["columns"]["rooms"]["center"] == pytest.approx(40, rel=0.1)
    assert 10 < ranges["columns"]["rooms"]["scale"] < 40
    assert ranges["columns"]["price"]["center"] == pytest.approx(1.2e5, rel=0.1)
    assert ranges["is_informative"]
    scale = ranges["columns"]["price"]["scale"]
    assert report["target_unit"] == f"price / {scale:g}"


def test_ranges_of_odd_columns(rooms):
    (rooms / "number.toml").write_text(OPEN)
    lines = (rooms / "data.csv").read_text().splitlines()
    (rooms / "data.csv").write_text("\n".join([lines[0], *ODD_LINES * 8]) + "\n")
    result = done(run("data.csv", *options(private_ranges=0.1)))
    assert "may be mere noise" in words_of(result.stderr)
    assert np.isfinite(params_of(rooms)).all()


@pytest.mark.parametrize("target", ["yes", "amount"])
def test_without_ranges_a_model_is_no_worse_than_the_private_mean(here, target):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(4_000, 30))
    if target == "yes":
        values, kind = rng.uniform(size=4_000) < 0.1, "positive = 1"
    else:
        values, kind = 500 + np.exp(2 * rng.normal(size=4_000)), ""
    names = [f"x{i}" for i in range(30)]
    lines = [",".join(f"{x:.6g}" for x in row) for row in np.c_[features, values]]
    (here / "data.csv").write_text("\n".join([",".join([*names, target]), *lines]))
    columns = "".join(f"columns.{name} = {{}}\n" for name in names)
    (here / "schema.toml").write_text(f"{columns}[target]\n{kind}")
    loss = "logistic" if target == "yes" else "squared"
    words = f"data.csv --schema schema.toml --target {target} --loss {loss} "
    words += "--epsilon 0.5 --private-ranges 0.1 --output out --seed 0"
    done(run(*words.split()))
    found = np.asarray(load_model("out/model.npz").predict("data.csv"), np.float64)
    # No feature is worth its noise; the constant is the mean, but for clipped tails.
    assert np.ptp(found) == 0
    np.testing.assert_allclose(found[0], np.mean(values), rtol=0.1)
