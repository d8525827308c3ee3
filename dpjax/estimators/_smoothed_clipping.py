"""Smoothed clipping: each sample's norm, over the whole tree, is clipped smoothly."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._rounding import LARGEST
from dpjax._tree import register
from dpjax.estimators._norm import SMALLEST_THRESHOLD, NormEstimator
from dpjax.estimators._smoothed import SmoothedEstimator, prepared, smoothed

_TINY = 1e-6  # below, h_beta(a) = a (1 - O(a^2)) is more precise than `smoothed`


@register("scale", "beta")
@dataclass(frozen=True)
class SmoothedClipping(SmoothedEstimator, NormEstimator):
    """The mean of scale·h_beta(||g|| / scale)·g / ||g||, the norm over all leaves.

    `SmoothedTruncation` of the norm: small norms hardly change, large ones approach
    scale·M, and the influence is a smooth function of the sample, while that of
    `Clipping` has a kink. A sample of 2^63 scales or more counts as zero.

    Sensitivity: replacing one of n records moves the mean by at most
    2·scale·M / n in the l2 norm, M = (2 sqrt(2)/3) erf(sqrt(beta/2)), because h_beta is
    at most M; float32 rounding is added to that. linf is the same, l1 is sqrt(d) times
    it.

    Attributes:
        scale: s in [1e-12, 1e30], in units of the samples; a pytree leaf.
        beta: the precision of the smoothing, in [1e-6, 1e6], as for
            `SmoothedTruncation`; a pytree leaf.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import SmoothedClipping
        >>> print(SmoothedClipping(1.0)(jnp.array([[3e9, 4e9], [0.0, 0.0]])).round(3))
        [0.193 0.257]

    Reference:
        h_beta: Catoni, Giulini (2017), whose estimator also acts on norms of vectors.
    """

    size_name: ClassVar[str] = "scale"

    def __post_init__(self):
        super().__post_init__()
        _validate.within(SMALLEST_THRESHOLD, LARGEST, scale=self.scale)

    def weight_fn(self) -> Callable[[jax.Array], jax.Array]:
        """Returns h_beta(norm) / norm, and computes the coefficients of the series."""
        _, *parameters = prepared(self.scale, self.beta, self._degree)

        def weight(norm: jax.Array) -> jax.Array:
            least = jnp.maximum(norm, _TINY)
            return jnp.where(norm < _TINY, 1, smoothed(least, 1.0, *parameters) / least)

        return weight
