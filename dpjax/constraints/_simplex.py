"""The simplex, the hull of the d points at radius on the axes."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._rounding import LARGEST, ROUNDOFF, SMALLEST
from dpjax._tree import flatten, like, register
from dpjax._types import PyTree, Scalar
from dpjax.constraints._constraint import (
    Norm,
    VertexConstraint,
    check_diameter,
    kept_finite,
    project_simplex,
)


@register("radius")
@dataclass(frozen=True)
class Simplex(VertexConstraint):
    """All x >= 0 with sum radius; with radius 1, the probability vectors.

    The projection is max(x - tau, 0), with tau such that the sum is radius. Vertex j is
    radius e_j, with score -radius g_j. The diameter is 2 radius in l1 and sqrt(2)
    radius in l2, and 0 for a single coordinate.

    Attributes:
        radius: r in [1e-20, 1e30], in units of the parameters; a pytree leaf.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.constraints import Simplex
        >>> simplex = Simplex(1.0)
        >>> print(simplex.project(jnp.array([1.0, 0.5, -1.0])))
        [0.75 0.25 0.  ]
        >>> print(simplex.minimize_linear(jnp.array([0.5, -2.0, 1.0])))
        [0. 1. 0.]

    Reference:
        Duchi et al. (2008), Figure 1, for the projection.
    """

    radius: Scalar

    def __post_init__(self):
        _validate.within(SMALLEST, LARGEST, radius=self.radius)

    def project(self, params: PyTree) -> PyTree:
        vector, unflatten = flatten(params, "params")
        return unflatten(project_simplex(vector, like(self.radius, vector)))

    def contains(self, params: PyTree, tolerance: Scalar = 1e-5) -> jax.Array:
        """See `Constraint.contains`: x >= -tolerance, |sum x - radius| <= tolerance."""
        _validate.non_negative(tolerance=tolerance)
        vector, _ = flatten(params, "params")
        slack = like(tolerance, vector)
        gap = jnp.abs(jnp.sum(vector) - like(self.radius, vector))
        return jnp.all(vector >= -slack) & (gap <= slack)

    def diameter(self, norm: Norm, num_coordinates: int) -> Scalar:
        check_diameter(norm, num_coordinates)
        if num_coordinates == 1:
            return 0 * self.radius
        return (2 if norm == "l1" else math.sqrt(2)) * self.radius

    def num_vertices(self, num_coordinates: int) -> int:
        """See `VertexConstraint.num_vertices`: d."""
        _validate.count(num_coordinates=num_coordinates)
        return num_coordinates

    def score_error(self, num_coordinates: int) -> Scalar:
        """See `VertexConstraint.score_error`: a score is one product."""
        _validate.count(num_coordinates=num_coordinates)
        return ROUNDOFF * self.radius

    def vertex_scores(self, gradient: PyTree) -> jax.Array:
        """See `VertexConstraint.vertex_scores`: -radius g."""
        vector, _ = flatten(gradient, "gradient")
        return -like(self.radius, vector) * kept_finite(vector, self.radius)

    def _vertex(self, index, vector):
        return jnp.zeros_like(vector).at[index].set(like(self.radius, vector))
