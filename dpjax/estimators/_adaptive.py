"""What `privatize` takes in place of an estimator: moving thresholds, and scales."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._rounding import LARGEST, SMALLEST
from dpjax._sums.fold import MeanAndAux
from dpjax._sums.samples import FactoredSamples
from dpjax._sums.stream import SampleStream
from dpjax._tree import as_float, broadcast, by_row, like, register
from dpjax._types import PyTree, Scalar
from dpjax.estimators._clipping import SMALLEST_THRESHOLD, BoundFn, NormBounded
from dpjax.estimators._estimator import Estimator


class Counted(NamedTuple):
    """A mean of influences, and counts of samples with norms within the thresholds.

    `short`, shape (groups,), is the mean of half for samples within the threshold and
    -half for all other samples, where half is `Counting.half`.
    """

    mean: PyTree
    short: jax.Array


@register("estimator")
@dataclass(frozen=True)
class Counting(NormBounded):
    """The mean of influences, with the number of samples within each threshold.

    An influence (a sample of bounded norm) gets G more coordinates, one for each group
    of leaves: half if the group's norm is within its threshold, else -half. If the l2
    norm of the influence is at most L, the norm of all coordinates is at most
    sqrt(L^2 + G half^2) = L / sqrt(1 - share), with

        half = L sqrt(share / (1 - share) / G).

    So mean and counts are one vector of bounded norm, and one Gaussian releases both.
    If its noise multiplier is z, the mean has the noise multiplier z / sqrt(1 - share),
    and the counts have z / sqrt(share): inverse squares add up. `share` is static.
    """

    estimator: NormBounded
    share: float

    @property
    def num_groups(self) -> int:
        return len(self.sizes)

    @property
    def needs_leaves(self) -> bool:
        return self.estimator.needs_leaves

    @property
    def half(self) -> Scalar:
        """Returns the magnitude of a sample's contribution to a count."""
        odds = self.share / (1 - self.share) / self.num_groups
        return self.estimator.limit * math.sqrt(odds)

    @property
    def limit(self) -> Scalar:
        return self.estimator.limit / math.sqrt(1 - self.share)

    @property
    def sizes(self) -> jax.Array:
        return self.estimator.sizes

    def resized(self, sizes: jax.Array) -> Self:
        return replace(self, estimator=self.estimator.resized(sizes))

    def bound_fn(self) -> BoundFn:
        """Returns a function from a sample to its `Counted` influence and is_short."""
        # is_short, (G,), is true for groups of leaves with a norm within their
        # threshold. The influence is the bounded sample, with `half` for these groups
        # and -`half` for all others: the mean of these tells the share of norms within
        # a threshold.
        bound = self.estimator.bound_fn()

        def counted(sample: FactoredSamples) -> tuple[FactoredSamples, jax.Array]:
            influence, is_short = bound(sample)
            half = jnp.asarray(self.half).astype(sample.dtype)
            signed = jnp.where(is_short, half, -half)
            return FactoredSamples(Counted(influence.leaves, signed)), is_short

        return counted

    def _sensitivity(self, num_samples, num_coordinates, relation, rounded):
        """Returns the sensitivity of a mean with G more coordinates, the counts."""
        num_coordinates += self.num_groups
        return super()._sensitivity(num_samples, num_coordinates, relation, rounded)


@register("estimator", "quantile", "learning_rate")
@dataclass(frozen=True)
class AdaptiveThreshold:
    """A norm-wise estimator with thresholds that follow a private quantile of norms.

    Pass it to `privatize` in place of an estimator. The thresholds are part of the
    state: read them with `optax.tree.get(state, "thresholds")`. In each update, for
    every group of leaves,

        threshold <- threshold·exp(-learning_rate·(b - quantile)),

    where b is the private share of samples with a norm within the threshold. This moves
    the threshold to the quantile: from C down to c in log(C / c) / (learning_rate·(1 -
    quantile)) steps, or up to c in log(c / C) / (learning_rate·quantile) steps.

    With `robust_grad`, use `counting` as the estimator, which returns mean and counts;
    add noise for its sensitivity, and pass the result to `follow`.

    Sensitivity:
        The sensitivity of `counting`, for replace-one or add/remove, covers mean and
        counts together: for G groups a record moves G counts. The noise of the mean is
        then 1 / sqrt(1 - share) times as large as with fixed thresholds: half a percent
        more at share 0.01. The noise multiplier covers the whole privacy cost.

    Attributes:
        estimator: `Clipping`, `SmoothedClipping` or `Normalization`, or `Grouped` with
            one of these. Its thresholds are the first, and lie in [lower, upper].
        lower: the smallest threshold, public, in units of the samples, at least 1e-12.
        upper: the largest threshold, public, at most 1e30.
        quantile: target share of norms within the threshold, in (0, 1); a pytree leaf.
        learning_rate: step size of log(threshold), positive; a pytree leaf.
        share: share of the budget for the counts, in (0, 1): the noise of b has stddev
            noise_multiplier·sqrt(G / share) / n under replace-one.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax.estimators import AdaptiveThreshold, Clipping
        >>> from dpjax.transforms import privatize
        >>> adaptive = AdaptiveThreshold(Clipping(1.0), lower=1e-3, upper=1e3)
        >>> key, data_key = jax.random.split(jax.random.key(0))
        >>> transform = privatize(adaptive, noise_multiplier=1.0, key=key)
        >>> grads = 30.0 * jax.random.normal(data_key, (4096, 2))
        >>> state, update = transform.init(jnp.zeros(2)), jax.jit(transform.update)
        >>> for _ in range(60):
        ...     mean, state = update(grads, state)
        >>> share = jnp.linalg.norm(grads, axis=1) <= state.thresholds
        >>> print(share.mean().round(1))
        0.5

    Reference:
        Andrew, Thakkar, McMahan, Ramaswamy (2021), Differentially private learning with
        adaptive clipping, Algorithm 1, Theorem 1, extended to replace-one and groups.
    """

    estimator: NormBounded
    lower: float
    upper: float
    quantile: Scalar = 0.5
    learning_rate: Scalar = 0.2
    share: float = 0.01

    def __post_init__(self):
        """Requires initial thresholds in [lower, upper]; makes static fields floats."""
        base = self.estimator
        rule = "Clipping, SmoothedClipping, Normalization, or Grouped with one of these"
        is_fine = isinstance(base, NormBounded) and not isinstance(base, Counting)
        _validate.require(is_fine, "estimator", base, rule)
        ends = {"lower": self.lower, "upper": self.upper}
        _validate.within(SMALLEST_THRESHOLD, LARGEST, **ends)
        _validate.probability(quantile=self.quantile, share=self.share)
        _validate.positive(learning_rate=self.learning_rate)
        for name in ("lower", "upper", "share"):  # the fields are static
            object.__setattr__(self, name, float(getattr(self, name)))
        thresholds, ends = base.sizes, (self.lower, self.upper)
        is_fine = self.lower <= self.upper
        if _validate.is_concrete(thresholds):
            numbers = np.asarray(thresholds)
            lower, upper = map(numbers.dtype.type, ends)  # rounds as `numbers` does
            is_fine = is_fine and bool(np.all((numbers >= lower) & (numbers <= upper)))
        rule = f"a range that contains the estimator's thresholds, {thresholds}"
        _validate.require(is_fine, "lower, upper", ends, rule)

    @property
    def counting(self) -> Counting:
        """Returns the estimator of mean and counts, with the current thresholds."""
        return Counting(self.estimator, self.share)

    @property
    def thresholds(self) -> jax.Array:
        """Returns the current thresholds, shape (groups,)."""
        return self.estimator.sizes

    def at(self, thresholds: jax.Array) -> Self:
        """Returns a copy with the thresholds `thresholds`, shape (groups,)."""
        return replace(self, estimator=self.estimator.resized(thresholds))

    def follow(self, released: Counted) -> tuple[PyTree, Self]:
        """Returns the private mean, and a copy of this object with the next thresholds.

        `released` is the result of `counting` (mean and counts), with noise.
        """
        half = jnp.asarray(self.counting.half).astype(released.short.dtype)
        shares = 0.5 + released.short / (2 * half)
        thresholds = self.thresholds.astype(shares.dtype)
        rate, quantile = like(self.learning_rate, shares), like(self.quantile, shares)
        # Steps are clipped, because exp of large noise would not be finite.
        steps = jnp.exp(jnp.clip(rate * (quantile - shares), -60.0, 60.0))
        thresholds = jnp.clip(thresholds * steps, self.lower, self.upper)
        return released.mean, self.at(thresholds.astype(self.thresholds.dtype))


@register("estimator", "scales")
@dataclass(frozen=True)
class Measured(Estimator):
    """The estimator of x / s for each sample x; its means are in units of the scales.

    Each sample is divided separately, so the estimator's limit and sensitivity hold
    here too, however the division rounds. `Scaled` describes the attributes.
    """

    estimator: Estimator
    scales: PyTree

    @property
    def limit(self) -> Scalar | None:
        return self.estimator.limit

    def influence(self, sample: PyTree) -> PyTree:
        return self.influence_fn()(sample)

    def influence_fn(self) -> Callable[[PyTree], PyTree]:
        influence = self.estimator.influence_fn()
        return lambda sample: influence(self._ratios(sample))

    def _sensitivity(self, num_samples, num_coordinates, relation, rounded):
        args = num_samples, num_coordinates, relation
        return self.estimator.sensitivity(*args, rounded=rounded)

    def fold(self, stream: SampleStream, *, normalize_by: Scalar) -> MeanAndAux:
        """Returns the robust mean of samples, each divided by scales, and aux (losses).

        normalize_by divides the sum. Factors are multiplied out before the division.
        """

        def make_samples(shared: PyTree, rows: PyTree) -> tuple[PyTree, PyTree]:
            samples, aux = stream.make_samples(shared, rows)
            size = _validate.leading_size(rows, "samples")
            return by_row(self._ratios, size)(samples), aux

        ratios = replace(stream, make_samples=make_samples).written_out()
        return self.estimator.fold(ratios, normalize_by=normalize_by)

    def _ratios(self, sample):
        """Returns a sample divided by its scales, entry by entry, for the estimator."""

        def ratio(x, scale):
            x = as_float(x)
            rule = f"() or {x.shape}, the shape of the leaf that they divide"
            is_fine = np.shape(scale) in ((), x.shape)
            _validate.require(is_fine, "the shape of scales", np.shape(scale), rule)
            return x / like(scale, x)

        return jax.tree.map(ratio, sample, broadcast(self.scales, sample, "scales"))


@register("estimator", "scales")
@dataclass(frozen=True)
class Scaled:
    """An estimator with a public scale for each coordinate, and noise in proportion.

    Pass it to `privatize` in place of an estimator: samples are divided by the scales,
    their robust mean gets the noise of the estimator, and the release is multiplied by
    the scales. So a coordinate of scale s has s times the threshold and s times the
    noise. A single threshold for gradients that differ by orders of magnitude would
    clip large gradients, or add too much noise to small gradients. Norms are computed
    after the division.

    Scales may depend on the data only through earlier releases, such as the second
    moments of private gradients.

    With `robust_grad`, use `measured` as the estimator: its means are in units of the
    scales. Add noise for its sensitivity, and convert the result with `restored`.

    Sensitivity:
        In units of the scales, the sensitivity equals the sensitivity of the estimator,
        under the same relation, because each sample is divided separately before the
        influence bounds it. Multiplying the release is post-processing. Both hold with
        any rounding, overflow and underflow.

    Attributes:
        estimator: estimator of the ratios, with Gaussian noise: not `Mean`,
            `MedianOfMeans` or `TrimmedMean`. Its threshold, scale or norm is in units
            of the scales.
        scales: a pytree like a sample, or a prefix of such a pytree. Its leaves are
            numbers, each for all leaves below it, or arrays of the shape of their leaf;
            in [1e-20, 1e30], in units of the samples. Both fields are pytree leaves.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax.estimators import Scaled, Winsorization
        >>> from dpjax.transforms import privatize
        >>> scaled = Scaled(Winsorization(1.0), {"bias": 0.1, "kernel": 10.0})
        >>> transform = privatize(scaled, noise_multiplier=1.0, key=jax.random.key(0))
        >>> params = {"bias": jnp.zeros(1000), "kernel": jnp.zeros(1000)}
        >>> grads = jax.tree.map(lambda x: jnp.zeros((50, 1000)), params)
        >>> mean, _ = transform.update(grads, transform.init(params))
        >>> print(f"{mean['bias'].std():.2f} {mean['kernel'].std():.0f}")
        0.18 18

    Reference:
        Pichapati, Suresh, Yu, Reddi, Kumar (2019), "AdaCliP: adaptive clipping for
        private SGD", for scales that follow the noise; Ganesh, McMahan, Thakurta
        (2025), "On design principles for private adaptive optimizers".
    """

    estimator: Estimator
    scales: PyTree

    def __post_init__(self):
        """Requires an estimator with Gaussian noise, and scales in [1e-20, 1e30]."""
        base, leaves = self.estimator, jax.tree.leaves(self.scales)
        rule = "a mean of bounded influences with Gaussian noise, such as Clipping(1.0)"
        is_fine = isinstance(base, Estimator) and base.limit is not None
        is_fine = is_fine and base.noise == "gaussian" and not base.groups_by_index
        _validate.require(is_fine, "estimator", base, rule)
        _validate.require(bool(leaves), "scales", self.scales, "one number or more")
        for scale in leaves:
            _validate.within(SMALLEST, LARGEST, scales=scale)

    @property
    def measured(self) -> Measured:
        """Returns the estimator of samples in units of the scales."""
        return Measured(self.estimator, self.scales)

    def restored(self, released: PyTree) -> PyTree:
        """Converts a noisy result of `measured` to units of the samples."""
        scales = broadcast(self.scales, released, "scales")
        return jax.tree.map(lambda x, scale: x * like(scale, x), released, scales)
