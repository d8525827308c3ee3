"""The base classes of robust means: of any influence, by coordinate, and by norm.

An influence by norm multiplies a sample by one number, its weight, a function of its l2
norm: the sample keeps its direction. Factors give its norm: |a|^2 |d|^2 for an outer
product, Gram matrices for a product of matrices, the squares of the rows for a table.
The weight depends on the sample only, and is computed from the same numbers that are
summed (`materialized`).

For every sample x of floats, let r be its norm in units of the threshold, and r' the
computed norm:

1. NaN and infinite entries count as zero, in a factor as in an array. Of a product of
   matrices x is what will be summed, divided by its weight: rounding included.
2. r' >= r (1 - NORM_ERROR), to 2^-39 units, or x has weight zero (`_sums`).
3. So w(r') r <= limit / threshold·(1 + NORM_ERROR) for each influence, because w does
   not increase, and w(r) r is at most limit / threshold.
"""

import abc
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Self

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._sharding import AxisName, by_device, num_shares, row_axes, varying_with
from dpjax._sums.fold import FEW_ROWS, Summands, check_rows_per_divisor, fold_mean
from dpjax._sums.samples import NORM_ERROR, FactoredSamples, unstacked, weigh
from dpjax._sums.stream import SampleStream
from dpjax._tree import as_float, by_row, like, materialized
from dpjax._types import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    NeighboringRelation,
    NoiseName,
    PyTree,
    Scalar,
)
from dpjax.estimators._sensitivity import (
    Sensitivity,
    coordinate_sensitivity,
    maximum,
    norm_sensitivity,
)

# Clip norms, scales and offsets: ordinary samples stay below 2^63 of them.
SMALLEST_THRESHOLD = 1e-12

BoundFn = Callable[[FactoredSamples], tuple[FactoredSamples, jax.Array]]


class Estimator(abc.ABC):
    """The robust mean of samples along axis 0, with a known sensitivity.

    A subclass is a frozen dataclass and a pytree whose leaves are its hyperparameters:
    `vmap` and `grad` over a threshold work, and a sweep compiles once. It defines
    `influence` and `limit`; the estimate is the mean of influences.
    """

    # Whether rows must be fixed by their public index: sampled batches are rejected.
    groups_by_index: ClassVar[bool] = False
    # The noise of a private mean: Gaussian, proportional to `sensitivity`, or Laplace
    # log-normal, proportional to a smooth sensitivity.
    noise: ClassVar[NoiseName] = "gaussian"

    @abc.abstractmethod
    def influence(self, sample: PyTree) -> PyTree:
        """Maps one sample to a bounded value of the same shape, in float32 at least."""

    def influence_fn(self) -> Callable[[PyTree], PyTree]:
        """Returns `influence`, with everything precomputed that no sample changes."""
        return self.influence

    @property
    @abc.abstractmethod
    def limit(self) -> Scalar | None:
        """The bound on |coordinate| of every influence; None if there is none."""

    def __call__(
        self,
        samples: PyTree,
        is_padding_example: jax.Array | None = None,
        *,
        normalize_by: Scalar | None = None,
        axis_name: AxisName | None = None,
    ) -> PyTree:
        """Returns the robust mean of samples over axis 0.

        Args:
            samples: pytree, leaves of shape (n, ...), or a stream of them, such as
                `dpjax.streamed_grad` returns. NaN counts as zero; an infinity as the
                limit of the influence at infinity if there is one, else as zero. For
                norm-wise estimators a sample of 2^63 clip norms or more is zero.
            is_padding_example: shape (n,), true for rows to leave out. The divisor
                stays the same.
            normalize_by: public divisor of the sum; n by default. For more than 4,608
                rows the bound on rounding needs at least n / 1.125: a smaller concrete
                divisor is rejected, a smaller traced one is replaced by this.
            axis_name: the mesh axes over which rows are sharded, if the arrays do not
                show it; see `dpjax.robust_grad`.

        Returns:
            A pytree of leaves (...), float32 for half-precision samples.

        Raises:
            ValueError: If leaves or mask disagree on n, samples are complex,
                normalize_by is not positive or much smaller than n, or axis_name does
                not fit.
        """
        stream, divisor = self._checked(
            samples, is_padding_example, normalize_by, axis_name
        )
        return stream.call(_fold_stream, self, divisor)[0]

    def with_aux(
        self,
        stream: SampleStream,
        is_padding_example: jax.Array | None = None,
        *,
        normalize_by: Scalar | None = None,
        axis_name: AxisName | None = None,
    ) -> tuple[PyTree, PyTree]:
        """Returns the robust mean of a stream of samples, and its aux.

        The stream makes samples, with an aux for each, a few at a time; the other
        arguments and errors are those of `__call__`. The aux of all samples, with
        leading axis n, is NOT private.
        """
        stream, divisor = self._checked(
            stream, is_padding_example, normalize_by, axis_name
        )
        return _fold_stream(stream, self, divisor)

    def _checked(self, stream, is_padding_example, normalize_by, axis_name):
        """Returns the stream with mask and axes, and the divisor, None if it is n."""
        stream = SampleStream.of(stream, is_padding_example)
        num_rows = stream.num_rows
        axes = row_axes(stream.rows, axis_name)
        if normalize_by is not None:
            _validate.positive(normalize_by=normalize_by)
            num_rows *= num_shares(axes)
            check_rows_per_divisor(num_rows, normalize_by)
            if _validate.is_concrete(normalize_by) and num_rows == float(normalize_by):
                normalize_by = None  # static: as an argument of jit it is traced
        return replace(stream, axes=axes), normalize_by

    @abc.abstractmethod
    def sensitivity(
        self,
        num_samples: Scalar,
        num_coordinates: int,
        relation: NeighboringRelation = REPLACE_ONE,
    ) -> Sensitivity:
        """Returns a bound on the distance between the estimates of two neighbors.

        Args:
            num_samples: the public divisor: n, or `normalize_by`.
            num_coordinates: number of entries of all leaves of one sample together.
            relation: REPLACE_ONE, if neighbors differ in the values of one row; or
                ADD_OR_REMOVE_ONE, if one of them has a row masked as padding.

        Returns:
            The l1, l2 and linf sensitivity, for every input, float32 rounding included.
        """

    def sampled_sensitivity(
        self,
        num_samples: Scalar,
        num_coordinates: int,
        relation: NeighboringRelation = REPLACE_ONE,
    ) -> Sensitivity:
        """Returns the sensitivity for batches that are drawn at random.

        The accounting of Poisson batches also compares batches with and without one
        record, and assumes that their means differ by at most half the replace-one
        sensitivity. Float32 rounding may exceed this: then the result is twice the
        sensitivity to masking a row. Arguments and result are those of `sensitivity`.
        """
        masked = self.sensitivity(num_samples, num_coordinates, ADD_OR_REMOVE_ONE)
        if relation is ADD_OR_REMOVE_ONE:
            return masked
        replaced = self.sensitivity(num_samples, num_coordinates, relation)
        return jax.tree.map(lambda one, half: maximum(one, 2 * half), replaced, masked)

    def noise_parameters(
        self,
        noise_multiplier: Scalar,
        num_samples: Scalar,
        num_coordinates: int,
        relation: NeighboringRelation = REPLACE_ONE,
        *,
        is_sampled: bool = False,
    ) -> dict[str, Scalar]:
        """Returns the parameters of the noise that do not depend on the data.

        Args:
            noise_multiplier: stddev / l2 sensitivity; for other noise than Gaussian,
                that of Gaussian noise of the same zCDP.
            num_samples: as for `sensitivity`.
            num_coordinates: as for `sensitivity`.
            relation: as for `sensitivity`.
            is_sampled: whether batches are drawn at random.

        Returns:
            l2_sensitivity, and stddev, its product with the noise multiplier.
        """
        measure = self.sampled_sensitivity if is_sampled else self.sensitivity
        sensitivity = measure(num_samples, num_coordinates, relation).l2
        return {"l2_sensitivity": sensitivity, "stddev": noise_multiplier * sensitivity}

    def summands(self, stream: SampleStream) -> Summands:
        """Returns the summands of a stream: influences of samples."""
        influence = self.influence_fn()

        def prepare(samples: FactoredSamples) -> FactoredSamples:
            influences = by_row(influence, samples.num_rows)
            return FactoredSamples(influences(samples.written_out()))

        return Summands(stream.written_out(), prepare)

    def fold(
        self, stream: SampleStream, *, normalize_by: Scalar
    ) -> tuple[PyTree, PyTree]:
        """Returns the robust mean of a stream of one device's rows, and their aux."""
        summands = self.summands(stream)
        mean, aux = fold_mean(summands, self.limit, normalize_by=normalize_by)
        return unstacked(self._within_limit(mean, normalize_by)), aux

    def _within_limit(self, mean: PyTree, normalize_by: Scalar) -> PyTree:
        # Increases no distance; sensitivity() needs a bound on the result.
        limit = self.limit
        if limit is None:
            return mean

        def clip(x):
            largest = FEW_ROWS / like(normalize_by, x)
            largest = like(limit, x) * jnp.maximum(1, largest)
            return jnp.clip(x, -largest, largest)

        return jax.tree.map(clip, mean)


class CoordinateEstimator(Estimator):
    """An estimator whose influence acts on each coordinate separately."""

    @property
    @abc.abstractmethod
    def limit(self) -> Scalar:
        """The bound on |coordinate| of every influence; the influence of 0 is 0."""

    def summands(self, stream: SampleStream) -> Summands:
        """See `Estimator.summands`: products are computed as they are added."""
        if not stream.has_small_factors():
            stream = stream.written_out()
        return Summands(stream, lambda samples: samples, self.influence_fn())

    def sensitivity(
        self,
        num_samples: Scalar,
        num_coordinates: int,
        relation: NeighboringRelation = REPLACE_ONE,
    ) -> Sensitivity:
        """See `Estimator.sensitivity`: linf is 2 limit / n, l2 sqrt(d) times that."""
        return coordinate_sensitivity(
            self.limit, num_samples, num_coordinates, relation
        )


class NormBounded(Estimator):
    """An estimator whose influences have a bounded l2 norm, also computed from factors.

    Each group of leaves has a norm and a threshold for it: the clip norm, or the scale
    of a smooth bound.
    """

    @property
    def needs_leaves(self) -> bool:
        """Whether `bound_fn` needs single leaves: then leaves are not stacked."""
        return False

    @property
    @abc.abstractmethod
    def limit(self) -> Scalar:
        """The bound on the l2 norm of an influence, hence on any coordinate."""

    @property
    @abc.abstractmethod
    def sizes(self) -> jax.Array:
        """The thresholds of the norms, shape (groups,)."""

    @abc.abstractmethod
    def resized(self, sizes: jax.Array) -> Self:
        """Returns the estimator with other thresholds, shape (groups,); unchecked."""

    @abc.abstractmethod
    def bound_fn(self) -> BoundFn:
        """Returns a function from a sample to its influence, and whether it is short.

        The numbers of the sample are finite and materialized. It is short in a group if
        its norm is within the threshold: shape (groups,). A sample that counts as zero
        because its norm is too large is not short.
        """

    def influence(self, sample: PyTree) -> PyTree:
        """Returns the sample with bounded norm; NaN and infinities count as zero."""
        return self.influence_fn()(sample)

    def influence_fn(self) -> Callable[[PyTree], PyTree]:
        bound = self.bound_fn()

        def influence(sample: PyTree) -> PyTree:
            influence, _ = bound(materialized(FactoredSamples(sample).finite()))
            return influence.written_out()

        return influence

    def summands(self, stream: SampleStream) -> Summands:
        """See `Estimator.summands`: the norms of factored samples come from factors."""
        bound = self.bound_fn()

        def prepare(samples: FactoredSamples) -> FactoredSamples:
            samples = samples if self.needs_leaves else samples.stacked()
            return by_row(bound, samples.num_rows)(materialized(samples.finite()))[0]

        return Summands(stream, prepare)

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
    """An estimator whose influence is the sample times a function of its l2 norm."""

    size_name: ClassVar[str]  # the field with the threshold of the norm

    @abc.abstractmethod
    def weight_fn(self) -> Callable[[jax.Array], jax.Array]:
        """Returns the weight of a sample as a function of norm / threshold.

        It does not increase, and is differentiable on [0, 2^63).
        """

    @property
    def sizes(self) -> jax.Array:
        """See `NormBounded.sizes`: one for the whole sample."""
        threshold = as_float(getattr(self, self.size_name))
        return threshold.astype(threshold.dtype)[None]  # not weakly typed

    def resized(self, sizes: jax.Array) -> Self:
        other = copy.copy(self)
        object.__setattr__(other, self.size_name, sizes[0])
        return other

    def bound_fn(self) -> BoundFn:
        weight_fn, threshold = self.weight_fn(), self.sizes[0]

        def bound(sample: FactoredSamples) -> tuple[FactoredSamples, jax.Array]:
            squares = materialized(sample.squared_norm(1 / threshold))
            weight, norm = weigh(squares, weight_fn)
            return sample.weighted(weight), (norm <= 1)[None]

        return bound


def _fold_stream(stream, estimator, normalize_by):
    axes = stream.axes

    def on_device(whole, rows):
        # What a loop carries varies as rows and mask together do.
        (estimator, normalize_by, shared), (rows, mask) = whole, varying_with(rows)
        mine = replace(stream, shared=shared, rows=rows, is_padding_example=mask)
        if normalize_by is None:
            normalize_by = mine.num_rows_in_all
        return estimator.fold(mine, normalize_by=normalize_by)

    whole = estimator, normalize_by, stream.shared
    mask = varying_with(stream.is_padding_example, stream.rows)
    return by_device(on_device, axes, whole, (stream.rows, mask))
