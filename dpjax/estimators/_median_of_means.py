"""Median of means: the coordinate-wise median of robust means of groups."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._sums.fold import Unrounded, group_means
from dpjax._sums.order_statistics import median
from dpjax._sums.samples import unstacked
from dpjax._sums.stream import SampleStream
from dpjax._tree import by_column, register
from dpjax._types import PyTree, Scalar
from dpjax.estimators._estimator import Estimator, Sensitivity, largest_ulp, precise


@register("inner")
@dataclass(frozen=True)
class MedianOfMeans(Estimator):
    """The median over groups, by coordinate, of an inner estimator's group means.

    Groups are ranges of record indices, hence public: each of the num_groups groups has
    floor(n / num_groups) records or one more. The sum of a group is divided by the size
    of this group. A sampled batch has no public groups, so it is rejected
    (`normalize_by`).

    Sensitivity: a replaced record moves one group's mean, and the median moves by at
    most as much in every coordinate: by the inner sensitivity at the smallest group
    size floor(n / num_groups), which is num_groups times the inner sensitivity at n. If
    num_groups is even, the median averages two means, and moves by half as much.

    Attributes:
        inner: the estimator of a group's mean, neither a median of means nor a
            `TrimmedMean`.
        num_groups: number of groups, at least one and at most n.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import MedianOfMeans, Truncation
        >>> estimator = MedianOfMeans(Truncation(10.0), num_groups=3)
        >>> print(estimator(jnp.array([1.0, 2.0, 9.0, 9.0, 3.0, 3.0, 3.0])))
        4.0

    Reference:
        Tao, Wu, Cheng, Wang (2022), Algorithm 3; the printed noise assumes that
        num_groups divides n, which dpjax does not.
    """

    inner: Estimator
    num_groups: int
    groups_by_index: ClassVar[bool] = True

    def __post_init__(self):
        _validate.count(num_groups=self.num_groups)
        rule = "an estimator other than MedianOfMeans and TrimmedMean"
        is_fine = isinstance(self.inner, Estimator) and not self.inner.groups_by_index
        _validate.require(is_fine, "inner", self.inner, rule)

    def influence(self, sample: PyTree) -> PyTree:
        return self.inner.influence(sample)

    @property
    def limit(self) -> Scalar | None:
        return self.inner.limit

    def _sensitivity(self, num_samples, num_coordinates, relation, rounded):
        """Returns the inner sensitivity of a group, or half for an even num_groups."""
        del rounded  # means of groups are always rounded
        if _validate.is_concrete(num_samples) and float(num_samples) < self.num_groups:
            raise ValueError(
                f"num_samples must be at least num_groups = {self.num_groups}, "
                f"got {num_samples}."
            )
        group_size = precise(num_samples) // self.num_groups
        inner = self.inner.sensitivity(group_size, num_coordinates, relation)
        if self.limit is None or self.num_groups % 2:
            return inner
        # The two middle means together move by one mean's change at most: their average
        # moves by half of it, and is rounded.
        ulp = largest_ulp(self.limit, group_size)
        return Sensitivity(
            inner.l1 / 2 + num_coordinates * ulp,
            inner.l2 / 2 + math.sqrt(num_coordinates) * ulp,
            inner.linf / 2 + ulp,
        )

    def fold(
        self, stream: SampleStream, *, normalize_by: Scalar
    ) -> tuple[Unrounded, PyTree]:
        """Returns the median of group means and the aux, folding group after group."""
        del normalize_by  # equals the number of rows, because groups_by_index is True
        n = stream.num_rows_in_all
        rule = f"at least num_groups = {self.num_groups} records"
        _validate.require(n >= self.num_groups, "samples", n, rule)
        smallest, longer = divmod(n, self.num_groups)
        sizes = smallest + (np.arange(self.num_groups) < longer)
        means, aux = group_means(self.inner.summands(stream), self.limit, sizes=sizes)
        means = jax.vmap(self._within_limit)(means, jnp.asarray(sizes))
        medians = unstacked(jax.tree.map(partial(by_column, median), means))
        return Unrounded.of(medians), aux

    @classmethod
    def for_failure_prob(
        cls, inner: Estimator, *, num_coordinates: int, failure_prob: float = 0.01
    ) -> "MedianOfMeans":
        """Returns ceil(4 log(2 d / failure_prob)) groups (003, Algorithm 3, line 1)."""
        _validate.count(num_coordinates=num_coordinates)
        _validate.probability(failure_prob=failure_prob)
        return cls(inner, int(np.ceil(4 * np.log(2 * num_coordinates / failure_prob))))
