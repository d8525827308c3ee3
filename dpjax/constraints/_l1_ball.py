"""The l1 ball, the hull of the 2d points at ± radius on the axes."""

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
class L1Ball(VertexConstraint):
    r"""All x with ||x||_1 <= radius.

    The projection is x inside, and sign(x) max(|x| - tau, 0) of norm radius outside.
    Vertex j < d is radius e_j, with score -radius g_j, and vertex d + j is -radius e_j,
    with score radius g_j; no matrix of vertices is stored. Both diameters are 2 radius.

    Attributes:
        radius: r in [1e-20, 1e30], in units of the parameters; a pytree leaf.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.constraints import L1Ball
        >>> ball = L1Ball(1.0)
        >>> print(ball.project(jnp.array([1.5, -1.0, 0.25])))
        [ 0.75 -0.25  0.  ]
        >>> print(ball.minimize_linear(jnp.array([0.5, -2.0, 1.0])))
        [0. 1. 0.]

    Reference:
        Duchi et al. (2008), section 4, for the projection.
    """

    radius: Scalar

    def __post_init__(self):
        _validate.within(SMALLEST, LARGEST, radius=self.radius)

    def project(self, params: PyTree) -> PyTree:
        vector, unflatten = flatten(params, "params")
        radius = like(self.radius, vector)
        size = jnp.abs(vector)
        on_sphere = jnp.sign(vector) * project_simplex(size, radius)
        return unflatten(jnp.where(jnp.sum(size) <= radius, vector, on_sphere))

    def contains(self, params: PyTree, tolerance: Scalar = 1e-5) -> jax.Array:
        """See `Constraint.contains`: ||x||_1 <= radius + tolerance."""
        _validate.non_negative(tolerance=tolerance)
        vector, _ = flatten(params, "params")
        limit = like(self.radius, vector) + like(tolerance, vector)
        return jnp.sum(jnp.abs(vector)) <= limit

    def diameter(self, norm: Norm, num_coordinates: int) -> Scalar:
        """See `Constraint.diameter`: 2 radius in either norm."""
        check_diameter(norm, num_coordinates)
        return 2 * self.radius

    def num_vertices(self, num_coordinates: int) -> int:
        """See `VertexConstraint.num_vertices`: 2d."""
        _validate.count(num_coordinates=num_coordinates)
        return 2 * num_coordinates

    def score_error(self, num_coordinates: int) -> Scalar:
        """See `VertexConstraint.score_error`: a score is one product."""
        _validate.count(num_coordinates=num_coordinates)
        return ROUNDOFF * self.radius

    def vertex_scores(self, gradient: PyTree) -> jax.Array:
        """See `VertexConstraint.vertex_scores`: -radius g, then radius g."""
        vector, _ = flatten(gradient, "gradient")
        scores = like(self.radius, vector) * kept_finite(vector, self.radius)
        return jnp.concatenate([-scores, scores])

    def _vertex(self, index, vector):
        radius = like(self.radius, vector)
        value = jnp.where(index < vector.size, radius, -radius)
        return jnp.zeros_like(vector).at[index % vector.size].set(value)
