"""`dpjax plan`: tables, advice and files from made records; no record is read."""

import json
import re

import numpy as np
import pytest

from dpjax.accounting import PrivacyGuarantee
from dpjax.datasets import Categorical, Numeric
from dpjax.tables.cli._forecast import NUM_TEST, Outcome, _Made, made_records
from dpjax.tables.cli._schema import Schema, date_kind, read_schema
from dpjax.tables.cli._settings import ForecastSettings
from tests.unit.cli.command import done, invoke, refusals

SCHEMA = """\
columns.x = {center = 40, scale = 10, limit = 3}
columns.job = {categories = ["cook", "smith"]}
"""
TARGETS = {
    "squared": "target = {center = 5, scale = 2}",
    "logistic": 'target = {positive = "yes"}',
    "gamma": "target = {scale = 2}",
    "tweedie": "target = {scale = 2}",
}


def plan(*options, rows=300, epsilon="20", loss="squared"):
    with open("schema.toml", "w") as file:
        file.write(SCHEMA + TARGETS[loss])
    words = ["--rows", rows, "--epsilon", epsilon, "--loss", loss, "--model", "linear"]
    return invoke("plan", "schema.toml", *words, *options)


@pytest.fixture
def folder(here):
    """A working directory with a schema."""
    (here / "schema.toml").write_text(SCHEMA + TARGETS["squared"])
    return here


def law(maker, epsilon, rows=None):
    """A width of sampling and noise."""
    rows = rows or maker.settings.rows
    return (9 / rows + (40 / (rows * epsilon)) ** 2) ** 0.5


def test_a_plan_is_printed_and_written_with_its_attacks(folder, monkeypatch):
    monkeypatch.setattr(_Made, "width", law)
    options = ("--seed", 3, "--width", 0.1, "--output", "out")
    shown = done(plan(*options, epsilon="50,20"))
    for words in ("epsilon 20", "epsilon 50", "no privacy", "constant", "R2", "wrote"):
        assert words in shown.output
    content = json.loads((folder / "out" / "plan.json").read_text())
    assert content["settings"]["seed"] == 3
    small, large = content["outcomes"]
    assert (small["epsilon"], large["epsilon"]) == (20, 50)
    assert content["no_privacy"]["loss"] < content["constant"]["loss"]
    assert 0.3 < content["no_privacy"]["R2"] < 0.7  # a signal of one half
    assert small["width"] == pytest.approx((0.03 + 2 / 75**2) ** 0.5, rel=0.01)
    for one in (small, large):
        assert one["least_rows"] == pytest.approx(900, rel=0.1)
    # Attacks grow with epsilon, and are never printed smaller than they are.
    attacks = [list(one["true_positive_rates"].values()) for one in (small, large)]
    assert np.all(np.less_equal(*attacks))
    page = (folder / "out" / "plan.md").read_text()
    printed = re.search(r"\| epsilon 20 \|([^\n]* %[^\n]*)\|\n", page)[1].split("|")
    read = [float(cell.rstrip(" %")) / 100 for cell in printed]
    exact = [*attacks[0], small["posteriors_of_0.01"]["0.001"]]
    assert np.all(np.array(read) >= exact)
    np.testing.assert_allclose(read, exact, rtol=0.1)
    assert (folder / "out" / "plan.png").read_bytes().startswith(b"\x89PNG")


def made(folder, rows=600, **options):
    (folder / "schema.toml").write_text(SCHEMA + TARGETS["squared"])
    path = folder / "schema.toml"
    settings = ForecastSettings(schema=path, rows=rows, epsilon="20", **options)
    return _Made(settings, read_schema(path, link="identity"), "squared", 1)


@pytest.mark.parametrize("start", [np.inf, 0.4, 0.2])
def test_a_search_for_records_ends(folder, monkeypatch, start):
    def least():
        none = PrivacyGuarantee.non_private()
        first, ideal = (Outcome(none, 0, 0, width) for width in (start, 0.4))
        return made(folder).least_rows(1.0, 0.3, first, ideal)

    # No interval below 5,000 records, and a square root beyond.
    def width(_, epsilon, rows):
        return np.inf if rows < 5_000 else (90 / rows) ** 0.5

    monkeypatch.setattr(_Made, "width", width)
    # At 600 it is known to be enough; less has none.
    assert least() == 600 if start == 0.2 else 5_000 <= least() <= 10_000
    monkeypatch.setattr(_Made, "width", lambda *_: np.inf)
    assert least() in (None, 600)


@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson", "tweedie"])
def test_made_records_are_as_declared(loss):
    schema = Schema({"x": Numeric(limit=2.0), "job": Categorical(("a",))}, Numeric())
    laws = {"tail": 3.0, "signal": 0.4, "base_rate": 0.5}
    data = made_records(schema, 50_000, loss, **laws, seed=0)
    assert data.features.shape == (50_000, 3)
    assert data.test_features.shape == (NUM_TEST, 3)
    assert np.abs(data.features[:, 0]).max() == 2
    assert data.features[:, 1].mean() == pytest.approx(0.5, abs=0.02)
    assert np.all(data.features[:, 2] == 1)
    x, job = data.features[:, :2].T
    share = np.corrcoef(np.tanh(x) - job, data.targets)[0, 1] ** 2
    if loss == "squared":
        assert share == pytest.approx(0.4, abs=0.05)
    elif loss == "logistic":
        assert set(data.targets) == {-1, 1}
    else:
        assert data.targets.min() >= 0
        # mean(e^z) e^-1/2 is 1, and half of that with zeros; effects are not normal.
        mean = 0.5 if loss == "tweedie" else 1.0
        assert data.targets.mean() == pytest.approx(mean, rel=0.1)
    assert share > 0.02
    months = Schema({"sold": date_kind(part="month")}, Numeric())
    months = made_records(months, 20_000, loss, **laws, seed=0).features[:, :-1]
    np.testing.assert_allclose(months.mean(axis=0), np.full(11, 1 / 12), atol=0.02)
    rare = made_records(schema, 20_000, loss, **laws | {"base_rate": 0.04}, seed=3)
    if loss in ("logistic", "tweedie"):
        assert np.mean(rare.targets > 0) == pytest.approx(0.04, abs=0.006)


test_bad_plans_are_refused = refusals(
    """
--rows 0 => --rows must be 2 or more, got 0
--rows many => must be a whole number, got 'many'
--epsilon 1,-2 => --epsilon must be 1 to 6 numbers above 0
--epsilon 1,2,3,4,5,6,7 => --epsilon must be 1 to 6 numbers above 0
--delta 0 => --delta must be strictly between 0 and 1
--tail 2 => --tail must be above 2
--signal 1 => --signal must be strictly between 0 and 1
--width 0 => --width must be positive
--loss absolute => '--loss'
--loss logistic => --schema must be a file with positive
--output schema.toml => --output must be a folder
--rows 9000000 => --rows must be at most 6,666,666 with 2 features
--width 1 --loss tweedie => --width must be left out with
""",
    run=plan,
)


def test_a_schema_to_fill_in_is_refused(folder, monkeypatch):
    text = "columns.y = {a = 1}\n" + TARGETS["squared"]
    monkeypatch.setitem(TARGETS, "squared", text)
    assert "center and scale, two numbers" in plan().output
