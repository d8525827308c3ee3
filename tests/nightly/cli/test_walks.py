"""Six tables of the kind that offices have, from a guess of the schema to a report.

A walk is a script of commands that the guide to tables shows. At epsilon 1e6 noise
hides nothing: the numbers that commands write are those of pandas and scikit-learn.
"""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from sklearn import linear_model

from tests.unit.cli.command import done, invoke, words_of

N, RNG = 4_000, np.random.default_rng(0)
SCRIPT = """
dpjax schema {file} {read} --target {target} --output guess.toml
dpjax check {file} {read} --schema schema.toml
dpjax ledger open ledger.toml --epsilon 1e7 --delta 1e-3 {unit}
dpjax describe {file} {read} {run} --by town --output described
dpjax train {file} {read} {run} {train} --model linear --output out
dpjax train {file} {read} {run} {train} --holdout 0.2 --output curves
dpjax show out
dpjax show curves
dpjax plot curves --output curves.svg
dpjax predict out {file} {read} --output predicted.csv
dpjax export out --format sql --output model.sql
dpjax report curves --ledger ledger.toml
dpjax ledger show ledger.toml
"""
COLUMNS = """\
columns.rooms = {center = 4, scale = 2, limit = 3}
columns.area = {center = 80, scale = 40, limit = 12}
columns.town = {categories = ["Ghent", "Lier", "Mol"]}
"""


@dataclass
class Walk:
    """A table: its last column, file and schema, options, and an exact model."""

    target: Any  # a function of effects (n,) and years (n,) to the last column
    schema: str
    train: str
    exact: Any
    file: str = "offices.csv"
    read: str = "--decimal ,"
    weight: str = "one"  # the column of exposures
    unit: str = ""
    dates: str = ""  # the declaration of column since; no export reads it

    def frame(self):
        rooms, area = RNG.integers(1, 8, N), RNG.gamma(4, 20, N).round(1)
        town = RNG.choice(["Ghent", "Lier", "Mol"], N, p=[0.5, 0.3, 0.2])
        effect = 0.2 * (rooms - 4) + (area - 80) / 200 + 0.3 * (town == "Lier")
        years = RNG.uniform(0.1, 1.0, N).round(2)
        frame = {"rooms": rooms, "area": area, "town": town, "years": years, "one": 1.0}
        frame["person"] = np.arange(N) // 2
        days = pd.Timestamp("2019-01-01") + pd.to_timedelta(
            RNG.integers(0, 999, N), "D"
        )
        frame["since"] = days.strftime("%d.%m.%Y")
        return pd.DataFrame(frame | {"y": self.target(effect, years)})

    def write(self, frame):
        if self.file.endswith("parquet"):
            frame.astype({"town": "category"}).to_parquet(self.file)
            return
        text = frame.to_csv(sep=";", decimal=",", index=False)
        if "skip" in self.read:
            text = f"Offices of 2020\n{text}total;;;;;;;123,4\n"
        Path(self.file).write_text(text)


def noisy(effect, years):
    return (3 + effect + 0.3 * RNG.standard_t(4, N)).round(3)


def amounts(effect, years):
    y = np.exp(effect) * RNG.gamma(2.0, 500.0, N)
    return np.where(RNG.random(N) < 0.39, np.nan, y.round(2))


def kinds(effect, years):
    scores = np.outer(effect, [0, 1, 2, -1, -2]) + RNG.gumbel(size=(N, 5))
    return np.array(list("abcde"))[scores.argmax(axis=1)]


LINES = linear_model.LinearRegression()
ODDS = linear_model.LogisticRegression(C=np.inf, tol=1e-6, max_iter=10_000)
NUMBER = 'target = {column = "y", center = 3, scale = 1}'
UNIT = "--unit person --records-per-unit 1"
WALKS = {
    "a title, a total and commas": Walk(
        noisy,
        NUMBER,
        "--loss squared",
        LINES,
        dates='{first = 2019-01-01, last = 2021-12-31, format = "%d.%m.%Y"}',
        read="--skip-lines 1 --last-lines 1 --decimal ,",
    ),
    "Parquet with categories": Walk(
        lambda effect, years: np.where(
            effect + RNG.logistic(size=N) / 3 > 0.3, "yes", "no"
        ),
        'target = {column = "y", positive = "yes"}',
        "--loss logistic",
        ODDS,
        file="offices.parquet",
        read="",
    ),
    "amounts with missing targets": Walk(
        amounts,
        'target = {column = "y", scale = 1_000}',
        "--loss gamma",
        linear_model.GammaRegressor(alpha=0.0),
    ),
    "counts with exposure": Walk(
        lambda effect, years: RNG.poisson(2 * years * np.exp(effect)),
        'target = {column = "y", scale = 2}\nexposure = {column = "years", max = 1}',
        "--loss poisson",
        linear_model.PoissonRegressor(alpha=0.0),
        weight="years",
    ),
    "five classes": Walk(
        kinds,
        'target = {column = "y", categories = ["a", "b", "c", "d", "e"]}',
        "--loss softmax",
        ODDS,
    ),
    "a panel": Walk(noisy, NUMBER, "--loss squared", LINES, unit=UNIT),
}


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_has_the_numbers_of_its_table(folder, name):
    walk = WALKS[name]
    frame = walk.frame()
    walk.write(frame)
    dates = f"columns.since = {walk.dates}\n" if walk.dates else ""
    Path("schema.toml").write_text(COLUMNS + dates + walk.schema)
    script = SCRIPT.format(
        file=walk.file,
        read=walk.read,
        train=walk.train,
        target="y",
        run=f"--schema schema.toml --epsilon 1e6 --ledger ledger.toml {walk.unit}",
        unit=walk.unit.partition(" --rec")[0],
    )
    lines = script.strip().splitlines()
    if walk.dates:
        lines = [line for line in lines if not line.startswith("dpjax export")]
    assert len(lines) < 15  # and one that writes the schema
    for line in lines:
        shown = words_of(done(invoke(*shlex.split(line)[1:])).stdout)
    assert "All runs together" in shown
    # What describe wrote, by pandas. Of a person the first record counts.
    own = frame[::2] if walk.unit else frame
    rows = json.loads(Path("described/description.json").read_text())["rows"]
    values = {(r["column"], r["group"], r["statistic"], r["of"]): r for r in rows}
    for town, group in own.groupby("town"):
        count = values["town", "(all)", "count", town]["value"]
        assert count == pytest.approx(len(group), abs=0.1)
        for column in ("rooms", "area"):
            mean = values[column, town, "mean", ""]["value"]
            assert mean == pytest.approx(group[column].mean(), rel=1e-3)
    since = pd.to_datetime(own["since"], format="%d.%m.%Y")
    if walk.dates:
        title = "since (days since 2019-01-01)"
        days = (since - pd.Timestamp("2019-01-01")).dt.days
        for town, group in days.groupby(own["town"]):
            mean = values[title, town, "mean", ""]["value"]
            assert mean == pytest.approx(group.mean(), rel=1e-3)
    # What the linear model predicts, by scikit-learn, and in SQL.
    design = pd.get_dummies(frame[["rooms", "area", "town"]], drop_first=True)
    design["area"] /= 40  # as scikit-learn's solvers need it
    if walk.dates:
        design["since"] = days / 300
    known, weights = own.index[own["y"].notna()], frame[walk.weight]
    target = frame["y"][known]
    if walk.weight == "years":
        target = target / weights[known]
    exact = walk.exact.fit(design.loc[known], target, sample_weight=weights[known])
    private, in_sql = pd.read_csv("predicted.csv"), None
    if not walk.dates:
        expression = Path("model.sql").read_text()
        records = frame.drop(columns="y").reset_index(names="row")
        table = duckdb.connect().register("records", records)
        query = f"SELECT ({expression}) FROM records AS record ORDER BY record.row"
        in_sql = table.sql(query).df().iloc[:, 0]
    if hasattr(exact, "predict_proba"):
        means = exact.predict_proba(design)
        if len(exact.classes_) == 2:
            means = means[:, 1:]
        else:
            labels = private.pop("predicted_y")
            assert (in_sql == labels).all()
            assert (labels == exact.predict(design)).mean() > 0.97
            in_sql = None
    else:
        means = (exact.predict(design) * weights).to_numpy()[:, None]
    np.testing.assert_allclose(private, means, rtol=0, atol=1e-2 * np.abs(means).max())
    if in_sql is not None:
        np.testing.assert_allclose(in_sql, private.iloc[:, 0], rtol=1e-5)
