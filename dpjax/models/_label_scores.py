"""Scores of predicted labels, from one noisy histogram."""

import math

import numpy as np

from dpjax.models._measures import Interval, Measure
from dpjax.models._noisy_counts import Release, interval_of

_SCORE_BINS = 20  # of probabilities; an edge lies at a half
_CALIBRATION_BINS = 5
# The smallest share of a label: noise may make it zero, and its logarithm is needed.
_LEAST_SHARE = 1e-3


def of_labels(
    release: Release, scores: np.ndarray, targets: np.ndarray, beside: np.ndarray | None
) -> tuple[list[Measure], list[tuple[float, float, Interval]], np.ndarray]:
    """Releases counts of (label, bin of the probability) for two labels.

    Args:
        release: adds the noise.
        scores: log odds of the positive label, shape (n,).
        targets: positive for the positive label, shape (n,).
        beside: log odds of another model, shape (n,); a constant, shape (); or None,
            for the released share of the label.

    Returns:
        Accuracy and area under the curve, the calibration, and the comparison's scores.
    """
    num_samples, half = len(targets), _SCORE_BINS // 2
    sides = _sides(scores, beside)
    counts = np.zeros((len(sides), 2, _SCORE_BINS))
    for cells, side in zip(counts, sides, strict=True):
        shares = 1 / (1 + np.exp(-np.clip(side, -50, 50)))
        bins = np.minimum((shares * _SCORE_BINS).astype(int), _SCORE_BINS - 1)
        np.add.at(cells, ((targets > 0).astype(int), bins), 1.0)
    counts, stddev = release(counts, math.sqrt(2 * len(sides)))

    def accuracy(counts):
        return (counts[1, half:].sum() + counts[0, :half].sum()) / num_samples

    def area(counts):
        negative, positive = counts
        below = np.cumsum(negative) - negative / 2
        pairs = max(positive.sum(), 1.0) * max(negative.sum(), 1.0)
        return np.sum(positive * below) / pairs

    def bounded(statistic, counts=counts[0]):
        return _within_one(interval_of(statistic, counts, num_samples, stddev))

    if beside is None:
        positive = counts[0, 1].sum() / max(counts[0].sum(), 1.0)
        share = min(max(positive, _LEAST_SHARE), 1 - _LEAST_SHARE)
        beside = np.asarray(math.log(share / (1 - share)))
    if len(sides) == 2:
        beside_accuracy, beside_area = (bounded(x, counts[1]) for x in (accuracy, area))
    else:
        chosen = int(beside > 0)
        beside_accuracy = bounded(lambda counts: counts[chosen].sum() / num_samples)
        beside_area = Interval(0.5, 0.5, 0.5)
    calibration = []
    width = _SCORE_BINS // _CALIBRATION_BINS
    for first in range(0, _SCORE_BINS, width):
        part = slice(first, first + width)
        # Fewer records than this are mostly noise.
        if counts[0, :, part].sum() > 4 * stddev * math.sqrt(2 * width):
            share = bounded(
                lambda counts, part=part: (
                    counts[1, part].sum() / max(counts[:, part].sum(), 1.0)
                )
            )
            ends = first / _SCORE_BINS, (first + width) / _SCORE_BINS
            calibration.append((*ends, share))
    measures = [
        Measure("accuracy", bounded(accuracy), beside_accuracy),
        Measure("area under the ROC curve", bounded(area), beside_area),
    ]
    return measures, calibration, beside


def of_classes(
    release: Release, scores: np.ndarray, targets: np.ndarray, beside: np.ndarray | None
) -> tuple[list[Measure], np.ndarray]:
    """Releases counts of (label, whether it is predicted) for several classes.

    Args:
        release: adds the noise.
        scores: of each class, shape (n, K); the largest is predicted.
        targets: the index of the class, shape (n,); another number is no class.
        beside: scores of another model, shape (n, K); a constant, shape (K,); or None,
            for the released shares of the labels.

    Returns:
        Accuracy, and the comparison's scores.
    """
    num_samples, num_classes = scores.shape
    labels = np.where(is_class(targets, num_classes), targets, num_classes).astype(int)
    sides = _sides(scores, beside)
    counts = np.zeros((len(sides), num_classes + 1, 2))
    for cells, side in zip(counts, sides, strict=True):
        is_right = np.argmax(side, axis=1) == labels
        np.add.at(cells, (labels, is_right.astype(int)), 1.0)
    counts, stddev = release(counts, math.sqrt(2 * len(sides)))

    def bounded(statistic, counts=counts[0]):
        return _within_one(interval_of(statistic, counts, num_samples, stddev))

    def accuracy(counts):
        return counts[:-1, 1].sum() / num_samples

    if beside is None:
        found = counts[0, :-1].sum(axis=1) / num_samples
        beside = np.asarray(np.log(np.maximum(found, _LEAST_SHARE)))
    if len(sides) == 2:
        beside_accuracy = bounded(accuracy, counts[1])
    else:
        chosen = int(np.argmax(beside))
        beside_accuracy = bounded(lambda counts: counts[chosen].sum() / num_samples)
    return [Measure("accuracy", bounded(accuracy), beside_accuracy)], beside


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
