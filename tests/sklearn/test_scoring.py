"""Private scores of estimators: what is released, and what it costs."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dpjax.accounting import gaussian_epsilon
from dpjax.sklearn import score_privately


class Line(RegressorMixin, BaseEstimator):
    """Predicts a multiple of the first feature."""

    def __init__(self, slope=1.0):
        self.slope = slope

    def fit(self, X, y):
        self.target_scale_ = 100.0
        return self

    def predict(self, X):
        return self.slope * X[:, 0]


class Odds(ClassifierMixin, BaseEstimator):
    """The log odds of the second class are a multiple of the first feature."""

    def __init__(self, labels=("no", "yes")):
        self.labels = labels

    def fit(self, X, y):
        self.classes_ = np.array(self.labels)
        return self

    def predict_proba(self, X):
        share = 1 / (1 + np.exp(-2 * X[:, 0]))
        return np.stack([1 - share, share], axis=1)


RNG = np.random.default_rng(0)
X = RNG.normal(size=(5000, 1))
NUMBERS = 100 * X[:, 0] + 50 * RNG.normal(size=5000)
LABELS = np.where(RNG.uniform(size=5000) < 1 / (1 + np.exp(-2 * X[:, 0])), "yes", "no")


def test_numbers_are_scored_in_their_unit():
    model, baseline = Line(100.0).fit(X, NUMBERS), Line(0.0).fit(X, NUMBERS)
    pipeline = make_pipeline(FunctionTransformer(), model).fit(X, NUMBERS)
    found = [
        score_privately(one, X, NUMBERS, epsilon=100.0, baseline=beside, random_state=0)
        for one, beside in ((model, baseline), (pipeline, None))
    ]
    (scores, privacy), (again, _) = found
    assert scores == again  # the baseline predicts zero
    for measure, share in zip(scores.measures, (0.5, 0.9), strict=False):
        for one, slope in ((measure.model, 100.0), (measure.constant, 0.0)):
            errors = np.abs(slope * X[:, 0] - NUMBERS)
            assert one.value == pytest.approx(np.quantile(errors, share), rel=0.1)
            assert one.low < one.value < one.high
    loss = scores.measures[2].model.value
    assert loss == pytest.approx(0.5 * 0.25, rel=0.1)
    assert (privacy.epsilon, privacy.delta) == (100.0, 5000**-1.1)
    event: Any = privacy.dp_event
    multiplier = event.event.noise_multiplier
    spent = gaussian_epsilon(multiplier, privacy.delta, sensitivity=1.0, num_releases=2)
    assert spent == pytest.approx(100.0)


def test_labels_are_scored_as_they_are_written():
    model = Odds().fit(X, LABELS)
    scores, _ = score_privately(model, X, LABELS, epsilon=100.0, random_state=0)
    accuracy, area, loss = scores.measures
    truth = np.mean((X[:, 0] > 0) == (LABELS == "yes"))
    assert accuracy.model.value == pytest.approx(truth, abs=0.01)
    assert area.model.value > 0.8
    assert loss.constant.value == pytest.approx(np.log(2), rel=0.01)
    assert len(scores.calibration) == 5


def test_odd_records_raise_nothing():
    odd = np.array([np.nan, np.inf, -np.inf, 1e308, 0.0])
    rows = odd[:, None]
    with np.errstate(all="ignore"):
        for model in (Line(1e300), Line(np.nan)):
            scores, _ = score_privately(model.fit(X, NUMBERS), rows, odd)
            assert all(np.isfinite(one.model).all() for one in scores.measures)
        labels = np.array(["yes", "?", None, 3, "no"], object)
        scores, _ = score_privately(Odds().fit(X, LABELS), rows, labels)
    assert all(np.isfinite(one.model).all() for one in scores.measures)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (Line(), {"epsilon": 0.0}, "epsilon must be"),
        (Line(), {"delta": 1.0}, "delta must be"),
        (Line(), {"scale": -1.0}, "scale must be"),
        (Line(), {"random_state": -1}, "random_state must be"),
        (Odds(("a", "b", "c")), {}, "model must be a classifier of two classes, got"),
    ],
)
def test_wrong_arguments_are_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        score_privately(model.fit(X, NUMBERS), X, NUMBERS, **options)


def test_a_model_without_a_unit_needs_a_scale():
    model = Line().fit(X, NUMBERS)
    del model.target_scale_
    with pytest.raises(ValueError, match="scale must be given, for this model"):
        score_privately(model, X, NUMBERS)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        score_privately(model, X, NUMBERS[:-1], scale=1.0)
