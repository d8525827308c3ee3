"""Normalization: every sample gets nearly the same l2 norm, however short it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._rounding import LARGEST, SMALLEST
from dpjax._tree import like, register
from dpjax._types import PyTree, Scalar
from dpjax.estimators._norm import NormEstimator, shorten


@register("offset")
@dataclass(frozen=True)
class Normalization(NormEstimator):
    """The mean of g / (||g|| + offset), the norm over all leaves.

    Samples keep their direction, and long ones get a length near 1: there is no clip
    norm to tune, since a scale of all samples is one of the step size and the offset.
    Means have no unit. Samples that are much shorter than the offset keep their
    proportions; without an offset, noise in directions of small gradients would count
    as much as the signal, and descent need not come to rest.

    Sensitivity: replacing one of n records moves the mean by at most 2 / n in the l2
    norm, since ||g|| / (||g|| + offset) <= 1; float32 rounding is added to that. linf
    is the same, l1 is sqrt(d) times it.

    Attributes:
        offset: gamma > 0, in units of the samples; a pytree leaf.

    Raises:
        ValueError: where offset is not a number in [1e-20, 1e30].

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax.estimators import Normalization
        >>> samples = jnp.array([[3e30, 4e30], [0.0, 0.5]])
        >>> jax.vmap(Normalization(0.5).influence)(samples).round(1).tolist()
        [[0.6..., 0.8...], [0.0, 0.5]]

    Reference:
        Bu, Wang, Zha, Karypis (2023), Automatic clipping, AUTO-S, eq. (3.2).
    """

    offset: Scalar
    size_name: ClassVar[str] = "offset"

    def __post_init__(self):
        _validate.within(SMALLEST, LARGEST, offset=self.offset)

    # The influence is offset·g / (||g|| + offset), which never makes a sample longer,
    # over the offset: two roundings more than those that NORM_ERROR counts, of which
    # it leaves a thousand.
    def influence(self, sample: PyTree) -> PyTree:
        """Returns the sample over its norm and the offset."""
        short = shorten(_harmonic, sample, self.offset)
        return jax.tree.map(lambda x: x / like(self.offset, x), short)

    def length(self) -> tuple[Callable[..., jax.Array], tuple[PyTree, ...]]:
        """Returns offset·norm / (norm + offset) as a function, and the offset."""
        return _harmonic, (self.offset,)

    @property
    def gain(self) -> Scalar:
        """See `NormEstimator.gain`: 1 / offset."""
        return 1 / self.offset

    @property
    def limit(self) -> Scalar:
        """1."""
        return 1.0


def _harmonic(norm: jax.Array, offset: jax.Array) -> jax.Array:
    # norm·offset / (norm + offset), of which no part overflows, were the norm infinite.
    less, more = jnp.minimum(norm, offset), jnp.maximum(norm, offset)
    return less / (1 + less / more)
