"""The mean of vectors from a set of known diameter: less noise than for a ball."""

import math
from dataclasses import dataclass

from dpjax._rounding import ROUNDED_UP
from dpjax._tree import register
from dpjax.estimators import Clipping


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
