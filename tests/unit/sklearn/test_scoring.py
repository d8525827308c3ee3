"""Private scores of estimators: what is released, and what it costs."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import roc_auc_score
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

    def __init__(self, labels=("no", "yes"), slope=2.0):
        self.labels, self.slope = labels, slope

    def fit(self, X, y):
        self.classes_ = np.array(self.labels)
        return self

    def predict_proba(self, X):
        share = 1 / (1 + np.exp(-self.slope * X[:, 0]))
        return np.stack([1 - share, share], axis=1)


RNG = np.random.default_rng(0)
X = RNG.normal(size=(5000, 1))
NUMBERS = 100 * X[:, 0] + 50 * RNG.normal(size=5000)
LABELS = np.where(RNG.uniform(size=5000) < 1 / (1 + np.exp(-2 * X[:, 0])), "yes", "no")


def test_numbers_are_scored_in_their_unit():
    model, baseline = Line(100.0).fit(X, NUMBERS), Line(0.0).fit(X, NUMBERS)
    pipeline = make_pipeline(FunctionTransformer(), model).fit(X, NUMBERS)
    (scores, privacy), (again, _) = (
        score_privately(one, X, NUMBERS, epsilon=100.0, baseline=beside, random_state=0)
        for one, beside in ((model, baseline), (pipeline, None))
    )
    # R2 is of a baseline alone, which predicts zero. Errors are in cli/test_printed.py.
    assert scores.measures[:-1] == again.measures
    assert scores.measures[2].model.value == pytest.approx(0.5 * 0.25, rel=0.1)
    assert (privacy.epsilon, privacy.delta) == (100.0, 5000**-1.1)
    event: Any = privacy.dp_event
    multiplier = event.event.noise_multiplier
    spent = gaussian_epsilon(multiplier, privacy.delta, sensitivity=1.0, num_releases=2)
    assert spent == pytest.approx(100.0)


def test_labels_are_scored_as_they_are_written():
    model = Odds().fit(X, LABELS)
    scores, _ = score_privately(model, X, LABELS, epsilon=100.0, random_state=0)
    assert scores.measures[1].model.value > 0.8  # the area
    assert len(scores.calibration) == 5


class Shares(ClassifierMixin, BaseEstimator):
    """Three classes: the one whose centre, -1, 0 or 1, is near is most likely."""

    def __init__(self, slope=3.0):
        self.slope = slope

    def fit(self, X, y):
        self.classes_ = np.array(["down", "flat", "up"])
        return self

    def predict_proba(self, X):
        odds = np.exp(-self.slope * abs(X[:, :1] - np.array([[-1, 0, 1]])))
        return odds / odds.sum(axis=1, keepdims=True)


CLASSES = np.where(abs(X[:, 0]) < 0.5, "flat", np.where(X[:, 0] > 0, "up", "down"))


def test_several_classes_are_scored_beside_the_commonest_and_a_model():
    model = Shares().fit(X, CLASSES)
    labels = np.where(RNG.uniform(size=5000) < 0.1, "flat", CLASSES)
    options = {"epsilon": 50.0, "random_state": 0}
    scores, privacy = score_privately(model, X, labels, **options)
    _, area, loss = scores.measures
    shares = model.predict_proba(X)
    truth = roc_auc_score(labels, shares, multi_class="ovr", average="weighted")
    assert area.model.low < truth < area.model.high
    assert area.model.high - area.model.low < 0.1
    assert area.constant == (0.5, 0.5, 0.5)
    assert loss.model.value < loss.constant.value
    assert (privacy.epsilon, scores.calibration) == (50.0, [])
    flat = Shares(-1.0).fit(X, CLASSES)
    scores, _ = score_privately(model, X, labels, baseline=flat, **options)
    wrong = np.argmax(flat.predict_proba(X), axis=1)
    right = np.mean(labels == flat.classes_[wrong])
    assert scores.measures[0].constant.value == pytest.approx(right, abs=0.02)
    assert scores.measures[1].constant.value < 0.3  # it says the opposite


def test_a_baseline_is_counted_and_not_read_off_a_record():
    # What it says of the first record must not decide what is released.
    model, baseline = Odds().fit(X, LABELS), Odds(slope=-2.0).fit(X, LABELS)
    labels, found = np.where(np.arange(5000) % 5, "yes", "no"), []
    for first in (-3.0, 3.0):
        rows = np.concatenate([[[first]], X[1:]])
        options = {"epsilon": 10.0, "baseline": baseline, "random_state": 0}
        scores, _ = score_privately(model, rows, labels, **options)
        found.append([measure.constant.value for measure in scores.measures[:2]])
    right = np.mean((X[:, 0] < 0) == (labels == "yes"))
    np.testing.assert_allclose(found[0], found[1], atol=0.005)
    assert found[0] == pytest.approx([right, 0.5], abs=0.05)


def test_odd_records_raise_nothing():
    odd = np.array([np.nan, np.inf, -np.inf, 1e308, 0.0])
    labels = np.array(["yes", "?", None, 3, "no"], object)
    models = Line(1e300), Line(np.nan), Odds(), Shares()
    with np.errstate(all="ignore"):
        for model in models:
            targets = odd if isinstance(model, Line) else labels
            model.fit(X, targets)
            scores, _ = score_privately(model, odd[:, None], targets)
            assert all(np.isfinite(measure.model).all() for measure in scores.measures)


def test_wrong_arguments_are_refused():
    line = Line().fit(X, NUMBERS)
    other, lone = Odds(("no", "maybe")).fit(X, LABELS), Odds(("a",)).fit(X, LABELS)
    for model, options, message in (
        *((line, {"epsilon": 0.0}, "epsilon must"), (line, {"delta": 1.0}, "delta mu")),
        (line, {"scale": -1.0}, "scale must be"),
        (line, {"random_state": -1}, "random_state must be"),
        (lone, {}, "model must be a classifier of two classes"),
        (other, {"baseline": lone}, "baseline must be a classifier of the class"),
        (line, {"y": NUMBERS[:-1]}, "inconsistent numbers of samples"),
    ):
        with pytest.raises(ValueError, match=message):
            score_privately(model, **{"X": X, "y": NUMBERS} | options)
    del line.target_scale_
    with pytest.raises(ValueError, match="scale must be given, for this model"):
        score_privately(line, X, NUMBERS)
