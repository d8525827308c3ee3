"""Norm-wise influences: a sample keeps its direction, and gets another l2 norm."""

import abc
import copy
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from dpjax._tree import like
from dpjax._types import REPLACE_ONE, NeighboringRelation, PyTree, Scalar
from dpjax.estimators._entries import as_finite, as_float
from dpjax.estimators._estimator import Estimator
from dpjax.estimators._factored_norm import with_lengths
from dpjax.estimators._factors import FactoredSamples, Terms
from dpjax.estimators._made_once import made_once
from dpjax.estimators._rows import Rows
from dpjax.estimators._safe_norm import NORM_ERROR, scaled_norm
from dpjax.estimators._sensitivity import Sensitivity, norm_sensitivity
from dpjax.estimators._slabs import fold_factored


class NormBounded(Estimator):
    """An estimator whose influences have a bounded l2 norm, found from factors too.

    It compares norms with sizes, one for each group of leaves whose norm it changes.
    """

    @property
    @abc.abstractmethod
    def limit(self) -> Scalar:
        """The largest l2 norm of an influence, hence size of any coordinate."""

    @property
    @abc.abstractmethod
    def sizes(self) -> jax.Array:
        """The norms beyond which samples are long, shape (groups,)."""

    @abc.abstractmethod
    def resized(self, sizes: jax.Array) -> Self:
        """Returns the estimator with other sizes, shape (groups,)."""

    @abc.abstractmethod
    def is_short(self, sample: PyTree) -> jax.Array:
        """Returns whether norms of one sample are within sizes, shape (groups,)."""

    @abc.abstractmethod
    def terms(
        self, samples: FactoredSamples, counts: jax.Array | None
    ) -> tuple[Terms, jax.Array]:
        """Returns influences as terms of sums, and who is short.

        The latter is `is_short` of n samples, shape (n, groups).

        Args:
            samples: n of them.
            counts: shape (n,), false for rows to leave out; None where all count.
        """

    def fold(
        self,
        rows: Rows,
        *,
        normalize_by: Scalar,
        microbatch_size: int | None = None,
    ) -> tuple[PyTree, Any]:
        """See `Estimator.fold`: the norms of factored samples come from factors."""
        if rows.read_factored is None:
            return super().fold(
                rows, normalize_by=normalize_by, microbatch_size=microbatch_size
            )
        mean, aux = fold_factored(
            lambda samples, counts: self.terms(samples, counts)[0],
            self.limit,
            rows,
            normalize_by=normalize_by,
            microbatch_size=microbatch_size,
            are_in_turn=False,
        )
        return self._within_limit(mean, normalize_by), aux

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


class NormEstimator(NormBounded):
    """An estimator whose influence changes the l2 norm of a sample alone.

    The norm becomes that of `length`, times `gain`.
    """

    size_name: ClassVar[str]  # the field with the norm beyond which samples are long

    @abc.abstractmethod
    def length(self) -> tuple[Callable[..., jax.Array], tuple[PyTree, ...]]:
        """Returns `(length_fn, parameters)`: see `shorten`."""

    @property
    def gain(self) -> Scalar:
        """What samples are multiplied by, once they have their lengths."""
        return 1.0

    @property
    def sizes(self) -> jax.Array:
        """See `NormBounded.sizes`: one for the whole sample."""
        size = as_float(getattr(self, self.size_name))
        return size.astype(size.dtype)[None]  # as if computed: of no weak type

    def resized(self, sizes: jax.Array) -> Self:
        """See `NormBounded.resized`. Sizes are not checked."""
        other = copy.copy(self)
        object.__setattr__(other, self.size_name, sizes[0])
        return other

    def is_short(self, sample: PyTree) -> jax.Array:
        """See `NormBounded.is_short`; NaN and infinities count as zero."""
        sample = jax.tree.map(as_float, sample)
        size = self.sizes[0].astype(widest(jax.tree.leaves(sample)))
        norm, unit, is_zero = scaled_norm(sample, size)
        return (is_zero | (norm / unit <= size))[None]

    def terms(
        self, samples: FactoredSamples, counts: jax.Array | None
    ) -> tuple[Terms, jax.Array]:
        """See `NormBounded.terms`."""
        terms, norms = with_lengths(samples, *self.length(), counts, gain=self.gain)
        return terms, (norms <= self.sizes[0].astype(norms.dtype))[:, None]


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
    sample = made_once(jax.tree.map(as_float, sample))  # measured as it is returned
    dtype = widest(jax.tree.leaves(sample))
    wide = jax.tree.map(lambda x: jnp.asarray(x).astype(dtype), parameters)
    return _shorten(length_fn, sample, wide)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _shorten(length_fn, sample, parameters):
    norm, unit, is_zero = scaled_norm(sample, parameters[0])
    shrink, _ = _shrinking(length_fn(norm / unit, *parameters), norm, unit, is_zero)
    return jax.tree.map(lambda x: shrink(as_finite(x)), sample)


@_shorten.defjvp
def _shorten_jvp(length_fn, primals, tangents):
    # y = l(r) e with r = ||x|| and e = x/r has dy = (l/r) (dx - e <e, dx>) + e dl.
    (sample, parameters), (d_sample, d_parameters) = primals, tangents
    norm, unit, is_zero = scaled_norm(sample, parameters[0])
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


def widest(leaves: list[jax.Array]) -> Any:
    """Returns float64 where a leaf has it, else float32."""
    dtypes = (jax.eval_shape(as_float, leaf).dtype for leaf in leaves)
    return max(dtypes, key=lambda dtype: dtype.itemsize)
