"""What fitted models show: shapes and their plot; standard errors and their table."""

import functools
import pickle
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone

import dpjax.sklearn as sk

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
    return sk.DPAdditiveClassifier(random_state=0).fit(frame, labels)


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


def test_a_column_of_objects_is_told_of_its_option():
    frame = pd.DataFrame({"kind": [None]}, dtype=object)
    warned = pytest.warns(UserWarning, match="of objects.*categorical_features={'kind'")
    with pytest.raises(ValueError, match="epsilon"), warned:
        sk.DPAdditiveRegressor(epsilon=-1.0).fit(frame, [0.0])


def test_a_plot_has_a_panel_for_each_column(model, monkeypatch):
    figure = model.plot_shapes()
    assert [panel.get_title() for panel in figure.axes] == ["age", "kind", "owns"]
    assert figure.axes[0].get_ylabel() == "log odds of yes"
    low, high = figure.axes[0].get_xlim()  # two released scales about the center
    assert 0 < low < 20 < 70 < high < 90
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"dpjax\[experiments\]"):
        model.plot_shapes()


def test_a_class_alone_has_flat_shapes(table):
    frame, _ = table
    model = sk.DPAdditiveClassifier(random_state=0).fit(frame, np.full(NUM, "all"))
    assert model.classes_.tolist() == ["all"]
    assert model.predict_proba(frame[:2]).tolist() == [[1.0], [1.0]]
    assert all(np.all(shape.values == 0) for shape in model.shapes_.values())


# -- Standard errors and tables: units, words, what has none ---------------------------
AGE, YEAR = (0.0, 90.0), (1990.0, 2020.0)
TRUE = np.array([0.03, 0.05, -100.0])  # of age, year, and the intercept


def lines():
    """Two features, their predictions, and a generator for what is added to them."""
    rng = np.random.default_rng(1)
    ages, years = rng.uniform(*AGE, 20_000), rng.uniform(*YEAR, 20_000)
    predictions = TRUE[0] * ages + TRUE[1] * years + TRUE[2]
    return pl.DataFrame({"age": ages, "year": years}), predictions, rng


def targets_of(kind, predictions, rng):
    if kind is sk.DPLogisticRegression:
        return (predictions - 1.7 + rng.logistic(size=len(predictions)) > 0).astype(int)
    if kind is sk.DPPoissonRegressor:
        return rng.poisson(np.exp(predictions / 2))
    return predictions + rng.standard_t(5, len(predictions))


def asked(kind, **changes):
    given = {"random_state": 0, "epsilon": 8.0, "intervals": True}
    given["feature_ranges"] = {"age": AGE, "year": YEAR}
    if kind is sk.DPLogisticRegression:
        given["classes"] = [0, 1]
    return kind(**given | changes)


@functools.cache
def fitted(kind):
    """A frame, the true parameters, and a model; all tests have tables of a shape."""
    frame, predictions, rng = lines()
    shifted, halved = TRUE - [0, 0, 1.7], TRUE / 2
    truths = {sk.DPLogisticRegression: shifted, sk.DPPoissonRegressor: halved}
    targets = targets_of(kind, predictions, rng)
    return frame, targets, truths.get(kind, TRUE), asked(kind).fit(frame, targets)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "kind", [sk.DPLinearRegression, sk.DPLogisticRegression, sk.DPPoissonRegressor]
)
def test_errors_are_in_the_units_of_the_table(kind):
    _, _, truth, model = fitted(kind)
    estimates = np.append(model.coef_, model.intercept_)
    errors, ends = model.bse_, model.conf_int()
    assert errors.shape == (3,)
    # The intercept is 2,000 years away.
    assert errors[1] < 0.02 < 1 < errors[2]
    assert np.all(np.abs(estimates - truth) < 4 * errors)
    np.testing.assert_allclose(ends.mean(axis=1), estimates, rtol=1e-9)
    np.testing.assert_allclose(np.diff(ends)[:, 0], 3.919928 * errors, rtol=1e-6)
    assert np.all(np.diff(model.conf_int(0.5)) < np.diff(ends))
    text, page = str(model.summary()), model.summary()._repr_html_()
    for words in ("95% interval", "by noise", "%", "year", "20,000 records changes"):
        assert words in text
        assert words in page
    assert ("odds ratio" in text) == (kind is sk.DPLogisticRegression)
    assert ("factor" in text) == (kind is sk.DPPoissonRegressor)


def test_other_units_have_other_errors_of_the_same_sums():
    frame, targets, _, model = fitted(sk.DPLinearRegression)
    moved = frame.select(age=pl.col("age") * 12, year=pl.col("year") - 1990)
    ranges = {"age": (0.0, 1080.0), "year": (0.0, 30.0)}
    other = asked(sk.DPLinearRegression, feature_ranges=ranges)
    other.fit(moved, 100 * targets)
    np.testing.assert_allclose(other.bse_[:2], model.bse_[:2] * [100 / 12, 100], 0.02)
    # Where the year is 1990 an intercept is known far better than where it is 0.
    assert np.all(other.bse_[2] < 0.05 * 100 * model.bse_[2])
    assert str(pickle.loads(pickle.dumps(model)).summary()) == str(model.summary())
    plain = clone(model).set_params(intervals=False).fit(frame, targets)
    assert plain.bse_ is None
    assert plain.privacy_ == model.privacy_
    with pytest.raises(ValueError, match="intervals must be True before fit"):
        plain.summary()


def test_a_table_says_what_has_no_interval_and_why():
    frame, predictions, rng = lines()
    odd = frame.select("age", pl.lit(1.0).alias("<b>"))
    model = asked(sk.DPLinearRegression, feature_ranges={"age": AGE, "<b>": (0.0, 2.0)})
    model.fit(odd, targets_of(sk.DPLinearRegression, predictions, rng))
    assert np.isinf(model.bse_).tolist() == [False, True, True]
    text = " ".join(str(model.summary(0.1)).split())
    assert "<b> 0 inf" in text or "-inf to inf" in text
    assert "90% interval" in text
    assert "No honest interval can be had for <b>, intercept: the noise hides" in text
    shares = [row[-1] for row in model.summary().lines]  # of squared widths, by noise
    assert 0 < int(shares[0].rstrip("%")) < 100
    assert shares[1:] == ["", ""]
    page = model.summary()._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    few = asked(sk.DPLinearRegression, epsilon=0.5)
    few.fit(frame[:200], predictions[:200])
    assert np.all(np.isinf(few.bse_))
    assert "No interval is finite: the records are too few" in str(few.summary())


def test_bands_and_intervals_need_a_fit_with_them_and_a_valid_alpha(model):
    with pytest.raises(ValueError, match="intervals must be True before fit"):
        model.bands()
    *_, linear = fitted(sk.DPLinearRegression)
    intervals = [(linear.conf_int, alpha) for alpha in (0.0, 1.0, np.nan)]
    for call, alpha in ((model.bands, 1.0), *intervals):
        with pytest.raises(ValueError, match="alpha must be strictly between 0 and 1"):
            call(alpha)
