"""Private scores of a model on records that it was not trained on.

Two Gaussian mechanisms on sums of integers. The first releases a histogram: for two
labels, of label and predicted probability. Replacing a record changes two counts by
one, so the l2 sensitivity is sqrt 2, and 2 with the histogram of another model. For K
labels, of label and whether the prediction is right, and of the probability of each
label: see `of_classes`. For numbers it releases two
histograms of absolute errors, the model's and a constant's (sensitivity 2). The second
mechanism releases sums, clipped to bounds from the first: of losses, and for numbers of
absolute and squared errors. A record without a target is in a bin of its own of each
histogram, and adds nothing to a sum; by that bin, means are of the others. Each of k
sums grows by a whole number from 0 to 1000 for a record, and the number of means at
an end of their range by 500, so that the l2 sensitivity is 1000 sqrt(k), or with that
number 1000 sqrt(k + 1/4).
"""

import math
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._tree import arrays
from dpjax._types import ArrayLike, Key
from dpjax.losses import LinearLoss, squared
from dpjax.losses._log_link import LogLink
from dpjax.tables.models._label_scores import is_class, of_classes, of_labels
from dpjax.tables.models._measures import Interval, Measure, PrivateScores
from dpjax.tables.models._noisy_counts import (
    WIDTH,
    Release,
    adding_up,
    interval_of,
    num_seen,
)

_MOST_NATS = 5.0
# Edges of absolute errors, in scales of the target: eight a decade.
_ERROR_EDGES = np.logspace(-2, 2, 33)
# Of amounts, whose usual exposure may be far below the largest: six a decade.
_AMOUNT_EDGES = np.logspace(-4, 2, 37)
_BEYOND = 3.0  # times the 90th percentile: where errors are clipped for their means
_STEPS = 1000  # losses and errors are rounded to multiples of bound / 1000: exact sums
_LARGEST = 1e30
_NOTHING = Interval(0.0, 0.0, 0.0)
_MEANS = 1e-9, 1e9  # in scales: means of small exposures count as they are


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
    is_end: np.ndarray | None = None,
) -> PrivateScores:
    """Releases scores of a model on records, next to those of a constant.

    Args:
        scores: predictions in the form of the loss, shape (n,): log odds of the
            positive label, numbers in units of the target's scale, or logarithms of
            means in these units; for K classes log probabilities, shape (n, K).
        targets: shape (n,): positive for the positive label; the index of a class, or
            another number for no class; or numbers in units of the scale. A record
            whose target is NaN, or no class, has no weight.
        beside: the comparison: a constant score, shape () or (K,), public or released;
            or the scores of another model, in the shape of scores. None: for labels and
            classes their released shares; else 0.
        loss: of a score and a target; `losses.softmax(K)` for K classes.
        loss_name: the loss's name in the result.
        scale: of the target, public, about the size of an error: errors are resolved
            from a hundredth of the scale, or with a log link from a ten-thousandth, to
            a hundred scales. None: targets are labels.
        key: a typed key.
        noise_multiplier: of each of two Gaussian mechanisms.
        is_end: of a log link which means are an end of the range that the model has,
            boolean of shape (n,): their share is released too. Each follows from its
            record alone, as scores do.

    Returns:
        For labels accuracy, area under the ROC curve and calibration; for classes
        accuracy and the area of one class against the rest, a mean by their shares; and
        for both the mean loss. For numbers the median and the 90th
        percentile of the absolute error (half of the predictions are off by at most the
        one, and nine of ten by at most the other); the mean loss, or for a log link the
        mean deviance, in the unit of the target to the power 2 - p; the mean absolute
        error and the root mean squared error, all three clipped, and to what; and where
        there is a comparison, R2: the share of its mean squared error that the model
        does without, -1 at least.

    Raises:
        ValueError: If the shapes do not fit, or the scale is not positive.

    Privacy:
        Under replace-one, n public, it costs as much as two Gaussian mechanisms of that
        noise multiplier: `accounting.noise_multiplier(epsilon, delta, Sampling(2))`.
        The noise is discrete and the sums are exact, so their last bits reveal nothing.
        No value raises an error: a score that is NaN counts as zero.

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
        90th percentile of: 0.83 and 1.67
        mean squared loss,: 0.13 and 0.50
        mean absolute erro: 0.40 and 0.80
        root mean squared : 0.50 and 1.00
        absolute error: cl: 2.50 and 5.01
        loss: clipped to: 3.13 and 12.57

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
    scores, other = _clipped(scores), None if beside is None else _clipped(beside)
    rule = f"of shape {outputs} or {shape}"
    if other is not None:
        is_fine = other.shape in (shape, outputs)
        _validate.require(is_fine, "beside", other.shape, rule)
    if is_end is not None:
        seen = is_end.shape, is_end.dtype
        rule = f"of shape {targets.shape} and bool"
        _validate.require(seen == (targets.shape, bool), "is_end", seen, rule)
    release = Release(key, noise_multiplier)
    calibration: list[tuple[float, float, Interval]] = []
    bounds, unit = [_MOST_NATS] * 2, f"nats, each at most {_MOST_NATS:g}"
    errors, ends, factor, kind = None, [], 1.0, "loss"
    is_known = is_class(targets, *outputs) if outputs else ~np.isnan(targets)
    if outputs:
        measures, other, seen = of_classes(release, scores, targets, other)
    elif scale is None:
        measures, calibration, other, seen = of_labels(release, scores, targets, other)
    else:
        _validate.positive(scale=scale)
        unit = f"target in units of {scale:g}"
        if isinstance(loss, LogLink):
            loss = replace(loss, min_mean=_MEANS[0], max_mean=_MEANS[1])
            factor, unit = _deviance(2 - loss.power, scale)
            kind = "deviance"
        zero = np.zeros(()) if other is None else other
        both = np.stack([scores, np.broadcast_to(zero, shape)])
        errors = np.abs(np.asarray(loss.mean_of(jnp.asarray(both)), float) - targets)
        errors = np.nan_to_num(errors, nan=_LARGEST, posinf=_LARGEST)
        errors = np.minimum(errors, _LARGEST)
        results = _of_errors(release, errors, is_known, scale, loss)
        measures, ends, bounds, seen = results
    both = np.stack([scores, np.broadcast_to(0.0 if other is None else other, shape)])
    terms = [(_losses(both, targets, loss), bounds)]
    if errors is not None:
        terms.append((errors, ends))
        if loss is not squared:
            terms.append((errors**2, [end**2 for end in ends]))
    means, share = _means(release, terms, is_known, seen, is_end)
    mean = [_mapped(lambda x: factor * x, pair) for pair in means[0]]
    measures.append(Measure(f"mean {loss_name} {kind}, clipped ({unit})", *mean))
    if errors is not None and scale is not None:
        squares = [_mapped(lambda x: 2 * x, pair) for pair in means[0]]
        squares = squares if loss is squared else means[2]
        measures += _of_sizes(means[1], squares, scale)
        measures.append(_limits("absolute error", scale, ends))
        measures.append(_limits(kind, factor, bounds))
        if other is not None:
            measures.append(_explained(*squares))
    if share is not None:
        measures.append(
            Measure("share of means at an end of their range", share, _NOTHING)
        )
    return PrivateScores(measures, calibration, seen)


def _clipped(scores: ArrayLike) -> np.ndarray:
    """Returns scores without NaN and clipped, so no loss is NaN for any model."""
    scores = np.nan_to_num(np.asarray(scores, np.float64))
    return np.clip(scores, -_LARGEST, _LARGEST)


def _of_errors(
    release: Release,
    errors: np.ndarray,
    is_known: np.ndarray,
    scale: float,
    loss: LinearLoss,
) -> tuple[list[Measure], list[float], list[float], float]:
    """Releases quantiles of absolute errors, shape (2, n), of a model and a constant.

    Returns:
        The measures, where errors are clipped, where losses are, and the number of
        records with a target.
    """
    num_samples = errors.shape[1]
    edges = _AMOUNT_EDGES if loss.has_log_link else _ERROR_EDGES
    missing = len(edges) + 1  # the last bin
    bins = np.where(is_known, np.searchsorted(edges, errors), missing)
    counts = np.zeros((2, missing + 1))
    for row, places in zip(counts, bins, strict=True):
        np.add.at(row, places, 1.0)
    counts, stddev = release(counts, 2.0)

    def quantile(share):
        def logarithm(counts):
            below = np.maximum.accumulate(np.cumsum(counts))[:-2]
            seen = num_seen(counts[-1], num_samples, stddev)
            return np.interp(share * seen, below, np.log(edges))

        return logarithm

    # The count of both rows is one number, so that their mean has less noise.
    seen = num_seen(counts[:, -1].mean(), num_samples, stddev)
    # Amounts are mostly zero: use the furthest tail that the noise leaves visible.
    tail = min(max(0.01, 10 * stddev / seen), 0.1) if loss.has_log_link else 0.1
    logarithms = {
        name: [interval_of(quantile(share), row, num_samples, stddev) for row in counts]
        for name, share in (("median", 0.5), ("90th percentile", 0.9))
    }
    sizes = {
        name: [_mapped(math.exp, interval) for interval in intervals]
        for name, intervals in logarithms.items()
    }
    measures = [
        Measure(
            f"{name} of the absolute error",
            *(_mapped(lambda x: scale * x, size) for size in both),
        )
        for name, both in sizes.items()
    ]
    ends, bounds = [], []
    for row, middle in zip(counts, sizes["median"], strict=True):
        end = _BEYOND * math.exp(quantile(1 - tail)(adding_up(row, num_samples)))
        score = loss.constant_prediction(middle.value)
        ends.append(end)
        bounds.append(float(_excess(loss, score, middle.value + end)))
    return measures, ends, bounds, seen


def _losses(scores: np.ndarray, targets: np.ndarray, loss: LinearLoss) -> np.ndarray:
    """Returns losses minus the least for each target, shape (2, n)."""
    known = np.broadcast_to(targets, (2, len(targets)))
    return np.asarray(_excess(loss, *arrays((scores, known))), np.float64)


def _means(
    release: Release,
    terms: list[tuple[np.ndarray, list[float]]],
    is_known: np.ndarray,
    seen: float,
    is_end: np.ndarray | None = None,
) -> tuple[list[list[Interval]], Interval | None]:
    """Releases means of k/2 terms, shape (2, n), each clipped to [0, its two bounds].

    They are over the records that are known, by their released number, and so is the
    share of those that are marked.

    Sensitivity:
        1000 sqrt(k) of the k sums of whole numbers from 0 to 1000, replace-one; with
        that of whole numbers of 0 or 500 beside them, 1000 sqrt(k + 1/4).
    """
    bounds = np.maximum([bound for _, bound in terms], 1e-12)
    with np.errstate(invalid="ignore"):
        shares = np.stack([value for value, _ in terms]) / bounds[..., None]
    shares = np.clip(np.nan_to_num(shares, nan=1.0), 0.0, 1.0) * is_known
    sums = np.rint(shares * _STEPS).sum(axis=2).ravel()
    steps, bounds = np.full(sums.size, _STEPS), bounds.ravel()
    if is_end is not None:  # a smaller unit leaves nearly all noise as it is
        steps, bounds = np.append(steps, _STEPS // 2), np.append(bounds, 1.0)
        sums = np.append(sums, np.count_nonzero(is_end & is_known) * steps[-1])
    sums, stddev = release(sums, _STEPS * math.sqrt(np.sum((steps / _STEPS) ** 2)))
    means = np.clip(sums / steps / seen, 0.0, 1.0)
    # Of numbers in [0, 1] of mean m, the variance is m (1 - m) at most.
    spread = (stddev / steps / seen) ** 2 + means * (1 - means) / seen
    wide = WIDTH * np.sqrt(spread)
    ends = [means, np.maximum(means - wide, 0.0), np.minimum(means + wide, 1.0)]
    intervals = [Interval(*numbers) for numbers in (bounds * ends).T.tolist()]
    pairs = [intervals[i : i + 2] for i in range(0, 2 * len(terms), 2)]
    return pairs, intervals[-1] if is_end is not None else None


def _of_sizes(
    errors: list[Interval], squares: list[Interval], scale: float
) -> list[Measure]:
    """Returns measures of the mean absolute and squared errors, in scales."""
    absolute = [_mapped(lambda x: scale * x, error) for error in errors]
    root = [_mapped(lambda x: scale * math.sqrt(x), square) for square in squares]
    return [
        Measure("mean absolute error, clipped", *absolute),
        Measure("root mean squared error, clipped", *root),
    ]


def _deviance(power: float, scale: float) -> tuple[float, str]:
    """Returns the deviance over the loss, and its unit: the target's to that power."""
    unit = "in the unit of the target" if power else "without a unit"
    if power not in (0, 1):
        unit += f" to the power {power:g}"
    return 2 * scale**power, unit


def _limits(name: str, unit: float, limits: list[float]) -> Measure:
    """Returns where values are clipped for their mean."""
    exact = (Interval(*[unit * limit] * 3) for limit in limits)
    return Measure(f"{name}: clipped to", *exact)


def _explained(own: Interval, beside: Interval) -> Measure:
    """Returns R2 by mean squared errors, which are clipped."""
    # The ends that are furthest apart: the standard deviation of a difference is at
    # most the sum of both, however they depend on each other.
    pairs = zip((own.value, own.high, own.low), beside, strict=True)
    ends = [max(1 - x / max(y, 1e-12), -1.0) for x, y in pairs]
    return Measure("R2 against the constant", Interval(*ends), _NOTHING)


def _mapped(function: Callable[[float], float], interval: Interval) -> Interval:
    """Returns an interval of an increasing function."""
    return Interval(*map(function, interval))


def _excess(loss: LinearLoss, scores: jax.Array, targets: ArrayLike) -> jax.Array:
    """Returns losses minus those of the best prediction for each target."""
    if loss.num_outputs > 1:
        return loss.value(scores, targets)  # and these are zero
    known = loss.targets_of(jnp.asarray(targets, scores.dtype))
    best = loss.constant_prediction(known)
    return loss.value(scores, known) - loss.value(best, known)
