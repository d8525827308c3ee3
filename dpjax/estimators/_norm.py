"""Norm-wise influences: a sample keeps its direction, and gets another l2 norm."""

import abc
import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from dpjax._sharding import num_other_devices, varying, varying_axes
from dpjax._tree import like
from dpjax._types import REPLACE_ONE, NeighboringRelation, PyTree, Scalar
from dpjax.estimators._estimator import Estimator, as_finite, as_float
from dpjax.estimators._sensitivity import Sensitivity, norm_sensitivity

# The computed norm may be too small by this relative error, so that a clipped sample
# may be longer than the clip norm by as much: sums of squares pass at most 6 levels of
# 256 terms (any number below 2^48 of coordinates, 2^32 where they lie on several
# devices, since two sums follow one another), those of the leaves one more level for
# each doubling of their number; half of the error of a square goes into its root; three
# roundings follow.
NORM_ERROR = 2.0**-13
ROW = 256


class NormEstimator(Estimator):
    """An estimator whose influence changes the l2 norm of a sample alone."""

    @property
    @abc.abstractmethod
    def limit(self) -> Scalar:
        """The largest l2 norm of an influence, hence size of any coordinate."""

    def sensitivity(
        self,
        num_samples: Scalar,
        num_coordinates: int,
        relation: NeighboringRelation = REPLACE_ONE,
    ) -> Sensitivity:
        """See `Estimator.sensitivity`: l2 is 2 limit / n and its rounding."""
        return norm_sensitivity(
            self.limit, num_samples, num_coordinates, relation, norm_error=NORM_ERROR
        )


def shorten(
    length_fn: Callable[..., jax.Array], sample: PyTree, *parameters: PyTree
) -> PyTree:
    """Returns sample·length / ||sample||, the norm over all leaves.

    A sample stays as it is where the length is its norm or more. Leaves in half
    precision become float32 first. Entries up to the largest float neither overflow nor
    turn to zero; NaN and infinities count as zero.

    Args:
        length_fn: `length_fn(norm, *parameters)`, a differentiable function of scalars.
        sample: any pytree of arrays.
        parameters: of length_fn; they become the widest dtype of the sample. The first
            is of the order of the length of long samples.
    """
    sample = jax.tree.map(as_float, sample)
    dtypes = (leaf.dtype for leaf in jax.tree.leaves(sample))
    dtype = max(dtypes, key=lambda dtype: dtype.itemsize)
    wide = jax.tree.map(lambda x: jnp.asarray(x).astype(dtype), parameters)
    return _shorten(length_fn, sample, wide)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _shorten(length_fn, sample, parameters):
    norm, unit, is_zero = _scaled_norm(sample, parameters[0])
    shrink, _ = _shrinking(length_fn(norm / unit, *parameters), norm, unit, is_zero)
    return jax.tree.map(lambda x: shrink(as_finite(x)), sample)


@_shorten.defjvp
def _shorten_jvp(length_fn, primals, tangents):
    # y = l(r) e with r = ||x|| and e = x/r has dy = (l/r) (dx - e <e, dx>) + e dl.
    (sample, parameters), (d_sample, d_parameters) = primals, tangents
    norm, unit, is_zero = _scaled_norm(sample, parameters[0])
    d_sample = jax.tree.map(
        lambda x, dx: jnp.where(jnp.isfinite(x), dx, 0), sample, d_sample
    )
    sample = jax.tree.map(as_finite, sample)
    direction = jax.tree.map(
        lambda x: (x.astype(norm.dtype) * unit / norm).astype(x.dtype), sample
    )
    pairs = zip(jax.tree.leaves(direction), jax.tree.leaves(d_sample), strict=True)
    along = sum(jnp.vdot(e, dx).astype(norm.dtype) for e, dx in pairs)
    length, d_length = jax.jvp(
        length_fn, (norm / unit, *parameters), (along, *d_parameters)
    )
    shrink, is_long = _shrinking(length, norm, unit, is_zero)

    def turn(e, dx):
        turned = shrink(dx - e * like(along, e)) + e * like(d_length, e)
        return jnp.where(is_long, turned, dx)

    return jax.tree.map(shrink, sample), jax.tree.map(turn, direction, d_sample)


def _scaled_norm(sample, smallest):
    """Returns the norm times a power of two, that power, and whether the norm is zero.

    The power is one for most samples. Squares that are all zero count as a norm of
    zero, which is one here, so that it may divide; so do squares that underflow where
    `smallest`, the least length of interest, is far larger than their roots.
    """
    dtype, leaves = smallest.dtype, jax.tree.leaves(sample)
    squares = _squared_norm(leaves, dtype)
    # No square has overflowed, and none that underflowed is missed: beside 2^-60, 2^40
    # of them are nothing. NaN fails both.
    is_plain = (squares < 2.0**120) & ((squares > 2.0**-60) | (smallest > 2.0**-30))
    unit, squares = jax.lax.cond(
        is_plain,
        lambda leaves: (varying(jnp.ones((), dtype), varying_axes(squares)), squares),
        lambda leaves: _scaled_squared_norm(leaves, dtype),
        leaves,
    )
    is_zero = ~(squares > 0)
    return jnp.sqrt(jnp.where(is_zero, 1, squares)), unit, is_zero


def _shrinking(length, norm, unit, is_zero):
    """Returns a function that scales finite leaves to the length, and whether it does.

    A length that is NaN is given to no sample as it is.
    """
    is_long = ~(is_zero | (length >= norm / unit))
    factor = jnp.where(is_long, length / norm, 1)

    def shrink(x: jax.Array) -> jax.Array:
        # In the widest dtype: of float64 the unit may lie outside of float32.
        short = x.astype(unit.dtype) * unit * factor
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
