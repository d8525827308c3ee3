"""Private centers and scales of columns for which the schema declares none."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from dp_accounting import ComposedDpEvent, NoOpDpEvent

from dpjax import _validate
from dpjax._rounding import sum_up
from dpjax._types import Key
from dpjax.accounting import (
    PrivacyGuarantee,
    Sampling,
    gaussian_event,
    noise_multiplier,
)
from dpjax.solvers.statistics._scales import Noise, Standard, least_seen, release_scales
from dpjax.tables.cli._runs import Run
from dpjax.tables.cli._sources import Table
from dpjax.tables.columns._kinds import Numeric
from dpjax.tables.io._texts import float32_of

# A feature is clipped to so many released scales, so that few records do not make its
# second moment large: the step sizes of most methods are for features of unit size.
_MOST_SCALES = 30.0
# The features of more columns are scaled down, so that their second moments add up to
# about this number, at which the default steps are stable for any correlation of the
# columns: for the logistic loss, step size 1 times curvature 1/4 times 8 is 2.
_LARGEST_SUM = 8
_TARGET_SHARE = 1 / 3  # the target's share of this budget, if there are features


@dataclass(frozen=True, eq=False)
class Ranges:
    """Released centers and scales, and their cost.

    Attributes:
        num_samples: number of records.
        columns: center and scale of each column, by its name, without features whose
            scales would be noise.
        privacy: the guarantee for all of them.
        least_seen: the number of records of about one size from which the scale of a
            column exceeds the noise.
        is_informative: whether `least_seen` is at most half of the records; if not,
            features are left out. Also False if the target's scale is unknown.
    """

    num_samples: int
    columns: Mapping[str, Numeric]
    privacy: PrivacyGuarantee
    least_seen: float
    is_informative: bool

    def joined(self, training: PrivacyGuarantee) -> PrivacyGuarantee:
        """Returns the guarantee of the ranges and a training on the same records.

        By basic composition epsilons add up, and so do deltas.
        """
        parts = self.privacy, training
        # A tuple, although a list is declared: a guarantee's event must be hashable.
        events: Any = tuple(part.dp_event for part in parts)
        return PrivacyGuarantee.of(
            sum_up(*(part.epsilon for part in parts)),
            sum_up(*(part.delta for part in parts)),
            dp_event=ComposedDpEvent(events),
            num_samples=self.num_samples,
        )


def release_ranges(
    table: Table,
    *,
    key: Key,
    epsilon: float,
    delta: float,
    is_centered: bool = True,
    may_bend: bool = False,
) -> Ranges:
    """Releases centers and scales of undeclared columns, from the training records.

    `release_scales` computes them, as for the estimators of `dpjax.sklearn`. If n and d
    show that the noise would exceed half of the records, features are left out and the
    target gets the whole budget. A target that is not centered, as under a log link, is
    measured from zero. Features that may have curves get scales such that most numbers
    are within two of them, as the knots require.

    Raises:
        ValueError: If the schema declares all columns.

    Privacy:
        (epsilon, delta)-DP under replace-one: one Gaussian mechanism.
    """
    names = table.open_columns()
    rule = "left out where the schema leaves no center and scale open"
    _validate.require(len(names) > 0, "--private-ranges", "given", rule)
    numbers = {
        name: float32_of(table.columns[name][~table.is_test]).astype(np.float64)
        for name in names
    }
    weights, shares = (
        None if x is None else x.shares(table.columns[x.column])[~table.is_test]
        for x in (table.schema.weight, table.schema.exposure)
    )
    noise = Noise(noise_multiplier(epsilon, delta, Sampling(num_steps=1)))
    event = gaussian_event(noise.multiplier)
    target = numbers.pop(table.target, None)
    feature_key, target_key = jax.random.split(key)
    columns: dict[str, Numeric] = {}
    least, is_informative, left = 0.0, True, 1.0
    if numbers:
        share = 1.0 if target is None else 1 - _TARGET_SHARE
        least = least_seen(len(numbers), noise.part(share))
        is_informative = least <= table.num_samples / 2
        if is_informative:
            samples = np.stack(list(numbers.values()), axis=1)
            standard = release_scales(
                feature_key, samples, noise=noise.part(share), weights=weights
            )
            features = _features(standard, may_bend=may_bend)
            columns |= zip(numbers, features, strict=True)
            left -= share
    if target is not None:
        if not is_centered:
            target = np.maximum(target, 0.0)
        if shares is not None:  # targets in proportion to the largest exposure
            is_seen = shares > 0
            target = np.where(is_seen, target / np.where(is_seen, shares, 1), np.nan)
        part = noise.part(left)
        standard = release_scales(
            *(target_key, target[:, None]),
            noise=part,
            weights=weights,
            is_centered=is_centered,
        )
        center, scale = standard.centers.item(), standard.scales.item()
        if table.schema.exposure is not None:  # as a schema declares it
            scale /= table.schema.exposure.max
        columns[table.target] = Numeric(center, scale)
        least = max(least, least_seen(1, part))
        is_informative &= standard.is_known.item()
    is_free = not columns
    privacy = PrivacyGuarantee.of(
        0.0 if is_free else epsilon,
        0.0 if is_free else delta,
        dp_event=NoOpDpEvent() if is_free else event,
        num_samples=table.num_samples,
    )
    return Ranges(
        num_samples=table.num_samples,
        columns=columns,
        privacy=privacy,
        least_seen=least,
        is_informative=is_informative,
    )


def _features(standard: Standard, *, may_bend: bool) -> list[Numeric]:
    """Returns features of about unit size; many features without curves are smaller."""
    centers, scales = standard.centers, standard.scales
    reach = np.minimum(standard.high - centers, _MOST_SCALES * scales)
    if may_bend:
        scales = standard.for_knots().scales
    else:
        scales = scales * math.sqrt(max(1.0, len(scales) / _LARGEST_SUM))
    columns = zip(centers, scales, reach / scales, strict=True)
    return [Numeric(*map(float, column)) for column in columns]


def charge(run: Run, ranges: Ranges | None) -> Run:
    """Returns the run with a guarantee that includes the ranges, if there are any."""
    return run if ranges is None else run.stated(ranges.joined)
