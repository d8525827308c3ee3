"""What `describe` and `plan` print, beside the same numbers without privacy."""

import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import dpjax
from dpjax.datasets import Categorical, Numeric
from dpjax.tables.cli._forecast import made_records
from dpjax.tables.cli._schema import read_schema
from tests.unit import test_describe
from tests.unit.cli.command import done, invoke
from tests.unit.cli.test_forecast import law, plan
from tests.unit.cli.test_forecast import made as maker_of
from tests.unit.cli.test_numbers_of_describe_and_plan import (
    EXACT,
    NUM,
    PLANNED,
    SCHEMA,
    assert_possible,
    assert_right,
    described,
    right,
    table,
)

DECLARED = """\
columns.free = {}
columns.income = {center = 10_000, scale = 10_000, limit = 1}
columns.age = {center = 50, scale = 50, limit = 1}
columns.town = {categories = ["Ghent", "Lier", "Nowhere"]}
columns.owns = {categories = ["true"]}
"""


def test_numbers_of_units(folder):
    """Counts are of the first records of each person, and everything says so."""
    frame = table(900)
    frame.insert(0, "who", np.arange(900) % 240)
    frame.to_csv("data.csv", index=False)
    Path("schema.toml").write_text(DECLARED)
    options = ["--schema", "schema.toml", "--unit", "who", "--output", "out"]
    options += ["--seed", 0, "--delta", 1e-3]
    for each, epsilon in ((1, EXACT), (3, 8.0)):
        own = "--records-per-unit", each, "--epsilon", epsilon
        result = done(invoke("describe", "data.csv", *options, *own))
        content = json.loads(Path("out/description.json").read_text())
        ends = {"value": np.nan, "low": -np.inf, "high": np.inf}
        rows = [
            SimpleNamespace(**{k: ends[k] if x is None else x for k, x in row.items()})
            for row in content["rows"]
        ]
        assert_possible(rows, each * 240, None)
        if epsilon == EXACT:
            first = frame[frame.groupby("who").cumcount() < each]
            assert_right(rows, right(first, content["edges"], None))
    page, text = Path("out/description.html").read_text(), "240 values of who"
    for shown in (" ".join(result.stdout.split()), page):
        assert "the first 3 records of each value of who" in shown
    assert text in Path("out/description.svg").read_text()
    assert "n = 720" not in page
    assert "(other): cells in none of the listed categories" in page
    done(invoke("report", "out"))
    assert "the first 3 records of each value of who" in page


def test_numbers_of_a_sample():
    frame = table(2 * NUM)
    for epsilon in (0.5, EXACT):
        found = described(frame, epsilon=epsilon, max_records=NUM, by="town")
        assert_possible(found.rows, 2 * NUM, "town")
    (owns,) = (r for r in found.rows if r[:4] == ("owns", "Lier", "count", "true"))
    truth = len(frame.query("town == 'Lier' and owns == 'true'"))
    assert owns.low < truth < owns.high


@pytest.fixture
def planned(folder):
    def plan(target, *options, rows=2_000):
        Path("schema.toml").write_text(PLANNED + f"target = {target}")
        words = ["schema.toml", "--rows", rows, "--seed", 3, "--output", "plan"]
        shown = done(invoke("plan", *words, *options)).stdout
        return json.loads(Path("plan/plan.json").read_text()), " ".join(shown.split())

    return plan


def made(target, loss, base_rate=0.5, rows=2_000):
    Path("schema.toml").write_text(PLANNED + f"target = {target}")
    schema = read_schema(Path("schema.toml"), link="identity")
    laws = {"tail": 3.0, "signal": 0.5, "base_rate": base_rate}
    return made_records(schema, rows, loss, seed=3, **laws)


def test_numbers_of_a_plan(planned):
    target = "{center = 5, scale = 2}"
    options = "--epsilon", "1000", "--model", "linear"
    content, _ = planned(target, *options, rows=20_000)
    data = made(target, "squared", rows=20_000)
    x, y = data.features.astype(float), data.targets.astype(float)
    weights, (rss,), *_ = np.linalg.lstsq(x, y)
    off = data.test_targets - data.test_features @ weights
    (private,) = content["outcomes"]
    at_mean = np.mean((data.test_targets - y.mean()) ** 2) / 2
    for outcome, errors in ((private, off), (content["no_privacy"], off)):
        assert outcome["loss"] == pytest.approx(np.mean(errors**2) / 2, rel=2e-3)
        score = 1 - np.mean(errors**2) / np.var(data.test_targets)
        assert outcome["R2"] == pytest.approx(score, abs=2e-3)
    assert content["constant"]["loss"] == pytest.approx(at_mean, rel=1e-3)
    # The classical intervals; those of the model bear unequal variances.
    variances = rss / (len(y) - x.shape[1]) * np.linalg.inv(x.T @ x).diagonal()
    width = np.median(2 * 1.96 * np.sqrt(variances[:-1]))
    assert private["width"] == pytest.approx(width, rel=0.15)


def test_of_rare_labels_a_plan_promises_less(planned, monkeypatch):
    monkeypatch.setattr("dpjax.tables.cli._forecast._Made.width", lambda *_: np.inf)
    kept = []
    for options in ([], ["--base-rate", 0.04]):
        target = '{positive = "yes"}'
        content, shown = planned(target, "--epsilon", 0.5, *options)
        least, best = content["constant"]["loss"], content["no_privacy"]["loss"]
        (private,) = content["outcomes"]
        kept.append((least - private["loss"]) / (least - best))
        assert f"{4 if options else 50} % of the labels are positive" in shown
    assert kept[1] < kept[0] - 0.2


@pytest.mark.parametrize("loss", ["poisson", "squared"])
def test_without_privacy_a_model_is_no_worse(planned, monkeypatch, loss):
    monkeypatch.setattr("dpjax.tables.cli._forecast._Made.width", lambda *_: np.inf)
    target = "{scale = 2}" if loss == "poisson" else "{center = 5, scale = 2}"
    options = "--epsilon", "3,20", "--loss", loss
    content, _ = planned(target, *options, rows=5_000)
    best = content["no_privacy"]
    for one in content["outcomes"]:
        assert best["loss"] <= one["loss"]
        assert best["R2"] >= one["R2"]
    # And where columns bend it is better than lines.
    lines, _ = planned(target, *options, "--model", "linear", rows=5_000)
    assert best["loss"] < lines["no_privacy"]["loss"] - 1e-3


def test_widths_shrink_with_records(folder):
    maker = maker_of(folder)
    assert 1.5 < maker.width(20.0, 4_000) / maker.width(20.0, 16_000) < 5


def test_a_limit_makes_numbers_as_exact_as_it_allows():
    frame = table(1_000)[["income"]].dropna()
    half = {}
    for limit in (None, SCHEMA["income"]):
        schema = {"income": limit}
        options = {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-4}
        found = dpjax.describe(frame, schema, **options)
        (row,) = (x for x in found.rows if x.statistic == "mean")
        half[limit] = (row.high - row.low) / 2
    clipped = frame["income"].clip(0, 20_000)
    sampling = 1.96 * clipped.std() / len(clipped) ** 0.5
    assert abs(row.value - clipped.mean()) < half[limit] < 2 * sampling
    assert half[limit] < half[None] / 4


@pytest.mark.parametrize(("loss", "score"), [("logistic", "AUC"), ("tweedie", "R2")])
def test_other_losses(folder, monkeypatch, loss, score):
    if loss != "tweedie":
        monkeypatch.setattr("dpjax.tables.cli._forecast._Made.width", law)
    done(plan("--seed", 1, "--output", "out", loss=loss))
    content = json.loads((folder / "out" / "plan.json").read_text())
    (outcome,), constant = content["outcomes"], content["constant"]
    assert outcome[score] > constant[score]
    assert constant[score] == pytest.approx(0.5 * (loss == "logistic"), abs=0.05)
    assert (outcome["width"] is None) == (loss == "tweedie")


def test_a_sample_counts_for_all():
    rng, num, runs = np.random.default_rng(1), 20_000, 40
    frame = {"x": rng.normal(3.0, 1.0, num), "owns": rng.random(num) < 0.3}
    schema = {"x": Numeric(3, 5, limit=1), "owns": Categorical(("true",))}
    truths = {
        ("x", "count", ""): num,
        ("x", "mean", ""): frame["x"].mean(),
        ("x", "median", ""): np.median(frame["x"]),
        ("owns", "count", "true"): frame["owns"].sum(),
        ("owns", "share", "true"): frame["owns"].mean(),
        ("x", "histogram", "3 to 3.5"): np.sum((frame["x"] > 3) & (frame["x"] <= 3.5)),
    }
    missed, wide = dict.fromkeys(truths, 0), 0.0
    for key in range(runs):
        options = {"key": key, "delta": 1e-5, "max_records": 2_000}
        found = test_describe.described(frame, schema, **options)
        rows = {(row.column, row.statistic, row.of): row for row in found.rows}
        for place, truth in truths.items():
            missed[place] += not rows[place].low <= truth <= rows[place].high
        row = rows["owns", "count", "true"]
        wide += (row.high - row.low) / 2 / 1.96 / runs
    # A truth of the table is in each interval with a probability of 95 % or more: eight
    # of 40 are out with one of less than 4e-4.
    assert max(missed.values()) < 8, missed
    # And they are no wider than sampling and noise, by which 200 would be out alone.
    assert 200 < wide < 300
    assert (found.num_samples, found.sample_size) == (num, 2_000)
    assert 0.999 * 3 < found.privacy.epsilon <= 3
    assert 0.999e-5 < found.privacy.delta <= 1e-5
    assert "20,000 records" in found.privacy.description
    assert all(cost.epsilon < 3 for cost in found.costs)
