"""The base classes of robust means by norm.

An influence by norm multiplies a sample by one number, its weight, a function of its l2
norm: the sample keeps its direction. Factors give its norm: |a|^2 |d|^2 for an outer
product, Gram matrices for a product of matrices, the squares of the rows for a table.
The weight depends on the sample only, and is computed from the same numbers that are
summed (`materialized`).

The computed norm of a sample is at least 1 - NORM_ERROR of the exact one, to 2^-39
thresholds, or its weight is zero. Weights do not increase with the norm, so that an
influence is at most limit (1 + NORM_ERROR) long: `docs/privacy/proofs/sums.md`, 1.5.
"""

import abc
import copy
from collections.abc import Callable
from typing import ClassVar, Self

import jax

from dpjax._sums.fold import Summands
from dpjax._sums.samples import NORM_ERROR, FactoredSamples, weigh
from dpjax._sums.stream import SampleStream
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
        """Returns whether `bound_fn` needs single leaves, which are not stacked."""
        return False

    @property
    @abc.abstractmethod
    def limit(self) -> Scalar:
        """The bound on the l2 norm of an influence, hence on any coordinate."""

    @property
    def diameter(self) -> float:
        """The largest l2 distance of two influences, in limits."""
        return 2.0

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
        *,
        rounded: bool = True,
    ) -> Sensitivity:
        """See `Estimator.sensitivity`: l2 is diameter limit / n and its rounding."""
        args = self.limit, num_samples, num_coordinates, relation
        how = {"norm_error": NORM_ERROR, "diameter": self.diameter}
        return norm_sensitivity(*args, **how, rounded=rounded)


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
