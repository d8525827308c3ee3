"""Clipping: each sample is scaled down to a given l2 norm, over the whole tree."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._tree import like, register
from dpjax._types import REPLACE_ONE, NeighboringRelation, PyTree, Scalar
from dpjax.estimators._estimator import LARGEST, SMALLEST, Estimator, as_finite
from dpjax.estimators._sensitivity import Sensitivity, norm_sensitivity

# The computed norm may be too small by this relative error, so that a clipped sample
# may be longer than the clip norm by as much: sums of squares pass at most 6 levels of
# 256 terms (any number below 2^48 of coordinates) and the leaves are few; half of the
# error of a square goes into its root; three roundings follow.
NORM_ERROR = 2.0**-13
ROW = 256


@jax.jit
def clip_to_norm(sample: PyTree, l2_clip_norm: Scalar) -> PyTree:
    """Returns sample·min(1, l2_clip_norm / ||sample||), the norm over all leaves.

    Leaves in half precision become float32 first. Entries up to the largest float
    neither overflow nor turn to zero; NaN and infinities count as zero.

    Example:
        >>> import jax.numpy as jnp
        >>> print(clip_to_norm({"w": jnp.array([3e30, 4e30])}, 1.0))
        {'w': Array([0.59999996, 0.8 ], dtype=float32)}
    """
    sample = jax.tree.map(as_finite, sample)
    leaves = jax.tree.leaves(sample)
    # Scale by the power of two at the largest entry, so that squares neither over- nor
    # underflow. The result does not depend on it, so its derivative is left out. Not by
    # the entry: compilers turn a division into a product with 1 / 1e38, which is zero.
    dtype = max((leaf.dtype for leaf in leaves), key=lambda dtype: dtype.itemsize)
    largest = jnp.zeros((), dtype)
    for leaf in leaves:
        top = jnp.max(jnp.abs(leaf), initial=0.0).astype(dtype)
        largest = jnp.maximum(largest, top)
    _, exponent = jnp.frexp(jax.lax.stop_gradient(largest))
    exponent = jnp.clip(exponent, -125, jnp.finfo(dtype).maxexp - 2)
    unit = jnp.ldexp(jnp.ones((), dtype), -exponent)
    squares = jnp.zeros((), dtype)
    for leaf in leaves:
        squares += _sum_of_squares(leaf * like(unit, leaf)).astype(dtype)
    norm = jnp.sqrt(jnp.where(squares > 0, squares, 1))  # of sample·unit
    limit = like(l2_clip_norm, norm)
    is_long = (squares > 0) & (norm > limit * unit)
    shrink = limit / norm

    def clip(x: jax.Array) -> jax.Array:
        shrunk = (x * like(unit, x)) * like(shrink, x)
        return jnp.where(is_long, shrunk, x)

    return jax.tree.map(clip, sample)


def _sum_of_squares(x: jax.Array) -> jax.Array:
    # A flat float32 sum of d terms may err by d·2^-24: 6 times, at d = 1e8. Sums of
    # rows of 256 err by 256·2^-24 a level; the barrier keeps the compiler from
    # merging the levels into one flat sum.
    terms = (x * x).reshape(-1)
    while terms.size > ROW:
        terms = jnp.pad(terms, (0, -terms.size % ROW)).reshape(-1, ROW)
        terms = jax.lax.optimization_barrier(terms.sum(axis=1))
    return terms.sum()


@register(data_fields=["l2_clip_norm"], meta_fields=[])
@dataclass(frozen=True)
class Clipping(Estimator):
    """The mean of samples clipped to a global l2 norm: the estimator of DP-SGD.

    Sensitivity: replacing one of n records moves the mean by at most
    2·l2_clip_norm / n in the l2 norm; float32 rounding is added to that. linf is the
    same, l1 is sqrt(d) times it.

    Attributes:
        l2_clip_norm: C > 0, in units of the samples; a pytree leaf.

    Raises:
        ValueError: where l2_clip_norm is not a number in [1e-20, 1e30].

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import Clipping
        >>> print(Clipping(1.0)(jnp.array([[3e30, 4e30], [0.0, 0.0]])).round(3))
        [0.3 0.4]

    Reference:
        Abadi et al. (2016), Algorithm 1.
    """

    l2_clip_norm: Scalar

    def __post_init__(self):
        _validate.within(SMALLEST, LARGEST, l2_clip_norm=self.l2_clip_norm)

    def influence(self, sample: PyTree) -> PyTree:
        """Returns the sample, scaled down to the clip norm where it is longer."""
        return clip_to_norm(sample, self.l2_clip_norm)

    @property
    def limit(self) -> Scalar:
        """The clip norm, which bounds every coordinate too."""
        return self.l2_clip_norm

    def sensitivity(
        self,
        num_samples: Scalar,
        num_coordinates: int,
        relation: NeighboringRelation = REPLACE_ONE,
    ) -> Sensitivity:
        """See `Estimator.sensitivity`: l2 is 2 l2_clip_norm / n and its rounding."""
        return norm_sensitivity(
            self.l2_clip_norm,
            num_samples,
            num_coordinates,
            relation,
            norm_error=NORM_ERROR,
        )
