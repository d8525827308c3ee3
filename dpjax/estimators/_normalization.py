"""Normalization: every sample is scaled to nearly the same l2 norm."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax

from dpjax import _validate
from dpjax._rounding import LARGEST
from dpjax._tree import like, register
from dpjax._types import Scalar
from dpjax.estimators._norm import SMALLEST_THRESHOLD, NormEstimator


@register("offset")
@dataclass(frozen=True)
class Normalization(NormEstimator):
    """The mean of g / (||g|| + offset), the norm over all leaves.

    Samples keep their direction, and the norm of large ones becomes nearly 1. There is
    no clip norm to tune, because scaling all samples amounts to scaling the step size
    and the offset. Means have no unit. Samples much smaller than the offset keep their
    proportions; without an offset, sampling noise of small gradients would count as
    much as the signal, and descent might not converge. A sample of 2^63 offsets or more
    counts as zero.

    Sensitivity: replacing one of n records moves the mean by at most 2 / n in the l2
    norm, because ||g|| / (||g|| + offset) <= 1; float32 rounding is added to that. linf
    is the same, l1 is sqrt(d) times it.

    Attributes:
        offset: gamma in [1e-12, 1e30], in units of the samples; a pytree leaf.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax.estimators import Normalization
        >>> samples = jnp.array([[3e9, 4e9], [0.0, 0.5]])
        >>> jax.vmap(Normalization(0.5).influence)(samples).round(1).tolist()
        [[0.6..., 0.8...], [0.0, 0.5]]

    Reference:
        Bu, Wang, Zha, Karypis (2023), Automatic clipping, AUTO-S, eq. (3.2).
    """

    offset: Scalar
    size_name: ClassVar[str] = "offset"

    def __post_init__(self):
        _validate.within(SMALLEST_THRESHOLD, LARGEST, offset=self.offset)

    def weight_fn(self) -> Callable[[jax.Array], jax.Array]:
        """Returns 1 / (offset + norm), for norms in offsets."""
        return lambda norm: 1 / like(self.offset, norm) / (1 + norm)

    @property
    def limit(self) -> Scalar:
        """1."""
        return 1.0
