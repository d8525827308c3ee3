"""Which knots the curves of an additive model have, by public numbers."""

import math
from typing import NamedTuple

from dpjax.losses import LinearLoss
from dpjax.solvers.additive._gain import Threshold, is_seen

_COARSE = (-2.0, 0.0, 2.0)
_BANDED = (_COARSE, (-2.0, -1.0, 0.0, 1.0, 2.0))  # with intervals
FINE = (-4.0, -2.0, -1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
# Hat functions that columns of few numbers beside zero have as well, and how many of
# these columns there may be, because each needs many weights.
STEP, MOST_FINEST = 1 / 16, 2
FINEST = tuple(sorted({*FINE, *(STEP * step for step in range(-32, 33))}))
NARROW = tuple(place for place, knot in enumerate(FINEST) if knot not in FINE)
# Records for each weight then, and each unit of the noise multiplier.
_FINEST_RECORDS = 60.0
# The units of lines and hat functions. Steps that are equal in all weights move a
# function by the square of its unit.
LINE, HEIGHT = 0.5, 2.0
# Records that w weights need, over the noise multiplier and w^1.5, if noise is not to
# hide second derivatives: the edge of its spectrum is that of squares of w, times w^.5.
_CLEAR_RECORDS = 190.0
_TAIL = 0.05  # of lines beyond the fine knots, in models of labels


class Rule(NamedTuple):
    """When columns bend, of a loss.

    Attributes:
        records: what coarse and fine knots need: so many records for each weight of
            the model and each unit of the noise multiplier.
        tail: the unit of lines beyond the fine knots. If it is small, far tails take
            less of what clipping leaves of a record, but are fitted later.
        threshold: which gain is enough, where it is released.
        bends_unseen: whether they bend where the noise would hide the gain.
    """

    records: tuple[float, float]
    tail: float
    threshold: Threshold
    bends_unseen: bool

    @classmethod
    def of(cls, loss: LinearLoss) -> "Rule":
        """Returns that of a loss.

        Labels bound what a record says. Other targets may be nearly all noise, with
        heavy tails, which curves follow sooner than lines do.
        """
        if loss.num_outputs > 1 or loss.target_range == (-1.0, 1.0):
            threshold = Threshold(2.0, 4e-4)
            return cls((8.0, 12.0), _TAIL, threshold, bends_unseen=True)
        threshold = Threshold(5.0, math.inf)
        return cls((60.0, 25.0), LINE, threshold, bends_unseen=False)

    def knots(
        self, num_clear: float, num_columns: int, num_smooth: int
    ) -> tuple[float, ...]:
        """Returns the knots of every curve, () for a linear model.

        Args:
            num_clear: the number of records, over the noise multiplier and the number
                of outputs.
            num_columns: the number of lines.
            num_smooth: the number of columns that may bend.
        """
        coarse, fine = self.records
        for num_records, knots in ((fine, FINE), (coarse, _COARSE)):
            num_weights = num_columns + num_smooth * (len(knots) - 1)
            if num_smooth and num_clear >= num_records * num_weights:
                return knots
        return ()


def knots_of(
    loss: LinearLoss,
    num_samples: int,
    num_columns: int,
    num_smooth: int,
    noise_multiplier: float,
) -> tuple[float, ...]:
    """Returns the knots of every curve by public numbers, () for a linear model."""
    rule, num_functions = Rule.of(loss), 2 * num_smooth * loss.num_outputs
    if not (rule.bends_unseen or is_seen(num_samples, num_functions, noise_multiplier)):
        return ()
    num_clear = num_samples / (noise_multiplier * loss.num_outputs)
    return rule.knots(num_clear, num_columns, num_smooth)


def may_be_finest(knots: tuple[float, ...], num_clear: float, num_weights: int) -> bool:
    """Returns whether columns that are mostly zero may have narrow functions.

    Args:
        knots: of the curves.
        num_clear: the number of records, over the noise multiplier and the number of
            outputs.
        num_weights: of the model without them.
    """
    num_weights += MOST_FINEST * len(NARROW)
    return knots == FINE and num_clear >= _FINEST_RECORDS * num_weights


def banded_knots_of(
    num_samples: int, num_columns: int, num_smooth: int, noise_multiplier: float
) -> tuple[float, ...]:
    """Returns the knots of curves that are to have bands, () for a linear model.

    The most knots by which the noise hides no direction of usual columns.
    """
    for knots in reversed(_BANDED):
        num_weights = num_columns + num_smooth * (len(knots) - 2)  # and no lines
        num_needed = _CLEAR_RECORDS * noise_multiplier * num_weights**1.5
        if num_smooth and num_samples >= num_needed:
            return knots
    return ()
