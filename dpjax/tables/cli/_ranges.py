"""Private centers and scales of columns for which the schema declares none."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting import ComposedDpEvent, NoOpDpEvent

from dpjax import _keys, _validate
from dpjax._rounding import sum_up
from dpjax._types import Key
from dpjax.accounting import PrivacyGuarantee
from dpjax.solvers.statistics._noisy_mean import one_gaussian
from dpjax.solvers.statistics._scales import Standard, least_seen, release_scales
from dpjax.tables.cli._sources import Table
from dpjax.tables.cli._terminal import warn
from dpjax.tables.columns._kinds import Numeric
from dpjax.tables.io._texts import float32_of

# Features are clipped to this many released scales, so that a few records do not make
# second moments large: the step sizes of most methods are for features of unit size.
_MOST_SCALES = 30.0
# More features are scaled down so that their second moments add up to about this: the
# default steps are then stable (for logistic: size 1 times curvature 1/4 times 8 is 2).
_LARGEST_SUM = 8
_FEATURES_SHARE = 1 - 1 / 3  # of the budget, if the target needs a share, too


@dataclass(frozen=True, eq=False)
class Ranges:
    """Centers and scales of columns, planned or released, and their cost."""

    num_samples: int  # records, or units
    # The center and scale of each column; before the release, 0 and 1. Features are
    # left out if their scales would be noise.
    columns: Mapping[str, Numeric]
    privacy: PrivacyGuarantee  # for all of them
    # If so many records have numbers of about one size, a scale exceeds the noise.
    least_seen: float
    is_informative: bool  # False if features are left out, or the target has no scale
    noise_multiplier: float  # of all releases together
    unit: str  # the difference between neighboring tables, in words

    def joined(self, training: PrivacyGuarantee) -> PrivacyGuarantee:
        """Returns the guarantee of these centers and scales and a training together.

        Both use the same records, so epsilons add up, and deltas (basic composition).
        """
        parts = self.privacy, training
        # A tuple, although a list is declared: a guarantee's event must be hashable.
        events: Any = tuple(part.dp_event for part in parts)
        return PrivacyGuarantee.of(
            sum_up(*(part.epsilon for part in parts)),
            sum_up(*(part.delta for part in parts)),
            dp_event=ComposedDpEvent(events),
            num_samples=self.num_samples,
            unit=self.unit,
        )


def plan_ranges(table: Table, budget: tuple[float, float]) -> Ranges:
    """Plans the release of the centers and scales that the schema does not declare.

    Only public facts are used. The `budget`, (epsilon, delta), decides how many records
    must have numbers of about one size, so that a column's scale exceeds the noise,
    which is k times as large for units with k places. If these are over half of all
    records, features are left out, and the target gets the full budget.
    """
    names = table.open_columns()
    num_samples = table.num_samples * table.places_per_unit
    rule = "left out where the schema declares all centers and scales"
    _validate.require(len(names) > 0, "--private-ranges", "a share", rule)
    has_target = table.schema.target is None
    num_features = len(names) - has_target
    stated: Any = {"num_samples": table.num_samples, "unit": table.unit_words}
    multiplier, privacy = one_gaussian(*budget, **stated)
    multiplier *= table.places_per_unit
    least, is_informative = 0.0, True
    if num_features:
        share = _FEATURES_SHARE if has_target else 1.0
        least = least_seen(num_features, multiplier / math.sqrt(share))
        is_informative = least <= num_samples / 2
        if not is_informative:
            names = names[num_features:]
    if has_target:
        of_target = multiplier / math.sqrt(_target_share(len(names)))
        least = max(least, least_seen(1, of_target))
    if not names:
        privacy = PrivacyGuarantee.of(0.0, 0.0, dp_event=NoOpDpEvent(), **stated)
    more = least, is_informative, multiplier, table.unit_words
    return Ranges(table.num_samples, dict.fromkeys(names, Numeric()), privacy, *more)


def _target_share(num_columns: int) -> float:
    """Returns the target's share of the budget, if it is one of the columns."""
    return 1 - _FEATURES_SHARE if num_columns > 1 else 1.0


def release_ranges(
    planned: Ranges,  # by `plan_ranges`
    table: Table,
    *,
    key: Key,
    is_centered: bool = True,
    may_bend: bool = False,  # whether features may have curves
) -> tuple[Ranges, Table]:
    """Releases centers and scales of columns; returns them, and the table with them.

    Only then the columns can be encoded. `release_scales` computes the numbers from the
    training records, as for `dpjax.sklearn`. Without `is_centered`, for a log link, the
    target's scale is measured from zero. If features `may_bend`, most of their numbers
    are within two scales, as the knots of curves require.

    Privacy:
        `planned.privacy` under replace-one: one Gaussian mechanism.
    """
    schema, trained = table.schema, table.trained
    numbers = {
        name: trained(float32_of(table.columns[name])).astype(np.float64)
        for name in planned.columns
    }
    weights, shares = (
        None if x is None else trained(x.shares(table.columns[x.column]))
        for x in (schema.weight, schema.exposure)
    )
    if weights is None and table.units is not None:  # empty places do not count
        weights = trained(np.ones(len(table.units.index)))
    multiplier, share = planned.noise_multiplier, _target_share(len(numbers))
    target = numbers.pop(table.target, None)
    feature_key, target_key = _keys.split(key)
    columns: dict[str, Numeric] = {}
    is_informative = planned.is_informative
    if numbers:
        part = multiplier / math.sqrt(1.0 if target is None else _FEATURES_SHARE)
        samples = np.stack(list(numbers.values()), axis=1)
        options = {"noise_multiplier": part, "weights": weights}
        standard = release_scales(feature_key, samples, **options)
        columns |= zip(numbers, _features(standard, may_bend=may_bend), strict=True)
    if target is not None:
        if not is_centered:
            target = np.maximum(target, 0.0)
        if shares is not None:  # targets for the largest exposure
            is_seen = shares > 0
            target = np.where(is_seen, target / np.where(is_seen, shares, 1), np.nan)
        standard = release_scales(
            *(target_key, target[:, None]),
            noise_multiplier=multiplier / math.sqrt(share),
            weights=weights,
            is_centered=is_centered,
        )
        center, scale = standard.centers.item(), standard.scales.item()
        if schema.exposure is not None:  # a schema declares it for an exposure of one
            scale /= schema.exposure.max
        columns[table.target] = Numeric(center, scale)
        is_informative &= standard.is_known.item()
    if not is_informative:
        num_places = planned.num_samples * table.places_per_unit
        warn(
            "Warning: the private centers and scales may be mere noise (a scale is "
            f"detected if {planned.least_seen:,.0f} of {num_places:,} records "
            "have numbers of about that size). Features without a scale are left out. "
            "Declare centers and scales in the schema, or raise --private-ranges."
        )
    released = dataclasses.replace(
        planned, columns=columns, is_informative=is_informative
    )
    return released, table.with_ranges(columns)


def _features(standard: Standard, *, may_bend: bool) -> list[Numeric]:
    """Returns the released center and scale of each column, with a limit for clipping.

    `standard` has the released numbers. Scaled features have about unit size, or less
    if there are more than eight, so that default steps are stable. With `may_bend`, for
    curves, most numbers are within two scales, where the curves' knots are.
    """
    centers, scales = standard.centers, standard.scales
    reach = np.minimum(standard.high - centers, _MOST_SCALES * scales)
    if may_bend:
        scales = standard.for_knots().scales
    else:
        scales = scales * math.sqrt(max(1.0, len(scales) / _LARGEST_SUM))
    columns = zip(centers, scales, reach / scales, strict=True)
    return [Numeric(*map(float, column)) for column in columns]
