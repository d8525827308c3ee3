"""Centres and scales that are bought: from which numbers, and what is charged."""

import dataclasses
from fractions import Fraction

import jax
import numpy as np
import pytest

from dpjax.datasets import Categorical, Numeric
from dpjax.solvers import dp_mean
from dpjax.tables.cli._fit import bending_features
from dpjax.tables.cli._ranges import plan_ranges, release_ranges
from dpjax.tables.cli._run import plan_training
from dpjax.tables.cli._schema import BoundedColumn, Schema
from dpjax.tables.cli._settings import Settings
from dpjax.tables.cli._sources import Table, encode_table


def table(**changes):
    """A thousand records; every fifth, which is held out, is far from the others."""
    is_test = np.arange(1000) % 5 == 4
    x = np.where(is_test, 1e6, 10 + np.arange(1000) % 7).astype(object)
    columns = {"a": x, "b": np.full(1000, 3.0), "c": np.array(["u", "v"] * 500)}
    kinds = {"a": None, "b": Numeric(1, 2), "c": Categorical(("u",))}
    return dataclasses.replace(made_up(columns, x, **kinds | changes), is_test=is_test)


def made_up(columns, y, target=None, **kinds):
    schema = Schema(dict.fromkeys(columns) | kinds, target)
    return Table("made up", columns | {"y": y}, schema, "y", np.zeros(len(y), bool))


def buy(table, key=None, epsilon=2.0, delta=1e-5, **options):
    key = jax.random.key(0) if key is None else key
    planned = plan_ranges(table, epsilon, delta)
    bought, _ = release_ranges(planned, table, key=key, **options)
    assert bought.privacy is planned.privacy  # what is charged
    assert [*bought.columns] == [*planned.columns]
    return bought


def test_ranges_come_from_training_records_of_open_columns():
    bought = buy(table())
    assert list(bought.columns) == ["a", "y"]
    for kind in bought.columns.values():
        assert 11 < kind.center < 15
    assert 1 < bought.columns["a"].scale < 4
    assert 2 < bought.columns["y"].scale < 8
    assert bought.num_samples == 800
    assert bought.is_informative
    data = encode_table(table().with_ranges(bought.columns))
    assert data.feature_names == ("a", "b", "c=u", "intercept")
    for name, found in (("a", data.features[:, 0]), ("y", data.targets)):
        expected = bought.columns[name].encode(table().columns[name])
        assert np.array_equal(found, expected[~table().is_test, 0])
    with pytest.raises(ValueError, match="schema must be complete"):
        encode_table(table())


def test_ranges_for_curves_are_those_of_the_estimators():
    lines, curves = (buy(table(), may_bend=bends).columns for bends in (False, True))
    (line, target), (curve, same) = lines.values(), curves.values()
    assert target == same
    assert line.center == curve.center != 0  # nearly all numbers are within a scale
    assert curve.scale == pytest.approx(line.scale / 2)
    assert curve.limit * curve.scale == pytest.approx(line.limit * line.scale)
    # Which columns bend is known without the records.
    for columns in (curves, plan_ranges(table(), 2.0, 1e-5).columns):
        assert bending_features(columns) == [0, 1]


def test_records_of_weight_zero_tell_nothing_of_the_ranges():
    weights = np.where(np.arange(1000) < 500, 0.0, 1.0)
    bought = []
    for far in (0.0, 1e9):
        schema = dataclasses.replace(table().schema, weight=BoundedColumn("w", max=1.0))
        a = np.where(weights > 0, table().columns["a"], far)
        columns = {**table().columns, "a": a, "w": weights}
        one = dataclasses.replace(table(), columns=columns, schema=schema)
        bought.append(buy(one).columns)
    assert bought[0] == bought[1]


def test_a_run_is_charged_for_its_ranges():
    bought = buy(table(), epsilon=2.0, delta=1e-6)
    mean = dp_mean(np.zeros((800, 1)), key=jax.random.key(1), epsilon=0.5, delta=1e-5)
    privacy = bought.joined(mean.privacy)
    assert privacy.epsilon == 2.5
    assert privacy.delta == pytest.approx(1.1e-5)
    assert "any one of the 800 records" in str(privacy)
    hash(privacy.dp_event)


def test_parts_never_cost_more_than_the_whole():
    # Of 0.03 features are left out: the part is too small for them.
    for share in (0.1, 0.9):
        total = 0.3 if share == 0.1 else 2.1
        options = {"epsilon": total, "delta": 3e-5, "private_ranges": share}
        run = plan_training(Settings(source="t", loss="squared", **options), table())
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
