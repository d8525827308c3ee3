"""Numbers that commands print, beside the same ones without privacy."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from dpjax.datasets import Categorical, Numeric
from dpjax.sklearn import DPPoissonRegressor
from dpjax.tables.cli._forecast import made_records
from dpjax.tables.cli._schema import Schema, read_schema
from dpjax.tables.cli._sources import Table
from tests.unit import test_describe
from tests.unit.cli.command import done, invoke, words_of
from tests.unit.cli.test_forecast import SCHEMA as PLANNED
from tests.unit.cli.test_forecast import law, plan
from tests.unit.cli.test_forecast import made as maker_of
from tests.unit.sklearn.test_scoring import NO_NOISE, N, of_errors, records

NUM, EXACT = 4_000, 1e6
LIMITS = {"income": (0.0, 20_000.0), "age": (0.0, 100.0)}
SCHEMA = {
    "free": None,
    "income": Numeric(10_000, 10_000, limit=1),
    "age": Numeric(50, 50, limit=1),
    "town": Categorical(("Ghent", "Lier", "Nowhere")),
    "owns": Categorical(("true",)),
}
DECLARED = """\
columns.free = {}
columns.income = {center = 10_000, scale = 10_000, limit = 1}
columns.age = {center = 50, scale = 50, limit = 1}
columns.town = {categories = ["Ghent", "Lier", "Nowhere"]}
columns.owns = {categories = ["true"], others = "reference"}
"""
HALF = Table("", {}, Schema({}, None), "", np.zeros(N, bool)).held_out(0.5)
UNITS = ["--unit", "who", "--records-per-unit", 1]
COUNTS = """
columns.x = {center = 0, scale = 1, limit = 4}
target = {column = "y", scale = 80e-6}
exposure = {column = "people", max = 9e6}
weight = {column = "w", max = 2}
"""


def table(num=NUM):
    """Returns a table with skewed incomes, missing cells and an undeclared town."""
    rng = np.random.default_rng(0)
    income = rng.lognormal(np.log(17_400), 0.7, num)
    frame = {
        "free": rng.normal(3e3, 2.0, num),
        "income": np.where(rng.random(num) < 0.2, np.nan, income),
        "age": rng.integers(18, 95, num).astype(float),
        "town": rng.choice(["Ghent", "Lier", "Mol"], num, p=[0.5, 0.4, 0.1]),
        "owns": rng.choice(["true", "false"], num),
    }
    return pd.DataFrame(frame)


def described(frame, *, epsilon=EXACT, seed=0, **options):
    return test_describe.described(frame, SCHEMA, key=seed, epsilon=epsilon, **options)


def right(frame, edges, by):
    """Yields each number that a description states, by its place."""
    town = frame["town"].where(frame["town"] != "Mol", "(other)")
    for name in SCHEMA:
        is_whole = by is None or name == by
        for group in ["(all)"] if is_whole else ["Ghent", "Lier", "Nowhere", "(other)"]:
            own = frame[name] if is_whole else frame[name][town == group]
            if name in ("free", *LIMITS):
                known = own.dropna().clip(*LIMITS.get(name, (None, None)))
                yield (name, group, "count", ""), len(known)
                yield (name, group, "missing", ""), len(own) - len(known)
                if len(known):
                    yield (name, group, "mean", ""), [known.mean()] * 2
                    for place, share in ("median", 0.5), ("quantile 0.9", 0.9):
                        ends = "lower", "higher"
                        ends = [known.quantile(share, interpolation=x) for x in ends]
                        yield (name, group, place, ""), ends
                inner = np.asarray(edges[name][1:-1], np.float32)
                bins = np.searchsorted(inner, known.astype(np.float32), side="left")
                for index, count in enumerate(np.bincount(bins, minlength=20)):
                    yield (name, group, "histogram", index), count
                continue
            categories = SCHEMA[name].categories
            cells = own.where(own.isin(categories), "(other)")
            for of in (*categories, "(other)"):
                number = int((cells == of).sum())
                yield (name, group, "count", of), number
                if len(own):
                    yield (name, group, "share", of), number / len(own)


def places_of(rows):
    """Returns rows by column, group, statistic and category, or index of the bin."""
    places, bins = {}, {}
    for row in rows:
        of, where = row.of, (row.column, row.group)
        if row.statistic == "histogram":
            of = bins[where] = bins.get(where, -1) + 1
        places[*where, row.statistic, of] = row
    return places


def assert_right(rows, truths):
    by_place = places_of(rows)
    for place, truth in truths:
        row = by_place[place]
        assert row.low <= row.value <= row.high, place
        if place[2] in ("count", "missing", "histogram", "share"):
            assert row.value == pytest.approx(truth, abs=1e-9), place
        else:  # between two samples, to steps and rounding
            step = 3e-5 * max(map(abs, truth))
            assert truth[0] - step <= row.value <= truth[1] + step, place
            assert row.low <= sum(truth) / 2 <= row.high, place


def assert_possible(rows, num, by, total=None):
    """Asserts that numbers are possible ones, and agree."""
    by_place, sizes = places_of(rows), {}
    for (name, group, statistic, _), row in by_place.items():
        ends = {"share": (0, 1), "difference": (-np.inf, np.inf)}
        low, high = ends.get(statistic, (0, num))
        if statistic in ("mean", "median", "quantile 0.9"):
            low, high = LIMITS.get(name, (-np.inf, np.inf))
        assert low <= row.low <= row.value <= row.high <= high, row
        assert row.low < row.high, row
        if statistic in ("count", "missing"):
            sizes[name, group] = sizes.get((name, group), 0) + row.value
    groups = {group for _, group in sizes} - {"(all)"}
    for name in SCHEMA:
        for group in ["(all)"] if by is None or name == by else groups:
            cells = {k: r.value for k, r in by_place.items() if k[:2] == (name, group)}
            shares = [value for k, value in cells.items() if k[2] == "share"]
            assert not shares or sum(shares) == pytest.approx(1.0, abs=1e-9)
            if by is None:
                size = total or sizes["age", group]
            else:
                place = by, "(all)", "count", group
                size = num if name == by else by_place[place].value
            assert sizes[name, group] == pytest.approx(size), (name, group)
            if name in ("free", *LIMITS):
                bins = [value for k, value in cells.items() if k[2] == "histogram"]
                assert sum(bins) == pytest.approx(cells[name, group, "count", ""])


@pytest.mark.parametrize("by", ["town", None])
def test_a_description_states_the_numbers_of_its_table(by):
    frame = table()
    exact = described(frame, by=by)
    assert_right(exact.rows, right(frame, exact.edges, by))
    for seed, epsilon in enumerate((0.5, EXACT)):
        noisy = described(frame, by=by, epsilon=epsilon, seed=seed)
        assert_possible(noisy.rows, NUM, by, NUM)
        if epsilon < EXACT:  # intervals of 95 percent, of noise and of sampling
            places, truths = places_of(noisy.rows), [*right(frame, noisy.edges, by)]
            rows = [(places[place], np.mean(truth)) for place, truth in truths]
            missed = [row for row, truth in rows if not row.low <= truth <= row.high]
            assert len(missed) <= 0.08 * len(truths), missed


def test_a_description_counts_the_first_records_of_each_person(folder):
    """And everything says so."""
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
        ends = {"value": np.nan, "low": -np.inf, "high": np.inf, "part_by_noise": 1}
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


@pytest.fixture
def planned(folder):
    def plan(target, *options, rows=2_000):
        Path("schema.toml").write_text(PLANNED + f"target = {target}")
        words = ["schema.toml", "--rows", rows, "--seed", 3, "--output", "plan"]
        shown = done(invoke("plan", *words, *options)).stdout
        return json.loads(Path("plan/plan.json").read_text()), " ".join(shown.split())

    return plan


def test_a_plan_states_the_numbers_of_models_of_its_records(planned):
    target = "{center = 5, scale = 2}"
    options = "--epsilon", "1000", "--model", "linear"
    content, _ = planned(target, *options, rows=20_000)
    schema = read_schema(Path("schema.toml"), link="identity")
    laws = {"tail": 3.0, "signal": 0.5, "base_rate": 0.5}
    data = made_records(schema, 20_000, "squared", seed=3, **laws)
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
    gains = []  # of what a model without privacy gains
    for options in ([], ["--base-rate", 0.04]):
        content, shown = planned('{positive = "yes"}', "--epsilon", 0.5, *options)
        least, best = content["constant"]["loss"], content["no_privacy"]["loss"]
        (private,) = content["outcomes"]
        gains.append((least - private["loss"]) / (least - best))
        assert f"{4 if options else 50} % of the labels are positive" in shown
    assert gains[1] < gains[0] - 0.2


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
    widths = []
    for limit in (None, SCHEMA["income"]):
        options = {"key": 1, "epsilon": 1.0, "delta": 1e-4}
        rows = test_describe.described(frame, {"income": limit}, **options).rows
        (row,) = (x for x in rows if x.statistic == "mean")
        widths.append((row.high - row.low) / 2)
    clipped = frame["income"].clip(0, 20_000)
    sampling = 1.96 * clipped.std() / len(clipped) ** 0.5
    assert abs(row.value - clipped.mean()) < widths[1] < 2 * sampling
    assert widths[1] < widths[0] / 4


@pytest.mark.parametrize(("loss", "score"), [("logistic", "AUC"), ("tweedie", "R2")])
def test_plans_of_other_losses_have_their_scores(folder, monkeypatch, loss, score):
    if loss != "tweedie":
        monkeypatch.setattr("dpjax.tables.cli._forecast._Made.width", law)
    done(plan("--seed", 1, "--output", "out", loss=loss))
    content = json.loads((folder / "out" / "plan.json").read_text())
    (outcome,), constant = content["outcomes"], content["constant"]
    assert outcome[score] > constant[score]
    assert constant[score] == pytest.approx(0.5 * (loss == "logistic"), abs=0.05)
    assert (outcome["width"] is None) == (loss == "tweedie")


def test_intervals_of_a_sample_hold_the_numbers_of_all_records():
    rng, num, runs = np.random.default_rng(1), 20_000, 40
    frame = {"x": rng.normal(3.0, 1.0, num), "owns": rng.random(num) < 0.3}
    schema = {"x": Numeric(3, 5, limit=1), "owns": Categorical(("true",))}
    x, owns = frame.values()
    truths = {("x", "count", ""): num, ("x", "mean", ""): x.mean()}
    truths |= {("x", "median", ""): np.median(x), ("owns", "count", "true"): owns.sum()}
    truths["owns", "share", "true"] = owns.mean()
    truths["x", "histogram", "3 to 3.5"] = np.sum((x > 3) & (x <= 3.5))
    missed, wide = dict.fromkeys(truths, 0), 0.0
    for key in range(runs):
        options = {"key": key, "delta": 1e-5, "max_records": 2_000}
        description = test_describe.described(frame, schema, **options)
        rows = {(row.column, row.statistic, row.of): row for row in description.rows}
        for place, truth in truths.items():
            missed[place] += not rows[place].low <= truth <= rows[place].high
        row = rows["owns", "count", "true"]
        wide += (row.high - row.low) / 2 / 1.96 / runs
    # Of 40 intervals of 95 % eight miss their truths with a probability below 4e-4.
    assert max(missed.values()) < 8, missed
    # And they are no wider than sampling and noise, by which 200 would be out alone.
    assert 200 < wide < 300
    assert (description.num_samples, description.sample_size) == (num, 2_000)
    assert 0.999 * 3 < description.privacy.epsilon <= 3
    assert 0.999e-5 < description.privacy.delta <= 1e-5
    assert "20,000 records" in description.privacy.description
    assert all(cost.epsilon < 3 for cost in description.costs)


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
    evaluation = report["evaluation"]
    assert "in proportion to the exposure" in evaluation["constant"]
    assert f"About {evaluation['num_scored']:,.0f} of them have a target" in shown
    measures = evaluation["measures"]
    rows = {name: pair["model"]["value"] for name, pair in measures.items()}
    beside = {name: pair["constant"]["value"] for name, pair in measures.items()}
    is_test = HALF.is_test & known
    assert evaluation["num_scored"] == pytest.approx(is_test.sum(), abs=1)
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
    table = pd.DataFrame({"x": x[:, 0].round(3), "y": rng.poisson(3 * np.exp(x[:, 0]))})
    table["town"] = rng.choice(["Ghent", "Lier", "Mol", ""], N)
    table.to_csv("data.csv", index=False)
    kinds = "columns.x = {center = 0, scale = 1}\n"
    kinds += 'columns.town = {categories = ["Lier", "Mol"]}\n'
    (here / "schema.toml").write_text(kinds + "target = {column = 'y', scale = 0.1}")
    words = ["data.csv", "--schema", "schema.toml", "--loss", "poisson", "--seed", 0]
    words += ["--epsilon", 1e4, "--holdout", 0.5, "--model", "linear"]
    done(invoke("train", *words, "--output", "out"))
    predicted = done(invoke("predict", "out", "data.csv", "--output", "predicted.csv"))
    is_end = pd.read_csv("predicted.csv").iloc[:, -1].to_numpy() > 3 - 1e-6
    measures = json.loads((here / "out" / "report.json").read_text())["evaluation"]
    share = measures["measures"]["share of means at an end of their range"]["model"]
    true = is_end[HALF.is_test].mean()
    assert share["value"] == pytest.approx(true, abs=1e-3)
    assert 0.2 < true < 0.8
    shown, blank = words_of(predicted.stderr), (table["town"] == "").sum()
    assert f"{is_end.sum():,} of 4,000 means are at an end" in shown
    words = f"match no category, such as 'Ghent', {blank:,} of them without a value"
    assert words in shown
