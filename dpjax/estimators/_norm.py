"""Norm-wise influences: a sample keeps its direction, and gets another l2 norm.

A sample is multiplied by one number, its weight, which is computed from its norm. That
of a sample with factors is found from these: |a|^2 |d|^2 for an outer product, the
squares of its rows for a table. Samples are then summed leaf by leaf, and none is
written out. The weight of a sample depends on its own numbers alone, and is computed
from the very numbers that are summed (`materialized`).

What holds for every sample of floats, x with norm r in units of `sizes` as it is, r' as
it is computed:

1. NaN and infinite entries count as zero, in a factor as in an array.
2. r' >= r (1 - NORM_ERROR), to 2^-39 units, or x has the weight zero (`norms`).
3. w(r') r <= limit / size·(1 + NORM_ERROR) follows for each influence, since w is not
   increasing, and w(r) r at most limit / size.
"""

import abc
import copy
from collections.abc import Callable
from typing import ClassVar, Self

import jax

from dpjax._sums.fold import Summands
from dpjax._sums.norms import NORM_ERROR, weigh
from dpjax._sums.stream import FactoredSamples, SampleStream
from dpjax._tree import as_float, by_row, materialized
from dpjax._types import REPLACE_ONE, NeighboringRelation, PyTree, Scalar
from dpjax.estimators._estimator import Estimator
from dpjax.estimators._sensitivity import Sensitivity, norm_sensitivity

# Clip norms, scales and offsets: ordinary samples stay below 2^63 of them.
LEAST_SIZE = 1e-12

BoundFn = Callable[[FactoredSamples], tuple[FactoredSamples, jax.Array]]


class NormBounded(Estimator):
    """An estimator whose influences have a bounded l2 norm, found from factors too.

    Each group of leaves has a norm of its own, and a size with which it is compared:
    the clip norm, or the scale of a smooth bound.
    """

    @property
    def needs_leaves(self) -> bool:
        """Whether `bound_fn` looks at single leaves: then none are stacked before."""
        return False

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
    def bound_fn(self) -> BoundFn:
        """Returns a function of one sample: its influence, and whether it is short.

        The sample's numbers are finite, and computed once. It is short, in each group,
        where its norm is within the size: shape (groups,). A sample that counts as zero
        because it is too long is not.
        """

    def influence(self, sample: PyTree) -> PyTree:
        """Returns the sample with another norm; NaN and infinities count as zero."""
        return self.influence_fn()(sample)

    def influence_fn(self) -> Callable[[PyTree], PyTree]:
        """See `Estimator.influence_fn`."""
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

    size_name: ClassVar[str]  # the field with the norm beyond which samples are long

    @abc.abstractmethod
    def weight_fn(self) -> Callable[[jax.Array], jax.Array]:
        """Returns the weight of a sample as a function of its norm in sizes.

        It is not increasing, and differentiable on [0, 2^63).
        """

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

    def bound_fn(self) -> BoundFn:
        """See `NormBounded.bound_fn`."""
        weight_fn, size = self.weight_fn(), self.sizes[0]

        def bound(sample: FactoredSamples) -> tuple[FactoredSamples, jax.Array]:
            squares = materialized(sample.squared_norm(1 / size))  # of many leaves
            weight, norm = weigh(squares, weight_fn)
            return sample.weighted(weight), (norm <= 1)[None]

        return bound
