"""Estimators for scikit-learn: units, odd values, bad arguments, and what it costs."""

import contextlib
import datetime
import math
import sys
from types import SimpleNamespace

import jax
import numpy as np
import polars
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression

import dpjax.sklearn as sk
from dpjax.accounting import PrivacyGuarantee, gaussian_epsilon, gaussian_stddev
from dpjax.sklearn import _additive, _labels, _linear, _regressors, _tables

pytestmark = pytest.mark.filterwarnings("ignore:.*is cloned again")
REGRESSORS = [sk.DPLinearRegression, sk.DPHuberRegressor, sk.DPPoissonRegressor]
REGRESSORS += [sk.DPGammaRegressor, sk.DPTweedieRegressor, sk.DPMeanRegressor]
CLASSIFIERS = [sk.DPLogisticRegression, sk.DPAdditiveClassifier]
RELEASES = [(_linear, "release_scales"), (_regressors, "release_scales")]
RELEASES += [(_linear, "dp_linear_model"), (_additive, "dp_additive_model")]
RELEASES += [(_labels, "release_labels")]
MODELS = [*REGRESSORS[:-1], sk.DPAdditiveRegressor, *CLASSIFIERS]


@pytest.fixture(scope="module")
def table():
    """10,000 persons: age, income in dollars, year; and what they spend."""
    rng = np.random.default_rng(0)
    n = 10_000
    columns = {"age": rng.normal(45, 15, n), "income": rng.lognormal(10, 1, n)}
    columns["year"] = rng.integers(1990, 2020, n).astype(float)
    spent = 2_000 + 100 * columns["age"] + 0.1 * columns["income"]
    return polars.DataFrame(columns), spent + 500 * rng.standard_t(3, n)


@pytest.fixture(scope="module")
def model(table):
    return sk.DPLinearRegression(random_state=0).fit(*table)


def test_coefficients_and_ranges_are_in_the_units_of_the_table(table, model):
    frame, spent = table
    rows = frame.to_numpy()
    assert model.score(frame, spent) > 0.85
    assert abs(model.coef_[0] - 100) < 20
    assert abs(model.coef_[1] - 0.1) < 0.02
    # Some incomes are beyond their range, and held to it.
    low, high = model.feature_ranges_.T
    inside = ((rows >= low) & (rows <= high)).all(axis=1)
    assert inside.mean() > 0.99
    expected = rows @ model.coef_ + model.intercept_
    predictions = model.predict(frame)
    np.testing.assert_allclose(predictions[inside], expected[inside], rtol=1e-9)
    center = (low + high) / 2
    cells = np.array([[np.nan] * 3, [np.inf] * 3, [-np.inf] * 3, [1e300] * 3])
    predictions = model.predict(polars.DataFrame(cells, schema=frame.columns))
    expected = np.stack([center, high, low, high]) @ model.coef_ + model.intercept_
    np.testing.assert_allclose(predictions, expected)
    assert model.feature_names_in_.tolist() == frame.columns
    assert (model.n_features_in_, model.privacy_.epsilon) == (3, 1.0)
    assert model.privacy_.delta == 10_000**-1.1


@pytest.mark.parametrize("estimator", MODELS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 3_000**-1.1), (7e-5, 1e-7)])
def test_all_releases_share_one_budget(monkeypatch, estimator, is_open, epsilon, delta):
    """Each part's noise is asked for: inverse squares add up to the whole's."""
    n, d, parts = 3_000, 4, []

    def spied(owner, name):
        inner = getattr(owner, name)

        def wrapped(*args, **kwargs):
            parts.append(kwargs["noise_multiplier"])
            if name.startswith("dp_"):  # the solver comes last
                raise InterruptedError
            return inner(*args, **kwargs)

        return wrapped

    for owner, name in RELEASES:
        monkeypatch.setattr(owner, name, spied(owner, name))
    given = {} if is_open else {"feature_ranges": (-3, 3)}
    if estimator in CLASSIFIERS:
        given |= {} if is_open and epsilon == 1.0 else {"classes": [0, 1]}
    elif not is_open:
        given["target_range"] = (-3, 3)
    rng = np.random.default_rng(0)
    model = estimator(random_state=0, epsilon=epsilon, delta=delta, **given)
    with pytest.raises(InterruptedError):
        model.fit(rng.normal(size=(n, d)), rng.integers(0, 2, n))
    if estimator in CLASSIFIERS and "classes" not in given:
        delta *= 1 - _labels.DELTA_SHARE
    together = 1 / math.sqrt(sum(part**-2 for part in parts))
    if epsilon == 1.0:
        assert len(parts) == (3 if is_open else 1)
    assert gaussian_epsilon(together, delta, sensitivity=1.0) <= epsilon
    assert together < 1.0001 * gaussian_stddev(epsilon, delta, sensitivity=1.0)


ONE_COLUMN = polars.DataFrame({"age": [1.0, 2.0]})
DAY = datetime.datetime(2020, 1, 1)
ROWS = {"X": [[1.0], [2.0]], "y": [1, 2]}
SECRETS = polars.DataFrame({"a": ["secret"]})
EXPOSED = {"X": np.zeros((50, 1)), "y": np.arange(50), "exposure": np.ones(50)}
REFUSED = [
    *(
        (sk.DPLinearRegression(**{name: value}), ROWS | {"X": ONE_COLUMN}, name)
        for name, value in (
            *(("epsilon", "1"), ("delta", 1.0), ("max_weight", 0.0)),
            ("random_state", np.random.RandomState(0)),
            *(("target_range", x) for x in ((1.0, 1.0), ("low", "high"))),
            ("feature_ranges", (0.0, np.inf)),
            ("feature_ranges", {"age": (0, 1), "none": (0, 1)}),
            *(("feature_ranges", x) for x in ([[0, 1]] * 2, ([0, 1], 2), [[0, None]])),
            ("fit_intercept", None),
        )
    ),
    (sk.DPTweedieRegressor(power=2.0), ROWS, "power"),
    (sk.DPPoissonRegressor(target_range=(-2, -1)), ROWS, "target_range"),
    *(
        (sk.DPLogisticRegression(classes=bad), ROWS, "classes")
        for bad in ("ab", [1, 1], [1.0, np.nan], 3)
    ),
    (sk.DPAdditiveRegressor(loss="cubic"), ROWS, "loss"),
    (sk.DPAdditiveClassifier(intervals="yes"), ROWS, "intervals must be a bool"),
    (sk.DPAdditiveClassifier(monotone={0: "increasing"}), ROWS, "classes must be a"),
    *(
        (kind(intervals=True, classes=classes), ROWS, "classes must be a list of two")
        for kind in (sk.DPLogisticRegression, sk.DPAdditiveClassifier)
        for classes in (None, [0, 1, 2])
    ),
    *(
        (sk.DPAdditiveRegressor(**{name: bad}, intervals=True), ROWS, name)
        for name, values in (
            ("categorical_features", ("all", {1: "ab"}, {0: ["a"]})),
            ("monotone", ({0: "increasing"}, {1: "increasing"}, {0: 1}, [0])),
        )
        for bad in values
    ),
    *(
        (sk.DPLinearRegression(), ROWS | changes, message)
        for changes, message in (
            ({"sample_weight": [1.0]}, "sample_weight"),
            ({"y": np.array([1j, 2.0])}, "y must be of a real type: .*complex128"),
            ({"y": np.array(["one", "two"])}, "y must be of numbers, got cells of <U3"),
            ({"y": np.ones((2, 3))}, "fits 3 models, .* together they cost 3 times"),
        )
    ),
    *(
        (sk.DPLinearRegression(), {"X": X, "y": [1.0]}, f"X must be of numbers, .*{x}")
        for X, x in (
            (SECRETS, "column 'a' of String"),
            (SECRETS.cast(polars.Categorical), "'a' of Categorical, .* text: OneHot"),
            (polars.DataFrame({"a": [DAY.date()]}), "'a' of Date, which holds times"),
            (np.array([["secret"]]), "an array of <U6, which holds text"),
            (np.array([[DAY]], "M8[s]"), "subtract a public date"),
        )
    ),
    (sk.DPAdditiveRegressor(), {"X": SECRETS, "y": [1.0]}, "text: categorical_featur"),
    (sk.DPPoissonRegressor(), EXPOSED, "max_exposure must be the largest exposure"),
    *(
        (sk.DPGammaRegressor(max_exposure=1.0), EXPOSED | {"exposure": bad}, message)
        for bad, message in (
            (np.ones(49), "exposure must be of shape"),
            (np.array(["secret"] * 50), "exposure must be of numbers"),
        )
    ),
    (sk.DPTweedieRegressor(max_exposure=-1.0), ROWS, "max_exposure must be positive"),
    (sk.DPAdditiveRegressor(max_exposure=1.0), EXPOSED, "None but for poisson"),
    *(
        (kind(), ROWS | {"sample_weight": weights}, "max_weight must be the largest")
        for kind in (*MODELS, sk.DPMeanRegressor)
        for weights in (np.ones(2), np.zeros(2), np.full(2, 1e9))
    ),
]


def test_bad_arguments_are_refused_before_anything_is_released(monkeypatch):
    for owner, name in RELEASES:
        monkeypatch.setattr(owner, name, None)  # a call is a TypeError
    for estimator, given, message in REFUSED:
        with pytest.raises(ValueError, match=message) as why:
            estimator.fit(**given)
        assert "secret" not in str(why.value)


@pytest.mark.parametrize("has_level", [True, False])
def test_without_privacy_a_fit_is_the_best_one_and_says_so(table, has_level):
    rows, spent = table[0].to_numpy(), table[1]
    given = {"epsilon": math.inf, "random_state": 0, "fit_intercept": has_level}
    model = sk.DPLinearRegression(intervals=True, **given).fit(rows, spent)
    assert model.conf_int().shape == (3 + has_level, 2)
    assert ("\nintercept " in str(model.summary())) == has_level
    best = LinearRegression(fit_intercept=has_level).fit(rows, spent)
    assert np.std(model.predict(rows) - best.predict(rows)) < 0.02 * np.std(spent)
    counts = np.random.default_rng(0).poisson(365 * np.exp(-0.02 * rows[:, 0]))
    rates = sk.DPPoissonRegressor(max_exposure=730.0, **given)
    rates.fit(rows[:, :1], counts, exposure=np.full(len(rows), 365.0))
    np.testing.assert_allclose([*rates.coef_, rates.intercept_], [-0.02, 0], atol=5e-3)
    mean = sk.DPMeanRegressor(epsilon=math.inf).fit(rows, spent)
    np.testing.assert_allclose(mean.mean_, spent.mean(), rtol=1e-3)
    classes = sk.DPLogisticRegression(**given).fit(rows, spent > 8_000)
    for fitted in (model, rates, classes):
        assert (fitted.intercept_ != 0) == has_level
    told = {x.privacy_ for x in (model, rates, classes, mean)}
    assert told == {PrivacyGuarantee.non_private()}


def test_ranges_of_columns_may_be_arrays():
    pairs = [[0, 1], [np.nan, np.nan]]  # the second is not public
    for given in (np.array(pairs), pairs, ([0, np.nan], (1, np.nan)), {0: (0, 1)}):
        model = SimpleNamespace(feature_ranges=given, n_features_in_=2)
        np.testing.assert_array_equal(_tables.ranges_of(model), np.transpose(pairs))


def test_keys_come_from_the_operating_system_or_repeat():
    seeds = [*[None] * 4, *[np.int64(7)] * 2]
    *drawn, one, two = (jax.random.key_data(_tables.key_of(x)) for x in seeds)
    assert np.unique(drawn).size >= 8, "all words of the key are drawn anew"
    np.testing.assert_array_equal(one, two)


def test_means_are_weighted_and_held():
    targets = np.random.default_rng(0).normal(1_000, 10, 4_000)
    targets[:2_000] += 100
    weights = np.where(np.arange(4_000) < 2_000, 3.0, 0.0)  # 3 counts as 1
    model = sk.DPMeanRegressor(random_state=0, max_weight=1.0)
    rows = np.zeros((4_000, 1))
    assert abs(model.fit(rows, targets).mean_ - 1_050) < 10
    assert abs(model.fit(rows, targets, weights).mean_ - 1_100) < 20
    weights = np.repeat([np.nan, -1.0], 2_000)
    assert np.isfinite(model.fit(rows, targets, weights).mean_)
    held = sk.DPMeanRegressor(random_state=0, target_range=(0, 1_000))
    assert abs(held.fit(rows, targets).mean_ - 1_000) < 20


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("model", "unit"),
    [(sk.DPPoissonRegressor(), 365.0), (sk.DPAdditiveRegressor(loss="poisson"), 1.0)],
)
def test_means_are_in_proportion_to_exposures(model, unit):
    rng = np.random.default_rng(0)
    rows, years = rng.uniform(18, 80, (20_000, 1)), rng.uniform(-0.1, 2, 20_000)
    counts = rng.poisson(np.maximum(years, 0) * np.exp(0.02 * rows[:, 0] - 1))
    counts[years < 0] = 1_000_000  # without exposure a record has no weight
    years[years < 0] = np.where(years[years < 0] < -0.05, np.nan, -7.0)
    model = clone(model).set_params(max_exposure=2 * unit, random_state=0)
    model.fit(rows, counts, exposure=years * unit)
    exposures = unit * np.array([1, 2, 9, -1, np.nan])
    means = model.predict([[50.0]] * 5, exposure=exposures)
    np.testing.assert_allclose(means, [1, 2, 2, 0, 0], atol=0.2)
    np.testing.assert_allclose(means[0] / unit, model.predict([[50.0]])[0])
    if hasattr(model, "coef_"):
        mean = np.exp(model.coef_ @ [50.0] + model.intercept_)
        np.testing.assert_allclose(mean, model.predict([[50.0]])[0])
    is_seen = years > 0
    data, exposed = (rows[is_seen], counts[is_seen]), unit * years[is_seen]
    options = {"epsilon": 20.0, "random_state": 0}
    known, _ = sk.score_privately(model, *data, exposure=exposed, **options)
    not_known, _ = sk.score_privately(model, *data, **options)
    assert known.measures[2].model.high < not_known.measures[2].model.low


def test_an_exposure_of_any_size_raises_no_warning():
    exposure, rows = np.array([1e308, np.inf, -np.inf, np.nan]), np.zeros((4, 1))
    for largest in (1e-3, 1.0, 1e300):  # warnings are errors here
        shares = _tables.shares_of(exposure, largest, rows)
        np.testing.assert_array_equal(shares, [1, 1, 0, 0])


def test_a_mean_in_a_public_range_is_a_clipped_one():
    targets = np.r_[np.full(10_000, -7.0), np.full(10_000, 3.0)]
    given, rows = {"target_range": (0, 1)}, np.zeros((20_000, 1))
    models = (sk.DPMeanRegressor(random_state=seed, **given) for seed in range(20))
    errors = [model.fit(rows, targets).mean_ - 0.5 for model in models]
    # Of a mean in [0, 1], of noise (multiplier / n) in each fit.
    expected = gaussian_stddev(1.0, 20_000**-1.1, sensitivity=1.0) / 20_000
    np.testing.assert_allclose(np.std(errors), expected, rtol=0.5)


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("dpjax.sklearn")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"dpjax\[sklearn\]"):
        __import__("dpjax.sklearn")


@pytest.mark.quick(1)
@pytest.mark.parametrize("estimator", [*MODELS[:-2], sk.DPMeanRegressor])
def test_a_missing_target_has_no_weight(estimator):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(6_000, 1))
    y = 2_730 * np.exp(0.1 * X[:, 0]) * rng.gamma(50, 1 / 50, 6_000)
    is_missing = rng.random(6_000) < 0.4
    given = np.where(is_missing, np.nan, y)
    is_robust = estimator is sk.DPHuberRegressor
    ranges = {"target_range": (0, 8_000)} if estimator is sk.DPPoissonRegressor else {}
    model = estimator(random_state=0, epsilon=100.0, **ranges)
    told = pytest.warns(UserWarning, match="40% .* no target")
    with contextlib.nullcontext() if is_robust else told:
        model.fit(X, given)
    assert is_robust or model.mean_weight_ == pytest.approx(0.6, abs=0.02)
    mean = np.mean(model.predict(X))
    assert mean == pytest.approx(y.mean(), rel=0.02)
    # A record without a target is as one of weight zero, whatever its target.
    model = estimator(random_state=0, epsilon=100.0, max_weight=1.0, **ranges)
    model.fit(X, np.where(is_missing, 1e9, y), sample_weight=~is_missing)
    assert np.mean(model.predict(X)) == pytest.approx(mean, rel=1e-6)
