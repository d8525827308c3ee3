"""Counts and amounts on the command line: a log link, exposure, weights, factors."""

import json

import jax
import numpy as np
import pytest

from dpjax import load_model, losses
from dpjax.cli import _train
from dpjax.cli._ranges import release_ranges
from dpjax.cli._runs import fit, rows_of
from dpjax.cli._schema import Schema
from dpjax.cli._settings import Settings
from dpjax.cli._sources import Table, encode_table
from dpjax.cli._spending import planned
from dpjax.cli._units import units_of
from dpjax.datasets import Numeric
from dpjax.models import private_scores
from dpjax.models._shared import BoundedColumn
from tests.unit.cli.command import said_by as invoke

SCHEMA = """\
columns.age = {center = 40, scale = 20}
target = {column = "claims", scale = 1}
exposure = {column = "years", max = 2}
weight = {column = "w", max = 4}
"""
CELLS = {
    "age": ["20", "60", "?", "40", "80"],
    "claims": ["0", "1", "2", "-3", "x"],
    "years": ["1", "0.5", "9", "", "-1"],
    "w": ["4", "1", "8", "2", "n/a"],
}


def table(units=None):
    """Five records, with every rule that a cell can meet."""
    columns = {name: np.array(cells, object) for name, cells in CELLS.items()}
    bounded = BoundedColumn("years", 2), BoundedColumn("w", 4)
    schema = Schema({"age": Numeric(40, 20)}, Numeric(0, 1), None, *bounded)
    made = Table("t", columns, schema, "claims", np.zeros(5, bool))
    if units is None:
        return made
    return made.by_unit(units_of("who", units, 2))


def test_exposures_and_weights_are_shares_of_their_maximum():
    data = encode_table(table())
    assert data.exposures.tolist() == [0.5, 0.25, 1, 0, 0]
    assert data.weights.tolist() == [1, 0.25, 1, 0.5, 0]
    assert data.targets.tolist() == [0, 1, 2, -3, 0]
    people = encode_table(table(units=["a", "b", "a", "b", "c"]))
    assert people.exposures.tolist() == [0.5, 1, 0.25, 0, 0, 0]
    assert people.weights.tolist() == [1, 1, 0.25, 0.5, 0, 0]


def plan_of(loss="poisson", **options):
    asked = {"source": "t", "epsilon": 1.0, "delta": 1e-3, "loss": loss} | options
    return planned(Settings(**asked), encode_table(table()), None)


def test_each_loss_is_the_one_of_its_power():
    found = [
        plan_of("poisson"),
        plan_of("gamma"),
        plan_of("tweedie"),
        plan_of("tweedie", power=1.75),
    ]
    powers = [1.0, 2.0, 1.5, 1.75]
    assert [plan.loss_fn for plan in found] == list(map(losses.log_link, powers))


def test_the_solver_sees_offsets_and_weights(monkeypatch):
    seen = {}

    def solver(loss, data, **options):
        seen.update(options, loss=loss, targets=data[1])

    monkeypatch.setattr("dpjax.cli._runs.dp_linear_model", solver)
    data = encode_table(table())
    plan = plan_of("tweedie", power=1.25)
    rows = jax.tree.map(jax.numpy.asarray, rows_of(data))
    fit(plan, rows, key=jax.random.key(0))
    # Without exposure a record has no weight, whatever its weight or its target is.
    assert seen["weights"].tolist() == [1, 0.25, 1, 0, 0]
    np.testing.assert_allclose(seen["offsets"], np.log([0.5, 0.25, 1, 1, 1]))
    assert seen["loss"] == losses.log_link(1.25)
    assert "max_weight" not in seen  # they are shares of the public one


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with those records and their schema."""
    monkeypatch.chdir(tmp_path)
    lines = [",".join(cells) for cells in zip(*CELLS.values(), strict=True)]
    (tmp_path / "data.csv").write_text("\n".join([",".join(CELLS), *lines]) + "\n")
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


def train(*options, loss="poisson"):
    what = ["data.csv", "--schema", "schema.toml", "--epsilon", 1, "--output", "out"]
    return invoke("train", *what, "--loss", loss, *options)


def without(*names):
    return "\n".join(line for line in SCHEMA.splitlines() if not line.startswith(names))


CENTERED = SCHEMA.replace("scale = 1}", "center = 0, scale = 1}")
PLAIN = without("exposure", "weight").replace("scale = 1}", "center = 2, scale = 1}")
REFUSED = [
    (PLAIN, [], "poisson", "--schema must be scale, a number, with center 0 or none"),
    (CENTERED, [], "squared", "[exposure], which is left out without --loss poisson"),
    (
        CENTERED.replace("exposure", "weight").replace('"w"', '"age"'),
        [],
        "squared",
        "a TOML file",
    ),
    (SCHEMA, ["--power", 1.5], "gamma", "--power must be left out without --loss twe"),
    (SCHEMA, ["--power", 2], "tweedie", "--power must be strictly between 1 and 2"),
    (SCHEMA.replace('"w"', '"none"'), [], "poisson", "columns of data.csv"),
    (SCHEMA.replace('"w"', '"years"'), [], "poisson", "that have one use each"),
    (SCHEMA.replace('"w"', '"age"'), [], "poisson", "that have one use each"),
    (SCHEMA.replace('"w"', '"claims"'), [], "poisson", "that have one use each"),
    (SCHEMA, ["--unit", "years"], "poisson", "--unit must be a column of"),
]


@pytest.mark.parametrize(("text", "options", "loss", "message"), REFUSED)
def test_what_is_refused_before_a_record_is_read(
    folder, text, options, loss, message, monkeypatch
):
    if "--unit" not in options:  # its column is checked beside the columns
        monkeypatch.setattr("dpjax.cli._sources.Draw.read", None)
    (folder / "schema.toml").write_text(text)
    before = sorted(folder.rglob("*"))
    code, shown, said = train(*options, loss=loss)
    assert (code, shown) == (2, "")
    assert message in said
    assert sorted(folder.rglob("*")) == before


def test_classes_are_refused():
    code, _, said = invoke("train", "adult", "--epsilon", 1, "--loss", "gamma")
    assert code == 2
    assert "--loss must be another than poisson, gamma or tweedie for adult" in said


def test_the_template_asks_for_a_scale_and_the_exposure(folder):
    text = (folder / "data.csv").read_text().replace("years", "exposure")
    (folder / "data.csv").write_text(text)
    what = ["data.csv", "--target", "claims", "--epsilon", 1, "--loss", "poisson"]
    code, shown, said = invoke("train", *what)
    assert code == 2
    assert "--schema must be given for a file" in said
    assert '[target] column = "claims" scale = 1.0' in shown
    assert '[exposure] column = "exposure" max = 1.0' in shown
    _, shown, _ = invoke("schema", "data.csv", "--target", "claims", "--from-data")
    assert "# [columns.exposure] is left out: it is an exposure. With" in shown


def test_check_and_train_name_what_cannot_be_used(folder, monkeypatch):
    code, shown, _ = invoke("check", "data.csv", "--schema", "schema.toml")
    assert code == 0
    assert "years 0 to 2 20.0% 20.0% 20.0%" in shown
    assert "w 0 to 4 20.0% 0% 20.0%" in shown
    text = SCHEMA.replace("max = 2}", "max = 0.1}").replace('"w"', '"note"')
    (folder / "schema.toml").write_text(text)
    lines = (folder / "data.csv").read_text().splitlines()
    lines = [f"{line},{'note' if i == 0 else 'many'}" for i, line in enumerate(lines)]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")

    def begin(*_, **__):
        raise ValueError("it began.")

    monkeypatch.setattr(_train, "train_private", begin)
    code, _, said = train()
    assert "'years': 3 of 5 cells lie above the schema's max, 0.1, and count" in said
    assert "column 'note': 0 of 5 cells hold a number from zero on." in said
    assert said.endswith("Error: it began.")


def test_a_scale_is_bought_without_a_center():
    rng = np.random.default_rng(0)
    amounts = 5_000 + 1_000 * rng.uniform(size=4_000)
    years = rng.choice([0.0, 0.5, 2.0], 4_000)
    columns = {"a": np.zeros(4_000), "y": years * amounts, "e": years}
    schema = Schema({"a": Numeric()}, None, None, BoundedColumn("e", 2.0))
    made = Table("t", columns, schema, "y", np.zeros(4_000, bool))
    options = {"key": jax.random.key(0), "epsilon": 1.0, "delta": 1e-5}
    bought = release_ranges(made, **options, is_centered=False)
    (kind,) = bought.columns.values()
    assert kind.center == 0
    assert 5_000 < kind.scale < 7_500  # a bin of ten a decade
    assert bought.privacy.epsilon == 1.0
    closed = made.with_ranges(bought.columns).schema
    assert closed.target == Numeric(0, 2 * kind.scale)  # for the largest exposure
    assert closed.exposure == schema.exposure


def test_scores_of_a_log_link_are_in_the_units_of_means():
    rng = np.random.default_rng(0)
    means = 0.3 * np.exp(rng.normal(size=40_000))
    counts = rng.poisson(means)
    found = private_scores(
        np.log(means),
        counts,
        beside=np.log(means.mean()),
        loss=losses.log_link(1.0),
        loss_name="poisson",
        scale=100.0,
        key=jax.random.key(0),
        noise_multiplier=2.0,
    )
    middle, far, loss = found.measures[:3]
    errors = 100 * np.abs(means - counts)
    assert middle.model.value == pytest.approx(np.quantile(errors, 0.5), rel=0.1)
    assert far.model.value == pytest.approx(np.quantile(errors, 0.9), rel=0.1)
    for one, mean in ((loss.model, means), (loss.constant, means.mean())):
        deviance = np.where(
            counts > 0, counts * np.log(np.maximum(counts, 1) / mean), 0
        )
        total = 200 * np.mean(deviance - counts + mean)  # in the unit of the target
        assert one.low < total < one.high
        assert one.value == pytest.approx(total, rel=0.05)


@pytest.mark.parametrize("power", [1.0, 1.5])
def test_odd_amounts_raise_nothing(power):
    odd = np.array([np.nan, np.inf, -np.inf, 1e38, -5.0, 0.0] * 3)
    for scores in (odd, np.zeros(18)):
        found = private_scores(
            scores,
            odd[::-1],
            beside=-scores,
            loss=losses.log_link(power),
            loss_name="of amounts",
            scale=1.0,
            key=jax.random.key(0),
            noise_multiplier=2.0,
        )
        for measure in found.measures:
            assert np.isfinite([*measure.model, *measure.constant]).all()


@pytest.fixture
def claims(tmp_path, monkeypatch):
    """A file of policies with half a year on average, and its schema."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n = 20_000
    age, years = rng.uniform(20, 80, n), rng.uniform(0.05, 1, n)
    counts = rng.poisson(0.3 * years * np.exp(0.02 * (age - 50)))
    cost = np.where(counts > 0, 500 * rng.gamma(2.0 * np.maximum(counts, 1)), 0)
    cells = np.stack([age.round(1), years.round(3), counts, cost.round()], axis=1)
    rows = [",".join(map(str, row)) for row in cells.tolist()]
    (tmp_path / "data.csv").write_text("\n".join(["age,years,claims,cost", *rows]))
    text = SCHEMA.replace("max = 2}", "max = 1}").replace("40", "50")
    (tmp_path / "schema.toml").write_text("\n".join(text.splitlines()[:-1]))
    return tmp_path


@pytest.mark.slow
def test_a_frequency_from_end_to_end(claims):
    code, shown, said = train("--holdout", 0.2, "--seed", 0, "--model", "linear")
    assert (code, "Traceback" in said) == (0, False)
    assert "nine of ten by at most" in shown
    report = json.loads((claims / "out" / "report.json").read_text())
    found = report["evaluation"]["measures"]
    (name,) = (one for one in found if "mean poisson deviance" in one)
    # Of the true means it is .58, and of their mean .60: of 4,000 records, less than
    # the noise of one release tells apart.
    for which in ("model", "constant"):
        assert found[name][which]["value"] == pytest.approx(0.6, abs=0.2)
    model = load_model("out")
    assert model.coefficients()["age"] == pytest.approx(0.02, abs=0.006)
    (claims / "new.csv").write_text("age,years\n50,1\n50,0.5\n50,\n50,3\n")
    code, _, said = invoke("predict", "out", "new.csv")
    assert code == 0
    assert (
        "years: 1 of 4 cells lie above 1: they count as this, as in training." in said
    )
    assert "years: 1 of 4 cells hold no number from zero on: they count as zero" in said
    title, *rows = (claims / "predictions.csv").read_text().splitlines()
    assert title == "predicted_claims"
    whole, half, none, more = map(float, rows)
    assert whole == pytest.approx(0.3, rel=0.2)
    assert (half, none, more) == (pytest.approx(whole / 2), 0, whole)
    (claims / "new.csv").write_text("age\n50\n")
    code, _, said = invoke("predict", "out", "new.csv")
    assert "There is no column years: predictions are for one of it." in said
    assert float((claims / "predictions.csv").read_text().split()[1]) == whole
    _, shown, _ = invoke("show", "out")
    assert "Predicts the mean of claims, in proportion to years. A factor is" in shown
    factor = np.exp(model.coefficients()["age"])
    assert f"age larger by 1 {factor:.4g}" in shown
    assert "Means lie between 0.001 and 30 where years is 1, and no more" in shown


@pytest.mark.slow
def test_costs_with_a_bought_scale_and_a_ledger(claims):
    text = (claims / "schema.toml").read_text().replace("scale = 1}", "}")
    text = text.replace('"claims", }', '"cost"}')
    (claims / "schema.toml").write_text(text)
    opened = invoke("ledger", "open", "t.toml", "--epsilon", 3, "--delta", "1e-4")
    assert opened[0] == 0
    what = ["--private-ranges", 0.2, "--ledger", "t.toml", "--holdout", 0.2]
    code, _, said = train(*what, "--epsilon", 2, "--power", 1.6, loss="tweedie")
    assert code == 0, said
    report = json.loads((claims / "out" / "report.json").read_text())
    assert report["ranges"]["columns"]["cost"]["center"] == 0
    assert report["arguments"]["power"] == 1.6
    mean = load_model("out").predict({"age": [50.0], "years": [1.0]})
    assert mean[0] == pytest.approx(300, rel=0.4)  # 1,000 a claim


@pytest.mark.slow
def test_a_named_set_of_amounts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    what = "rand_hie --loss tweedie --epsilon 1 --output out"
    code, _, said = invoke("train", *what.split())
    assert code == 0, said
    rows = json.loads((tmp_path / "out" / "report.json").read_text())["comparison"]
    risks = {row["method"]: row["test_risk"] for row in rows}
    assert None not in risks.values()
    assert risks["DP additive model"] < risks["constant, not private"]
    assert "Means lie between" in invoke("show", "out")[1]
