"""Scores of predicted labels, from noisy histograms that are released together."""

import math

import numpy as np

from dpjax.tables.models._measures import Interval, Measure
from dpjax.tables.models._noisy_counts import Release, interval_of, num_seen

_SCORE_BINS = 20  # of probabilities; an edge lies at a half
_CALIBRATION_BINS = 5
# The smallest share of a label: noise may make it zero, and its logarithm is needed.
_LEAST_SHARE = 1e-3
_COIN = Interval(0.5, 0.5, 0.5)  # the area of a constant


def of_labels(
    release: Release, scores: np.ndarray, targets: np.ndarray, beside: np.ndarray | None
) -> tuple[list[Measure], list[tuple[float, float, Interval]], np.ndarray, float]:
    """Releases counts of (label, bin of the probability) for two labels, and of none.

    Args:
        release: adds the noise.
        scores: log odds of the positive label, shape (n,).
        targets: positive for the positive label, NaN for no label, shape (n,).
        beside: log odds of another model, shape (n,); a constant, shape (); or None,
            for the released share of the label.

    Returns:
        Accuracy and area under the curve, the calibration, the comparison's scores, and
        the number of records with a label.
    """
    num_samples, half = len(targets), _SCORE_BINS // 2
    sides = _sides(scores, beside)
    tables = np.zeros((len(sides), 2 * _SCORE_BINS + 1))  # the last of no label
    for cells, side in zip(tables, sides, strict=True):
        shares = 1 / (1 + np.exp(-np.clip(side, -50, 50)))
        places = np.where(targets > 0, _SCORE_BINS, 0) + _bins(shares)
        np.add.at(cells, np.where(np.isnan(targets), 2 * _SCORE_BINS, places), 1.0)
    tables, stddev = release(tables, math.sqrt(2 * len(sides)))
    counts = tables[:, :-1].reshape(-1, 2, _SCORE_BINS)

    def share_of(statistic):
        return lambda counts, missing: (
            statistic(counts) / num_seen(missing, num_samples, stddev)
        )

    @share_of
    def accuracy(counts):
        return counts[1, half:].sum() + counts[0, :half].sum()

    def area(counts, _):
        return _area(counts)

    def bounded(statistic, table=tables[0]):
        def of_table(table):
            return statistic(table[:-1].reshape(2, _SCORE_BINS), table[-1])

        return _within_one(interval_of(of_table, table, num_samples, stddev))

    if beside is None:
        positive = counts[0, 1].sum() / max(counts[0].sum(), 1.0)
        share = min(max(positive, _LEAST_SHARE), 1 - _LEAST_SHARE)
        beside = np.asarray(math.log(share / (1 - share)))
    if len(sides) == 2:
        beside_accuracy, beside_area = map(bounded, (accuracy, area), tables[[1, 1]])
    else:
        chosen = int(beside > 0)
        beside_accuracy = bounded(share_of(lambda counts: counts[chosen].sum()))
        beside_area = _COIN
    calibration = []
    width = _SCORE_BINS // _CALIBRATION_BINS
    for first in range(0, _SCORE_BINS, width):
        part = slice(first, first + width)
        # Fewer records than this are mostly noise.
        if counts[0, :, part].sum() > 4 * stddev * math.sqrt(2 * width):
            share = bounded(
                lambda counts, _, part=part: (
                    counts[1, part].sum() / max(counts[:, part].sum(), 1.0)
                )
            )
            ends = first / _SCORE_BINS, (first + width) / _SCORE_BINS
            calibration.append((*ends, share))
    measures = [
        Measure("accuracy", bounded(accuracy), beside_accuracy),
        Measure("area under the ROC curve", bounded(area), beside_area),
    ]
    seen = num_seen(float(tables[0, -1]), num_samples, stddev)
    return measures, calibration, beside, seen


def of_classes(
    release: Release, scores: np.ndarray, targets: np.ndarray, beside: np.ndarray | None
) -> tuple[list[Measure], np.ndarray, float]:
    """Releases counts of (label, whether it is predicted) for several classes.

    And for each class counts of (whether it is the label, bin of its probability), for
    the area under the curve of one class against the rest. A record is in one count of
    the first kind, in units of w, and in K of the second. So the l2 sensitivity is
    sqrt(2 w^2 + 2 K); with w about sqrt(K) each kind has half of the budget.

    Args:
        release: adds the noise.
        scores: of each class, shape (n, K); the largest is predicted.
        targets: the index of the class, shape (n,); another number is no class, and
            the record has no weight.
        beside: scores of another model, shape (n, K); a constant, shape (K,); or None,
            for the released shares of the labels.

    Returns:
        Accuracy and area under the curve, the mean over classes by their shares; the
        comparison's scores; and the number of records with a class.
    """
    num_samples, num_classes = scores.shape
    is_known = is_class(targets, num_classes)
    labels = np.where(is_known, targets, num_classes).astype(int)
    sides = _sides(scores, beside)
    unit, classes = math.ceil(math.sqrt(num_classes)), np.arange(num_classes)
    counts = np.zeros((len(sides), num_classes + 1, 2))
    binned = np.zeros((len(sides), num_classes, 2, _SCORE_BINS))
    for cells, bins, side in zip(counts, binned, sides, strict=True):
        is_right = np.argmax(side, axis=1) == labels
        np.add.at(cells, (labels, is_right.astype(int)), 1.0)
        shares = np.exp(side - side.max(axis=1, keepdims=True))
        places = _bins(shares / shares.sum(axis=1, keepdims=True))
        is_label = (labels[:, None] == classes).astype(int)
        at = classes[None, :], is_label, places
        np.add.at(bins, at, is_known[:, None].astype(float))
    sums = np.concatenate([unit * counts.ravel(), binned.ravel()])
    moved = math.sqrt(2 * (unit**2 + num_classes) * len(sides))
    sums, noise = release(sums, moved)
    stddev = noise / unit  # of counts
    counts = sums[: counts.size].reshape(counts.shape) / unit
    binned = sums[counts.size :].reshape(binned.shape)
    weights = np.maximum(counts[0, :-1].sum(axis=1), 1.0)

    def bounded(statistic, counts=counts[0]):
        return _within_one(interval_of(statistic, counts, num_samples, stddev))

    def area(binned):
        parts = [interval_of(_area, x, num_samples, noise) for x in binned]
        # The bounds hold however the areas of classes depend on each other.
        return _within_one(Interval(*np.average(parts, axis=0, weights=weights)))

    def seen(counts):
        return num_seen(float(counts[-1].sum()), num_samples, math.sqrt(2) * stddev)

    def accuracy(counts):
        return counts[:-1, 1].sum() / seen(counts)

    if beside is None:
        areas = counts[0, :-1].sum(axis=1) / seen(counts[0])
        beside = np.asarray(np.log(np.maximum(areas, _LEAST_SHARE)))
    if len(sides) == 2:
        beside_accuracy, beside_area = bounded(accuracy, counts[1]), area(binned[1])
    else:
        chosen, beside_area = int(np.argmax(beside)), _COIN
        beside_accuracy = bounded(lambda counts: counts[chosen].sum() / seen(counts))
    name = "area under the ROC curve, of a class against the rest"
    measures = [
        Measure("accuracy", bounded(accuracy), beside_accuracy),
        Measure(name, area(binned[0]), beside_area),
    ]
    return measures, beside, seen(counts[0])


def _bins(shares: np.ndarray) -> np.ndarray:
    return np.minimum((shares * _SCORE_BINS).astype(int), _SCORE_BINS - 1)


def _area(counts: np.ndarray) -> float:
    """Returns the area under the curve of counts of (label, bin), shape (2, bins)."""
    negative, positive = counts
    below = np.cumsum(negative) - negative / 2
    pairs = max(positive.sum(), 1.0) * max(negative.sum(), 1.0)
    return np.sum(positive * below) / pairs


def is_class(targets: np.ndarray, num_classes: int) -> np.ndarray:
    """Returns which targets are the index of a class."""
    return (targets >= 0) & (targets < num_classes)


def _sides(scores: np.ndarray, beside: np.ndarray | None) -> list[np.ndarray]:
    """Returns the scores to count; a constant's counts follow from the labels'."""
    if beside is None or beside.shape != scores.shape:
        return [scores]
    return [scores, beside]


def _within_one(interval: Interval) -> Interval:
    return Interval(*(min(max(x, 0.0), 1.0) for x in interval))
