"""A polytope given by its vertices."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._tree import register
from dpjax._types import PyTree, Scalar
from dpjax.constraints._constraint import (
    LARGEST,
    Norm,
    VertexConstraint,
    check_coordinates,
    check_diameter,
    flatten,
)


@register(data_fields=["vertices"], meta_fields=[])
@dataclass(frozen=True)
class Polytope(VertexConstraint):
    """The convex hull of the rows of a matrix.

    The diameter is the largest distance of two rows: a norm is convex, so that it is
    greatest at vertices. Rows inside the hull or given twice do no harm. There is no
    projection and no membership test in closed form: `project` and `contains` raise.

    Attributes:
        vertices: shape (num_vertices, d), the coordinates of a pytree one leaf after
            another, as `jax.flatten_util.ravel_pytree` puts them; a pytree leaf.

    Raises:
        ValueError: where vertices is not a real matrix with at least one entry, all
            entries in [-1e30, 1e30].

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.constraints import Polytope
        >>> triangle = Polytope(jnp.array([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]]))
        >>> print(triangle.diameter("l1", 2), triangle.diameter("l2", 2))
        7.0 5.0
        >>> print(triangle.minimize_linear(jnp.array([1.0, -2.0])))
        [0. 4.]
    """

    vertices: jax.Array

    def __post_init__(self):
        _validate.require(
            isinstance(self.vertices, np.ndarray | jax.Array)
            and self.vertices.ndim == 2
            and self.vertices.size > 0
            and not jnp.iscomplexobj(self.vertices),
            "vertices",
            self.vertices,
            "a real array of shape (num_vertices, num_coordinates)",
        )
        _validate.within(-LARGEST, LARGEST, vertices=self.vertices)

    def diameter(self, norm: Norm, num_coordinates: int) -> Scalar:
        """See `Constraint.diameter`: |V|^2 d steps, in the memory of one |V| d."""
        check_diameter(norm, num_coordinates)
        check_coordinates(num_coordinates, self.vertices.shape[1])
        dtype = jnp.asarray(self.vertices).dtype
        dtype = dtype if dtype == jnp.float64 else jnp.float32
        vertices = jnp.asarray(self.vertices).astype(dtype)
        # In units in which no square overflows; the result does not depend on them.
        largest = jax.lax.stop_gradient(jnp.max(jnp.abs(vertices)))
        unit = jnp.where(largest > 0, largest, 1)
        vertices = vertices / unit

        def farthest(vertex: jax.Array) -> jax.Array:
            gaps = jnp.abs(vertices - vertex[None, :])
            return jnp.max(jnp.sum(gaps if norm == "l1" else gaps**2, axis=1))

        farthest_of_all = jnp.max(jax.lax.map(farthest, vertices))
        if norm == "l1":
            return unit * farthest_of_all
        # The root has no derivative at zero, where all vertices are one point.
        is_point = farthest_of_all == 0
        root = jnp.sqrt(jnp.where(is_point, 1, farthest_of_all))
        return unit * jnp.where(is_point, 0, root)

    def num_vertices(self, num_coordinates: int) -> int:
        """See `VertexConstraint.num_vertices`: the rows."""
        check_coordinates(num_coordinates, self.vertices.shape[1])
        return self.vertices.shape[0]

    def vertex_scores(self, gradient: PyTree) -> jax.Array:
        """See `VertexConstraint.vertex_scores`: -vertices g."""
        vector, _ = flatten(gradient, "gradient")
        check_coordinates(vector.size, self.vertices.shape[1])
        vertices = jnp.asarray(self.vertices).astype(vector.dtype)
        # Accelerators otherwise multiply in half precision, far from the true scores.
        return -jnp.matmul(vertices, vector, precision=jax.lax.Precision.HIGHEST)

    def _vertex(self, index, vector):
        check_coordinates(vector.size, self.vertices.shape[1])
        return jnp.asarray(self.vertices)[index].astype(vector.dtype)
