"""Robust means by norm: clipping and normalization of samples or groups of leaves.

An influence by norm multiplies a sample by one number, its weight, which is a function
of its l2 norm: the sample keeps its direction. The norm is computed from factors where
a sample has them: |a|^2 |d|^2 for an outer product, Gram matrices for a product of
matrices, the squares of the rows for a table. The weight depends on this sample only,
and is computed from exactly the numbers that are summed later (`materialized`).

The computed norm of a sample is at least 1 - NORM_ERROR times the exact norm, to 2^-39
thresholds, or the weight is zero. Weights do not increase with the norm, so an
influence has norm at most limit (1 + NORM_ERROR): `docs/privacy/proofs/sums.md`, 1.5.
"""

import abc
import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._rounding import LARGEST
from dpjax._sums.fold import Summands
from dpjax._sums.samples import NORM_ERROR, FactoredSamples, Leaf, weigh
from dpjax._sums.stream import SampleStream
from dpjax._tree import as_float, by_row, like, materialized, register
from dpjax._types import PyTree, Scalar
from dpjax.estimators._estimator import Estimator, norm_sensitivity

# Clip norms, scales and offsets are at least this large, so that the norm of an
# ordinary sample stays below 2^63 times the threshold.
SMALLEST_THRESHOLD = 1e-12

BoundFn = Callable[[FactoredSamples], tuple[FactoredSamples, jax.Array]]
Group = str | tuple[str, ...]


class NormBounded(Estimator):
    """An estimator with influences of bounded l2 norm, also computed from factors.

    Each group of leaves has a norm, and a threshold: a clip norm or a smooth scale.
    """

    @property
    def needs_leaves(self) -> bool:
        """Returns whether `bound_fn` needs every leaf separate, without stacking."""
        return False

    @property
    @abc.abstractmethod
    def limit(self) -> Scalar:
        """Bounds the l2 norm of an influence, hence its coordinates."""

    @property
    def diameter(self) -> float:
        """Bounds the l2 distance of two influences, in units of `limit`."""
        return 2.0

    @property
    @abc.abstractmethod
    def sizes(self) -> jax.Array:
        """Returns the thresholds of the norms, shape (groups,)."""

    @abc.abstractmethod
    def resized(self, sizes: jax.Array) -> Self:
        """Returns the estimator with the thresholds `sizes`, (groups,), unchecked."""

    @abc.abstractmethod
    def bound_fn(self) -> BoundFn:
        """Returns a function from a sample to its influence and booleans (groups,).

        A boolean is true if the norm of this group is within its threshold, and false
        for a sample that counts as zero because its norm is too large. The numbers of
        the sample must be finite and materialized.
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
        bound = self.bound_fn()

        def prepare(samples: FactoredSamples) -> FactoredSamples:
            samples = samples if self.needs_leaves else samples.stacked()
            return by_row(bound, samples.num_rows)(materialized(samples.finite()))[0]

        return Summands(stream, prepare)

    def _sensitivity(self, num_samples, num_coordinates, relation, rounded):
        """Returns l2 = diameter limit / n, plus rounding."""
        args = self.limit, num_samples, num_coordinates, relation
        norms = {"norm_error": NORM_ERROR, "diameter": self.diameter}
        return norm_sensitivity(*args, **norms, rounded=rounded)


class NormEstimator(NormBounded):
    """An estimator with influence sample·weight(norm), for the l2 norm of a sample."""

    size_name: ClassVar[str]  # names the field that holds the threshold of the norm

    def __post_init__(self):
        size = {self.size_name: getattr(self, self.size_name)}
        _validate.within(SMALLEST_THRESHOLD, LARGEST, **size)

    @abc.abstractmethod
    def weight_fn(self) -> Callable[[jax.Array], jax.Array]:
        """Returns the weight of a sample as a function of norm / threshold.

        The function does not increase, and is differentiable on [0, 2^63).
        """

    @property
    def sizes(self) -> jax.Array:
        threshold = as_float(getattr(self, self.size_name))
        return threshold.astype(threshold.dtype)[None]  # removes JAX's weak type

    def resized(self, sizes: jax.Array) -> Self:
        other = copy.copy(self)
        object.__setattr__(other, self.size_name, sizes[0])
        return other

    def bound_fn(self) -> BoundFn:
        """Returns a function from x to x·weight(|x|), and whether |x| <= threshold."""
        weight_fn, threshold = self.weight_fn(), self.sizes[0]

        def bound(sample: FactoredSamples) -> tuple[FactoredSamples, jax.Array]:
            squares = materialized(sample.squared_norm(1 / threshold))
            weight, norm = weigh(squares, weight_fn)
            return sample.weighted(weight), (norm <= 1)[None]

        return bound


@jax.jit
def clip_to_norm(sample: PyTree, l2_clip_norm: Scalar) -> PyTree:
    """Returns sample·min(1, l2_clip_norm / ||sample||), the norm over all leaves."""
    return Clipping(l2_clip_norm).influence(sample)


@register("l2_clip_norm")
@dataclass(frozen=True)
class Clipping(NormEstimator):
    """The mean of samples clipped to a global l2 norm: the estimator of DP-SGD.

    Samples below the clip norm keep every bit. For a mean without a bound, which has no
    finite sensitivity, use `Mean()`.

    Sensitivity: replacing one of n records moves the mean by at most
    2·l2_clip_norm / n in the l2 norm, and in any coordinate, before rounding.

    Attributes:
        l2_clip_norm: C in [1e-12, 1e30], in units of the samples; a pytree leaf.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import Clipping
        >>> print(Clipping(1.0)(jnp.array([[3e9, 4e9], [0.0, 0.0]])).round(3))
        [0.3 0.4]

    Reference:
        Abadi et al. (2016), Algorithm 1.
    """

    l2_clip_norm: Scalar
    size_name: ClassVar[str] = "l2_clip_norm"

    def weight_fn(self) -> Callable[[jax.Array], jax.Array]:
        return lambda norm: 1 / jnp.maximum(norm, 1)

    @property
    def limit(self) -> Scalar:
        """Returns the clip norm, which bounds every coordinate too."""
        return self.l2_clip_norm


@register("offset")
@dataclass(frozen=True)
class Normalization(NormEstimator):
    """The mean of g / (||g|| + offset), the norm over all leaves.

    Samples keep their direction, and large samples get a norm of nearly 1. There is no
    clip norm to tune, because scaling all samples amounts to scaling the step size and
    the offset. Means have no unit. Samples much smaller than the offset keep their
    proportions; without an offset, sampling noise of small gradients would count as
    much as the signal, and descent might not converge.

    Sensitivity: replacing one of n records moves the mean by at most 2 / n in the l2
    norm, and in any coordinate, before rounding, because ||g|| / (||g|| + offset) <= 1.

    Attributes:
        offset: gamma in [1e-12, 1e30], in units of the samples; a pytree leaf.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax.estimators import Normalization
        >>> samples = jnp.array([[3e9, 4e9], [0.0, 0.5]])
        >>> jax.vmap(Normalization(0.5).influence)(samples).round(1).tolist()
        [[0.6..., 0.8...], [0.0, 0.5]]

    Reference:
        Bu, Wang, Zha, Karypis (2023), Automatic clipping, AUTO-S, eq. (3.2).
    """

    offset: Scalar
    size_name: ClassVar[str] = "offset"

    def weight_fn(self) -> Callable[[jax.Array], jax.Array]:
        """Returns 1 / (offset + norm), for norms in offsets."""
        return lambda norm: 1 / like(self.offset, norm) / (1 + norm)

    @property
    def limit(self) -> Scalar:
        """Returns 1, because a normalized sample has at most this norm."""
        return 1.0


@register("estimator")
@dataclass(frozen=True)
class Grouped(NormBounded):
    """The mean of samples with a separate norm-wise bound for each group of leaves.

    Thus a large gradient of one layer does not shrink the gradients of other layers.
    Every coordinate has the same noise, in proportion to sqrt(sum of squared bounds).

    Sensitivity: the influence of a sample has an l2 norm of at most B_g in group g, and
    of at most B = sqrt(sum B_g^2) in all groups together, by Pythagoras. So replacing
    one of n records moves the mean by at most 2·B / n in the l2 norm, before rounding.

    Attributes:
        estimator: `Clipping`, `SmoothedClipping` or `Normalization`. Each of its fields
            is a number for all groups, or an array (G,) with a number for each group;
            the fields are pytree leaves.
        groups: G groups, in the order of these arrays. A group is the name of a leaf or
            subtree, such as "layers/0/kernel" or "layers/0", or a tuple of such names;
            "" matches every leaf. A leaf is in the group with the longest matching
            name.

    Raises:
        ValueError: If a name occurs twice; when called, if a group has no leaf, or a
            leaf no group.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import Clipping, Grouped
        >>> estimator = Grouped(Clipping(jnp.array([1.0, 5.0])), ("bias", "layers"))
        >>> samples = {"bias": jnp.array([[30.0]]), "layers": [jnp.array([[3.0, 4.0]])]}
        >>> mean = estimator(samples)
        >>> print(mean["bias"], mean["layers"][0])
        [1.] [3. 4.]
        >>> print(f"{estimator.limit:.3f}")
        5.099

    Reference:
        McMahan, Ramage, Talwar, Zhang (2018), Learning differentially private recurrent
        language models, section 2, per-layer clipping.
    """

    estimator: NormEstimator
    groups: tuple[Group, ...]

    def __post_init__(self):
        """Raises `ValueError` for missing or repeated names; makes groups tuples."""
        base, rule = self.estimator, "Clipping, SmoothedClipping or Normalization"
        is_fine = isinstance(base, NormEstimator)
        _validate.require(is_fine, "estimator", base, f"one of {rule}")
        groups = self.groups if isinstance(self.groups, tuple | list) else ()
        names = [name for group in groups for name in _names(group)]
        is_fine = all(isinstance(x, str) for x in names) and all(map(_names, groups))
        is_fine = is_fine and 0 < len(names) == len(set(names))
        rule = "a tuple of names of leaves, or of tuples of names, none of them twice"
        _validate.require(is_fine, "groups", self.groups, rule)
        groups = tuple(x if isinstance(x, str) else tuple(x) for x in groups)
        object.__setattr__(self, "groups", groups)
        shapes = {np.shape(x) for x in jax.tree.leaves(base)}
        rule = f"one with fields of shape () or ({len(groups)},), a number per group"
        _validate.require(shapes <= {(), (len(groups),)}, "estimator", base, rule)

    @property
    def limit(self) -> Scalar:
        """Returns the bound sqrt(sum B_g^2) of an influence, with B_g of group g."""
        limit = self.estimator.limit
        if _validate.is_concrete(limit):
            limits = np.broadcast_to(np.asarray(limit, np.float64), len(self.groups))
            return float(np.sqrt(np.sum(limits**2)))
        limits = jnp.broadcast_to(limit, len(self.groups))
        # Bounds are divided by the largest bound, because their squares could overflow.
        # NORM_ERROR covers G 2^-25, the relative error of the root, for G = 2,000.
        most = limits.max()
        return most * jnp.sqrt(jnp.sum((limits / most) ** 2))

    @property
    def needs_leaves(self) -> bool:
        return True

    @property
    def sizes(self) -> jax.Array:
        return jnp.concatenate([each.sizes for each in self._each()])

    def resized(self, sizes: jax.Array) -> Self:
        return replace(self, estimator=self.estimator.resized(jnp.asarray(sizes)[None]))

    def bound_fn(self) -> BoundFn:
        """Returns a function that bounds each group of a sample's leaves by itself."""
        bounds = [each.bound_fn() for each in self._each()]

        def bound(sample: FactoredSamples) -> tuple[FactoredSamples, jax.Array]:
            """Returns the bounded sample, and whether norms are within bounds, (G,)."""
            group_of_leaf = self._group_of_leaf(sample.leaves)
            # Each group is bounded as a sample, and its leaves are put back in order.
            parts: list[list[Any]] = [[] for _ in self.groups]
            for leaf, group in zip(sample.parts, group_of_leaf, strict=True):
                parts[group].append(leaf)
            pairs = zip(bounds, map(FactoredSamples, parts), strict=True)
            bounded, are_short = zip(*(fn(part) for fn, part in pairs), strict=True)
            rest = [iter(part.parts) for part in bounded]
            leaves = [next(rest[group]) for group in group_of_leaf]
            return sample.with_parts(leaves), jnp.concatenate(are_short)

        return bound

    def _each(self) -> list[NormEstimator]:
        """Returns the estimator of every group."""

        def of(i):
            return jax.tree.map(lambda x: x[i] if np.ndim(x) else x, self.estimator)

        return [of(i) for i in range(len(self.groups))]

    def _group_of_leaf(self, leaves: PyTree) -> list[int]:
        """Returns each leaf's group index, by the longest name that begins its path."""
        index = {name: i for i, x in enumerate(self.groups) for name in _names(x)}
        paths = jax.tree.leaves_with_path(leaves, is_leaf=lambda x: isinstance(x, Leaf))
        names = [jax.tree_util.keystr(x, simple=True, separator="/") for x, _ in paths]
        groups = []
        for leaf in names:
            fitting = [x for x in index if x == "" or f"{leaf}/".startswith(f"{x}/")]
            rule = f"names or prefixes of all leaves: add {leaf!r}, or '' for the rest"
            _validate.require(bool(fitting), "groups", self.groups, rule)
            groups.append(index[max(fitting, key=len)])
        without = [x for i, x in enumerate(self.groups) if i not in groups]
        rule = f"names or prefixes of the leaves {names}: {without} fit none of them"
        _validate.require(not without, "groups", self.groups, rule)
        return groups


def _names(group: Any) -> tuple[Any, ...]:
    return tuple(group) if isinstance(group, tuple | list) else (group,)
