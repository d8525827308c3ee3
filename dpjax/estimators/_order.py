"""Means by order: the trimmed mean, and the median of means of groups.

The noise of a trimmed mean is scaled to its smooth sensitivity (001, Algorithm 2).

Let x_(1) <= ... <= x_(n) be the ordered samples, x_(i) = -inf for i < 1 and +inf for
i > n, N = n - 2m, W = b - a the width of the range, and w_k = max(e^(-kt), floor). With

    term(top, bottom) = min(W, (top - bottom) / N)                                  (1)

the smooth sensitivity at smoothness t is the maximum of w_m W and

    exact:  w_k term(x_(n-m+1+k-l), x_(m+1-l)),  0 <= k < m, 0 <= l <= k + 1;       (2)
    fast:   w_k term(x_(n-m+1+k), x_(m-k)),      0 <= k < m.                        (3)

It bounds the change of the mean between neighbors, and is t-smooth: term k for one data
set is at most term k + 1 for its neighbor. (3) is at most twice (2). With rounding,
u = 2^-24,

    term(top, bottom) = min(W, (top - bottom) / N + 5 u max(top, -bottom)),         (4)

because the computed mean errs by 2.01 u times the largest magnitude in the window,
except for a common factor. For the rounding of a term's few operations t is lowered by
`SLACK` = 32 u first, and the result is raised by it at the end. The floor of w_k and
the smallest W keep numbers far above underflow: `docs/privacy/proofs/sums.md`, 1.9.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._rounding import LARGEST, LEAST_WEIGHT, ROUNDOFF
from dpjax._sharding import AxisName, by_device, num_shares, row_axes
from dpjax._sums.fold import MeanAndAux, Unrounded, group_means
from dpjax._sums.order_statistics import median, middle, order_statistics
from dpjax._sums.samples import unstacked
from dpjax._sums.stream import SampleStream
from dpjax._tree import Static, as_float, by_column, like, register
from dpjax._types import REPLACE_ONE, NeighboringRelation, NoiseName, PyTree, Scalar
from dpjax.estimators._estimator import (
    Estimator,
    Sensitivity,
    largest_ulp,
    maximum,
    of_coordinates,
    precise,
)

Bound = Literal["fast", "exact"]

LEAST_WIDTH = 1e-15  # keeps sensitivities far above underflow in float32
SLACK = 2.0**-19
_MEAN_ROUNDOFF = 5 * ROUNDOFF  # 5 u in equation (4)


@register("lower", "upper")
@dataclass(frozen=True)
class TrimmedMean(Estimator):
    """The mean without the m smallest and m largest samples, clamped to [lower, upper].

    Each coordinate is clamp((x_(m+1) + ... + x_(n-m)) / (n - 2m)), where x_(1) <= ...
    are the ordered samples and m = floor(trim_fraction·n), at least 1. The mean is
    clamped, not the samples: only the mean must lie in [lower, upper]. The estimator
    needs all samples at once, so `robust_grad` holds all n gradients, and masks and
    sampled batches are rejected.

    Sensitivity: for the worst data, and as returned by `sensitivity`, it is
    upper - lower in every coordinate, too large to be useful. If the middle of the data
    is narrow, the `smooth_sensitivity` is far smaller: the noise of
    `dpjax.transforms.privatize` is proportional to the smooth sensitivity.

    Attributes:
        trim_fraction: share that is trimmed on either side, in (0, 1/2); static,
            because shapes depend on it.
        lower: a, public, within ±1e30, in units of the samples; a pytree leaf.
        upper: b, public, within ±1e30, at least a + 1e-15; a pytree leaf.
        relative_spread: a public guess of the range of a coordinate's samples, in units
            of upper - lower; static. The noise is tuned to this guess; privacy holds
            for every guess.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import TrimmedMean
        >>> estimator = TrimmedMean(0.2, lower=-10.0, upper=10.0)
        >>> print(estimator(jnp.array([1.0, 2.0, 3.0, 1e30, jnp.nan])))
        2.0

    Reference:
        Wang, Xiao, Devadas, Xu (2020), Algorithm 2, line 2, after Bun, Steinke (2019).
    """

    trim_fraction: float
    lower: Scalar
    upper: Scalar
    relative_spread: float = 1.0
    # A trimmed mean forms no groups, but the flag also rejects sampled batches.
    groups_by_index: ClassVar[bool] = True
    noise: ClassVar[NoiseName] = "laplace_log_normal"

    def __post_init__(self):
        """Requires attributes in range, and upper above lower, where concrete."""
        fraction, spread = self.trim_fraction, self.relative_spread
        rule = "a Python float strictly between 0 and 1/2"
        is_fine = isinstance(fraction, float) and 0 < fraction < 0.5
        _validate.require(is_fine, "trim_fraction", fraction, rule)
        rule = "a concrete number, not a traced one"
        is_fine = _validate.is_concrete(spread)
        _validate.require(is_fine, "relative_spread", spread, rule)
        _validate.positive(relative_spread=spread)
        _validate.within(-LARGEST, LARGEST, lower=self.lower, upper=self.upper)
        if _validate.is_concrete(self.lower) and _validate.is_concrete(self.upper):
            rule = f"at least {LEAST_WIDTH:g} above lower = {self.lower}"
            widths = np.asarray(self.upper) - np.asarray(self.lower)
            is_fine = bool(np.all(widths >= LEAST_WIDTH))
            _validate.require(is_fine, "upper", self.upper, rule)

    def trim_count(self, num_samples: int) -> int:
        """Returns m = max(1, floor(trim_fraction·n)), the number trimmed on each side.

        Raises:
            ValueError: If nothing would remain, 2m >= n.
        """
        _validate.count(num_samples=num_samples)
        trimmed = max(1, math.floor(self.trim_fraction * num_samples))
        rule = f"more than the {2 * trimmed} samples that are trimmed"
        _validate.require(2 * trimmed < num_samples, "num_samples", num_samples, rule)
        return trimmed

    def influence(self, sample: PyTree) -> NoReturn:
        """Raises `ValueError`: whether a sample is trimmed depends on all samples."""
        rule = "one that bounds each sample by itself, not all samples at once"
        raise ValueError(f"estimator must be {rule}, got {self!r}.")

    @property
    def limit(self) -> Scalar:
        """Returns the bound on |coordinate| of the estimate."""
        return maximum(abs(self.lower), abs(self.upper))

    def _sensitivity(self, num_samples, num_coordinates, relation, rounded):
        """Returns linf = upper - lower, plus 4·2^-24 limit for rounding the bounds."""
        # The range holds for every num_samples, and is always rounded.
        rule = "REPLACE_ONE with TrimmedMean, which cannot leave out a row"
        _validate.require(relation is REPLACE_ONE, "relation", relation, rule)
        linf = (self.upper - self.lower) + 4 * ROUNDOFF * self.limit
        return of_coordinates(linf, num_coordinates)

    def noise_parameters(
        self,
        noise_multiplier: Scalar,
        num_samples: Scalar,
        num_coordinates: int,
        relation: NeighboringRelation = REPLACE_ONE,
        *,
        is_sampled: bool = False,
    ) -> dict[str, Scalar]:
        """Returns {"rho": the zCDP cost of one release, 1 / (2 noise_multiplier^2)}.

        `privatize` calibrates noise to it. Sampled batches and add/remove raise
        `ValueError`: no accounting is known for order statistics of such batches.
        """
        _validate.positive(noise_multiplier=noise_multiplier)
        rule = (
            "one that takes masks, such as Truncation(1.0): a trimmed mean needs "
            "batches that are fixed by index, without a mask, and REPLACE_ONE"
        )
        is_fine = relation is REPLACE_ONE and not is_sampled
        _validate.require(is_fine, "estimator", self, rule)
        return {"rho": 0.5 / noise_multiplier**2}

    def fold(self, stream: SampleStream, *, normalize_by: Scalar) -> MeanAndAux:
        """Returns all devices' trimmed mean, and this device's aux, such as losses."""
        # normalize_by is the number of rows, because groups_by_index is True.
        self._no_padding(stream)
        num_rows = stream.num_rows_in_all
        samples, aux = stream.read_all()
        trimmed = self.trim_count(num_rows)

        def mean(columns):
            _, _, total = middle(columns, trimmed, stream.axes)
            return self._mean(total, num_rows - 2 * trimmed)

        means = jax.tree.map(lambda x: by_column(mean, as_float(x)), samples)
        return Unrounded.of(means), aux

    def smooth_sensitivity(
        self,
        samples: PyTree,
        smoothness: float,
        *,
        bound: Bound = "fast",
        axis_name: AxisName | None = None,
    ) -> PyTree:
        """Returns a smooth bound of the local sensitivity of each coordinate.

        The bound is t-smooth for t = smoothness. It depends on private data and must
        not be released. If A_k is the local sensitivity at distance k, the "exact"
        bound is max_k e^(-kt) A_k, with

            A_k = min(upper - lower, max_l (x_(n-m+1+k-l) - x_(m+1-l)) / (n - 2m)),

        l = 0, ..., k + 1; "fast" has (x_(n-m+1+k) - x_(m-k)) / (n - 2m) in place of the
        maximum over l. Both have A_k = upper - lower for k >= m. "fast" takes m steps
        per coordinate and is at most twice "exact", which takes m^2 steps.

        Args:
            samples: pytree, leaves of shape (n, ...), or a stream, as for the estimate.
            smoothness: t > 0, public and concrete. The result is upper - lower below
                2^-19, which float32 does not resolve.
            bound: "fast" or "exact".
            axis_name: the mesh axes over which samples are sharded.

        Returns:
            A pytree of leaves (...), each at least max(e^(-mt), 1e-12) (upper - lower).

        Sensitivity:
            Let f be the estimate and S this bound, both as computed in float32 or
            float64. For all samples x and x' that differ in one record, each coordinate
            has

                |f(x) - f(x')| <= min(S(x), S(x')),    S(x) <= e^t S(x'),

            for all values: outliers, ties, NaN. The proof, with rounding, is in
            `_order.py`. It assumes correctly rounded additions and products, in
            the written order.

        Example:
            >>> import numpy as np
            >>> from dpjax.estimators import TrimmedMean
            >>> samples = np.random.default_rng(0).standard_t(2, 10_000)
            >>> estimator = TrimmedMean(0.05, lower=-10.0, upper=10.0)
            >>> print(f"{estimator.smooth_sensitivity(samples, 0.05):.5f}")
            0.00063

        Reference:
            Nissim, Raskhodnikova, Smith (2007), Definition 2.2; Bun, Steinke (2019).
            The scale printed in paper 001, Algorithm 2, line 1, is not smooth: no
            privacy follows from that scale.
        """
        options = {"bound": bound, "axis_name": axis_name}
        return self.with_smooth_sensitivity(samples, smoothness, **options)[1]

    def with_smooth_sensitivity(
        self,
        samples: PyTree,
        smoothness: float,
        *,
        bound: Bound = "fast",
        axis_name: AxisName | None = None,
    ) -> tuple[PyTree, PyTree]:
        """Returns the trimmed mean and its `smooth_sensitivity`, with one ordering.

        `smooth_sensitivity` explains the arguments; `privatize` scales noise to it.
        """
        stream = SampleStream.of(samples)
        self._no_padding(stream)
        rule = "one concrete number, not a traced one"
        is_fine = _validate.is_concrete(smoothness) and np.ndim(smoothness) == 0
        _validate.require(is_fine, "smoothness", smoothness, rule)
        _validate.positive(smoothness=smoothness)
        _validate.choice(Bound, bound=bound)
        axes = row_axes(stream.rows, axis_name)
        num_trimmed = self.trim_count(stream.num_rows * num_shares(axes))
        weights = smooth_weights(float(smoothness), num_trimmed)
        stream = replace(stream, axes=axes)
        return stream.call(_with_sensitivity, self, weights, Static(bound))

    def _no_padding(self, stream):
        mask = stream.is_padding_example
        rule = f"None with {self}, which needs every row"
        _validate.require(mask is None, "is_padding_example", mask, rule)

    def _mean(self, middle_sum, num_kept):
        mean = middle_sum * (1 / num_kept)
        return jnp.clip(mean, like(self.lower, mean), like(self.upper, mean))


def _with_sensitivity(
    stream: SampleStream, estimator: TrimmedMean, weights: jax.Array, bound: Static
) -> tuple[PyTree, PyTree]:
    """Returns the trimmed mean of a stream, and its smooth sensitivity, by coordinate.

    `weights` (m + 1,) are about e^(-kt), t = smoothness; `bound.value` is a `Bound`.
    """
    axes = stream.axes

    def on_device(replicated, rows):
        """Returns means, with smooth sensitivities; rows are one device's share."""
        estimator, weights, shared = replicated
        samples, _ = replace(stream, shared=shared, rows=rows).read_all()

        def both(x):
            trimmed = len(weights) - 1
            num_kept = len(x) * num_shares(axes) - 2 * trimmed
            order = order_statistics(x, trimmed, axes)
            width = like(estimator.upper, order.low) - like(estimator.lower, order.low)
            args = order, weights, width, num_kept, bound.value
            sensitivity = smooth_sensitivity(*args)
            return estimator._mean(order.middle_sum, num_kept), sensitivity

        leaves, structure = jax.tree.flatten(samples)
        pairs = zip(*(by_column(both, as_float(x)) for x in leaves), strict=True)
        return tuple(map(structure.unflatten, pairs)), ()

    replicated = estimator, weights, stream.shared
    return by_device(on_device, axes, replicated, stream.rows)[0]


def smooth_weights(smoothness: float, trim_count: int) -> np.ndarray:
    """Returns w_0, ..., w_m, computed on the host so that their ratios are precise."""
    steps = np.arange(trim_count + 1)
    return np.maximum(np.exp(-max(smoothness - SLACK, 0.0) * steps), LEAST_WEIGHT)


def smooth_sensitivity(order, weights, width, num_kept, bound: Bound) -> jax.Array:
    """Returns the smooth sensitivity, (d,), to which a trimmed mean's noise is scaled.

    It is the maximum (2) for "exact", or (3) for "fast", of terms (4), and of w_m W, in
    the notation of this module: `weights` (m + 1,) are w_k, width is W, num_kept is N,
    and `order` are the `OrderStatistics` of the samples, a matrix (n, d).
    """
    low, high, _ = order
    trim_count, num_columns = len(low) - 1, low.shape[1]
    weights, width = like(weights, low), like(width, low)

    def term(top, bottom):
        rounding = _MEAN_ROUNDOFF * jnp.maximum(top, -bottom)
        return jnp.minimum(width, (top - bottom) * (1 / num_kept) + rounding)

    if bound == "fast":
        terms = term(high[1:], low[1:])  # equation (3), k = 0, ..., m - 1
        largest = (weights[:-1, None] * terms).max(axis=0)
    else:
        # Equation (2): top high[j] and bottom low[l] have k = j + l - 1. At k = -1 the
        # weight is zero, and w_m W covers the terms with k >= m.
        beyond = jnp.full(trim_count, weights[-1])
        padded = jnp.concatenate([jnp.zeros(1, low.dtype), weights, beyond])

        def widen(below, largest):  # below is l
            weight = jax.lax.dynamic_slice_in_dim(padded, below, trim_count + 1)
            terms = term(high, jax.lax.dynamic_slice_in_dim(low, below, 1))
            return jnp.maximum(largest, (weight[:, None] * terms).max(axis=0))

        zeros = jnp.zeros(num_columns, low.dtype)
        largest = jax.lax.fori_loop(0, trim_count + 1, widen, zeros)
    return jnp.maximum(largest, weights[-1] * width) * (1 + SLACK)


@register("inner")
@dataclass(frozen=True)
class MedianOfMeans(Estimator):
    """The median over groups, by coordinate, of an inner estimator's group means.

    Groups are ranges of record indices, hence public: each of the num_groups groups has
    floor(n / num_groups) records or one more. A group's sum is divided by the group's
    size. A sampled batch has no public groups: it is rejected (`normalize_by`).

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
        """Returns the sensitivity: a group mean's, halved if num_groups is even."""
        # Means of groups are always rounded.
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
        rounding = of_coordinates(largest_ulp(self.limit, group_size), num_coordinates)
        pairs = zip(inner, rounding, strict=True)
        return Sensitivity(*(change / 2 + ulp for change, ulp in pairs))

    def fold(self, stream: SampleStream, *, normalize_by: Scalar) -> MeanAndAux:
        """Returns the median of group means, and this device's aux, such as losses."""
        # normalize_by is the number of rows, because groups_by_index is True.
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
