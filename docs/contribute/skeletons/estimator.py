"""A mean of saturated samples: a skeleton of an estimator."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._rounding import LARGEST, SMALLEST
from dpjax._tree import as_float, like, register, within
from dpjax._types import PyTree, Scalar
from dpjax.estimators._estimator import CoordinateEstimator


@register("threshold")
@dataclass(frozen=True)
class SaturatedMean(CoordinateEstimator):
    """The mean of B·tanh(x / B), coordinate by coordinate; NaN counts as zero.

    Sensitivity: replacing one of n records moves a coordinate by at most
    2·threshold / n, since |influence| <= threshold; float32 rounding is added to that.

    Attributes:
        threshold: B in [1e-20, 1e30], in units of the samples; a pytree leaf.

    Example:
        >>> import jax.numpy as jnp
        >>> print(SaturatedMean(1.0)(jnp.array([1e30, jnp.inf, jnp.nan, 0.0])))
        0.5

    Reference:
        The paper, its theorem, the equation of the influence.
    """

    threshold: Scalar

    def __post_init__(self):
        """Checks the threshold, unless it is traced."""
        _validate.within(SMALLEST, LARGEST, threshold=self.threshold)

    @property
    def limit(self) -> Scalar:
        """The threshold."""
        return self.threshold

    def influence(self, sample: PyTree) -> PyTree:
        """Returns the sample with large entries bent towards the threshold."""

        def saturated(x: jax.Array) -> jax.Array:
            x = as_float(x)
            bound = like(self.threshold, x)
            # Within 40 bounds, where tanh is one: derivatives stay finite at infinity.
            x = within(jnp.where(jnp.isnan(x), 0, x), 40 * bound)
            # Cut, since rounding could leave the range that the sensitivity is of.
            return within(bound * jnp.tanh(x / bound), bound)

        return jax.tree.map(saturated, sample)
