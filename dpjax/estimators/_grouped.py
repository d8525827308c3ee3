"""Grouped: norm-wise influences that act on each group of leaves separately."""

from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._sums.samples import FactoredSamples, Leaf
from dpjax._tree import register
from dpjax._types import PyTree, Scalar
from dpjax.estimators._norm import BoundFn, NormBounded, NormEstimator

Group = str | tuple[str, ...]


@register("estimator")
@dataclass(frozen=True)
class Grouped(NormBounded):
    """The mean of samples with a separate norm-wise bound for each group of leaves.

    So a large gradient of one layer does not clip the other layers. The noise is the
    same for every coordinate, proportional to the root of the sum of the squared
    bounds.

    Sensitivity: the influence of group g has an l2 norm of at most B_g, so that of a
    sample is at most B = sqrt(sum B_g^2), by Pythagoras: replacing one of n records
    moves the mean by at most 2·B / n in the l2 norm; float32 rounding is added to that.
    linf is the same, l1 is sqrt(d) times it.

    Attributes:
        estimator: `Clipping`, `SmoothedClipping` or `Normalization`. Its numbers hold
            for all groups, or are arrays (G,), one number for each; pytree leaves.
        groups: G groups, in the order of these arrays. A group is the name of a leaf or
            subtree, such as "layers/0/kernel" or "layers/0", or a tuple of such names;
            "" matches every leaf. A leaf is in the group with the longest matching
            name.

    Raises:
        ValueError: If estimator is not one of these, an array is not of shape (G,), or
            a name occurs twice; when called, if a group has no leaf, or a leaf no
            group.

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
        rule = "norm-wise: Clipping, SmoothedClipping or Normalization"
        is_fine = isinstance(self.estimator, NormEstimator)
        _validate.require(is_fine, "estimator", self.estimator, rule)
        groups = self.groups
        is_valid = isinstance(groups, tuple | list) and all(
            isinstance(name, str) for group in groups for name in _names(group)
        )
        names = [name for group in groups for name in _names(group)] if is_valid else []
        _validate.require(
            bool(names) and len(names) == len(set(names)) and all(map(_names, groups)),
            "groups",
            groups,
            "a tuple of names of leaves, or of tuples of names, none of them twice",
        )
        groups = tuple(x if isinstance(x, str) else tuple(x) for x in groups)
        object.__setattr__(self, "groups", groups)
        shapes = {np.shape(x) for x in jax.tree.leaves(self.estimator)}
        rule = f"one with numbers, or arrays of shape ({len(groups)},), one a group"
        is_fine = shapes <= {(), (len(groups),)}
        _validate.require(is_fine, "estimator", self.estimator, rule)

    @property
    def limit(self) -> Scalar:
        """sqrt(sum B_g^2), for bounds B_g of groups."""
        limit = self.estimator.limit
        if _validate.is_concrete(limit):
            limits = np.broadcast_to(np.asarray(limit, np.float64), len(self.groups))
            return float(np.sqrt(np.sum(limits**2)))
        limits = jnp.broadcast_to(limit, len(self.groups))
        # Squares of large bounds would overflow. The relative error of a sum of G
        # squares is G 2^-24, of the root half of that: NORM_ERROR covers G = 2,000.
        most = limits.max()
        return most * jnp.sqrt(jnp.sum((limits / most) ** 2))

    @property
    def needs_leaves(self) -> bool:
        return True

    @property
    def sizes(self) -> jax.Array:
        return jnp.concatenate([each.sizes for each in self._each()])

    def resized(self, sizes: jax.Array) -> Self:
        estimator = self.estimator.resized(jnp.asarray(sizes)[None])
        return replace(self, estimator=estimator)

    def bound_fn(self) -> BoundFn:
        """See `NormBounded.bound_fn`: that of every group."""
        bounds = [each.bound_fn() for each in self._each()]

        def bound(sample: FactoredSamples) -> tuple[FactoredSamples, jax.Array]:
            shape = jax.tree.map(
                lambda _: 0, sample.leaves, is_leaf=lambda x: isinstance(x, Leaf)
            )
            parts = map(FactoredSamples, self._parted(shape, sample.parts))
            pairs = [fn(part) for fn, part in zip(bounds, parts, strict=True)]
            new, are_short = zip(*pairs, strict=True)
            parts = self._joined(shape, [part.parts for part in new])
            return sample.with_parts(parts), jnp.concatenate(are_short)

        return bound

    def _each(self) -> list[NormEstimator]:
        """Returns the estimator of every group."""

        def of(i):
            return jax.tree.map(lambda x: x[i] if np.ndim(x) else x, self.estimator)

        return [of(i) for i in range(len(self.groups))]

    def _parted(self, sample: PyTree, leaves: list[Any]) -> list[list[Any]]:
        """Returns values of the leaves of a sample, one list for each group."""
        parts: list[list[Any]] = [[] for _ in self.groups]
        for leaf, place in zip(leaves, self._places(sample), strict=True):
            parts[place].append(leaf)
        return parts

    def _joined(self, sample: PyTree, parts: list[list[Any]]) -> list[Any]:
        """Returns the inverse of `_parted`."""
        rests = [iter(part) for part in parts]
        return [next(rests[place]) for place in self._places(sample)]

    def _places(self, sample: PyTree) -> list[int]:
        """Returns the group of every leaf."""
        places = {name: i for i, x in enumerate(self.groups) for name in _names(x)}
        leaves = _leaf_names(sample)

        def group_of(leaf: str) -> int:
            fitting = [x for x in places if x == "" or f"{leaf}/".startswith(f"{x}/")]
            rule = f"names that every leaf begins with one of, as {leaf!r} does not"
            _validate.require(bool(fitting), "groups", self.groups, rule)
            return places[max(fitting, key=len)]

        groups = [group_of(leaf) for leaf in leaves]
        without = [x for i, x in enumerate(self.groups) if i not in groups]
        rule = f"names of leaves, which are {leaves}: {without} have none"
        _validate.require(not without, "groups", self.groups, rule)
        return groups


def _names(group: Any) -> tuple[Any, ...]:
    return tuple(group) if isinstance(group, tuple | list) else (group,)


def _leaf_names(tree: PyTree) -> list[str]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [
        jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves
    ]
