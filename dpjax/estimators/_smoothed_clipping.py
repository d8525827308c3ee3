"""Smoothed clipping: each sample's norm is truncated smoothly, over the whole tree."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from dpjax._tree import register
from dpjax._types import PyTree
from dpjax.estimators._norm import NormEstimator, shorten
from dpjax.estimators._smoothed import SmoothedEstimator, prepared, smoothed

_TINY = 1e-6  # of the scale: h_beta(a) is a (1 - O(a^2)), more exactly than computed


@register("scale", "beta")
@dataclass(frozen=True)
class SmoothedClipping(SmoothedEstimator, NormEstimator):
    """The mean of scale·h_beta(||g|| / scale)·g / ||g||, the norm over all leaves.

    What `SmoothedTruncation` does to a coordinate, done to the norm: short samples keep
    nearly their length, long ones come near a common one, and the influence is a smooth
    function of the sample, where that of `Clipping` has a kink.

    Sensitivity: replacing one of n records moves the mean by at most
    2·scale·M / n in the l2 norm, M = (2 sqrt(2)/3) erf(sqrt(beta/2)), since h_beta is
    at most M; float32 rounding is added to that. linf is the same, l1 is sqrt(d) times
    it.

    Attributes:
        scale: s > 0, in units of the samples; a pytree leaf.
        beta: the precision of the smoothing, > 0, dimensionless, as for
            `SmoothedTruncation`; a pytree leaf.

    Raises:
        ValueError: where scale is not in [1e-18, 1e30] or beta not in [1e-6, 1e6].

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import SmoothedClipping
        >>> print(SmoothedClipping(1.0)(jnp.array([[3e30, 4e30], [0.0, 0.0]])).round(3))
        [0.193 0.257]

    Reference:
        h_beta: Catoni, Giulini (2017), whose estimator shrinks the norm of vectors too.
    """

    size_name: ClassVar[str] = "scale"

    def influence_fn(self) -> Callable[[PyTree], PyTree]:
        """See `Estimator.influence_fn`: computes the coefficients of the series."""
        length_fn, parameters = self.length()
        return lambda sample: shorten(length_fn, sample, *parameters)

    def length(self) -> tuple[Callable[..., jax.Array], tuple[PyTree, ...]]:
        """Returns scale·h_beta(norm / scale) as a function, and its coefficients."""
        return _length, prepared(self.scale, self.beta, self._degree)


def _length(norm: jax.Array, scale: jax.Array, *parameters: PyTree) -> jax.Array:
    return jnp.where(norm < _TINY * scale, norm, smoothed(norm, scale, *parameters))
