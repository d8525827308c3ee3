"""Additive models for scikit-learn: shapes, categories, and their plot."""

import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest

from dpjax.sklearn import DPAdditiveClassifier

NUM = 10_000
KINDS = ["ape", "bee", "cat", "dog"]  # of which nobody has the last


@pytest.fixture(scope="module")
def table():
    """A frame of an age, a kind and a truth value, and scores that bend."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(45, 15, NUM)})
    frame["kind"] = pd.Categorical(rng.choice(KINDS[:3], NUM), categories=KINDS)
    frame["owns"] = rng.integers(0, 2, NUM) > 0
    scores = np.abs(frame["age"] - 45) / 5 - 3 + 2.0 * (frame["kind"] == "bee")
    return frame, scores.to_numpy()


@pytest.fixture(scope="module")
def model(table):
    frame, scores = table
    noise = np.random.default_rng(1).logistic(size=NUM)
    labels = np.where(scores + noise > 0, "yes", "no")
    return DPAdditiveClassifier(random_state=0).fit(frame, labels)


def test_shapes_are_in_units_of_the_table(table, model):
    frame, scores = table
    assert np.mean((model.predict(frame) == "yes") == (scores > 0)) > 0.85
    shapes = model.shapes_
    assert list(shapes) == frame.columns.tolist()
    grid, values = shapes["age"]
    at = np.interp([25, 45, 65], grid, values)
    np.testing.assert_allclose(at - at[1], [4.0, 0.0, 4.0], atol=2.0)
    assert shapes["kind"].grid.tolist() == KINDS
    ape, bee, cat, _ = shapes["kind"].values
    np.testing.assert_allclose([bee - ape, bee - cat], 2.0, atol=1.0)
    assert shapes["owns"].grid.tolist() == [0.0, 1.0]
    assert model.feature_ranges_.shape == (2, 2)  # of age and owns
    # They add up to the score, with one number for all records.
    inside = (frame["age"] > grid[0]) & (frame["age"] < grid[-1])
    sums = np.interp(frame["age"], grid, values)
    sums += shapes["kind"].values[frame["kind"].cat.codes]
    sums += np.interp(frame["owns"], *shapes["owns"])
    rest = (model.decision_function(frame) - sums)[inside]
    np.testing.assert_allclose(rest, rest.mean(), atol=1e-3)


def test_every_container_gives_the_same(table, model):
    frame, _ = table
    enum = pl.Series("kind", frame["kind"].astype(str), dtype=pl.Enum(KINDS))
    other = pl.from_pandas(frame.drop(columns="kind")).insert_column(1, enum)
    shares = model.predict_proba(frame)
    np.testing.assert_array_equal(model.predict_proba(other), shares)
    odd = frame.astype(object).assign(kind="no such kind")
    unseen = frame.assign(kind=pd.Categorical([None] * NUM, categories=KINDS))
    np.testing.assert_array_equal(model.predict_proba(odd), model.predict_proba(unseen))
    with pytest.raises(ValueError, match=r"(?s)Feature names seen at fit.*kind"):
        model.predict(frame.drop(columns="kind"))
    with pytest.raises(ValueError, match="X must be a table whose columns have"):
        model.predict(frame.set_axis(["age", "age", "owns"], axis=1))


def test_a_plot_has_a_panel_for_each_column(model, monkeypatch):
    figure = model.plot_shapes()
    titles = [panel.get_title() for panel in figure.axes]
    assert titles == ["age", "kind", "owns"]
    assert figure.axes[0].get_ylabel() == "log odds of yes"
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"dpjax\[experiments\]"):
        model.plot_shapes()


def test_a_class_alone_has_flat_shapes(table):
    frame, _ = table
    model = DPAdditiveClassifier(random_state=0).fit(frame, np.full(NUM, "all"))
    assert model.classes_.tolist() == ["all"]
    assert model.predict_proba(frame[:2]).tolist() == [[1.0], [1.0]]
    assert all(np.all(shape.values == 0) for shape in model.shapes_.values())


def test_what_has_no_bands_is_refused(model):
    with pytest.raises(ValueError, match="intervals must be True before fit"):
        model.bands()
    with pytest.raises(ValueError, match="alpha must be strictly between"):
        model.bands(1.0)
