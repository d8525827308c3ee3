"""Smoothed clipping: each sample's norm is truncated smoothly, over the whole tree."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._rounding import LARGEST
from dpjax._tree import register
from dpjax.estimators._norm import LEAST_SIZE, NormEstimator
from dpjax.estimators._smoothed import SmoothedEstimator, prepared, smoothed

_TINY = 1e-6  # h_beta(a) is a (1 - O(a^2)), more exactly than computed


@register("scale", "beta")
@dataclass(frozen=True)
class SmoothedClipping(SmoothedEstimator, NormEstimator):
    """The mean of scale·h_beta(||g|| / scale)·g / ||g||, the norm over all leaves.

    What `SmoothedTruncation` does to a coordinate, done to the norm: short samples keep
    nearly their length, long ones come near a common one, and the influence is a smooth
    function of the sample, where that of `Clipping` has a kink. A sample of 2^63 scales
    or more counts as zero.

    Sensitivity: replacing one of n records moves the mean by at most
    2·scale·M / n in the l2 norm, M = (2 sqrt(2)/3) erf(sqrt(beta/2)), since h_beta is
    at most M; float32 rounding is added to that. linf is the same, l1 is sqrt(d) times
    it.

    Attributes:
        scale: s > 0, in units of the samples; a pytree leaf.
        beta: the precision of the smoothing, > 0, dimensionless, as for
            `SmoothedTruncation`; a pytree leaf.

    Raises:
        ValueError: where scale is not in [1e-12, 1e30] or beta not in [1e-6, 1e6].

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import SmoothedClipping
        >>> print(SmoothedClipping(1.0)(jnp.array([[3e9, 4e9], [0.0, 0.0]])).round(3))
        [0.193 0.257]

    Reference:
        h_beta: Catoni, Giulini (2017), whose estimator shrinks the norm of vectors too.
    """

    size_name: ClassVar[str] = "scale"

    def __post_init__(self):
        super().__post_init__()
        _validate.within(LEAST_SIZE, LARGEST, scale=self.scale)

    def weight_fn(self) -> Callable[[jax.Array], jax.Array]:
        """Returns h_beta(norm) / norm, and computes the coefficients of the series."""
        _, *parameters = prepared(self.scale, self.beta, self._degree)

        def weight(norm: jax.Array) -> jax.Array:
            least = jnp.maximum(norm, _TINY)
            return jnp.where(norm < _TINY, 1, smoothed(least, 1.0, *parameters) / least)

        return weight
