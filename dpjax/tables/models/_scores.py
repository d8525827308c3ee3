"""Private scores of a model on records that it was not trained on.

Two Gaussian mechanisms release sums of integers. The first releases histograms, of
binned probabilities for labels, and for numbers of the absolute errors of the model and
of a constant. The second releases sums of losses, and for numbers also sums of absolute
and squared errors, clipped to bounds from the first. A record without a target has a
bin of its own in each histogram, and adds nothing to a sum; with the count of that bin,
means are over the records with a target. The functions below state l2 sensitivities.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _keys, _validate
from dpjax._lazy import as_html, to_frame
from dpjax._rounding import digits
from dpjax._tree import arrays
from dpjax._types import ArrayLike, Key, RandomBytes
from dpjax.losses import LinearLoss, squared
from dpjax.losses._log_link import LogLink
from dpjax.mechanisms import discrete_gaussian

_MOST_NATS = 5.0
# Edges of absolute errors, in scales of the target: eight a decade.
_ERROR_EDGES = np.logspace(-2, 2, 33)
# Edges for amounts, which may have exposures far below the largest: six a decade.
_AMOUNT_EDGES = np.logspace(-4, 2, 37)
_BEYOND = 3.0  # errors are clipped to so many times their 90th percentile
_STEPS = 1000  # losses and errors are rounded to multiples of bound / 1000: exact sums
_LARGEST = 1e30
_MEANS = 1e-9, 1e9  # in scales; range of means in losses, wide enough for exposures
_SCORE_BINS = 20  # bins of probabilities, with an edge at a half
_CALIBRATION_BINS = 5
# The smallest share of a label, because noise may make it zero before the logarithm.
_LEAST_SHARE = 1e-3
_RAISED = 1 + 2.0**-16
_FURTHEST = 30.0  # z in the docstring of `Release`
_MOST_BITS = 20  # the largest k
_LARGEST_STDDEV = 2**25  # of one draw, in units; more noise is a sum of draws
_NUM_RESAMPLES = 200
_SHARES = "area", "accuracy", "R2"  # measures of which more is better
_WIDE = 0.5  # bounds of these are so wide that they say nothing
WIDTH = 1.96  # standard deviations: 95 percent of a normal law


class Interval(NamedTuple):
    """A released number, with 95 percent bounds for sampling and noise together."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        value, low, high = map(digits, self)
        return f"{value} ({low} to {high})"


_NOTHING = Interval(0.0, 0.0, 0.0)
_COIN = Interval(0.5, 0.5, 0.5)  # area under the ROC curve of a constant


class Measure(NamedTuple):
    """One measure of the model and of a constant prediction; the name has its unit."""

    name: str
    model: Interval
    constant: Interval


def share_name(low: float, high: float) -> str:
    """Returns the name of a row of calibration, of predictions from low to high."""
    return f"share of +1 where {low:.0%} to {high:.0%} is predicted"


class PrivateScores(NamedTuple):
    """Released scores of a model.

    Attributes:
        measures: released measures, or measures computed from released values.
        calibration: for labels, triples (low, high, share): the share of the positive
            label among records with a predicted probability from low to high.
        num_scored: the number of records with a target, by a noisy count.
    """

    measures: list[Measure]
    calibration: list[tuple[float, float, Interval]]
    num_scored: float
    to_frame, _repr_html_ = to_frame, as_html

    def __repr__(self) -> str:
        lines = (f"{name}, {of}: {Interval(*x)}" for name, of, *x in self._table()[1])
        return "\n".join(lines)

    def _table(self) -> tuple[list[str], list[tuple]]:
        kinds = "model", "constant"
        lines = [(x.name, of, *getattr(x, of)) for x in self.measures for of in kinds]
        for low, high, share in self.calibration:
            lines.append((share_name(low, high), "model", *share))
        return ["measure", "of", *Interval._fields], lines

    @property
    def verdict(self) -> str:
        """A sentence on what the scores do not show of a model's gain, or ""."""
        texts, is_better = [], False
        for name, model, constant in self.measures:
            if name.startswith(_SHARES):
                is_better |= model.low > constant.high
                if model.high - model.low > _WIDE and model.low <= constant.value:
                    ends = f"{digits(model.low)} to {digits(model.high)}"
                    texts.append(f"The {name} says nothing: it is {ends}.")
            elif not name.endswith(("clipped to", "range")):
                is_better |= model.high < constant.low
        if not is_better:
            texts.append(
                "As far as these scores show, the model is no better than the "
                "constant: in no measure are all its bounds beyond the constant's."
            )
        return " ".join(texts)


class Release:
    """Adds discrete Gaussian noise to sums of integers, exactly.

    The noise is an integer in units of 2^-k, exact in its tails and in its last bits,
    so these reveal nothing about a count. Sums in float64 are exact below 2^52 units.

    By (3) and (4) of `dpjax.accounting._discrete_gaussian`, d counts cost as much as
    with Gaussian noise of the same standard deviation S (in units), except for 2 eta in
    epsilon and e^eta in delta, eta = d z^2 / (8 S^2); the mass beyond z = 30 is below
    e^-420. Multiplying the standard deviation by 1 + 2^-16 and by 1 + 4 eta m, with the
    noise multiplier m, pays for both: `docs/privacy/proofs/estimators.md`, 9.5.
    """

    def __init__(self, key: Key, multiplier: float):
        self.keys = iter(_keys.split(key))
        self.multiplier = multiplier

    def __call__(
        self, sums: np.ndarray, sensitivity: float
    ) -> tuple[np.ndarray, float]:
        """Returns `sums` plus noise for this l2 sensitivity, and the noise's stddev."""
        stddev = self.multiplier * sensitivity * _RAISED
        # The unit is the finest in which the noise is not above the largest draw.
        bits = math.floor(math.log2(_LARGEST_STDDEV / max(stddev, 1e-300)))
        unit = 2.0 ** -min(max(bits, 0), _MOST_BITS)
        eta = sums.size * (_FURTHEST / max(stddev / unit, 1.0)) ** 2 / 8
        stddev *= 1 + 4 * eta * self.multiplier
        num_draws = max(1, math.ceil((stddev / unit / _LARGEST_STDDEV) ** 2))
        of_one = max(1, math.ceil(stddev / unit / math.sqrt(num_draws)))
        shape, source = (num_draws, *sums.shape), _random_bytes_of(next(self.keys))
        noise = discrete_gaussian(shape, stddev=of_one, random_bytes=source)
        noise = unit * noise.sum(axis=0)
        return sums + noise, unit * of_one * math.sqrt(num_draws)


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
    """Releases scores of a model on records, next to the scores of a constant.

    Args:
        scores: predictions in the form that the loss takes, shape (n,): log odds of the
            positive label, numbers in units of the target's scale, or logarithms of
            means in these units; for K classes log probabilities, shape (n, K).
        targets: shape (n,): positive for the positive label; the index of a class; or
            numbers in units of the scale. NaN, or no class, has no weight.
        beside: a constant score, shape () or (K,), public or released; or the scores
            of another model. None: the released shares of labels or classes; or 0.
        loss: the loss of a score and a target; `losses.softmax(K)` for K classes.
        loss_name: the name of the loss in the result, for numbers.
        scale: the public scale of the target; errors are resolved from 0.01 scales
            (0.0001 with a log link) to 100 scales. None: targets are labels.
        key: a typed key.
        noise_multiplier: the noise multiplier of each of two Gaussian mechanisms.
        is_end: with a log link, which means are at an end of the model's range, boolean
            of shape (n,), each by its record alone. Their share is released too.

    Returns:
        For labels, the mean log loss, area under the ROC curve, accuracy and
        calibration; for classes, with the mean area of a class against the rest.
        For numbers, the median and 90th percentile of the absolute error, the mean loss
        (with a log link the mean deviance, in the target's unit to the power 2 - p),
        the mean absolute error and the root mean squared error, all three clipped, with
        the bounds, and with `beside` R2 against it.

    Raises:
        ValueError: If the shapes do not fit, or the scale is not positive.

    Privacy:
        Under replace-one, n public, it costs as much as two Gaussian mechanisms with
        this noise multiplier: `accounting.noise_multiplier(epsilon, delta,
        Sampling(2))`. The noise is discrete and the sums are exact, so their last bits
        reveal nothing. No value raises an error: a score that is NaN counts as zero.

    Example:
        >>> import jax, numpy as np
        >>> from dpjax import losses
        >>> targets = np.random.default_rng(0).normal(size=10_000)
        >>> released = private_scores(
        ...     0.5 * targets, targets, loss=losses.squared, loss_name="squared",
        ...     scale=1.0, key=jax.random.key(0), noise_multiplier=5.0)
        >>> name, model, constant = released.measures[0]
        >>> print(f"{name}: {model.value:.2f} and {constant.value:.2f}")
        median of the absolute error: 0.34 and 0.68

    Reference:
        Dwork, Roth (2014), section 3.5.1, on the l2 sensitivity of histograms.
    """
    _validate.require(targets.ndim == 1, "targets", targets.shape, "of shape (n,)")
    outputs = () if loss.num_outputs == 1 else (loss.num_outputs,)
    shape = (*targets.shape, *outputs)
    rule = f"of shape {shape}"
    _validate.require(scores.shape == shape, "scores", scores.shape, rule)
    scores, other = _clipped(scores), None if beside is None else _clipped(beside)
    if other is not None:
        rule = f"of shape {outputs} or {shape}"
        _validate.require(other.shape in (shape, outputs), "beside", other.shape, rule)
    if is_end is not None:
        given, rule = (is_end.shape, is_end.dtype), f"of shape {targets.shape} and bool"
        _validate.require(given == (targets.shape, bool), "is_end", given, rule)
    release = Release(key, noise_multiplier)
    if scale is not None and not outputs:
        _validate.positive(scale=scale)
        names = loss_name, scale
        return _of_numbers(release, scores, targets, other, loss, *names, is_end)
    first = _of_classes if outputs else _of_labels
    measures, calibration, other, seen = first(release, scores, targets, other)
    is_known = _is_class(targets, *outputs) if outputs else ~np.isnan(targets)
    both = np.stack([scores, np.broadcast_to(other, shape)])
    terms = [(_losses(both, targets, loss), [_MOST_NATS] * 2)]
    (mean,), _ = _means(release, terms, is_known, seen)
    unit = f"nats, each at most {_MOST_NATS:g}"
    measures.insert(0, Measure(f"mean log loss, clipped ({unit})", *mean))
    return PrivateScores(measures, calibration, seen)


def _clipped(scores: ArrayLike) -> np.ndarray:
    """Returns scores clipped and without NaN, so that no loss is NaN."""
    scores = np.nan_to_num(np.asarray(scores, np.float64))
    return np.clip(scores, -_LARGEST, _LARGEST)


def _of_numbers(
    release: Release,
    scores: np.ndarray,  # (n,), in the form that the loss takes
    targets: np.ndarray,  # (n,), in scales; NaN if unknown
    other: np.ndarray | None,  # scores to compare with; None: zero
    loss: LinearLoss,
    loss_name: str,
    scale: float,  # of the target, public
    is_end: np.ndarray | None,  # (n,), which means are at an end of the model's range
) -> PrivateScores:
    """Releases the accuracy of predicted numbers: quantiles, then means of errors."""
    kind, unit, factor = "loss", f"target in units of {scale:g}", 1.0
    # With a log link the deviance, twice the loss above its least, is the usual score.
    if isinstance(loss, LogLink):
        loss = replace(loss, min_mean=_MEANS[0], max_mean=_MEANS[1])
        power = 2 - loss.power
        kind, factor = "deviance", 2 * scale**power
        unit = "in the unit of the target" if power else "without a unit"
        if power not in (0, 1):
            unit += f" to the power {power:g}"
    beside = np.broadcast_to(0.0 if other is None else other, scores.shape)
    both, is_known = np.stack([scores, beside]), ~np.isnan(targets)
    errors = np.abs(np.asarray(loss.mean_of(jnp.asarray(both)), float) - targets)
    errors = np.nan_to_num(errors, nan=_LARGEST, posinf=_LARGEST)
    errors = np.minimum(errors, _LARGEST)
    measures, ends, bounds, seen = _of_errors(release, errors, is_known, scale, loss)
    terms = [(_losses(both, targets, loss), bounds), (errors, ends)]
    if loss is not squared:
        terms.append((errors**2, [end**2 for end in ends]))
    means, share = _means(release, terms, is_known, seen, is_end)
    squares = [_times(2, x) for x in means[0]] if loss is squared else means[2]
    roots = [_mapped(lambda x: scale * math.sqrt(x), square) for square in squares]
    loss_means = (_times(factor, mean) for mean in means[0])
    measures += [
        Measure(f"mean {loss_name} {kind}, clipped ({unit})", *loss_means),
        Measure("mean absolute error, clipped", *(_times(scale, x) for x in means[1])),
        Measure("root mean squared error, clipped", *roots),
    ]
    clipped = ("absolute error", scale, ends), (kind, factor, bounds)
    for name, times, limits in clipped:
        exact = (Interval(*[times * limit] * 3) for limit in limits)
        measures.append(Measure(f"{name}: clipped to", *exact))
    if other is not None:
        # The interval takes the ends that are furthest apart, because a difference's
        # standard deviation is at most the sum of both, however they depend.
        own, constant = squares
        pairs = zip((own.value, own.high, own.low), constant, strict=True)
        shares = (max(1 - x / max(y, 1e-12), -1.0) for x, y in pairs)
        measures.append(Measure("R2 against the constant", Interval(*shares), _NOTHING))
    if share is not None:
        name = "share of means at an end of their range"
        measures.append(Measure(name, share, _NOTHING))
    return PrivateScores(measures, [], seen)


def _of_errors(
    release: Release,
    errors: np.ndarray,  # in scales of the target
    is_known: np.ndarray,  # (n,), which records have a target
    scale: float,  # of the target
    loss: LinearLoss,
) -> tuple[list[Measure], list[float], list[float], float]:
    """Releases quantiles of absolute errors, shape (2, n), of a model and a constant.

    Returns measures (the median, the 90th percentile), the bounds of the errors of both
    and of their losses, to which `_means` clips them, and the number of known targets.

    Sensitivity:
        2, of two histograms, replace-one.
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

    # Both rows count the missing targets, so that the mean of both has less noise.
    seen = num_seen(counts[:, -1].mean(), num_samples, stddev)
    # Amounts are often mostly zero, so that their bound is from the smallest tail that
    # stands out from the noise.
    tail = min(max(0.01, 10 * stddev / seen), 0.1) if loss.has_log_link else 0.1
    sizes = {
        name: [
            _mapped(math.exp, interval_of(quantile(share), row, num_samples, stddev))
            for row in counts
        ]
        for name, share in (("median", 0.5), ("90th percentile", 0.9))
    }
    measures = [
        Measure(f"{name} of the absolute error", *(_times(scale, x) for x in both))
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
    known = np.broadcast_to(targets, (2, len(targets)))
    return np.asarray(_excess(loss, *arrays((scores, known))), np.float64)


def _means(
    release: Release,
    terms: list[tuple[np.ndarray, list[float]]],  # values (2, n) and their two bounds
    is_known: np.ndarray,  # (n,), which records have a target
    seen: float,  # the released number of these records
    is_end: np.ndarray | None = None,  # (n,), which means are at an end of their range
) -> tuple[list[list[Interval]], Interval | None]:
    """Releases the mean of each term, such as a loss, for a model and for a constant.

    A term's values have a row for the model and a row for the constant, each clipped to
    [0, its bound]. Returns a pair of means for each term, and the share of records in
    `is_end`, or None; all over the records in `is_known`.

    Sensitivity:
        1000 sqrt(k) of the k sums, 2 for each term, of whole numbers up to 1000,
        replace-one; with the sum for `is_end`, of 0 or 500, 1000 sqrt(k + 1/4).
    """
    bounds = np.maximum([bound for _, bound in terms], 1e-12)
    with np.errstate(invalid="ignore"):
        shares = np.stack([value for value, _ in terms]) / bounds[..., None]
    shares = np.clip(np.nan_to_num(shares, nan=1.0), 0.0, 1.0) * is_known
    sums = np.rint(shares * _STEPS).sum(axis=2).ravel()
    steps, bounds = np.full(sums.size, _STEPS), bounds.ravel()
    if is_end is not None:  # with half the steps it adds little to the sensitivity
        steps, bounds = np.append(steps, _STEPS // 2), np.append(bounds, 1.0)
        sums = np.append(sums, np.count_nonzero(is_end & is_known) * steps[-1])
    sums, stddev = release(sums, _STEPS * math.sqrt(np.sum((steps / _STEPS) ** 2)))
    means = np.clip(sums / steps / seen, 0.0, 1.0)
    # Numbers in [0, 1] with mean m have a variance of at most m (1 - m).
    wide = WIDTH * np.sqrt((stddev / steps / seen) ** 2 + means * (1 - means) / seen)
    ends = [means, np.maximum(means - wide, 0.0), np.minimum(means + wide, 1.0)]
    intervals = [Interval(*numbers) for numbers in (bounds * ends).T.tolist()]
    pairs = [intervals[i : i + 2] for i in range(0, 2 * len(terms), 2)]
    return pairs, intervals[-1] if is_end is not None else None


def _mapped(function: Callable[[float], float], interval: Interval) -> Interval:
    """Returns the interval of an increasing `function` of the value."""
    return Interval(*map(function, interval))


def _times(factor: float, interval: Interval) -> Interval:
    return Interval(*(factor * end for end in interval))


def _excess(loss: LinearLoss, scores: jax.Array, targets: ArrayLike) -> jax.Array:
    """Returns losses minus the loss of the best prediction for each target."""
    if loss.num_outputs > 1:
        return loss.value(scores, targets)  # the best loss of classes is zero
    known = loss.targets_of(jnp.asarray(targets, scores.dtype))
    best = loss.constant_prediction(known)
    return loss.value(scores, known) - loss.value(best, known)


def _of_labels(
    release: Release, scores: np.ndarray, targets: np.ndarray, beside: np.ndarray | None
) -> tuple[list[Measure], list[tuple[float, float, Interval]], np.ndarray, float]:
    """Releases measures of a model of two labels, from noisy counts by probability.

    `scores` (n,) are log odds of the positive label, for which `targets` (n,) are
    positive; NaN is unknown. `beside` are log odds to compare with, (n,) or (); None:
    those of the released share of the label. Returns area under the ROC curve and
    accuracy, calibration, the log odds compared with, and the number of known labels.

    Sensitivity:
        sqrt 2, replace-one, and 2 with the counts of another model.
    """
    num_samples, half = len(targets), _SCORE_BINS // 2
    sides = _sides(scores, beside)
    # The last bin counts the records without a label.
    tables = np.zeros((len(sides), 2 * _SCORE_BINS + 1))
    for cells, side in zip(tables, sides, strict=True):
        shares = 1 / (1 + np.exp(-np.clip(side, -50, 50)))
        places = np.where(targets > 0, _SCORE_BINS, 0) + _bins(shares)
        np.add.at(cells, np.where(np.isnan(targets), 2 * _SCORE_BINS, places), 1.0)
    tables, stddev = release(tables, math.sqrt(2 * len(sides)))
    counts = tables[0, :-1].reshape(2, _SCORE_BINS)

    def bounded(statistic, table=tables[0], is_mean=False):
        def of_table(table):
            seen = num_seen(table[-1], num_samples, stddev) if is_mean else 1.0
            return statistic(table[:-1].reshape(2, _SCORE_BINS)) / seen

        return _within_one(interval_of(of_table, table, num_samples, stddev))

    def right(counts):
        return counts[1, half:].sum() + counts[0, :half].sum()

    # Without a comparison, the released share of the positive label predicts all.
    if beside is None:
        share = counts[1].sum() / max(counts.sum(), 1.0)
        share = min(max(share, _LEAST_SHARE), 1 - _LEAST_SHARE)
        beside = np.asarray(math.log(share / (1 - share)))
    if len(sides) == 2:
        constants = bounded(right, tables[1], True), bounded(_area, tables[1])
    else:
        chosen = int(beside > 0)
        constants = bounded(lambda counts: counts[chosen].sum(), is_mean=True), _COIN
    calibration = []
    width = _SCORE_BINS // _CALIBRATION_BINS
    for first in range(0, _SCORE_BINS, width):
        part = slice(first, first + width)
        # A range with fewer records has a share that is mostly noise.
        if counts[:, part].sum() > 4 * stddev * math.sqrt(2 * width):

            def share_of(counts, part=part):
                return counts[1, part].sum() / max(counts[:, part].sum(), 1.0)

            ends = first / _SCORE_BINS, (first + width) / _SCORE_BINS
            calibration.append((*ends, bounded(share_of)))
    measures = [
        Measure("area under the ROC curve", bounded(_area), constants[1]),
        Measure("accuracy", bounded(right, is_mean=True), constants[0]),
    ]
    seen = num_seen(float(tables[0, -1]), num_samples, stddev)
    return measures, calibration, beside, seen


def _of_classes(
    release: Release, scores: np.ndarray, targets: np.ndarray, beside: np.ndarray | None
) -> tuple[list[Measure], list, np.ndarray, float]:
    """Releases accuracy and ROC areas of a model of K classes, from noisy counts.

    The accuracy is from counts of (label, whether it is predicted), the area of each
    class against the rest from counts of (whether it is the label, bin of its
    probability). A record is in one count of the first kind, which is multiplied by w
    before noise is added, and in K of the second. So the l2 sensitivity is sqrt(2 w^2 +
    2 K), and with another model sqrt(2) times as much; w is about sqrt(K).

    `scores` are log probabilities (n, K), and `targets` indices of classes. Returns as
    `_of_labels` does, with an empty calibration.
    """
    num_samples, num_classes = scores.shape
    is_known = _is_class(targets, num_classes)
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
    # Both kinds of counts are released together, by one mechanism.
    sums = np.concatenate([unit * counts.ravel(), binned.ravel()])
    sums, noise = release(sums, math.sqrt(2 * (unit**2 + num_classes) * len(sides)))
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
        Measure(name, area(binned[0]), beside_area),
        Measure("accuracy", bounded(accuracy), beside_accuracy),
    ]
    return measures, [], beside, seen(counts[0])


def _bins(shares: np.ndarray) -> np.ndarray:
    return np.minimum((shares * _SCORE_BINS).astype(int), _SCORE_BINS - 1)


def _area(counts: np.ndarray) -> float:
    """Returns the area under the ROC curve, from counts of (label, bin) (2, bins)."""
    negative, positive = counts
    below = np.cumsum(negative) - negative / 2
    pairs = max(positive.sum(), 1.0) * max(negative.sum(), 1.0)
    return np.sum(positive * below) / pairs


def _is_class(targets: np.ndarray, num_classes: int) -> np.ndarray:
    return (targets >= 0) & (targets < num_classes)


def _sides(scores: np.ndarray, beside: np.ndarray | None) -> list[np.ndarray]:
    # The counts of a constant follow from the counts of the labels.
    if beside is None or beside.shape != scores.shape:
        return [scores]
    return [scores, beside]


def _within_one(interval: Interval) -> Interval:
    return Interval(*(min(max(x, 0.0), 1.0) for x in interval))


def _random_bytes_of(key: Key) -> RandomBytes:
    """Returns a function from a count to random bytes, as secret as the noise's key."""
    left = b""

    def random_bytes(count: int) -> bytes:
        nonlocal key, left
        while len(left) < count:
            key, block = jax.random.split(key)
            left += np.asarray(jax.random.bits(block, (2048,), "uint32")).tobytes()
        first, left = left[:count], left[count:]
        return first

    return random_bytes


def interval_of(
    statistic: Callable[[np.ndarray], float],  # of counts, such as an accuracy
    counts: np.ndarray,  # released, of any shape
    num_samples: int,  # the sum of all counts without noise, public
    stddev: float,  # of the noise of one count
) -> Interval:
    """Returns a statistic of released counts, with 95% bounds; it costs no privacy.

    The bounds are from a parametric bootstrap with the released counts as shares.
    """
    rng = np.random.default_rng(0)
    # Counts that are mostly noise become zero: clipped at zero, many have a large sum.
    shares = np.where(counts > 2 * stddev, counts, 0.0).ravel()
    if shares.sum() <= 0:
        shares = np.ones(counts.size)
    drawn = rng.multinomial(num_samples, shares / shares.sum(), _NUM_RESAMPLES)
    noisy = drawn + stddev * rng.standard_normal(drawn.shape)
    tables = (adding_up(x.reshape(counts.shape), num_samples) for x in noisy)
    spread = float(np.std([statistic(table) for table in tables]))
    value = float(statistic(adding_up(counts, num_samples)))
    return Interval(value, value - WIDTH * spread, value + WIDTH * spread)


def num_seen(num_missing: float, num_samples: int, stddev: float) -> float:
    """Returns the number of records with a target, from the noisy number without."""
    # A count that may be noise alone is taken as 0, so that a table without missing
    # targets gets no noise here.
    return max(num_samples - num_missing * (num_missing > WIDTH * stddev), 1.0)


def adding_up(counts: np.ndarray, num_samples: int) -> np.ndarray:
    """Returns noisy counts, shifted to add up to the public number of records."""
    return counts + (num_samples - counts.sum()) / counts.size
