"""Thresholds that follow a private quantile of the norms."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._rounding import LARGEST
from dpjax._sums.samples import FactoredSamples
from dpjax._tree import like, register
from dpjax._types import PyTree, Scalar
from dpjax.estimators._clipping import SMALLEST_THRESHOLD, BoundFn, NormBounded


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

    An influence gets G more coordinates, one for each group: half if the norm of the
    group is within its threshold, else -half. If the l2 norm of the influence is at
    most L, the norm of all coordinates is at most sqrt(L^2 + G half^2) =
    L / sqrt(1 - share), with

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
        """Returns a function that bounds a sample and adds ±half for each count."""
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
        then 1 / sqrt(1 - share) times as large as with fixed thresholds: half a per
        cent more at share 0.01. The noise multiplier covers the whole privacy cost.

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
        """Refuses first thresholds out of range, and makes static fields floats."""
        base = self.estimator
        rule = "norm-wise: Clipping, SmoothedClipping, Normalization, or Grouped of one"
        is_fine = isinstance(base, NormBounded) and not isinstance(base, Counting)
        _validate.require(is_fine, "estimator", base, rule)
        _validate.within(
            SMALLEST_THRESHOLD, LARGEST, lower=self.lower, upper=self.upper
        )
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
        rule = f"a range that contains the first thresholds {thresholds}"
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

        `released` is the result of `counting`, with noise.
        """
        half = jnp.asarray(self.counting.half).astype(released.short.dtype)
        shares = 0.5 + released.short / (2 * half)
        thresholds = self.thresholds.astype(shares.dtype)
        steps = like(self.learning_rate, shares) * (
            like(self.quantile, shares) - shares
        )
        # Steps are clipped, because exp of large noise would not be finite.
        thresholds = jnp.clip(
            thresholds * jnp.exp(jnp.clip(steps, -60.0, 60.0)), self.lower, self.upper
        )
        return released.mean, self.at(thresholds.astype(self.thresholds.dtype))
