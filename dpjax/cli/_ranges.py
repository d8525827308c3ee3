"""Centres and scales that the schema leaves open, bought from the budget."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from dp_accounting import ComposedDpEvent

from dpjax import _validate
from dpjax._rounding import difference_down, sum_up
from dpjax._types import Key
from dpjax.accounting import PrivacyGuarantee
from dpjax.cli._cells import numbers_of
from dpjax.cli._runs import Run
from dpjax.cli._sources import Table
from dpjax.datasets import Numeric, Winsorized
from dpjax.solvers import Solution, dp_center_and_scale, dp_quantile

# A feature is held within so many scales of its centre: where its scale is too small
# for some of the records, they cannot drive predictions far out.
_MOST_SCALES = 4.0
# Features of more columns are made smaller, so that their second moments add up to
# about this. Up to here the default steps are stable, however the columns depend on
# each other: step size 1 times curvature 1/4 times 8 is 2 for the logistic loss.
_LARGEST_SUM = 8
# Of the budget for ranges: the target's part beside features, and its centre's of that.
_TARGET_SHARE, _CENTER_SHARE = 1 / 3, 1 / 4
# The share of records beyond the quantile that scales a target. Where the budget cannot
# tell it, a larger one is extrapolated as for a law of tail index 2.
_TAIL = 0.02
# Bins of its distances: one at zero, and ten a decade. Fewer err by fewer records.
_DISTANCES = np.array([-1e-6, *np.logspace(-6, 9, 151)])


@dataclass(frozen=True, eq=False)
class Ranges:
    """Released centres and scales, and what they have cost.

    Attributes:
        num_samples: from how many records.
        columns: centre and scale of each column, by its name; features whose scales
            would be noise are not among them.
        privacy: the guarantee for all of them.
        rank_error: by how many records their quantiles err at most, with probability
            0.99.
        is_informative: whether that is few enough. Features are left out where it is
            not for them; of the target, it is not where all that was seen of it is one
            value, too.
    """

    num_samples: int
    columns: Mapping[str, Numeric]
    privacy: PrivacyGuarantee
    rank_error: float
    is_informative: bool

    def joined(self, training: PrivacyGuarantee) -> PrivacyGuarantee:
        """Returns a guarantee for a training on the same records and the ranges.

        Basic composition: epsilons add up, and so do deltas.
        """
        return together([self.privacy, training], self.num_samples)


def buy_ranges(
    table: Table, *, key: Key, epsilon: float, delta: float, is_centered: bool = True
) -> Ranges:
    """Buys the centres and scales of a table's open columns, from training records.

    Features get a median and the scale of their middle two thirds, and are held within
    four scales of it. Where the budget buys no more than noise for so many columns,
    which n and d tell, they are left out, and the target gets all of it.

    The target's scale suits a mean and not a median: the distance from the centre
    within which 98 per cent lie, or as many as the budget can tell. Where it is not
    centered, as under a log link, its centre is zero and all of it buys the scale.

    Raises:
        ValueError: if no column is open.
    """
    names = table.open_columns()
    _validate.require(
        len(names) > 0,
        "--private-ranges",
        "given",
        "left out where the schema leaves no center and scale open",
    )
    numbers = {name: numbers_of(table.columns[name][~table.is_test]) for name in names}
    weight = table.schema.weight
    if weight is not None:  # a record of weight zero tells nothing of the ranges
        shares = weight.shares(table.columns[weight.column])[~table.is_test]
        numbers = {name: np.where(shares > 0, x, np.nan) for name, x in numbers.items()}
    target = numbers.pop(table.target, None)
    feature_key, target_key = jax.random.split(key)
    columns: dict[str, Numeric] = {}
    parts: list[PrivacyGuarantee] = []
    rank_error, is_informative = 0.0, True
    if numbers:
        samples = np.stack(list(numbers.values()), axis=1)
        share = 1.0 if target is None else 1 - _TARGET_SHARE
        buy = partial(dp_center_and_scale, epsilon=share * epsilon, delta=delta)
        known = _stats(buy, samples.shape)
        rank_error, is_informative = known["rank_error"], known["is_informative"]
        if is_informative:
            solution = buy(samples, key=feature_key)
            columns |= zip(numbers, _features(*solution.params), strict=True)
            parts.append(solution.privacy)
            epsilon = difference_down(epsilon, solution.privacy.epsilon)
    if target is not None:
        kind, solutions, is_known = _buy_target(
            target, key=target_key, epsilon=epsilon, is_centered=is_centered
        )
        columns[table.target] = kind
        parts += [solution.privacy for solution in solutions]
        rank_errors = [float(solution.stats["rank_error"]) for solution in solutions]
        rank_error, is_informative = (
            max(rank_error, *rank_errors),
            is_informative & is_known,
        )
    return Ranges(
        num_samples=table.num_samples,
        columns=columns,
        privacy=together(parts, table.num_samples),
        rank_error=rank_error,
        is_informative=is_informative,
    )


def _features(centers: jax.Array, scales: jax.Array) -> list[Winsorized]:
    size = math.sqrt(max(1.0, centers.size / _LARGEST_SUM))
    return [
        Winsorized(center, size * scale, _MOST_SCALES / size)
        for center, scale in zip(centers.tolist(), scales.tolist(), strict=True)
    ]


def _buy_target(
    target: np.ndarray, *, key: Key, epsilon: float, is_centered: bool
) -> tuple[Numeric, list[Solution], bool]:
    """Buys a median, and a high quantile of the distance from it.

    Returns:
        The range, what was bought, and whether it says more than noise would.
    """
    first, second = jax.random.split(key)
    bought, center, left = [], 0.0, epsilon
    if is_centered:
        bought = [dp_quantile(target, key=first, epsilon=_CENTER_SHARE * epsilon)]
        center = float(bought[0].params)
        left = difference_down(epsilon, bought[0].privacy.epsilon)
    buy = partial(dp_quantile, epsilon=left, edges=_DISTANCES)
    # More records lie beyond the quantile than it may err by: else it might be any.
    least = 1.25 * _stats(buy, target.shape)["rank_error"] / len(target)
    tail = min(max(_TAIL, least), 0.5)
    distance = buy(np.abs(target - np.float32(center)), key=second, quantile=1 - tail)
    scale = float(distance.params) * math.sqrt(tail / _TAIL)
    is_known = tail >= least and scale > 0
    kind = Numeric(center, scale if scale > 0 else 1.0)
    return kind, [*bought, distance], is_known


def _stats(solver: Callable[..., Solution], shape: tuple[int, ...]) -> dict[str, Any]:
    """Returns the stats of a solver that n, d and the budget tell, from no samples."""
    known: dict[str, Any] = {}

    def ask(samples: jax.Array) -> jax.Array:
        known.update(solver(samples, key=jax.random.key(0)).stats)
        return samples

    jax.eval_shape(ask, jax.ShapeDtypeStruct(shape, np.float32))
    return known


def charge(run: Run, ranges: Ranges | None) -> Run:
    """Returns a private run whose guarantee counts the ranges of its records too."""
    if ranges is None or not run.is_private:
        return run
    total = ranges.joined(run.solution.privacy)
    solution = dataclasses.replace(run.solution, privacy=total)
    return dataclasses.replace(run, solution=solution)


def together(parts: Sequence[PrivacyGuarantee], num_samples: int) -> PrivacyGuarantee:
    """Returns the guarantee of several releases of the same records."""
    # A tuple, where a list is declared: an event of a guarantee must be hashable.
    events: Any = tuple(part.dp_event for part in parts)
    return PrivacyGuarantee.of(
        sum_up(*(part.epsilon for part in parts)),
        sum_up(*(part.delta for part in parts)),
        dp_event=ComposedDpEvent(events),
        num_samples=num_samples,
    )
