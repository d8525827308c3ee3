"""Norm-wise influences: a sample keeps its direction, and its l2 norm is bounded.

A sample is multiplied by one number, its weight, which is a function of its norm. If a
sample has factors, they give its norm: |a|^2 |d|^2 for an outer product, Gram matrices
for a product of matrices, the squares of the rows for a table. Samples are then summed
leaf by leaf, and at most a few are materialized.
The weight depends on the sample only, and is computed from the same numbers that are
summed (`materialized`).

For every sample x of floats, let r be its norm in units of the threshold, and r' the
computed norm:

1. NaN and infinite entries count as zero, in a factor as in an array. Of a product of
   matrices x is what will be summed, divided by its weight: rounding included.
2. r' >= r (1 - NORM_ERROR), to 2^-39 units, or x has weight zero (`norms`).
3. So w(r') r <= limit / threshold·(1 + NORM_ERROR) for each influence, because w does
   not increase, and w(r) r is at most limit / threshold.
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
SMALLEST_THRESHOLD = 1e-12

BoundFn = Callable[[FactoredSamples], tuple[FactoredSamples, jax.Array]]


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
