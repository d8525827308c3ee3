"""The plain mean: no robustness, no finite sensitivity; the non-private baseline."""

import math
from dataclasses import dataclass

import jax

from dpjax._tree import as_finite, register
from dpjax._types import REPLACE_ONE, NeighboringRelation, PyTree, Scalar
from dpjax.estimators._estimator import Estimator
from dpjax.estimators._sensitivity import Sensitivity


@register()
@dataclass(frozen=True)
class Mean(Estimator):
    """The mean of samples over axis 0; NaN and infinities count as zero.

    Sensitivity: infinite in every norm, so `privatize` refuses it.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import Mean
        >>> print(Mean()(jnp.array([1.0, 2.0, 6.0])))
        3.0
    """

    def influence(self, sample: PyTree) -> PyTree:
        """Returns the sample itself, its non-finite entries set to zero."""
        return jax.tree.map(as_finite, sample)

    @property
    def limit(self) -> None:
        """None: a sample's influence is unbounded."""
        return None

    def sensitivity(
        self,
        num_samples: Scalar,
        num_coordinates: int,
        relation: NeighboringRelation = REPLACE_ONE,
        *,
        rounded: bool = True,
    ) -> Sensitivity:
        """Returns infinity in every norm."""
        del num_samples, num_coordinates, relation, rounded
        return Sensitivity(math.inf, math.inf, math.inf)
