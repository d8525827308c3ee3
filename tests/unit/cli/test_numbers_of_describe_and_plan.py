"""What `describe` and `plan` print, beside the same numbers without privacy."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

import dpjax
from dpjax._describe import Row
from dpjax.cli._forecast import _Made
from dpjax.cli._made_records import made_records
from dpjax.cli._schema import read_schema
from dpjax.datasets import Categorical, Numeric
from tests.unit.cli.command import done, invoke

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
columns.owns = {categories = ["true"]}
"""
PLANNED = """\
columns.x = {center = 40, scale = 10, limit = 3}
columns.job = {categories = ["cook", "smith"]}
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
    key = jax.random.key(seed)
    return dpjax.describe(
        frame, SCHEMA, key=key, epsilon=epsilon, delta=1e-6, **options
    )


def right(frame, edges, by):
    """Yields each number that a description states, by its place."""
    names = {"free": None, **LIMITS}
    town = frame["town"].where(frame["town"] != "Mol", "(other)")
    for name in SCHEMA:
        is_whole = by is None or name == by
        groups = ["(all)"] if is_whole else ["Ghent", "Lier", "Nowhere", "(other)"]
        for group in groups:
            own = frame[name] if is_whole else frame[name][town == group]
            if name in names:
                known = own.dropna()
                known = known if names[name] is None else known.clip(*names[name])
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
    found, bins = {}, {}
    for row in rows:
        of, where = row.of, (row.column, row.group)
        if row.statistic == "histogram":
            of = bins[where] = bins.get(where, -1) + 1
        found[*where, row.statistic, of] = row
    return found


def assert_right(rows, truths):
    found = places_of(rows)
    for place, truth in truths:
        row = found[place]
        assert row.low <= row.value <= row.high, place
        if place[2] in ("count", "missing", "histogram", "share"):
            assert row.value == pytest.approx(truth, abs=1e-9), place
        else:  # between two samples, to steps and rounding
            step = 3e-5 * max(map(abs, truth))
            assert truth[0] - step <= row.value <= truth[1] + step, place
            assert row.low <= sum(truth) / 2 <= row.high, place


def assert_possible(rows, num, by, total=None):
    """Asserts that numbers are possible ones, and agree."""
    found, sizes = places_of(rows), {}
    for (name, group, statistic, _), row in found.items():
        low, high = {"share": (0, 1)}.get(statistic, (0, num))
        if statistic in ("mean", "median", "quantile 0.9"):
            low, high = LIMITS.get(name, (-np.inf, np.inf))
        assert low <= row.low <= row.value <= row.high <= high, row
        assert row.low < row.high, row
        if statistic in ("count", "missing"):
            sizes[name, group] = sizes.get((name, group), 0) + row.value
    groups = {group for _, group in sizes} - {"(all)"}
    for name in SCHEMA:
        for group in ["(all)"] if by is None or name == by else groups:
            cells = {k: r.value for k, r in found.items() if k[:2] == (name, group)}
            shares = [value for k, value in cells.items() if k[2] == "share"]
            assert not shares or sum(shares) == pytest.approx(1.0, abs=1e-9)
            if by is None:
                size = total or sizes["age", group]
            else:
                size = num if name == by else found[by, "(all)", "count", group].value
            assert sizes[name, group] == pytest.approx(size), (name, group)
            if name in ("free", *LIMITS):
                bins = [value for k, value in cells.items() if k[2] == "histogram"]
                assert sum(bins) == pytest.approx(cells[name, group, "count", ""])


@pytest.mark.parametrize("by", [None, "town"])
def test_numbers_of_a_description(by):
    frame = table()
    found = described(frame, by=by)
    assert_right(found.rows, right(frame, found.edges, by))
    for seed, epsilon in enumerate((0.02, 0.5, EXACT)):
        rows = described(frame, by=by, epsilon=epsilon, seed=seed).rows
        assert_possible(rows, NUM, by, NUM)


def test_numbers_of_a_sample():
    frame = table(2 * NUM)
    for epsilon in (0.5, EXACT):
        found = described(frame, epsilon=epsilon, max_records=NUM, by="town")
        assert_possible(found.rows, 2 * NUM, "town")
    (owns,) = (r for r in found.rows if r[:4] == ("owns", "Lier", "count", "true"))
    truth = len(frame.query("town == 'Lier' and owns == 'true'"))
    assert owns.low < truth < owns.high


@pytest.mark.slow
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
        ends: Any = {"value": np.nan, "low": -np.inf, "high": np.inf}
        rows = [
            Row(**{k: ends[k] if x is None else x for k, x in row.items()})
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


def test_a_limit_makes_numbers_as_exact_as_it_allows():
    frame = table(1_000)[["income"]].dropna()
    half = {}
    for limit in (None, SCHEMA["income"]):
        schema = {"income": limit}
        found = dpjax.describe(
            frame, schema, key=jax.random.key(1), epsilon=1.0, delta=1e-4
        )
        (row,) = (x for x in found.rows if x.statistic == "mean")
        half[limit] = (row.high - row.low) / 2
    clipped = frame["income"].clip(0, 20_000)
    sampling = 1.96 * clipped.std() / len(clipped) ** 0.5
    assert abs(row.value - clipped.mean()) < half[limit] < 2 * sampling
    assert half[limit] < half[None] / 4


@pytest.fixture
def planned(folder):
    """Makes the plan of a loss without a width, and reads it and its printout."""

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


@pytest.mark.slow
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


@pytest.mark.parametrize("loss", ["logistic", "tweedie"])
def test_a_plan_has_the_stated_base_rate(folder, loss):
    target = '{positive = "yes"}' if loss == "logistic" else "{scale = 2}"
    Path("schema.toml").write_text(PLANNED + f"target = {target}")
    schema = read_schema(Path("schema.toml"), link="log" if loss == "tweedie" else None)
    laws = {"tail": 3.0, "signal": 0.5, "base_rate": 0.04}
    data = made_records(schema, 20_000, loss, seed=3, **laws)
    assert np.mean(data.targets > 0) == pytest.approx(0.04, abs=0.006)


@pytest.mark.slow
def test_of_rare_labels_a_plan_promises_less(planned, monkeypatch):
    monkeypatch.setattr(_Made, "width", lambda *_: np.inf)
    kept = []
    for options in ([], ["--base-rate", 0.04]):
        target = '{positive = "yes"}'
        content, shown = planned(target, "--epsilon", 0.5, *options)
        least, best = content["constant"]["loss"], content["no_privacy"]["loss"]
        (private,) = content["outcomes"]
        kept.append((least - private["loss"]) / (least - best))
        assert f"{4 if options else 50} % of the labels are positive" in shown
    assert kept[1] < kept[0] - 0.2


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["poisson", "squared"])
def test_without_privacy_a_model_is_no_worse(planned, monkeypatch, loss):
    monkeypatch.setattr(_Made, "width", lambda *_: np.inf)
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
