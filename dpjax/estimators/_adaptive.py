"""Thresholds that follow a private quantile of the norms."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._rounding import LARGEST
from dpjax._sums.stream import FactoredSamples
from dpjax._tree import like, register
from dpjax._types import REPLACE_ONE, NeighboringRelation, PyTree, Scalar
from dpjax.estimators._norm import LEAST_SIZE, BoundFn, NormBounded
from dpjax.estimators._sensitivity import Sensitivity


class Counted(NamedTuple):
    """A mean of influences, and how many samples were short.

    Attributes:
        mean: a pytree like a sample.
        short: shape (groups,): the mean of ±half, plus for samples within the threshold
            and minus for others; see `Counting.half`.
    """

    mean: PyTree
    short: jax.Array


@register("estimator")
@dataclass(frozen=True)
class Counting(NormBounded):
    """The mean of influences with, for each group, the number of short samples.

    An influence has G more coordinates, ±half for the G groups: plus where the norm is
    within the group's threshold. For influences of l2 norm L at most it is itself at
    most sqrt(L^2 + G half^2) = L / sqrt(1 - share) long, with

        half = L sqrt(share / (1 - share) / G).

    So mean and counts are one vector of a bounded norm, and one Gaussian releases both.
    Of noise that is z times the whole sensitivity, the gradient alone has z_g = z /
    sqrt(1 - share), and the counts, that one record moves by sqrt(G) half as far as by
    replacing it, z_c = z / sqrt(share): z^-2 = z_g^-2 + z_c^-2.

    Attributes:
        estimator: whose influences have a bounded norm.
        share: of the budget for the counts, in (0, 1); static.
    """

    estimator: NormBounded
    share: float

    @property
    def num_groups(self) -> int:
        """G."""
        return len(self.sizes)

    @property
    def needs_leaves(self) -> bool:
        """See `NormBounded.needs_leaves`."""
        return self.estimator.needs_leaves

    @property
    def half(self) -> Scalar:
        """What a sample adds to a count: plus or minus this."""
        odds = self.share / (1 - self.share) / self.num_groups
        return self.estimator.limit * math.sqrt(odds)

    @property
    def limit(self) -> Scalar:
        """L / sqrt(1 - share)."""
        return self.estimator.limit / math.sqrt(1 - self.share)

    @property
    def sizes(self) -> jax.Array:
        """See `NormBounded.sizes`: those of the estimator."""
        return self.estimator.sizes

    def resized(self, sizes: jax.Array) -> Self:
        """See `NormBounded.resized`."""
        return replace(self, estimator=self.estimator.resized(sizes))

    def bound_fn(self) -> BoundFn:
        """See `NormBounded.bound_fn`: and plus or minus half for each group."""
        bound = self.estimator.bound_fn()

        def counted(sample: FactoredSamples) -> tuple[FactoredSamples, jax.Array]:
            influence, is_short = bound(sample)
            half = jnp.asarray(self.half).astype(sample.dtype)
            signed = jnp.where(is_short, half, -half)
            return FactoredSamples(Counted(influence.leaves, signed)), is_short

        return counted

    def sensitivity(
        self,
        num_samples: Scalar,
        num_coordinates: int,
        relation: NeighboringRelation = REPLACE_ONE,
    ) -> Sensitivity:
        """See `Estimator.sensitivity`: of mean and counts together.

        num_coordinates are those of a sample, without the counts.
        """
        return super().sensitivity(
            num_samples, num_coordinates + self.num_groups, relation
        )


@register("estimator", "quantile", "learning_rate")
@dataclass(frozen=True)
class AdaptiveThreshold:
    """A norm-wise estimator whose thresholds follow a private quantile of the norms.

    `privatize` takes it in place of an estimator, and keeps the thresholds in its
    state, where `optax.tree.get(state, "thresholds")` finds them. In each update, for
    every group of leaves,

        threshold <- threshold·exp(-learning_rate·(b - quantile)),

    where b is the private share of samples with a norm within the threshold: under a
    fixed law of the norms it comes to rest at their quantile. The first threshold may
    be wrong by orders of magnitude, at the price of some steps: from C to c these are
    log(C / c) / (learning_rate·(1 - quantile)) downward, and log(c / C) /
    (learning_rate·quantile) upward.

    The counts are released with the mean, as one Gaussian vector of one subsampling:
    see `counting`. NaN and infinite entries of a sample count as zero in its norm, too.

    For `robust_grad`, `counting` is the estimator and returns mean and counts; after
    noise for its sensitivity, `follow` takes both.

    Sensitivity:
        That of `counting`, by replace-one or add/remove, covers mean and counts
        together: for G groups a record moves G counts. Of noise in proportion to it the
        mean's share makes 1 / sqrt(1 - share) times the noise that fixed thresholds
        would need: at 0.01, half a per cent more. Nothing else costs privacy, so that
        the noise multiplier accounts for all of it.

    Attributes:
        estimator: `Clipping`, `SmoothedClipping` or `Normalization`, or `Grouped` of
            one of these, with its first thresholds (clip norm, scale, offset).
        lower: the least threshold, public, in units of the samples, at least 1e-12.
        upper: the largest threshold, public, at most 1e30.
        quantile: of norms within the threshold, in (0, 1); a pytree leaf.
        learning_rate: of the threshold's logarithm, > 0; a pytree leaf.
        share: of the budget for the counts, in (0, 1). Their noise, as a share of n
            samples, has stddev noise_multiplier·sqrt(G / share) / n under replace-one.

    Raises:
        ValueError: where estimator is none of these, a number is out of its range, or
            a first threshold is not within [lower, upper].

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax.estimators import AdaptiveThreshold, Clipping
        >>> from dpjax.transforms import privatize
        >>> adaptive = AdaptiveThreshold(Clipping(1.0), lower=1e-3, upper=1e3)
        >>> transform = privatize(
        ...     adaptive, noise_multiplier=1.0, key=jax.random.key(0))
        >>> grads = 30.0 * jax.random.normal(jax.random.key(1), (4096, 2))
        >>> state = transform.init(jnp.zeros(2))
        >>> update = jax.jit(transform.update)
        >>> for _ in range(60):
        ...     mean, state = update(grads, state)
        >>> median = jnp.median(jnp.linalg.norm(grads, axis=1))
        >>> print(f"{state.thresholds[0] / median:.1f}")
        1.0

    Reference:
        Andrew, Thakkar, McMahan, Ramaswamy (2021), Differentially private learning with
        adaptive clipping, Algorithm 1 and Theorem 1; here for replace-one as well, for
        groups, and with the count's noise in proportion to the threshold's.
    """

    estimator: NormBounded
    lower: float
    upper: float
    quantile: Scalar = 0.5
    learning_rate: Scalar = 0.2
    share: float = 0.01

    def __post_init__(self):
        _validate.require(
            isinstance(self.estimator, NormBounded)
            and not isinstance(self.estimator, Counting),
            "estimator",
            self.estimator,
            "norm-wise: Clipping, SmoothedClipping, Normalization, or Grouped of one",
        )
        _validate.within(LEAST_SIZE, LARGEST, lower=self.lower, upper=self.upper)
        _validate.probability(quantile=self.quantile, share=self.share)
        _validate.positive(learning_rate=self.learning_rate)
        for name in ("lower", "upper", "share"):  # they are static
            value = float(getattr(self, name))
            object.__setattr__(self, name, value)
        sizes = self.estimator.sizes
        is_within = not _validate.is_concrete(sizes)
        if not is_within:  # in their own type, which rounds the ends as it rounds them
            numbers = np.asarray(sizes)
            lower, upper = (numbers.dtype.type(x) for x in (self.lower, self.upper))
            is_within = bool(np.all((numbers >= lower) & (numbers <= upper)))
        _validate.require(
            is_within and self.lower <= self.upper,
            "lower, upper",
            (self.lower, self.upper),
            f"a range that the first thresholds {sizes} lie in",
        )

    @property
    def counting(self) -> Counting:
        """The estimator of means and counts, with the thresholds of now."""
        return Counting(self.estimator, self.share)

    @property
    def thresholds(self) -> jax.Array:
        """The thresholds of now, shape (groups,)."""
        return self.estimator.sizes

    def at(self, thresholds: jax.Array) -> Self:
        """Returns the same with other thresholds, shape (groups,)."""
        return replace(self, estimator=self.estimator.resized(thresholds))

    def follow(self, released: Counted) -> tuple[PyTree, Self]:
        """Returns the private mean, and the next thresholds.

        Args:
            released: what `counting` returned, with noise.
        """
        half = jnp.asarray(self.counting.half).astype(released.short.dtype)
        shares = 0.5 + released.short / (2 * half)
        sizes = self.thresholds.astype(shares.dtype)
        steps = like(self.learning_rate, shares) * (
            like(self.quantile, shares) - shares
        )
        # Noise of any size leaves a number: steps beyond this leave every range.
        sizes = jnp.clip(
            sizes * jnp.exp(jnp.clip(steps, -60.0, 60.0)), self.lower, self.upper
        )
        return released.mean, self.at(sizes.astype(self.thresholds.dtype))
