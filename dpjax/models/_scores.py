"""Private scores of a model on records that it was not trained on.

Two Gaussian mechanisms on sums of integers. The first releases a histogram: for two
labels, of label and predicted probability; for more labels, of label and whether the
prediction is right. Replacing a record changes two counts by one, so the l2 sensitivity
is sqrt 2, and 2 with the histogram of another model. For numbers it releases two
histograms of absolute errors, the model's and a constant's (sensitivity 2). The second
mechanism releases mean losses, clipped to bounds from the first.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._types import ArrayLike, Key
from dpjax.losses import LinearLoss
from dpjax.models._label_scores import is_class, of_classes, of_labels
from dpjax.models._measures import Interval, Measure, PrivateScores
from dpjax.models._noisy_counts import WIDTH, Release, adding_up, interval_of

_MOST_NATS = 5.0
# Edges of absolute errors, in scales of the target: eight a decade.
_ERROR_EDGES = np.logspace(-2, 2, 33)
_BEYOND = 3.0  # times the 90th percentile: where errors are clipped for their mean loss
_STEPS_OF_LOSS = 1000  # losses are rounded to multiples of bound / 1000: exact sums
_LARGEST = 1e30


def private_scores(
    scores: np.ndarray,
    targets: np.ndarray,
    *,
    beside: ArrayLike | None = None,
    loss: LinearLoss,
    loss_name: str,
    scale: float | None,
    key: Key,
    noise_multiplier: float,
) -> PrivateScores:
    """Releases scores of a model on records, next to those of a constant.

    Args:
        scores: predictions in the form of the loss, shape (n,): log odds of the
            positive label, numbers in units of the target's scale, or logarithms of
            means in these units; for K classes log probabilities, shape (n, K).
        targets: shape (n,): positive for the positive label; the index of a class, or
            another number for no class; or numbers in units of the scale.
        beside: the comparison: a constant score, shape () or (K,), public or released;
            or the scores of another model, in the shape of scores. None: for labels and
            classes their released shares; else 0.
        loss: of a score and a target; `losses.softmax(K)` for K classes.
        loss_name: the loss's name in the result.
        scale: of the target, public, about the size of an error: errors are resolved
            from a hundredth of the scale to a hundred scales. None: targets are labels.
        key: a typed key.
        noise_multiplier: of each of two Gaussian mechanisms.

    Returns:
        For labels accuracy, area under the ROC curve and calibration; for classes
        accuracy; for numbers the median and the 90th percentile of the absolute error;
        and the mean loss, minus that of the best prediction of each target. The latter
        is zero except for a log link, where the difference is half the deviance.

    Raises:
        ValueError: If the shapes do not fit, or the scale is not positive.

    Privacy:
        Under replace-one, n public, it costs as much as two Gaussian mechanisms of that
        noise multiplier: `accounting.noise_multiplier(epsilon, delta, num_steps=2)`.
        The noise is discrete and the sums are exact, so their last bits reveal nothing.
        No value raises an error: NaN counts as the largest loss, or as zero.

    Example:
        >>> import jax, numpy as np
        >>> from dpjax import losses
        >>> targets = np.random.default_rng(0).normal(size=10_000)
        >>> released = private_scores(
        ...     0.5 * targets, targets, loss=losses.squared, loss_name="squared",
        ...     scale=1.0, key=jax.random.key(0), noise_multiplier=5.0)
        >>> for name, model, constant in released.measures:
        ...     print(f"{name[:18]}: {model.value:.2f} and {constant.value:.2f}")
        median of the abso: 0.34 and 0.68
        90th percentile of: 0.83 and 1.66
        mean squared loss,: 0.13 and 0.50

    Reference:
        Dwork, Roth (2014), "The algorithmic foundations of differential privacy",
        section 3.5.1, on the l2 sensitivity of histograms.
    """
    _validate.require(targets.ndim == 1, "targets", targets.shape, "of shape (n,)")
    outputs = () if loss.num_outputs == 1 else (loss.num_outputs,)
    shape = (*targets.shape, *outputs)
    _validate.require(
        scores.shape == shape, "scores", scores.shape, f"of shape {shape}"
    )
    scores, other = _held(scores), None if beside is None else _held(beside)
    rule = f"of shape {outputs} or {shape}"
    if other is not None:
        is_fine = other.shape in (shape, outputs)
        _validate.require(is_fine, "beside", other.shape, rule)
    release = Release(key, noise_multiplier)
    calibration: list[tuple[float, float, Interval]] = []
    bounds, unit = [_MOST_NATS] * 2, f"nats, at most {_MOST_NATS:g}"
    if outputs:
        measures, other = of_classes(release, scores, targets, other)
    elif scale is None:
        measures, calibration, other = of_labels(release, scores, targets, other)
    else:
        _validate.positive(scale=scale)
        other = np.zeros(()) if other is None else other
        both = np.stack([scores, np.broadcast_to(other, shape)])
        measures, bounds = _of_numbers(release, both, targets, scale, loss)
        unit = f"target in units of {scale:g}"
    both = np.stack([scores, np.broadcast_to(other, shape)])
    means = _mean_losses(release, both, targets, bounds, loss)
    name = f"mean {loss_name} loss, held within bounds ({unit})"
    return PrivateScores([*measures, Measure(name, *means)], calibration)


def _held(scores: ArrayLike) -> np.ndarray:
    """Returns scores without NaN and clipped, so no loss is NaN for any model."""
    scores = np.nan_to_num(np.asarray(scores, np.float64))
    return np.clip(scores, -_LARGEST, _LARGEST)


def _of_numbers(
    release: Release,
    scores: np.ndarray,
    targets: np.ndarray,
    scale: float,
    loss: LinearLoss,
) -> tuple[list[Measure], list[float]]:
    num_samples = len(targets)
    means = np.asarray(loss.mean_of(jnp.asarray(scores)), np.float64)
    errors = np.abs(means - targets)
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

    # Amounts are mostly zero: use the furthest tail that the noise leaves visible.
    tail = min(max(0.01, 10 * stddev / num_samples), 0.1) if loss.has_log_link else 0.1
    found = {
        name: [interval_of(quantile(share), row, num_samples, stddev) for row in counts]
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
    bounds = []
    for row, middle in zip(counts, sizes["median"], strict=True):
        far = math.exp(quantile(1 - tail)(adding_up(row, num_samples)))
        score = loss.constant_prediction(middle.value)
        bounds.append(float(_excess(loss, score, middle.value + _BEYOND * far)))
    return measures, bounds


def _mean_losses(
    release: Release,
    scores: np.ndarray,
    targets: np.ndarray,
    bounds: list[float],
    loss: LinearLoss,
) -> list[Interval]:
    known = np.broadcast_to(targets, (2, len(targets)))
    both = _validate.arrays((scores, known))
    values = np.asarray(_excess(loss, *both))
    if loss.num_outputs > 1:  # targets that are no class have the largest loss
        values = np.where(is_class(known, loss.num_outputs), values, np.inf)
    bound = np.maximum(bounds, 1e-12)
    shares = np.nan_to_num(np.asarray(values, np.float64) / bound[:, None], nan=1.0)
    parts = np.rint(np.clip(shares, 0.0, 1.0) * _STEPS_OF_LOSS)
    sums, stddev = release(parts.sum(axis=1), _STEPS_OF_LOSS * math.sqrt(2))
    unit = _STEPS_OF_LOSS * len(targets)
    means = np.clip(sums / unit, 0.0, 1.0)
    # Of numbers in [0, 1] of mean m, the variance is m (1 - m) at most.
    wide = WIDTH * np.sqrt((stddev / unit) ** 2 + means * (1 - means) / len(targets))
    return [
        Interval(b * m, b * max(m - w, 0.0), b * min(m + w, 1.0))
        for b, m, w in np.stack([bound, means, wide], axis=1).tolist()
    ]


def _excess(loss: LinearLoss, scores: jax.Array, targets: ArrayLike) -> jax.Array:
    """Returns losses minus those of the best prediction for each target."""
    if loss.num_outputs > 1:
        return loss.value(scores, targets)  # and these are zero
    known = loss.targets_of(jnp.asarray(targets, scores.dtype))
    best = loss.constant_prediction(known)
    return loss.value(scores, known) - loss.value(best, known)
