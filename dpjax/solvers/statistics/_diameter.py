"""The mean of vectors from a set of known diameter: less noise than for a ball."""

import math
from dataclasses import dataclass

from dpjax._rounding import ROUNDED_UP
from dpjax._tree import register
from dpjax.estimators import Clipping

# In w (c t, 1), with w in [0, 1] and t in [-1, 1], the weight beside the number costs
# nothing for c up to 1 / sqrt(3): the set is a triangle, whose longest side has two
# opposite numbers at its ends.
BESIDE_WEIGHT = 0.577


@register("l2_clip_norm")
@dataclass(frozen=True)
class SetClipping(Clipping):
    """The mean of clipped vectors from a set that holds what lies between it and zero.

    Sensitivity: replacing one of n records moves the mean by at most the diameter / n
    in the l2 norm, adding or removing one by l2_clip_norm / n; rounding is added as for
    `Clipping`. Proof: `docs/privacy/proofs/sums.md`, 1.10.

    Attributes:
        l2_clip_norm: see `Clipping`.
        relative_diameter: the largest l2 distance of two vectors of the set within the
            clip norm, in clip norms, at least 1. Of a set of vectors without negative
            entries it is the root of two, and 1 for numbers.
    """

    relative_diameter: float = math.sqrt(2)

    @property
    def diameter(self) -> float:
        """See `NormBounded.diameter`; more than what vectors may be off by rounding."""
        return self.relative_diameter * ROUNDED_UP


# The longest side of the triangle at c = 1 / sqrt(3), a little above `BESIDE_WEIGHT`.
WEIGHTED = SetClipping(2 / math.sqrt(3), 1.0)
