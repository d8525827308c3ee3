"""Thousands of small arrays of a few shapes, as a few arrays: those compile sooner."""

from dataclasses import dataclass
from typing import Any

import jax

from dpjax._sharding import num_other_devices, varying_axes
from dpjax._sums.leaves import SMALL, Leaf
from dpjax._tree import register, split, stack
from dpjax._types import PyTree

MANY = 64  # leaves


@register("leaves")
@dataclass(frozen=True)
class Stacked:
    """A pytree of samples, or of their sum, in which small arrays are stacked by shape.

    Thousands of leaves are then a few for the compiler.

    Attributes:
        leaves: stacks (..., m, *shape), or one leaf each that is as it was.
        groups: the indices of the leaves in each; static.
        structure: of the pytree; static.
    """

    leaves: list[Any]
    groups: tuple[tuple[int, ...], ...]
    structure: Any

    @classmethod
    def of(cls, tree: PyTree) -> "Stacked":
        """Returns samples with leaves of more than `MANY` of one shape stacked."""
        leaves, structure = jax.tree.flatten(
            tree, is_leaf=lambda x: isinstance(x, Leaf)
        )
        groups: dict[Any, list[int]] = {}
        for i, x in enumerate(leaves):
            groups.setdefault(_kind(x) or i, []).append(i)
        found = [
            part
            for group in groups.values()
            for part in ([group] if len(group) > MANY else [[i] for i in group])
        ]
        stacks = [
            stack([leaves[i] for i in group], 1) if group[1:] else leaves[group[0]]
            for group in found
        ]
        return cls(stacks, tuple(map(tuple, found)), structure)

    def unstacked(self) -> PyTree:
        """Returns the sum of samples as the pytree that it was."""
        leaves = {}
        for x, group in zip(self.leaves, self.groups, strict=True):
            rows = [y[0] for y in split(x, [1] * len(x))] if group[1:] else [x]
            leaves.update(zip(group, rows, strict=True))
        return self.structure.unflatten(leaves[i] for i in range(len(leaves)))


def unstacked(tree: PyTree) -> PyTree:
    """Returns the pytree of a sum without stacks."""
    return jax.tree.map(
        lambda x: x.unstacked() if isinstance(x, Stacked) else x,
        tree,
        is_leaf=lambda x: isinstance(x, Stacked),
    )


def _kind(x: Any) -> Any:
    """Returns what leaves that may be stacked have in common, None for others."""
    if isinstance(x, Leaf) or x.size > SMALL * len(x) or num_other_devices(x) > 1:
        return None
    return x.shape, x.dtype, varying_axes(x)
