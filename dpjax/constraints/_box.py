"""The box: every coordinate between two bounds."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import _validate
from dpjax._rounding import LARGEST
from dpjax._tree import flatten, register
from dpjax._types import PyTree, Scalar
from dpjax.constraints._constraint import (
    Constraint,
    Norm,
    check_coordinates,
    check_diameter,
)


@register("lower", "upper")
@dataclass(frozen=True)
class Box(Constraint):
    """All x with lower <= x <= upper.

    The projection clips. The minimum of <v, g> is at lower if g > 0, else at upper. The
    diameter is the norm of upper - lower. Vertices are not scored: there are 2^d.

    Attributes:
        lower: one number for all coordinates, or a pytree of arrays of the shapes of
            the parameters; its arrays are pytree leaves.
        upper: likewise, of the same structure and shapes, nowhere below lower.

    Raises:
        ValueError: If bounds are not numbers in [-1e30, 1e30], differ in shape, or
            upper is below lower.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.constraints import Box
        >>> box = Box(0.0, 1.0)
        >>> print(box.project({"w": jnp.array([-0.5, 0.5, 2.0])})["w"])
        [0.  0.5 1. ]
        >>> print(box.minimize_linear(jnp.array([3.0, -4.0])))
        [0. 1.]
    """

    lower: PyTree
    upper: PyTree

    def __post_init__(self):
        lower, upper = _shapes(self.lower), _shapes(self.upper)
        _validate.require(
            bool(lower[1]), "lower", self.lower, "a number or a pytree of arrays"
        )
        _validate.require(
            upper == lower, "upper", self.upper, "shaped as lower, leaf by leaf"
        )
        for low, high in zip(
            jax.tree.leaves(self.lower), jax.tree.leaves(self.upper), strict=True
        ):
            _validate.within(-LARGEST, LARGEST, lower=low, upper=high)
            if _validate.is_concrete(low) and _validate.is_concrete(high):
                is_ordered = np.all(np.asarray(low) <= np.asarray(high))
                _validate.require(
                    bool(is_ordered), "upper", high, f"nowhere below lower, {low!r}"
                )

    def project(self, params: PyTree) -> PyTree:
        vector, unflatten = flatten(params, "params")
        lower, upper = self._bounds(params, "params", vector)
        return unflatten(optax.projections.projection_box(vector, lower, upper))

    def contains(self, params: PyTree, tolerance: Scalar = 1e-5) -> jax.Array:
        """See `Constraint.contains`: lower - tolerance <= x <= upper + tolerance."""
        _validate.non_negative(tolerance=tolerance)
        vector, _ = flatten(params, "params")
        lower, upper = self._bounds(params, "params", vector)
        slack = jnp.asarray(tolerance).astype(vector.dtype)
        return jnp.all((vector >= lower - slack) & (vector <= upper + slack))

    def diameter(self, norm: Norm, num_coordinates: int) -> Scalar:
        check_diameter(norm, num_coordinates)
        if self._is_uniform():
            factor = num_coordinates if norm == "l1" else math.sqrt(num_coordinates)
            return factor * (self.upper - self.lower)
        lower, _ = flatten(self.lower, "lower")
        upper, _ = flatten(self.upper, "upper")
        check_coordinates(num_coordinates, lower.size)
        return jnp.linalg.norm(upper - lower, ord=1 if norm == "l1" else 2)

    def minimize_linear(self, gradient: PyTree) -> PyTree:
        vector, unflatten = flatten(gradient, "gradient")
        lower, upper = self._bounds(gradient, "gradient", vector)
        return unflatten(jnp.where(vector > 0, lower, upper))

    def _is_uniform(self) -> bool:
        _, shapes = _shapes(self.lower)
        return jax.tree.structure(self.lower).num_nodes == 1 and shapes == [()]

    def _bounds(
        self, tree: PyTree, name: str, vector: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns both bounds in the shape and dtype of the vector."""
        if not self._is_uniform():
            rule = f"shaped as the bounds, {_shapes(self.lower)}"
            is_fine = _shapes(tree) == _shapes(self.lower)
            _validate.require(is_fine, name, _shapes(tree), rule)

        def as_vector(bound: PyTree) -> jax.Array:
            flat, _ = flatten(bound, "bound")
            flat = flat.astype(vector.dtype)
            return jnp.broadcast_to(flat, vector.shape)

        return as_vector(self.lower), as_vector(self.upper)


def _shapes(tree: PyTree) -> tuple[Any, list[tuple[int, ...]]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [np.shape(leaf) for leaf in leaves]
