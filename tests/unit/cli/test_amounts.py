"""Counts and amounts of a log link, exposures and weights; ranges that are bought."""

import dataclasses
from fractions import Fraction

import jax
import numpy as np
import pytest

from dpjax import losses
from dpjax.accounting import Sampling, noise_multiplier
from dpjax.datasets import Categorical, Numeric
from dpjax.solvers import dp_mean
from dpjax.tables.cli import _ranges
from dpjax.tables.cli._fit import bending_features, fit, rows_of
from dpjax.tables.cli._ranges import plan_ranges, release_ranges
from dpjax.tables.cli._run import plan_training
from dpjax.tables.cli._schema import BoundedColumn, Schema
from dpjax.tables.cli._settings import Settings
from dpjax.tables.cli._sources import Table, encode_table
from dpjax.tables.cli._units import units_of
from tests.unit.cli.command import options, refused, run, tree, write_table

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
USES = "whose columns have one use each"


def table(units=None):
    """Five records, with every rule that a cell can meet."""
    columns = {name: np.array(cells, object) for name, cells in CELLS.items()}
    bounded = BoundedColumn("years", 2), BoundedColumn("w", 4)
    schema = Schema({"age": Numeric(40, 20)}, Numeric(0, 1), None, *bounded)
    made = Table("t", columns, schema, "claims", np.zeros(5, bool))
    return made if units is None else made.by_unit(units_of("who", units, 2))


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
    return plan_training(Settings(**asked), table()).plan


def test_each_loss_is_the_one_of_its_power():
    for loss, power in (("poisson", 1.0), ("gamma", 2.0), ("tweedie", 1.5)):
        assert plan_of(loss).loss_fn == losses.log_link(power)
    assert plan_of("tweedie", power=1.75).loss_fn == losses.log_link(1.75)


def test_the_solver_sees_offsets_and_weights(monkeypatch):
    seen = {}

    def solver(loss, data, **options):
        seen.update(options, loss=loss, targets=data[1])

    plan, data = plan_of("tweedie", power=1.25), encode_table(table())
    monkeypatch.setattr("dpjax.tables.cli._fit.dp_linear_model", solver)
    fit(plan, jax.tree.map(jax.numpy.asarray, rows_of(data)), key=jax.random.key(0))
    # Without exposure a record has no weight, whatever its weight or its target is.
    assert seen["weights"].tolist() == [1, 0.25, 1, 0, 0]
    np.testing.assert_allclose(seen["offsets"], np.log([0.5, 0.25, 1, 1, 1]))
    assert seen["loss"] == losses.log_link(1.25)
    assert "max_weight" not in seen  # they are shares of the public one


@pytest.fixture
def folder(here):
    """A working directory with those records and their schema."""
    write_table(CELLS)
    (here / "schema.toml").write_text(SCHEMA)
    return here


@pytest.mark.parametrize(
    ("old", "new", "loss", "message"),
    [
        ("scale = 1}", "center = 0, scale = 1}", "squared", "[exposure], which is lef"),
        ("age", "none", "poisson", "columns of data.csv"),
        ('"w"', '"none"', "poisson", "columns of data.csv"),
        *(('"w"', f'"{name}"', "poisson", USES) for name in ("years", "claims")),
    ],
)
def test_schemas_are_refused_before_a_record_is_read(
    folder, old, new, loss, message, monkeypatch
):
    monkeypatch.setattr("dpjax.tables.cli._sources.Draw.read", None)
    (folder / "schema.toml").write_text(SCHEMA.replace(old, new))
    before = tree(folder)
    result = run("data.csv", *options(schema="schema.toml", target=None, loss=loss))
    refused(result, message)
    assert result.stdout == ""
    assert tree(folder) == before


# -- Centers and scales that are bought: from which numbers, and what is charged -------
def made_up(columns, y, target=None, **kinds):
    schema = Schema(dict.fromkeys(columns) | kinds, target)
    return Table("made up", columns | {"y": y}, schema, "y", np.zeros(len(y), bool))


# Every fifth record, which is held out, is far from the others.
IS_TEST = np.arange(1000) % 5 == 4
X = np.where(IS_TEST, 1e6, 10 + np.arange(1000) % 7).astype(object)
MADE = {"a": X, "b": np.full(1000, 3.0), "c": np.array(["u", "v"] * 500)}
OPEN = made_up(MADE, X, b=Numeric(1, 2), c=Categorical(("u",)))
OPEN = dataclasses.replace(OPEN, is_test=IS_TEST)


def buy(table, epsilon=2.0, delta=1e-5, **options):
    planned = plan_ranges(table, (epsilon, delta))
    bought, _ = release_ranges(planned, table, key=jax.random.key(0), **options)
    assert bought.privacy is planned.privacy  # what is charged
    assert [*bought.columns] == [*planned.columns]
    return bought


def test_ranges_come_from_training_records_of_open_columns():
    bought = buy(OPEN)
    assert list(bought.columns) == ["a", "y"]
    for kind in bought.columns.values():
        assert 11 < kind.center < 15
    assert 1 < bought.columns["a"].scale < 4
    assert 2 < bought.columns["y"].scale < 8
    assert bought.num_samples == 800
    assert bought.is_informative
    data = encode_table(OPEN.with_ranges(bought.columns))
    assert data.feature_names == ("a", "b", "c=u", "intercept")
    for name, encoded in (("a", data.features[:, 0]), ("y", data.targets)):
        assert np.array_equal(encoded, bought.columns[name].encode(X)[~IS_TEST, 0])
    with pytest.raises(ValueError, match="schema must be complete"):
        encode_table(OPEN)


@pytest.mark.parametrize("size", [1, 3])
def test_ranges_have_the_noise_that_is_paid(size, monkeypatch):
    precisions, release = [], _ranges.release_scales

    def watched(*args, noise_multiplier, **options):
        precisions.append(noise_multiplier**-2)
        return release(*args, noise_multiplier=noise_multiplier, **options)

    monkeypatch.setattr(_ranges, "release_scales", watched)
    units = units_of("who", np.arange(1000) // size, size)
    buy(OPEN if size == 1 else OPEN.by_unit(units), epsilon=9.0)
    multiplier = size * noise_multiplier(9.0, 1e-5, Sampling(num_steps=1))
    assert len(precisions) == 2
    assert sum(precisions) == pytest.approx(multiplier**-2)


def test_ranges_for_curves_are_those_of_the_estimators():
    lines, curves = (buy(OPEN, may_bend=bends).columns for bends in (False, True))
    (line, target), (curve, same) = lines.values(), curves.values()
    assert target == same
    assert line.center == curve.center != 0  # nearly all numbers are within a scale
    assert curve.scale == pytest.approx(line.scale / 2)
    assert curve.limit * curve.scale == pytest.approx(line.limit * line.scale)
    # Which columns bend is known without the records.
    for columns in (curves, plan_ranges(OPEN, (2.0, 1e-5)).columns):
        assert bending_features(columns) == [0, 1]


def test_records_of_weight_zero_tell_nothing_of_the_ranges():
    weights, bought = np.where(np.arange(1000) < 500, 0.0, 1.0), []
    schema = dataclasses.replace(OPEN.schema, weight=BoundedColumn("w", max=1.0))
    for far in (0.0, 1e9):
        columns = {**OPEN.columns, "a": np.where(weights > 0, X, far), "w": weights}
        one = dataclasses.replace(OPEN, columns=columns, schema=schema)
        bought.append(buy(one).columns)
    assert bought[0] == bought[1]


def test_a_run_is_charged_for_its_ranges():
    bought = buy(OPEN, epsilon=2.0, delta=1e-6)
    mean = dp_mean(np.zeros((800, 1)), key=jax.random.key(1), epsilon=0.5, delta=1e-5)
    privacy = bought.joined(mean.privacy)
    assert (privacy.epsilon, privacy.delta) == (2.5, pytest.approx(1.1e-5))
    assert "any one of the 800 records" in str(privacy)
    hash(privacy.dp_event)


def test_parts_never_cost_more_than_the_whole():
    # Of 0.03 features are left out: the part is too small for them.
    for share in (0.1, 0.9):
        total = 0.3 if share == 0.1 else 2.1
        options = {"epsilon": total, "delta": 3e-5, "private_ranges": share}
        run = plan_training(Settings(source="t", loss="squared", **options), OPEN)
        assert run.ranges.is_informative == (share == 0.9)
        assert run.privacy.epsilon <= total
        assert run.privacy.delta <= 3e-5
        assert f"at most e^{total:g} = " in str(run.privacy)
        assert "what it was, plus 3e-05" in str(run.privacy)
        for name in ("epsilon", "delta"):
            parts = run.ranges.privacy, run.budget, run.privacy
            ranges, rest, total = (Fraction(getattr(x, name)) for x in parts)
            assert ranges + rest <= total


def test_features_of_many_columns_are_smaller():
    rng = np.random.default_rng(0)
    columns = {str(i): rng.normal(size=4000) for i in range(32)}
    made = made_up(columns, np.zeros(4000), Numeric())
    bought = buy(made, epsilon=50.0)
    features = encode_table(made.with_ranges(bought.columns)).features[:, :-1]
    assert 4 < np.sum(np.mean(features**2, axis=0)) <= 8


def test_a_scale_is_bought_without_a_center():
    rng = np.random.default_rng(0)
    amounts = 5_000 + 1_000 * rng.uniform(size=4_000)
    years = rng.choice([0.0, 0.5, 2.0], 4_000)
    columns = {"a": np.zeros(4_000), "y": years * amounts, "e": years}
    schema = Schema({"a": Numeric()}, None, None, BoundedColumn("e", 2.0))
    made = Table("t", columns, schema, "y", np.zeros(4_000, bool))
    bought = buy(made, epsilon=1.0, is_centered=False)
    (kind,) = bought.columns.values()
    assert kind.center == 0
    assert 5_000 < kind.scale < 7_500  # a bin of ten a decade
    assert bought.privacy.epsilon == 1.0
    closed = made.with_ranges(bought.columns).schema
    assert closed.target == Numeric(0, 2 * kind.scale)  # for the largest exposure
    assert closed.exposure == schema.exposure
