"""Labels of classes, which are declared or released privately."""

import decimal
import math
import numbers
from typing import Any, cast

import numpy as np
from scipy.special import ndtri_exp

from dpjax import _validate
from dpjax._rounding import ROUNDED_UP
from dpjax._types import Key
from dpjax.solvers.statistics._scales import released
from dpjax.tables.io._tables import kind_of

DELTA_SHARE = 0.2  # share of delta that covers a label which a single record has
_THRESHOLD = 4.0  # rough threshold of counts, in standard deviations of the noise


def labels_share(num_samples: int, noise_multiplier: float) -> float:
    """Returns the share of the budget for the release of labels, in [0.01, 0.8]."""
    # It suffices to show a label of a seventh of the records.
    noise = 7 * _THRESHOLD * math.sqrt(2) * noise_multiplier / num_samples
    return min(max(noise**2, 0.01), 0.8)


def canonical(label: Any) -> int | float | str | None:
    """Returns a label as int (1 for 1.0 and True), float or str; None if missing."""
    # So a label is the same in arrays of any types, and in public classes.
    if isinstance(label, bytes):
        label = label.decode("latin-1")
    if isinstance(label, str):
        return str.__str__(label).rstrip("\0")  # NumPy's arrays of text drop it too
    if not isinstance(label, numbers.Real | decimal.Decimal | np.bool_):
        return None
    try:
        number = float(label)
    except (OverflowError, ValueError):  # beyond float64, or a signaling NaN
        return None
    if not math.isfinite(number):
        return None if number != number else number
    integer = int(cast(Any, label))
    return integer if integer == label else number


def numbered(labels: np.ndarray) -> tuple[list, np.ndarray]:
    """Returns the distinct labels, and each label's index in them, (n,), -1 if missing.

    So labels are counted, or matched with classes. Numbers and texts are returned as
    `canonical` returns them, labels of other types as tuples (label,).
    """
    if labels.dtype.kind in "biufUS":
        distinct, codes = np.unique(labels, return_inverse=True)
    else:
        distinct, codes = labels.astype(object), np.arange(len(labels))
    places: dict[Any, int] = {}
    place_of = np.full(len(distinct), -1)
    for row, label in enumerate(distinct):
        form = canonical(label)
        try:
            hash(label)
            is_known = label is not None and bool(label == label)
        except (TypeError, ValueError):  # it has no hash, or a comparison is an array
            is_known = False
        if form is not None or is_known:
            form = (label,) if form is None else form
            place_of[row] = places.setdefault(form, len(places))
    return list(places), place_of[codes]


def declared(classes: Any, name: str = "classes") -> np.ndarray:
    """Returns a user's public classes, sorted; raises unless two or more, distinct."""
    # So `classes_` has the order of scikit-learn. Errors have the option's `name`.
    array = np.asarray(classes)
    is_list = array.ndim == 1 and not isinstance(classes, str)
    _validate.require(is_list, name, classes, "a list of labels, or None")
    num_distinct = len(numbered(array)[0])
    rule = "at least two labels that differ, none of them missing"
    _validate.require(num_distinct == len(array) >= 2, name, classes, rule)
    return _sorted(array)


def check_kind(y: Any, classes: np.ndarray) -> None:
    """Raises `ValueError` if y holds numbers but `classes` only text, or vice versa."""
    # No label could match a class then, as in a meta-estimator that numbers the labels.
    forms = {"numbers": (int, float), "text": (str,)}.get(kind_of(y) or "")
    if forms and not any(isinstance(canonical(label), forms) for label in classes):
        places = [*range(len(classes))]
        raise ValueError(
            f"classes must be of the type of y, {getattr(y, 'dtype', '')}, got "
            f"{classes.tolist()}. Meta-estimators, such as VotingClassifier, number "
            f"the labels before they pass them on: then classes are {places}, and "
            "[0, 1] in a OneVsRestClassifier."
        )


def release_labels(
    key: Key, labels: np.ndarray, *, noise_multiplier: float, log_probability: float
) -> np.ndarray:
    """Releases, sorted, the labels with a noisy count above a threshold; [0] if none.

    A fit without public classes predicts them. The count of a single record passes with
    probability p only, exp of `log_probability`. Labels other than numbers and texts
    count as missing, so the result's type follows from the released labels alone.

    Privacy:
        The noise multiplier is the standard deviation of the noise divided by the
        counts' l2 sensitivity, sqrt(2). Suppose that a Gaussian mechanism with mu = 1 /
        noise_multiplier is (epsilon, delta)-DP together with all later releases. Then
        the labels and these releases are (epsilon, delta + e^epsilon p)-DP under
        replace-one: `docs/privacy/proofs/estimators.md`, 9.3.
    """
    distinct, codes = numbered(labels)
    totals = np.bincount(codes[codes >= 0], minlength=len(distinct))
    known = zip(distinct, totals, strict=True)
    counts = {label: n for label, n in known if not isinstance(label, tuple)}
    stddev = math.sqrt(2) * noise_multiplier
    # At epsilon = inf, where the probability is zero, all labels pass.
    log_probability = 0.0 if log_probability == -math.inf else log_probability
    threshold = (1 - stddev * ROUNDED_UP * ndtri_exp(log_probability)) * ROUNDED_UP
    passed = passing(key, counts, stddev, threshold) or [0]
    kinds = {type(label) for label in passed}
    dtype = None if kinds <= {int, float} or kinds == {str} else object
    return _sorted(np.array(passed, dtype))


def passing(
    key: Key, counts: dict[Any, int], stddev: float, threshold: float
) -> list[Any]:
    """Releases the labels whose `counts`, with Gaussian noise, exceed a threshold."""
    noisy = released(key, np.array([*counts.values()], float), stddev)
    return [label for label, n in zip(counts, noisy, strict=True) if n > threshold]


def indices(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Returns the index of each label in `classes`, -1 if it is none of them."""
    forms, codes_of_classes = numbered(classes)
    places = {forms[code]: place for place, code in enumerate(codes_of_classes)}
    distinct, codes = numbered(labels)
    of_distinct = np.array([places.get(label, -1) for label in distinct] + [-1])
    return of_distinct[codes]  # code -1 of a missing label reads the last entry, -1


def _sorted(labels: np.ndarray) -> np.ndarray:
    try:
        return np.sort(labels)
    except TypeError:  # values that do not compare are sorted by type and text
        texts = [(type(label).__name__, str(label)) for label in labels]
        return labels[sorted(range(len(labels)), key=texts.__getitem__)]
