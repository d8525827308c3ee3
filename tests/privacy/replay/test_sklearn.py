"""Every estimator for scikit-learn shows what its mechanisms release, nothing else.

Outside of the guarantee, as `dpjax.sklearn` says: a column whose type is no number is
refused, and what a reader of files makes of a column is not dpjax's to mend.
"""

import inspect
import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.base import is_classifier

import dpjax.sklearn
from dpjax.accounting import Sampling, noise_multiplier
from tests.privacy.replay import _replay

PUBLIC = [getattr(dpjax.sklearn, name) for name in dpjax.sklearn.__all__]
KINDS = {one.__name__: one for one in PUBLIC if inspect.isclass(one)}
NEW = np.array([[0.0, 3.0], [50.0, -1e5], [1e9, 0.5], [np.nan, np.inf]])


def table(kind, num_samples):
    rng = np.random.default_rng(num_samples)
    features = np.c_[rng.normal(45, 15, num_samples), rng.lognormal(10, 1, num_samples)]
    targets = 0.3 + 0.005 * features[:, 0] + 0.001 * rng.standard_t(3, num_samples)
    if is_classifier(kind()):
        targets = (targets > 0.5).astype(int)
    return features, targets


# What the first record becomes: its features, its target, and its weight or exposure.
NUMBERS = {
    "NaN": (np.nan, np.nan, np.nan),
    "infinite": ((np.inf, -np.inf), -np.inf, np.inf),
    "huge": ((1e308, -1e308), 1e308, -1e308),
    "zero": (0.0, 0.0, 0.0),
    "far": ((-1e9, 1e-300), -1e9, 1e9),
    "target": (None, 1.7e308, 1.0),
}
LABELS = {
    "half": (None, 0.5, 1.0),
    "True": (None, True, 1.0),
    "float": (0.0, 1.0, 1.0),
    "text": (None, "1", 1.0),
    "bytes": (None, b"1", 1.0),
    "empty": (np.nan, None, 1.0),
    "no label": ((np.inf, -1e308), ("x",), 0.0),
    "unseen": (None, 10**400, 1.0),
    "NA": (None, pd.NA, 1.0),
}


def as_read(column, container):
    """The column, as readers and users hold it: the type goes by all cells."""
    if container == "list":
        return list(column)
    if container == "series":
        return pd.Series(list(column))
    return np.array([*column, None], object)[:-1]


def shown_by(model, rows, targets, weights, exposure=None):
    """All that a fitted model shows, in its order."""
    exposed = {} if exposure is None else {"exposure": exposure}
    model.fit(rows, targets, weights, **exposed)
    shown = [vars(model), pickle.dumps(model)]
    names = "predict", "predict_proba", "decision_function"
    shown += [getattr(model, name)(NEW) for name in names if hasattr(model, name)]
    if getattr(model, "intervals", False):
        ends = model.bands() if hasattr(model, "bands") else model.conf_int()
        shown += [ends, str(model.summary()), model.summary()._repr_html_()]
    return shown


def refuse_interference(hooks, make, num_samples, weighted=False, container="array"):
    """Compares a fit with fits of neighbours, and what moves with what was charged."""
    model = make()
    features, targets = table(type(model), num_samples)
    labelled = is_classifier(model) and container != "numbers"
    neighbours = NUMBERS | (LABELS if labelled else {})

    def run(first):
        rows, column, weights = features.copy(), list(targets), np.ones(num_samples)
        if first is not None:
            cells, target, weight = first
            rows[0] = rows[0] if cells is None else cells
            column[0], weights[0] = target, weight
        held = as_read(column, container) if labelled else np.array(column)
        exposure = weights if getattr(model, "max_exposure", None) else None
        return shown_by(make(), rows, held, weights if weighted else None, exposure)

    delta = model.delta or num_samples**-1.1
    if is_classifier(model) and model.classes is None:
        delta *= 0.8  # the rest is for a label of one record
    multiplier = noise_multiplier(model.epsilon, delta, Sampling(num_steps=1))
    shown = hooks.compare(run, None, neighbours.values(), 0.5 / multiplier**2)
    assert shown[0][0] != "raised", shown


def options_of(kind):
    """The options of an estimator that change what is released."""
    yield "plain", {}
    names = inspect.signature(kind).parameters
    single = {"feature_ranges": {1: (0, 1e5)}, "fit_intercept": False}
    single |= {"target_range": (0, 1), "classes": [0, 1, 2.5]}
    yield from ((name, {name: x}) for name, x in single.items() if name in names)
    if "max_exposure" in names:
        loss = {"loss": "poisson"} if "loss" in names else {}
        yield "max_exposure", {"max_exposure": 2.0, **loss}
    if "intervals" in names:  # of a budget at which they are finite
        classes = {"classes": [0, 1]} if "classes" in names else {}
        yield "intervals", {"intervals": True, "epsilon": 20.0, **classes}
        if "monotone" in names:
            yield "monotone", {"monotone": {0: "increasing"}, **classes}


CASES = [
    pytest.param(kind, options, id=f"{name}, {option}")
    for name, kind in KINDS.items()
    for option, options in options_of(kind)
]


@pytest.mark.quick(8)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("kind", "options"), CASES)
def test_estimators_show_what_they_release(hooks, kind, options, weighted):
    given = {"epsilon": 4.0, "max_weight": 2.0} | options
    refuse_interference(hooks, partial(kind, random_state=0, **given), 1_000, weighted)


@pytest.mark.quick(4)
@pytest.mark.parametrize("num_samples", [2, 20])
@pytest.mark.parametrize(("kind", "options"), CASES)
def test_small_tables_show_what_they_release(hooks, kind, options, num_samples):
    make = partial(kind, random_state=0, delta=1e-5, **options)
    refuse_interference(hooks, make, num_samples)


def labelled(classes=None):
    ranges = {0: (0, 100), 1: (0, 1e5)}
    return dpjax.sklearn.DPLogisticRegression(
        random_state=0, epsilon=4.0, classes=classes, feature_ranges=ranges
    )


@pytest.mark.parametrize("container", ["array", "list", "series"])
@pytest.mark.parametrize("classes", [None, [0, 1]])
def test_labels_show_nothing_of_their_container(hooks, classes, container):
    refuse_interference(hooks, partial(labelled, classes), 1_000, container=container)


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", KINDS.values())
def test_scores_show_what_they_release(hooks, kind):
    features, targets = table(kind, 1_000)
    model = kind(random_state=0, epsilon=4.0).fit(features, targets)
    is_labelled = is_classifier(model)
    baseline = dpjax.sklearn.DPMeanRegressor(random_state=0).fit(features, targets)
    options = {"baseline": model if is_labelled else baseline, "random_state": 1}
    first = NUMBERS | (LABELS if is_labelled else {})

    def run(cells=None, target=None):
        rows, column = features.copy(), list(targets)
        if target is not None or cells is not None:
            rows[0] = rows[0] if cells is None else cells
            column[0] = target
        column = as_read(column, "array") if is_labelled else column
        return dpjax.sklearn.score_privately(model, rows, column, **options)

    shown, price = hooks.record(run), _replay.charged(run()[1])
    for cells, target, _ in first.values():
        hooks.replay(partial(run, cells, target), shown, price)
