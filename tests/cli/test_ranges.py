"""Centres and scales that are bought: from which numbers, and what is charged."""

from fractions import Fraction

import jax
import numpy as np
import pytest

from dpjax.cli._plan import split_budget
from dpjax.cli._ranges import _numbers, buy_ranges, charge
from dpjax.cli._runs import Run
from dpjax.cli._schema import Schema
from dpjax.cli._settings import Settings
from dpjax.cli._sources import Table, encode_table
from dpjax.datasets import Categorical, Numeric
from dpjax.solvers import Solution, dp_mean


def asked(**options):
    return Settings(source="made up", **options)


def table(**changes):
    """A thousand records; every fifth, which is held out, is far from the others."""
    is_test = np.arange(1000) % 5 == 4
    x = np.where(is_test, 1e6, 10 + np.arange(1000) % 7).astype(object)
    columns = {"a": x, "b": np.full(1000, 3.0), "c": np.array(["u", "v"] * 500), "y": x}
    kinds = {"a": None, "b": Numeric(1, 2), "c": Categorical(("u",))}
    schema = Schema(kinds | changes, None)
    return Table("made up", columns, schema, "y", is_test)


def buy(table, **changes):
    options = {"key": jax.random.key(0), "epsilon": 2.0, "delta": 1e-5} | changes
    return buy_ranges(table, **options)


def test_ranges_come_from_training_records_of_open_columns():
    bought = buy(table())
    assert list(bought.columns) == ["a", "y"]
    for kind in bought.columns.values():
        assert 11 < kind.center < 15
        assert 1 < kind.scale < 4
    assert bought.num_samples == 800
    assert bought.is_informative
    data = encode_table(table().with_ranges(bought.columns))
    assert data.feature_names == ("a", "b", "c=u", "intercept")
    kind = bought.columns["a"]
    expected = kind.encode(table().columns["a"])[~table().is_test, 0]
    assert np.array_equal(data.features[:, 0], expected)
    assert np.array_equal(
        data.targets,
        bought.columns["y"].encode(table().columns["y"])[~table().is_test, 0],
    )
    with pytest.raises(ValueError, match="schema must be closed"):
        encode_table(table())


def test_a_cell_is_missing_where_the_encoder_says_so():
    cells = ["0", "1", "-1", "nan", "", "?", "inf", "1e39", "1e-60", "1e30", None]
    found = _numbers(np.array(cells, dtype=object))
    nan = np.nan
    expected = [0, 1, -1, nan, nan, nan, nan, nan, 0, 1e30, nan]
    np.testing.assert_allclose(found, np.array(expected, np.float32))
    numbers = np.array([0.0, 1.0, nan, np.inf, 5.0])
    np.testing.assert_array_equal(_numbers(numbers), [0, 1, nan, nan, 5])


def test_a_run_is_charged_for_its_ranges():
    bought = buy(table(), epsilon=0.25, delta=1e-6)
    mean = dp_mean(np.zeros((800, 1)), key=jax.random.key(1), epsilon=0.5, delta=1e-5)
    run = Run("mean", mean, np.zeros(1), np.zeros((1, 1)))
    privacy = charge(run, bought).solution.privacy
    assert privacy.epsilon == 0.75
    assert privacy.delta == pytest.approx(1.1e-5)
    assert "any one of the 800 records" in str(privacy)
    hash(privacy.dp_event)
    assert charge(run, None) is run
    free = Solution(mean.params, mean.privacy.non_private(), {})
    run = Run("mean", free, np.zeros(1), np.zeros((1, 1)))
    assert charge(run, bought) is run


def test_parts_never_cost_more_than_the_whole():
    settings = asked(epsilon=0.3, delta=3e-5, private_ranges=0.1)
    parts = split_budget(settings, 800, is_classification=False)
    bought = buy(table(), **parts[0]._asdict())
    mean = dp_mean(np.zeros((800, 1)), key=jax.random.key(1), **parts[1]._asdict())
    run = Run("mean", mean, np.zeros(1), np.zeros((1, 1)))
    privacy = charge(run, bought).solution.privacy
    assert privacy.epsilon <= 0.3
    assert privacy.delta <= 3e-5
    assert "a factor e^0.3 = 1.35, up to a failure probability of 3e-05" in str(privacy)
    exact = Fraction(mean.privacy.epsilon) + Fraction(bought.privacy.epsilon)
    assert exact <= Fraction(privacy.epsilon)
