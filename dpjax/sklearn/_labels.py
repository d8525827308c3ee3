"""The labels of classes: looked up among declared ones, or bought."""

import math
from typing import Any

import numpy as np
from scipy.special import ndtri_exp

from dpjax import _validate
from dpjax._rounding import ROUNDED_UP
from dpjax._types import Key
from dpjax.sklearn._scales import released

DELTA_SHARE = 0.2  # of delta, for a label that one record alone has
_THRESHOLD = 4.0  # of the noise's standard deviation, about


def labels_share(num_samples: int, noise_multiplier: float) -> float:
    """Returns the part of the budget that lets labels be seen, from public numbers.

    As much as shows one that a seventh of the records have, from 1 to 80 per cent.
    """
    noise = 7 * _THRESHOLD * math.sqrt(2) * noise_multiplier / num_samples
    return min(max(noise**2, 0.01), 0.8)


def numbered(labels: np.ndarray) -> tuple[list, np.ndarray]:
    """Returns the distinct labels and the index of each record's, -1 for a missing one.

    Missing are None, NaN and all that does not equal itself, and what has no hash.
    """
    if labels.dtype != object:
        distinct, codes = np.unique(labels, return_inverse=True)
        is_missing = distinct != distinct
        return list(distinct[~is_missing]), np.where(is_missing[codes], -1, codes)
    places: dict[Any, int] = {}
    codes = np.full(len(labels), -1)
    for row, label in enumerate(labels):
        if _is_known(label):
            codes[row] = places.setdefault(label, len(places))
    return list(places), codes


def declared(classes: Any) -> np.ndarray:
    """Returns public classes, sorted as scikit-learn has them."""
    array = np.asarray(classes)
    is_list = array.ndim == 1 and not isinstance(classes, str)
    _validate.require(is_list, "classes", classes, "a list of labels, or None")
    distinct = _sorted(numbered(array)[0], array.dtype)
    rule = "at least two labels that differ, none of them missing"
    _validate.require(len(distinct) == len(array) >= 2, "classes", classes, rule)
    return distinct


def buy_labels(
    key: Key,
    labels: np.ndarray,
    *,
    noise_multiplier: float,
    log_probability: float,
) -> np.ndarray:
    """Releases the labels of which more records than noise would show, sorted.

    Those whose count with Gaussian noise passes a threshold that a single record passes
    with probability p only. Where none does, it is the zero of the labels' type: 0,
    False or an empty string.

    Args:
        key: a typed key.
        labels: shape (n,).
        noise_multiplier: stddev over the l2 sensitivity of the counts, sqrt(2).
        log_probability: the logarithm of p.

    Privacy:
        Let a Gaussian mechanism of mu = 1 / noise_multiplier, with all later releases,
        be (epsilon, delta)-DP. Then the labels and those releases are
        (epsilon, delta + e^epsilon p)-DP under replace-one. Let M' be as M, but blind
        to labels that stand in one of two neighbours alone, of which each has at most
        one, with one record. It is a Gaussian mechanism of counts that move by sqrt(2);
        M(D) is M'(D) but where such a label passes, with probability p, which neither
        depends on the rest nor is larger for the other. So Pr[M(D) in S] is at most
        p + (1 - p) Pr[M'(D) in S'] where D has such a label, S' those outcomes of S
        without one, and Pr[M'(D) in S] otherwise; and Pr[M(D) in S] is at least
        (1 - p) Pr[M'(D) in S'], or Pr[M'(D) in S']. In the worst case D has none and
        its neighbour one: e^epsilon p + delta.
    """
    distinct, codes = numbered(labels)
    size = 2 ** math.ceil(math.log2(max(len(distinct), 1)))  # few programs
    counts = np.bincount(codes[codes >= 0], minlength=size)
    stddev = math.sqrt(2) * noise_multiplier
    threshold = (1 - stddev * ROUNDED_UP * ndtri_exp(log_probability)) * ROUNDED_UP
    found = released(key, counts, stddev)
    passed = [label for label, n in zip(distinct, found, strict=False) if n > threshold]
    if not passed:
        passed = [np.zeros(1, labels.dtype)[0] if labels.dtype != object else ""]
    return _sorted(passed, labels.dtype)


def indices(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Returns the index of each record's class, -1 for a label that is none of them."""
    places = {label: place for place, label in enumerate(classes)}
    distinct, codes = numbered(labels)
    of_distinct = np.array([places.get(label, -1) for label in distinct] + [-1])
    return of_distinct[codes]  # the last one for those that are missing


def _sorted(labels: list, dtype: np.dtype) -> np.ndarray:
    """Returns labels as an array, in their order, or in that of type and text."""
    # The longest text of all records is in a dtype of text: it is made anew.
    array = np.empty(len(labels), object if dtype.kind in "OUS" else dtype)
    for place, label in enumerate(labels):
        array[place] = label
    if dtype.kind in "US":
        array = array.astype(dtype.kind)
    try:
        return np.sort(array)
    except TypeError:
        order = sorted(range(len(labels)), key=lambda i: _type_and_text(labels[i]))
        return array[order]


def _type_and_text(label: Any) -> tuple[str, str]:
    return type(label).__name__, str(label)


def _is_known(label: Any) -> bool:
    try:
        hash(label)
        return label is not None and bool(label == label)
    except (TypeError, ValueError):  # no hash, or neither equal nor unequal
        return False
