"""How good is a model, said privately: on records that its training did not see.

Replacing a record changes the training or the evaluation, never both, since which
records are held out follows from their index. So each may spend the whole budget
(parallel composition), as long as nothing else has seen both parts.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import ComposedDpEvent

from dpjax._rounding import ROUNDED_UP
from dpjax._types import Key
from dpjax.accounting import PrivacyGuarantee, gaussian_event, noise_multiplier
from dpjax.cli._plan import Plan
from dpjax.cli._report import statement
from dpjax.cli._runs import Run
from dpjax.cli._units import Units
from dpjax.datasets import Dataset, Numeric
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


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What was released of the records that were held out.

    Attributes:
        num_samples: how many they are.
        constant: what the constant is.
        measures: released, or computed from what is.
        calibration: for classes, the share of the positive label where the predicted
            probability is in a range (low, high).
        privacy: the guarantee for them.
    """

    num_samples: int
    constant: str
    measures: list[Measure]
    calibration: list[tuple[float, float, Interval]]
    privacy: PrivacyGuarantee

    def report(self) -> dict[str, Any]:
        """Returns the evaluation for JSON."""
        return {
            "num_samples": self.num_samples,
            "constant": self.constant,
            "measures": {
                name: {"model": model._asdict(), "constant": constant._asdict()}
                for name, model, constant in self.measures
            },
            "calibration": [
                {"from": low, "to": high, "share": share._asdict()}
                for low, high, share in self.calibration
            ],
            "privacy": statement(self.privacy),
        }

    def joined(self, run: Run, num_samples: int, units: Units | None = None) -> Run:
        """Returns a run whose guarantee is for all records, of both parts together."""
        parts = run.solution.privacy, self.privacy
        events: Any = tuple(part.dp_event for part in parts)
        privacy = PrivacyGuarantee.of(
            max(part.epsilon for part in parts),
            max(part.delta for part in parts),
            dp_event=ComposedDpEvent(events),  # more than in parallel, hence a bound
            num_samples=num_samples,
            replaced=units.words if units is not None else None,
        )
        solution = dataclasses.replace(run.solution, privacy=privacy)
        return dataclasses.replace(run, solution=solution)


def evaluate(
    plan: Plan,
    data: Dataset,
    run: Run,
    target: Any,
    *,
    key: Key,
    units: Units | None = None,
) -> Evaluation:
    """Releases how good a model is on the records held out.

    Two Gaussian mechanisms. The first releases a histogram: for classes, of label and
    predicted probability (replacing a record changes two counts by one: l2 sensitivity
    sqrt 2); for numbers, two of absolute errors, the model's and the constant's (2).
    The second releases mean losses, held within bounds from the first.

    Args:
        plan: the run's plan.
        data: its test records are those held out.
        run: the released model, which has not seen them.
        target: how the target is declared.
        key: of the noise.
        units: whose the records are, if neighbours differ in all records of one.

    Privacy:
        The epsilon of the run, and its delta, or where that is 0 the plan's.
    """
    features, targets = data.test
    privacy = evaluation_privacy(plan, data, run.solution.privacy, units)
    multiplier = _multiplier(privacy)
    known = "constant" in run.solution.stats
    constant = float(run.solution.stats["constant"]) if known else 0.0
    predicted = features.astype(np.float64) @ np.asarray(run.solution.params, float)
    scores = np.stack([predicted, np.full(len(features), constant)])
    # Whatever the model is, losses are numbers or infinite.
    scores = np.clip(np.nan_to_num(scores), -_LARGEST, _LARGEST)
    release = _Release(key, multiplier)
    if isinstance(target, Numeric):
        measures, bounds = _of_numbers(release, scores, targets, target, plan)
        calibration, unit = [], f"target in units of {target.scale:g}"
    else:
        measures, calibration = _of_labels(release, scores, targets)
        bounds, unit = [_MOST_NATS] * 2, f"nats, at most {_MOST_NATS:g}"
    model, beside = _mean_losses(release, scores, targets, bounds, plan)
    name = f"mean {plan.facts.loss} loss, held within bounds ({unit})"
    return Evaluation(
        num_samples=len(targets),
        constant="the best constant, bought in training" if known else "zero weights",
        measures=[*measures, Measure(name, model, beside)],
        calibration=calibration,
        privacy=privacy,
    )


def evaluation_privacy(
    plan: Plan, data: Dataset, training: PrivacyGuarantee, units: Units | None
) -> PrivacyGuarantee:
    """Returns what an evaluation costs, of a training of a guarantee.

    Of a unit it sees one record, so that units cost what records do.
    """
    delta = training.delta or plan.facts.gaussian_delta
    event = gaussian_event(_multiplier(training, delta), num_steps=2)
    return PrivacyGuarantee.of(
        training.epsilon,
        delta,
        dp_event=event,
        num_samples=len(data.test_targets),
        replaced=units.words if units is not None else None,
    )


def _multiplier(privacy: PrivacyGuarantee, delta: float | None = None) -> float:
    return noise_multiplier(privacy.epsilon, delta or privacy.delta, num_steps=2)


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
    target: Numeric,
    plan: Plan,
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
            *(Interval(*(target.scale * x for x in size)) for size in both),
        )
        for name, both in sizes.items()
    ]
    held = [_BEYOND * interval.value for interval in sizes["90th percentile"]]
    bounds = [float(plan.loss_fn.value(jnp.asarray(x), 0.0)) for x in held]
    return measures, bounds


def _mean_losses(
    release: _Release,
    scores: np.ndarray,
    targets: np.ndarray,
    bounds: list[float],
    plan: Plan,
) -> list[Interval]:
    values = plan.loss_fn.value(jnp.asarray(scores), jnp.asarray(targets)[None, :])
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
