"""Truth of what is printed of a run: each number is that of its own predictions."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from dpjax.sklearn import DPPoissonRegressor
from dpjax.tables.cli._schema import Schema
from dpjax.tables.cli._sources import Table
from tests.unit.cli.command import done, invoke, words_of
from tests.unit.sklearn.test_scoring import NO_NOISE, N, of_errors, records

HALF = Table("", {}, Schema({}, None), "", np.zeros(N, bool)).held_out(0.5)
UNITS = ["--unit", "who", "--records-per-unit", 1]

COUNTS = """
columns.x = {center = 0, scale = 1, limit = 4}
target = {column = "y", scale = 80e-6}
exposure = {column = "people", max = 9e6}
weight = {column = "w", max = 2}
"""


@pytest.mark.parametrize("more", [[], UNITS], ids=["records", "units"])
def test_train_prints_the_numbers_of_its_own_predictions(here, more):
    """Counties: 29,000 people usually, and nine million at most."""
    rng, x, missing = records(4)
    x, missing = x[:, 0].round(3), missing & (x[:, 0] > 0)
    people = np.minimum(np.exp(rng.normal(np.log(29_000), 1.5, N)), 9e6).round()
    people[::50], people[:3] = 0, [9e6, 5e6, 4e6]
    y = rng.poisson(82e-6 * people * np.exp(0.2 * x))
    table = pd.DataFrame({"x": x, "people": people, "w": 1 + (y % 2)})
    table["who"] = [f"p{i:04d}" for i in range(N)]  # in the order of the records
    table["y"] = np.where(missing, "?", y.astype(str))
    table.loc[5::100, "x"] = np.nan
    table.to_csv("data.csv", index=False)
    (here / "schema.toml").write_text(COUNTS)
    what = ["data.csv", "--schema", "schema.toml", "--loss", "poisson", *more]
    what += ["--epsilon", 1e4, "--holdout", 0.5, "--seed", 0, "--output", "out"]
    shown = words_of(done(invoke("train", *what)).stdout)
    done(invoke("predict", "out", "data.csv", "--output", "predicted.csv"))
    means = pd.read_csv("predicted.csv").iloc[:, -1].to_numpy()
    known = ~missing & (people > 0)
    # The level, of all counties: a cap left out three in five cases.
    assert means[known].sum() == pytest.approx(y[known].sum(), rel=0.05)
    report = json.loads((here / "out" / "report.json").read_text())
    found = report["evaluation"]
    assert "in proportion to the exposure" in found["constant"]
    assert f"About {found['num_scored']:,.0f} of them have a target" in shown
    rows = {name: pair["model"]["value"] for name, pair in found["measures"].items()}
    beside = {n: pair["constant"]["value"] for n, pair in found["measures"].items()}
    is_test = HALF.is_test & known
    assert found["num_scored"] == pytest.approx(is_test.sum(), abs=1)
    rate = math.exp(report["stats"]["constant"]) * 80e-6
    errors = np.abs([means - y, rate * people - y])[:, is_test]
    ends = [one["absolute error: clipped to"] for one in (rows, beside)]
    for start, pair in of_errors(errors, ends).items():
        (name,) = [name for name in rows if name.startswith(start)]
        both = (rows[name], beside[name])[: len(pair)]
        assert both == pytest.approx(list(pair), rel=0.1), name
        assert f"{float(f'{rows[name]:.4g}'):g}" in shown


@pytest.mark.parametrize(
    ("spread", "ends"), [(1.5, None), (0.5, None), (1.5, (0, 1e-4)), (0.5, (0, 1e-4))]
)
def test_the_unit_of_a_target_is_that_of_the_largest_exposure(spread, ends):
    rng, x, _ = records(5)
    people = np.minimum(np.exp(rng.normal(np.log(29_000), spread, N)), 9e6)
    people[:4] = [9e6, 5e6, 4e6, 1e-320]  # and a quotient overflows, without a warning
    y = rng.poisson(82e-6 * people * np.exp(0.2 * x[:, 0]))
    y[3] = 1
    model = DPPoissonRegressor(max_exposure=9e6, target_range=ends, **NO_NOISE)
    means = model.fit(x, y, exposure=people).predict(x, exposure=people)
    assert means.sum() == pytest.approx(y.sum(), rel=0.05)
    assert model.coef_ == pytest.approx([0.2], abs=0.03 if ends else 0.02)


def test_means_at_an_end_of_their_range_are_told(here):
    rng, x, _ = records(6)
    y = rng.poisson(3 * np.exp(x[:, 0]))
    table = pd.DataFrame({"x": x[:, 0].round(3), "y": y})
    table["town"] = rng.choice(["Ghent", "Lier", "Mol", ""], N)
    table.to_csv("data.csv", index=False)
    kinds = "columns.x = {center = 0, scale = 1}\n"
    kinds += 'columns.town = {categories = ["Lier", "Mol"]}\n'
    (here / "schema.toml").write_text(kinds + "target = {column = 'y', scale = 0.1}")
    words = ["data.csv", "--schema", "schema.toml", "--loss", "poisson", "--seed", 0]
    words += ["--epsilon", 1e4, "--holdout", 0.5, "--model", "linear"]
    done(invoke("train", *words, "--output", "out"))
    predicted = done(invoke("predict", "out", "data.csv", "--output", "predicted.csv"))
    means = pd.read_csv("predicted.csv").iloc[:, -1].to_numpy()
    is_end = means > 3 - 1e-6
    measures = json.loads((here / "out" / "report.json").read_text())["evaluation"]
    share = measures["measures"]["share of means at an end of their range"]["model"]
    true = is_end[HALF.is_test].mean()
    assert share["value"] == pytest.approx(true, abs=1e-3)
    assert 0.2 < true < 0.8
    shown, blank = words_of(predicted.stderr), (table["town"] == "").sum()
    assert f"{is_end.sum():,} of 4,000 means are at an end" in shown
    assert f"match no category, {blank:,} of them without a value" in shown
