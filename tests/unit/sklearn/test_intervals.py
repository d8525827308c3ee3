"""Standard errors and tables of the estimators: units, words, what has none."""

import functools
import pickle

import numpy as np
import polars
import pytest
from sklearn.base import clone

from dpjax.sklearn import DPLinearRegression, DPLogisticRegression, DPPoissonRegressor

AGE, YEAR = (0.0, 90.0), (1990.0, 2020.0)
TRUE = np.array([0.03, 0.05, -100.0])  # of age, year, and the intercept


def table():
    """Two features, their predictions, and a generator for what is added to them."""
    rng = np.random.default_rng(1)
    ages, years = rng.uniform(*AGE, 20_000), rng.uniform(*YEAR, 20_000)
    predictions = TRUE[0] * ages + TRUE[1] * years + TRUE[2]
    return polars.DataFrame({"age": ages, "year": years}), predictions, rng


def targets_of(kind, predictions, rng):
    if kind is DPLogisticRegression:
        return (predictions - 1.7 + rng.logistic(size=len(predictions)) > 0).astype(int)
    if kind is DPPoissonRegressor:
        return rng.poisson(np.exp(predictions / 2))
    return predictions + rng.standard_t(5, len(predictions))


def asked(kind, **changes):
    given = {"random_state": 0, "epsilon": 8.0, "intervals": True}
    given["feature_ranges"] = {"age": AGE, "year": YEAR}
    if kind is DPLogisticRegression:
        given["classes"] = [0, 1]
    return kind(**given | changes)


@functools.cache
def fitted(kind):
    """A frame, the true parameters, and a model; all tests have tables of a shape."""
    frame, predictions, rng = table()
    shifted, halved = TRUE - [0, 0, 1.7], TRUE / 2
    truths = {DPLogisticRegression: shifted, DPPoissonRegressor: halved}
    targets = targets_of(kind, predictions, rng)
    return frame, targets, truths.get(kind, TRUE), asked(kind).fit(frame, targets)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "kind", [DPLinearRegression, DPLogisticRegression, DPPoissonRegressor]
)
def test_errors_are_in_the_units_of_the_table(kind):
    _, _, truth, model = fitted(kind)
    found = np.append(model.coef_, model.intercept_)
    errors, ends = model.bse_, model.conf_int()
    assert errors.shape == (3,)
    # The intercept is 2,000 years away.
    assert errors[1] < 0.02 < 1 < errors[2]
    assert np.all(np.abs(found - truth) < 4 * errors)
    np.testing.assert_allclose(ends.mean(axis=1), found, rtol=1e-9)
    np.testing.assert_allclose(np.diff(ends)[:, 0], 3.919928 * errors, rtol=1e-6)
    assert np.all(np.diff(model.conf_int(0.5)) < np.diff(ends))
    text, page = str(model.summary()), model.summary()._repr_html_()
    for said in ("95% interval", "intercept", "year", "20,000 records changes"):
        assert said in text
        assert said in page
    assert ("odds ratio" in text) == (kind is DPLogisticRegression)
    assert ("factor" in text) == (kind is DPPoissonRegressor)


def test_other_units_have_other_errors_of_the_same_sums():
    frame, targets, _, model = fitted(DPLinearRegression)
    moved = frame.select(age=polars.col("age") * 12, year=polars.col("year") - 1990)
    ranges = {"age": (0.0, 1080.0), "year": (0.0, 30.0)}
    other = asked(DPLinearRegression, feature_ranges=ranges).fit(moved, 100 * targets)
    np.testing.assert_allclose(other.bse_[:2], model.bse_[:2] * [100 / 12, 100], 0.02)
    # Where the year is 1990 an intercept is known far better than where it is 0.
    assert np.all(other.bse_[2] < 0.05 * 100 * model.bse_[2])
    again = pickle.loads(pickle.dumps(model))
    assert str(again.summary()) == str(model.summary())
    plain = clone(model).set_params(intervals=False).fit(frame, targets)
    assert plain.bse_ is None
    assert plain.privacy_ == model.privacy_
    with pytest.raises(ValueError, match="intervals must be True before fit"):
        plain.summary()


def test_a_table_says_what_has_no_interval_and_why():
    frame, predictions, rng = table()
    odd = frame.select("age", polars.lit(1.0).alias("<b>"))
    model = asked(DPLinearRegression, feature_ranges={"age": AGE, "<b>": (0.0, 2.0)})
    model.fit(odd, targets_of(DPLinearRegression, predictions, rng))
    assert np.isinf(model.bse_).tolist() == [False, True, True]
    text = " ".join(str(model.summary(0.1)).split())
    assert "<b> 0 inf" in text or "-inf to inf" in text
    assert "90% interval" in text
    assert "No honest interval can be had for <b>, intercept: the noise hides" in text
    page = model.summary()._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    few = asked(DPLinearRegression, epsilon=0.5).fit(*(frame[:200], predictions[:200]))
    assert np.all(np.isinf(few.bse_))
    assert "No interval is finite: the records are too few" in str(few.summary())


def test_what_has_no_intervals_is_refused():
    *_, model = fitted(DPLinearRegression)
    for alpha in (0.0, 1.0, np.nan):
        with pytest.raises(ValueError, match="alpha must be strictly between 0 and 1"):
            model.conf_int(alpha)
