"""Private scores of estimators: what is released, what it costs, how true it is."""

import numpy as np
import pytest
import scipy.special
from sklearn import metrics
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dpjax.accounting import gaussian_epsilon
from dpjax.sklearn import DPGammaRegressor, DPPoissonRegressor, score_privately
from tests.unit.refusals import refused


class Line(RegressorMixin, BaseEstimator):
    """Predicts a multiple of the first feature."""

    def __init__(self, slope=1.0):
        self.slope = slope

    def fit(self, X, y):
        self.target_scale_ = 100.0
        return self

    def predict(self, X):
        return self.slope * X[:, 0]


class Softmax(ClassifierMixin, BaseEstimator):
    """Shares of labels have these logarithms of the first feature, but for a sum."""

    def __init__(self, labels=("no", "yes"), log_shares=lambda x: np.c_[0 * x, 2 * x]):
        self.labels, self.log_shares = labels, log_shares

    def fit(self, X, y):
        self.classes_ = np.array(self.labels)
        return self

    def predict_proba(self, X):
        return scipy.special.softmax(self.log_shares(X[:, :1]), axis=1)


def three_classes(slope=3.0):
    """The class whose center, -1, 0 or 1, is near is most likely."""
    centers = np.array([[-1, 0, 1]])
    return Softmax(("down", "flat", "up"), lambda x: -slope * abs(x - centers))


RNG = np.random.default_rng(0)
X = RNG.normal(size=(5000, 1))
NUMBERS = 100 * X[:, 0] + 50 * RNG.normal(size=5000)
LABELS = np.where(RNG.uniform(size=5000) < 1 / (1 + np.exp(-2 * X[:, 0])), "yes", "no")
CLASSES = np.where(abs(X[:, 0]) < 0.5, "flat", np.where(X[:, 0] > 0, "up", "down"))


def test_numbers_are_scored_in_their_unit():
    model, baseline = Line(100.0).fit(X, NUMBERS), Line(0.0).fit(X, NUMBERS)
    pipeline = make_pipeline(FunctionTransformer(), model).fit(X, NUMBERS)
    (scores, privacy), (again, _) = (
        score_privately(one, X, NUMBERS, epsilon=100.0, baseline=beside, random_state=0)
        for one, beside in ((model, baseline), (pipeline, None))
    )
    # R2 is of a baseline alone, which predicts zero. Errors are compared below.
    assert scores.measures[:-1] == again.measures
    assert scores.measures[2].model.value == pytest.approx(0.5 * 0.25, rel=0.1)
    assert (privacy.epsilon, privacy.delta) == (100.0, 5000**-1.1)
    assert scores.to_frame().shape == (2 * len(scores.measures), 5)
    assert repr(scores).count(", model: ") == len(scores.measures)
    assert "<table" in scores._repr_html_()
    multiplier = privacy.dp_event.event.noise_multiplier
    spent = gaussian_epsilon(multiplier, privacy.delta, sensitivity=1.0, num_releases=2)
    assert spent == pytest.approx(100.0)


def test_several_classes_are_scored_beside_the_commonest_and_a_model():
    model = three_classes().fit(X, CLASSES)
    labels = np.where(RNG.uniform(size=5000) < 0.1, "flat", CLASSES)
    options = {"epsilon": 50.0, "random_state": 0}
    scores, privacy = score_privately(model, X, labels, **options)
    loss, area, _ = scores.measures
    shares = model.predict_proba(X)
    truth = metrics.roc_auc_score(labels, shares, multi_class="ovr", average="weighted")
    assert area.model.low < truth < area.model.high
    assert area.model.high - area.model.low < 0.1
    assert area.constant == (0.5, 0.5, 0.5)
    assert loss.model.value < loss.constant.value
    assert (privacy.epsilon, scores.calibration) == (50.0, [])
    flat = three_classes(-1.0).fit(X, CLASSES)
    scores, _ = score_privately(model, X, labels, baseline=flat, **options)
    right = np.mean(labels == flat.classes_[np.argmax(flat.predict_proba(X), axis=1)])
    assert scores.measures[2].constant.value == pytest.approx(right, abs=0.02)
    assert scores.measures[1].constant.value < 0.3  # it says the opposite


def test_a_baseline_is_counted_and_not_read_off_a_record():
    # What it says of the first record must not decide what is released.
    opposite = Softmax(log_shares=lambda x: np.c_[0 * x, -2 * x])
    model, baseline = Softmax().fit(X, LABELS), opposite.fit(X, LABELS)
    labels, released = np.where(np.arange(5000) % 5, "yes", "no"), []
    for first in (-3.0, 3.0):
        rows = np.concatenate([[[first]], X[1:]])
        options = {"epsilon": 10.0, "baseline": baseline, "random_state": 0}
        scores, _ = score_privately(model, rows, labels, **options)
        released.append([measure.constant.value for measure in scores.measures[:0:-1]])
    right = np.mean((X[:, 0] < 0) == (labels == "yes"))
    np.testing.assert_allclose(*released, atol=0.005)
    assert released[0] == pytest.approx([right, 0.5], abs=0.05)


LINE, UNSCALED = Line().fit(X, NUMBERS), Line()
OTHER, LONE = (Softmax(labels).fit(X, LABELS) for labels in (("no", "maybe"), ("a",)))
test_bad_arguments_are_refused = refused(
    lambda options: score_privately(**{"model": LINE, "X": X, "y": NUMBERS} | options),
    ({"epsilon": 0.0}, "epsilon must"),
    ({"delta": 1.0}, "delta must"),
    ({"scale": -1.0}, "scale must be"),
    ({"random_state": -1}, "random_state must be"),
    ({"model": LONE}, "model must be a classifier of two classes"),
    ({"model": OTHER, "baseline": LONE}, "baseline must be a classifier of the class"),
    ({"y": NUMBERS[:-1]}, "inconsistent numbers of samples"),
    ({"model": UNSCALED}, "scale must be given in the units of y"),
)


# -- With next to no noise, each number is that of pandas ------------------------------
N = 4000
NO_NOISE = {"epsilon": np.inf, "random_state": 0}


class Rate(DPPoissonRegressor):
    """As if it were fitted: a mean of exp(x) for an exposure of one."""

    target_scale_, _largest = 6.0, 3.0  # of the largest exposure

    def predict(self, X, exposure=None):
        held = np.clip(np.exp(X[:, 0]), 2e-3, 60)
        return held * np.clip(np.nan_to_num(np.asarray(exposure)), 0, 3)


def records(seed=0):
    """Features, and targets of which two in five are missing."""
    rng = np.random.default_rng(seed)
    return rng, rng.normal(size=(N, 1)), rng.uniform(size=N) < 0.4


def checked(measures, truth, rel):
    """Compares measures by the beginnings of their names with pairs of true numbers."""
    values = {one.name: one for one in measures}
    for start, pair in truth.items():
        (name,) = [name for name in values if name.startswith(start)]
        for one, true in zip(values[name][1:], pair, strict=False):
            assert one.value == pytest.approx(true, rel=rel, abs=1e-3), (name, true)
            assert one.low <= one.value <= one.high


def of_errors(errors, ends):
    """The true numbers of absolute errors, (2, m), which are clipped to ends."""
    held = np.minimum(errors, np.array(ends)[:, None])
    squares = np.mean(held**2, axis=1)
    return {
        "median": np.median(errors, axis=1),
        "90th": np.quantile(errors, 0.9, axis=1),
        "mean absolute": held.mean(axis=1),
        "root mean": np.sqrt(squares),
        "R2": [max(1 - squares[0] / squares[1], -1.0)],
    }


def ends_of(measures):
    """Where absolute errors are clipped, as it is printed."""
    (clip,) = [one for one in measures if one.name == "absolute error: clipped to"]
    return [clip.model.value, clip.constant.value]


@pytest.mark.parametrize("is_missing", [False, True])
def test_numbers_are_those_of_records_with_a_target(is_missing):
    rng, x, missing = records()
    y = 100 * x[:, 0] + 60 * rng.standard_t(3, N)
    y[missing & is_missing] = np.nan
    model, baseline = Line(100.0).fit(x, y), Line(0.0).fit(x, y)
    scores, _ = score_privately(model, x, y, baseline=baseline, **NO_NOISE)
    known = ~np.isnan(y)
    assert scores.num_scored == pytest.approx(known.sum(), abs=1)
    errors = np.abs([100 * x[known, 0] - y[known], y[known]])
    checked(scores.measures, of_errors(errors, ends_of(scores.measures)), rel=0.05)


def test_labels_that_are_missing_have_no_weight():
    rng, x, missing = records(1)
    likely = rng.uniform(size=N) < 1 / (1 + np.exp(-2 * x[:, 0]))
    labels = np.where(likely, "yes", "no").astype(object)
    labels[missing] = np.resize(np.array([None, np.nan, "?"], object), missing.sum())
    scores, _ = score_privately(Softmax().fit(x, labels), x, labels, **NO_NOISE)
    right, share = (x[:, 0] > 0) == likely, likely[~missing].mean()
    shown = 1 / (1 + np.exp(-2 * x[:, 0]))
    known, constant = ~missing, np.full(N, share)
    losses = [metrics.log_loss(likely[known], x[known]) for x in (shown, constant)]
    truth = {
        "accuracy": [right[known].mean(), max(share, 1 - share)],
        "mean log": losses,
    }
    checked(scores.measures, truth, rel=0.01)
    for low, high, part in scores.calibration:
        chosen = ~missing & (low <= shown) & (shown < high)
        assert part.value == pytest.approx(likely[chosen].mean(), abs=0.01)


def test_classes_that_are_none_of_them_have_no_weight():
    rng, x, missing = records(2)
    model = three_classes().fit(x, None)
    shares = model.predict_proba(x)
    places = np.array([rng.choice(3, p=row) for row in shares])
    labels = np.where(missing, "other", model.classes_[places])
    scores, _ = score_privately(model, x, labels, **NO_NOISE)
    right = shares.argmax(axis=1) == places
    level = np.bincount(places[~missing]) / np.sum(~missing)
    loss = metrics.log_loss(places[~missing], shares[~missing])
    truth = {
        "accuracy": [right[~missing].mean(), level.max()],
        "mean log": [loss, -np.sum(level * np.log(level))],
    }
    checked(scores.measures, truth, rel=0.01)


@pytest.mark.parametrize(("usual", "spread"), [(1.0, 1), (0.01, 1), (1.0, 4)])
def test_a_rate_is_scored_beside_a_constant_rate(usual, spread):
    rng, x, missing = records(3)
    years = 3 * usual * rng.uniform(size=N) ** 3
    years[::20], years[::30] = 0.0, np.nan
    seen = years > 0
    y = rng.poisson(np.where(seen, years, 1) * np.exp(0.5 * x[:, 0])).astype(float)
    y[missing] = np.nan
    x = spread * x  # some means are then at the ends of their range
    scores, _ = score_privately(Rate(), x, y, exposure=years, **NO_NOISE)
    known = ~missing & seen
    assert scores.num_scored == pytest.approx(known.sum(), abs=1)
    held = np.clip(np.exp(x[:, 0]), 2e-3, 60)  # of 6 for 3 years
    errors = np.abs(np.array([held, np.full(N, 2.0)]) * years - y)[:, known]
    truth = of_errors(errors, ends_of(scores.measures))
    truth["share of means"] = [np.mean((held != np.exp(x[:, 0]))[known])]
    checked(scores.measures, truth, rel=0.06)
    assert (truth["share of means"][0] > 0.1) == (spread > 1)
    with pytest.raises(ValueError, match="baseline must be an estimator that was fitt"):
        score_privately(Rate(), x, y, exposure=years, baseline=Line(1.0))


@pytest.mark.parametrize(
    ("power", "model", "unit"),
    [
        ("poisson", DPPoissonRegressor(), "(in the unit of the target)"),
        ("gamma", DPGammaRegressor(), "(without a unit)"),
    ],
)
def test_a_deviance_has_the_unit_of_its_power(power, model, unit):
    model.target_scale_, model.predict = 10.0, lambda X: np.full(len(X), 10.0)
    y = np.random.default_rng(0).gamma(4.0, 2.5, N)
    scores, privacy = score_privately(model, np.zeros((N, 1)), y, **NO_NOISE)
    exact = getattr(metrics, f"mean_{power}_deviance")(y, np.full(N, 10.0))
    assert privacy.epsilon == np.inf
    deviance = scores.measures[2]
    assert deviance.name == f"mean {power} deviance, clipped {unit}"
    assert deviance.model.value == pytest.approx(exact, rel=0.01)
