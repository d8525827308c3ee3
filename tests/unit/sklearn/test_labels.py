"""Labels that are looked up among declared ones, or released: and no others."""

import math
import warnings

import jax
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.special
from sklearn.ensemble import VotingClassifier
from sklearn.multiclass import OneVsRestClassifier

from dpjax.sklearn import DPLogisticRegression, _labels, _tables
from tests.privacy.replay._replay import seen
from tests.unit.refusals import refused

LABELS = [
    np.array(["b", "a", "b"]),
    np.array([2, 1, 2]),
    np.array([2.0, np.nan, 2.0]),
    np.array([True, False, True]),
    np.array(["b", None, 3.5, ("x",), ["no hash"], np.nan], object),
    np.array(["2020-01-01", "NaT"], "datetime64[D]"),
]


@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_labels_are_numbered_and_found_again(labels):
    distinct, codes = _labels.numbered(labels)
    for label, code in zip(labels, codes, strict=True):
        if code >= 0:
            assert distinct[code] in (label, (label,))
        else:
            assert label is None or label == ["no hash"] or label != label
    first = [codes.tolist().index(code) for code in range(len(distinct))]
    classes = _labels._sorted(labels[first])
    places = _labels.indices(labels, classes)
    assert (places >= 0).tolist() == (codes >= 0).tolist()
    for label, place in zip(labels, places, strict=True):
        assert place < 0 or classes[place] == label


def test_labels_match_where_they_are_equal():
    classes = _labels.declared([0, 1])
    assert _labels.indices(np.array([1.0, 0.0, 2.0]), classes).tolist() == [1, 0, -1]
    assert _labels.indices(np.array([True, False]), classes).tolist() == [1, 0]
    assert _labels.indices(np.array(["1", "0"]), classes).tolist() == [-1, -1]


def released(key, labels, noise_multiplier=5.0, log_probability=-12.0):
    options = {"noise_multiplier": noise_multiplier, "log_probability": log_probability}
    return _labels.release_labels(key, labels, **options)


def test_labels_of_one_record_are_shown_as_rarely_as_stated(key):
    labels, shown = np.array([f"label of one {i}" for i in range(400)]), 0
    for run_key in jax.random.split(key, 25):
        bought = released(run_key, labels, 2.0, math.log(0.02))
        shown += np.count_nonzero(np.char.startswith(bought, "label"))
    # 10,000 draws: mean 200, standard deviation 14. The text of none is not shown.
    assert 130 < shown < 270


def test_labels_of_many_records_are_bought_and_no_text_but_theirs(key):
    long = "a very long label of one record"
    labels = np.array(["yes"] * 500 + ["no"] * 300 + [long])
    bought = released(key, labels, 10.0)
    assert (bought.tolist(), bought.dtype) == (["no", "yes"], "<U3")
    assert released(jax.random.key(1), labels[-1:], 10.0).tolist() == [0]
    assert long in released(jax.random.key(2), labels, 1e-6, -math.inf)  # no privacy


# One record's label, and the type that readers give to the whole column for it.
CONTAINERS = [
    lambda labels, one: np.array([*labels, one], object),
    lambda labels, one: np.array([*labels, one], np.float64),
    lambda labels, one: np.array([one, *map(float, labels)], object),
    lambda labels, one: np.array([True, *labels, one], object),
    lambda labels, one: np.array([*labels, "text"], object),
    lambda labels, one: np.array([*labels, None], object),
    lambda labels, one: np.array([*labels, b"1"], object),
    lambda labels, one: np.array([*labels, (1,)], object),
    lambda labels, one: np.array([np.bool_(True), *labels, 10**400], object),
    lambda labels, one: [*labels, "text"],
]


@pytest.mark.parametrize("one", [0.5, 1.0, 2**53 + 1, np.nan])
def test_the_type_of_released_labels_is_theirs_alone(key, one):
    for container in CONTAINERS:
        column = _tables.as_column(container([0] * 300 + [1] * 500, one))
        bought = released(jax.random.clone(key), column)
        assert seen(bought) == seen(np.array([0, 1]))
        assert _labels.indices(column, bought).tolist().count(1) >= 500
    for labels, expected in (  # and a label has one form
        ([1.5] * 300 + [1] * 300, np.array([1.0, 1.5])),
        (["a\0"] * 300 + [b"b"] * 300, np.array(["a", "b"])),
        (["1"] * 300 + [1] * 300, np.array([1, "1"], object)),
    ):
        bought = released(jax.random.clone(key), _tables.as_column(labels))
        assert seen(bought) == seen(expected)


def test_the_threshold_is_not_passed_more_often_in_floats():
    """Twice 2^-21 of it covers what the sampler's quantile exceeds the true one by."""
    tails = np.float32(10.0) ** np.linspace(-19.5, -0.31, 200_001).astype(np.float32)
    drawn = -np.asarray(jax.jit(jax.scipy.special.ndtri)(tails), np.float64)
    exact = -scipy.special.ndtri(tails.astype(np.float64))
    assert (drawn < exact * _labels.ROUNDED_UP).all()


def classifier(*classes):
    return DPLogisticRegression(classes=[*classes], random_state=0)


TYPE, NUMBERED = "be of the type of y", r"pass them on: then classes are \[0, 1\]"
WORDS, CODES = np.array(["no", "yes"] * 20), np.array([0, 1] * 20)
DIGITS = np.array(["0", "1"] * 20)
test_labels_of_a_type_that_no_class_has_are_refused = refused(
    lambda given: given[0].fit(np.ones((40, 1)), given[1]),
    ((classifier("no", "yes"), CODES), TYPE),
    ((classifier("no", "yes"), CODES > 0), TYPE),
    ((classifier("no", "yes"), pd.Series(CODES, dtype="Int64")), TYPE),
    ((classifier(0, 1), DIGITS), TYPE),
    ((classifier(0, 1), pd.Series(DIGITS, dtype="string")), TYPE),
    ((classifier(False, True), pl.Series(WORDS)), TYPE),
    ((OneVsRestClassifier(classifier("no", "yes")), WORDS), NUMBERED),
    ((VotingClassifier([("a", classifier("no", "yes"))]), WORDS), NUMBERED),
    said="classes must .*{}",
)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("classes", "max_weight"), [([0, 1], None), ([0, 1, 3], None), ([0, 1], 1.0)]
)
def test_labels_that_match_no_class_are_told(classes, max_weight):
    """By the mean weight of the fit, which is released anyway."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4_000, 1))
    labels = np.where(rng.random(4_000) < 0.3, 2, X[:, 0] > 0)
    options = {"classes": classes, "max_weight": max_weight, "epsilon": 4.0}
    model = DPLogisticRegression(random_state=0, **options)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(X, labels)
    assert model.mean_weight_ == pytest.approx(0.7, abs=0.02)
    messages = [str(warning.message)[:22] for warning in told]
    assert messages == (["About 30% of the recor"] if max_weight is None else [])
