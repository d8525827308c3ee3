"""Clipping: each sample is scaled down to a given l2 norm, over the whole tree."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._rounding import LARGEST
from dpjax._tree import register
from dpjax._types import PyTree, Scalar
from dpjax.estimators._norm import SMALLEST_THRESHOLD, NormEstimator


@jax.jit
def clip_to_norm(sample: PyTree, l2_clip_norm: Scalar) -> PyTree:
    """Returns sample·min(1, l2_clip_norm / ||sample||), the norm over all leaves.

    Leaves in half precision become float32 first. NaN and infinite entries count as
    zero; so does a whole sample of 2^63 clip norms or more.

    Example:
        >>> import jax.numpy as jnp
        >>> print(clip_to_norm({"w": jnp.array([3e9, 4e9])}, 1.0))
        {'w': Array([0.6, 0.8], dtype=float32)}
    """
    return Clipping(l2_clip_norm).influence(sample)


@register("l2_clip_norm")
@dataclass(frozen=True)
class Clipping(NormEstimator):
    """The mean of samples clipped to a global l2 norm: the estimator of DP-SGD.

    Sensitivity: replacing one of n records moves the mean by at most
    2·l2_clip_norm / n in the l2 norm; float32 rounding is added to that. linf is the
    same, l1 is sqrt(d) times it.

    With any clip norm, smaller samples keep their precision. A sample of 2^63 clip
    norms or more counts as zero. For a mean without a bound, which has no finite
    sensitivity, use `Mean()`.

    Attributes:
        l2_clip_norm: C in [1e-12, 1e30], in units of the samples; a pytree leaf.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import Clipping
        >>> print(Clipping(1.0)(jnp.array([[3e9, 4e9], [0.0, 0.0]])).round(3))
        [0.3 0.4]

    Reference:
        Abadi et al. (2016), Algorithm 1.
    """

    l2_clip_norm: Scalar
    size_name: ClassVar[str] = "l2_clip_norm"

    def __post_init__(self):
        _validate.within(SMALLEST_THRESHOLD, LARGEST, l2_clip_norm=self.l2_clip_norm)

    def weight_fn(self) -> Callable[[jax.Array], jax.Array]:
        """Returns min(1, 1 / norm)."""
        return lambda norm: 1 / jnp.maximum(norm, 1)

    @property
    def limit(self) -> Scalar:
        """The clip norm, which bounds every coordinate too."""
        return self.l2_clip_norm
