"""The mean of records from a set of known diameter: less noise than for a box."""

import math
from dataclasses import dataclass

import jax.numpy as jnp

from dpjax._rounding import ROUNDOFF
from dpjax._tree import register
from dpjax._types import REPLACE_ONE, NeighboringRelation, PyTree, Scalar
from dpjax.estimators import Clipping, Estimator, Sensitivity

# In w (c t, 1), with w in [0, 1] and t in [-1, 1], the weight beside the number costs
# nothing for c up to 1 / sqrt(3): the set is a triangle, whose longest side has two
# opposite numbers at its ends.
BESIDE_WEIGHT = 0.577


@register()
@dataclass(frozen=True)
class DiameterMean(Estimator):
    """The mean of vectors from a set within [-1, 1]^d that holds zero.

    A record that is not finite counts as zero.

    Sensitivity: replacing one of n records moves the mean by at most diameter / n in
    the l2 norm, adding or removing one by radius / n; the rounding is that of
    `Clipping(radius)`, of which 2 radius / n is not rounding. Records are products of
    at most three floats: each is off by 2 roundings of its norm, for two neighbors.

    Attributes:
        radius: the largest l2 norm of a record.
        diameter: the largest l2 distance of two.
    """

    radius: float
    diameter: float

    def influence(self, sample: PyTree) -> PyTree:
        """Returns the sample, or zeros where it is not finite."""
        # It is within [-1, 1] already: so the limit holds for any caller.
        held = jnp.clip(sample, -1.0, 1.0)
        return jnp.where(jnp.all(jnp.isfinite(sample)), held, jnp.zeros_like(sample))

    @property
    def limit(self) -> Scalar:
        """The largest size of a coordinate."""
        return 1.0

    def sensitivity(
        self,
        num_samples: Scalar,
        num_coordinates: int,
        relation: NeighboringRelation = REPLACE_ONE,
    ) -> Sensitivity:
        """See `Estimator.sensitivity`: that of all vectors, less what the set saves."""
        rounded = 1 + 4 * ROUNDOFF
        ball = Clipping(rounded * self.radius)
        whole = ball.sensitivity(num_samples, num_coordinates, relation)
        saved = 0.0
        if relation is REPLACE_ONE:
            saved = rounded * (2 * self.radius - self.diameter) / num_samples
        l2 = whole.l2 - saved
        return Sensitivity(num_coordinates**0.5 * l2, l2, l2)


# The diameter is raised to that of c = 1 / sqrt(3), which covers the rounding of c.
WEIGHTED = DiameterMean(radius=2 / math.sqrt(3), diameter=2 / math.sqrt(3))
