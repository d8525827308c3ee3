"""How good is a model, said privately, of records that its training did not see.

Two Gaussian mechanisms on sums of whole numbers. The first releases a histogram: for
classes, of label and predicted probability (replacing a record changes two counts by
one: l2 sensitivity sqrt 2); for numbers, two of absolute errors, the model's and a
constant's (2). The second releases mean losses, held within bounds from the first.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._rounding import ROUNDED_UP
from dpjax._types import Key
from dpjax.losses import LinearLoss
from dpjax.mechanisms import gaussian

_SCORE_BINS = 20  # of probabilities; an edge lies at a half
_CALIBRATION_BINS = 5
_MOST_NATS = 5.0
# Edges of absolute errors, in scales of the target: eight a decade.
_ERROR_EDGES = np.logspace(-2, 2, 33)
_BEYOND = 3.0  # times the 90th percentile: where errors are held for their mean loss
_STEPS_OF_LOSS = 1000  # losses are whole numbers of so many parts, whose sum is exact
_NUM_RESAMPLES = 200
_LARGEST = 1e30
_WIDTH = 1.96  # standard deviations: 95 per cent of a normal law


class Interval(NamedTuple):
    """A released number, with 95 per cent bounds for sampling and noise together."""

    value: float
    low: float
    high: float


class Measure(NamedTuple):
    """One measure, of the model and of the constant beside it.

    Attributes:
        name: with its unit.
        model: of the model.
        constant: of a prediction that is the same for all records.
    """

    name: str
    model: Interval
    constant: Interval


class PrivateScores(NamedTuple):
    """What was released of how good a model is.

    Attributes:
        measures: released, or computed from what is.
        calibration: for classes, the share of the positive label where the predicted
            probability is in a range (low, high).
    """

    measures: list[Measure]
    calibration: list[tuple[float, float, Interval]]


def private_scores(
    scores: np.ndarray,
    targets: np.ndarray,
    *,
    loss: LinearLoss,
    loss_name: str,
    scale: float | None,
    key: Key,
    noise_multiplier: float,
) -> PrivateScores:
    """Releases how good a model is on records, beside a constant.

    Args:
        scores: of the model and of the constant, shape (2, n): log odds of the positive
            label, or numbers in units of the target's scale.
        targets: shape (n,): positive where the label is the positive one; or numbers in
            units of the scale.
        loss: of a score and a target.
        loss_name: what to call it.
        scale: of the target, public, about the size of an error: errors from a
            hundredth to a hundred scales are told apart. None: targets are labels.
        key: a typed key.
        noise_multiplier: of each of two Gaussian mechanisms.

    Returns:
        For labels accuracy, area under the ROC curve and calibration; for numbers the
        median and the 90th percentile of the absolute error; and the mean loss.

    Raises:
        ValueError: If the shapes do not fit, or the scale is not positive.

    Privacy:
        Under replace-one, n public, it is as two Gaussian mechanisms of that noise
        multiplier: `accounting.noise_multiplier(epsilon, delta, num_steps=2)`. No value
        raises: what is no number is taken as the largest or as zero.

    Example:
        >>> import jax, numpy as np
        >>> from dpjax import losses
        >>> targets = np.random.default_rng(0).normal(size=10_000)
        >>> scores = np.stack([0.5 * targets, np.zeros(10_000)])
        >>> released = private_scores(
        ...     scores, targets, loss=losses.squared, loss_name="squared", scale=1.0,
        ...     key=jax.random.key(0), noise_multiplier=5.0)
        >>> for name, model, constant in released.measures:
        ...     print(f"{name[:18]}: {model.value:.2f} and {constant.value:.2f}")
        median of the abso: 0.34 and 0.68
        90th percentile of: 0.83 and 1.66
        mean squared loss,: 0.13 and 0.49

    Reference:
        Dwork, Roth (2014), "The algorithmic foundations of differential privacy",
        section 3.5.1, on the l2 sensitivity of histograms.
    """
    _validate.require(
        scores.shape == (2, *targets.shape) and targets.ndim == 1,
        "scores",
        scores.shape,
        f"of shape (2, n), for targets of shape (n,) = {targets.shape}",
    )
    # Whatever the model is, losses are numbers or infinite.
    scores = np.clip(np.nan_to_num(scores), -_LARGEST, _LARGEST)
    release = _Release(key, noise_multiplier)
    if scale is None:
        measures, calibration = _of_labels(release, scores, targets)
        bounds, unit = [_MOST_NATS] * 2, f"nats, at most {_MOST_NATS:g}"
    else:
        _validate.positive(scale=scale)
        measures, bounds = _of_numbers(release, scores, targets, scale, loss)
        calibration, unit = [], f"target in units of {scale:g}"
    model, beside = _mean_losses(release, scores, targets, bounds, loss)
    name = f"mean {loss_name} loss, held within bounds ({unit})"
    return PrivateScores([*measures, Measure(name, model, beside)], calibration)


class _Release:
    """Adds Gaussian noise to sums of whole numbers, which float64 holds exactly."""

    def __init__(self, key: Key, multiplier: float):
        self.keys = iter(jax.random.split(key))
        self.multiplier = multiplier

    def __call__(
        self, sums: np.ndarray, sensitivity: float
    ) -> tuple[np.ndarray, float]:
        """Returns the noisy sums, and the standard deviation of the noise."""
        stddev = self.multiplier * sensitivity * ROUNDED_UP
        noise = gaussian(next(self.keys), jnp.zeros(sums.shape), stddev=stddev)
        return sums + np.asarray(noise, np.float64), stddev


def _of_labels(
    release: _Release, scores: np.ndarray, targets: np.ndarray
) -> tuple[list[Measure], list[tuple[float, float, Interval]]]:
    num_samples = len(targets)
    shares = 1 / (1 + np.exp(-np.clip(scores[0], -50, 50)))
    bins = np.minimum((shares * _SCORE_BINS).astype(int), _SCORE_BINS - 1)
    counts = np.zeros((2, _SCORE_BINS))
    np.add.at(counts, ((targets > 0).astype(int), bins), 1.0)
    counts, stddev = release(counts, math.sqrt(2))
    half = _SCORE_BINS // 2

    def accuracy(counts):
        return (counts[1, half:].sum() + counts[0, :half].sum()) / num_samples

    def constant_accuracy(counts):
        return counts[int(scores[1, 0] > 0)].sum() / num_samples

    def area(counts):
        negative, positive = counts
        below = np.cumsum(negative) - negative / 2
        pairs = max(positive.sum(), 1.0) * max(negative.sum(), 1.0)
        return np.sum(positive * below) / pairs

    def bounded(statistic):
        interval = _interval(statistic, counts, num_samples, stddev)
        return Interval(*(min(max(x, 0.0), 1.0) for x in interval))

    calibration = []
    width = _SCORE_BINS // _CALIBRATION_BINS
    for first in range(0, _SCORE_BINS, width):
        chosen = slice(first, first + width)
        # Fewer records than this are mostly noise.
        if counts[:, chosen].sum() > 4 * stddev * math.sqrt(2 * width):
            share = bounded(
                lambda counts, chosen=chosen: (
                    counts[1, chosen].sum() / max(counts[:, chosen].sum(), 1.0)
                )
            )
            ends = first / _SCORE_BINS, (first + width) / _SCORE_BINS
            calibration.append((*ends, share))
    return [
        Measure("accuracy", bounded(accuracy), bounded(constant_accuracy)),
        Measure("area under the ROC curve", bounded(area), Interval(0.5, 0.5, 0.5)),
    ], calibration


def _of_numbers(
    release: _Release,
    scores: np.ndarray,
    targets: np.ndarray,
    scale: float,
    loss: LinearLoss,
) -> tuple[list[Measure], list[float]]:
    num_samples = len(targets)
    errors = np.abs(scores - targets)
    bins = np.searchsorted(_ERROR_EDGES, errors)
    counts = np.zeros((2, len(_ERROR_EDGES) + 1))
    for row, places in zip(counts, bins, strict=True):
        np.add.at(row, places, 1.0)
    counts, stddev = release(counts, 2.0)

    def quantile(share):
        def logarithm(counts):
            below = np.maximum.accumulate(np.cumsum(counts))[:-1]
            return np.interp(share * num_samples, below, np.log(_ERROR_EDGES))

        return logarithm

    found = {
        name: [_interval(quantile(share), row, num_samples, stddev) for row in counts]
        for name, share in (("median", 0.5), ("90th percentile", 0.9))
    }
    sizes = {
        name: [Interval(*map(math.exp, interval)) for interval in intervals]
        for name, intervals in found.items()
    }
    measures = [
        Measure(
            f"{name} of the absolute error",
            *(Interval(*(scale * x for x in size)) for size in both),
        )
        for name, both in sizes.items()
    ]
    held = [_BEYOND * interval.value for interval in sizes["90th percentile"]]
    bounds = [float(loss.value(jnp.asarray(x), 0.0)) for x in held]
    return measures, bounds


def _mean_losses(
    release: _Release,
    scores: np.ndarray,
    targets: np.ndarray,
    bounds: list[float],
    loss: LinearLoss,
) -> list[Interval]:
    values = loss.value(jnp.asarray(scores), jnp.asarray(targets)[None, :])
    bound = np.maximum(bounds, 1e-12)
    shares = np.nan_to_num(np.asarray(values, np.float64) / bound[:, None], nan=1.0)
    parts = np.rint(np.clip(shares, 0.0, 1.0) * _STEPS_OF_LOSS)
    sums, stddev = release(parts.sum(axis=1), _STEPS_OF_LOSS * math.sqrt(2))
    unit = _STEPS_OF_LOSS * len(targets)
    means = np.clip(sums / unit, 0.0, 1.0)
    # Of numbers in [0, 1] of mean m, the variance is m (1 - m) at most.
    wide = _WIDTH * np.sqrt((stddev / unit) ** 2 + means * (1 - means) / len(targets))
    return [
        Interval(b * m, b * max(m - w, 0.0), b * min(m + w, 1.0))
        for b, m, w in np.stack([bound, means, wide], axis=1).tolist()
    ]


def _interval(
    statistic: Callable[[np.ndarray], float],
    counts: np.ndarray,
    num_samples: int,
    stddev: float,
) -> Interval:
    """Returns a statistic of noisy counts, and bounds from counts drawn like them.

    Drawing uses what is released alone, hence costs nothing.
    """
    rng = np.random.default_rng(0)
    # Counts of mostly noise are taken as empty: cut at zero, they would add up.
    shares = np.where(counts > 2 * stddev, counts, 0.0).ravel()
    if shares.sum() <= 0:
        shares = np.ones(counts.size)
    drawn = rng.multinomial(num_samples, shares / shares.sum(), _NUM_RESAMPLES)
    noisy = drawn + stddev * rng.standard_normal(drawn.shape)
    spread = float(
        np.std(
            [
                statistic(_adding_up(one.reshape(counts.shape), num_samples))
                for one in noisy
            ]
        )
    )
    value = float(statistic(_adding_up(counts, num_samples)))
    return Interval(value, value - _WIDTH * spread, value + _WIDTH * spread)


def _adding_up(counts: np.ndarray, num_samples: int) -> np.ndarray:
    """Returns noisy counts that add up to the public number of records."""
    return counts + (num_samples - counts.sum()) / counts.size
