"""Clipping: each sample is scaled down to a given l2 norm, over the whole tree."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._sharding import num_other_devices, varying, varying_axes
from dpjax._tree import like, register
from dpjax._types import REPLACE_ONE, NeighboringRelation, PyTree, Scalar
from dpjax.estimators._estimator import (
    LARGEST,
    SMALLEST,
    Estimator,
    as_finite,
    as_float,
)
from dpjax.estimators._sensitivity import Sensitivity, norm_sensitivity

# The computed norm may be too small by this relative error, so that a clipped sample
# may be longer than the clip norm by as much: sums of squares pass at most 6 levels of
# 256 terms (any number below 2^48 of coordinates, 2^32 where they lie on several
# devices, since two sums follow one another), those of the leaves one more level for
# each doubling of their number; half of the error of a square goes into its root; three
# roundings follow.
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
    sample = jax.tree.map(as_float, sample)
    dtypes = (leaf.dtype for leaf in jax.tree.leaves(sample))
    dtype = max(dtypes, key=lambda dtype: dtype.itemsize)
    return _clip(sample, jnp.asarray(l2_clip_norm).astype(dtype))


@jax.custom_jvp
def _clip(sample: PyTree, limit: jax.Array) -> PyTree:
    shrink, _ = _shrinking(sample, limit)
    return jax.tree.map(lambda x: shrink(as_finite(x)), sample)


@_clip.defjvp
def _clip_jvp(primals, tangents):
    # y = x C/||x|| has dy = C/||x|| dx - y <y, C/||x|| dx> / C^2 + y/C dC.
    (sample, limit), (d_sample, d_limit) = primals, tangents
    shrink, is_long = _shrinking(sample, limit)
    clipped = jax.tree.map(lambda x: shrink(as_finite(x)), sample)
    moved = jax.tree.map(
        lambda x, dx: shrink(jnp.where(jnp.isfinite(x), dx, 0)), sample, d_sample
    )
    pairs = zip(jax.tree.leaves(clipped), jax.tree.leaves(moved), strict=True)
    along = sum(jnp.vdot(y / like(limit, y), dy).astype(limit.dtype) for y, dy in pairs)
    turn = jnp.where(is_long, (d_limit - along) / limit, 0)
    return clipped, jax.tree.map(lambda y, dy: dy + y * like(turn, y), clipped, moved)


def _shrinking(sample: PyTree, limit: jax.Array):
    """Returns a factor, as a function of finite leaves, and whether it is below one."""
    dtype, leaves = limit.dtype, jax.tree.leaves(sample)
    squares = _squared_norm(leaves, dtype)
    # No square has overflowed, and none that underflowed is missed: beside 2^-60, 2^40
    # of them are nothing. NaN fails both.
    is_plain = (squares < 2.0**120) & ((squares > 2.0**-60) | (limit > 2.0**-30))
    unit, squares = jax.lax.cond(
        is_plain,
        lambda leaves: (varying(jnp.ones((), dtype), varying_axes(squares)), squares),
        lambda leaves: _scaled_squared_norm(leaves, dtype),
        leaves,
    )
    norm = jnp.sqrt(jnp.where(squares > 0, squares, 1))  # of sample·unit
    is_long = (squares > 0) & (norm > limit * unit)
    factor = jnp.where(is_long, limit / norm, 1)

    def shrink(x: jax.Array) -> jax.Array:
        # In the widest dtype: of float64 the unit may lie outside of float32.
        short = x.astype(dtype) * unit * factor
        return jnp.where(is_long, short.astype(x.dtype), x)

    return shrink, is_long


def _scaled_squared_norm(leaves, dtype):
    """Returns a power of two, and the squared norm of the sample times it.

    The power stands at the largest entry, so that squares neither over- nor underflow.
    Not the entry itself: compilers turn a division into a product with 1 / 1e38, which
    is zero.
    """
    leaves = [as_finite(leaf) for leaf in leaves]
    largest = jnp.zeros((), dtype)
    for leaf in leaves:
        top = jnp.max(jnp.abs(leaf), initial=0.0).astype(dtype)
        largest = jnp.maximum(largest, top)
    _, exponent = jnp.frexp(largest)
    exponent = jnp.clip(exponent, -125, jnp.finfo(dtype).maxexp - 2)
    unit = jnp.ldexp(jnp.ones((), dtype), -exponent)
    return unit, _squared_norm([leaf.astype(dtype) * unit for leaf in leaves], dtype)


def _squared_norm(leaves, dtype):
    # As a tree: one after the other, thousands of leaves err by as many roundings.
    sums = [_sum_of_squares(x).astype(dtype) for x in leaves]
    return jax.tree.reduce_associative(jnp.add, sums, identity=jnp.zeros((), dtype))


def _sum_of_squares(x: jax.Array) -> jax.Array:
    terms = x * x
    num_parts = num_other_devices(x)
    if num_parts > 1 and x.ndim > 0:
        # An axis that lies on several devices falls into as many parts, which stay
        # where they are: the rows of 256 are of one device each.
        parts = [num_parts if n % num_parts == 0 else 1 for n in x.shape]
        lengths = [n // m for n, m in zip(x.shape, parts, strict=True)]
        pairs = zip(parts, lengths, strict=True)
        terms = terms.reshape([n for pair in pairs for n in pair])
        order = [*range(0, 2 * x.ndim, 2), *range(1, 2 * x.ndim, 2)]
        terms = terms.transpose(order).reshape(*parts, math.prod(lengths))
        terms = jax.lax.optimization_barrier(_sum_by_rows(terms))
        if terms.size <= ROW:
            return terms.sum()
    return _sum_by_rows(terms.reshape(-1))


def _sum_by_rows(terms: jax.Array) -> jax.Array:
    """Sums over the last axis."""
    # A flat float32 sum of d terms may err by d·2^-24: 6 times, at d = 1e8. Sums of
    # rows of 256 err by 256·2^-24 a level; the barrier keeps the compiler from
    # merging the levels into one flat sum.
    while terms.shape[-1] > ROW:
        rest = [(0, 0)] * (terms.ndim - 1)
        terms = jnp.pad(terms, [*rest, (0, -terms.shape[-1] % ROW)])
        terms = terms.reshape(*terms.shape[:-1], -1, ROW)
        terms = jax.lax.optimization_barrier(terms.sum(axis=-1))
    return terms.sum(axis=-1)


@register(data_fields=["l2_clip_norm"], meta_fields=[])
@dataclass(frozen=True)
class Clipping(Estimator):
    """The mean of samples clipped to a global l2 norm: the estimator of DP-SGD.

    Sensitivity: replacing one of n records moves the mean by at most
    2·l2_clip_norm / n in the l2 norm; float32 rounding is added to that. linf is the
    same, l1 is sqrt(d) times it.

    However large the norm is, samples below it keep their precision. For a mean without
    any bound, which has no finite sensitivity, take `Mean()`.

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
