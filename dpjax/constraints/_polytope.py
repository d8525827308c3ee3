"""A polytope given by its vertices."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from dpjax import _validate
from dpjax._rounding import LARGEST, ROUNDOFF
from dpjax._tree import flatten, register
from dpjax._types import PyTree, Scalar
from dpjax.constraints._constraint import (
    Norm,
    VertexConstraint,
    check_coordinates,
    check_diameter,
    kept_finite,
)


@register("vertices")
@dataclass(frozen=True)
class Polytope(VertexConstraint):
    """The convex hull of the rows of a matrix.

    The diameter is the largest distance of two rows, because a norm is convex. Rows may
    lie inside the hull, or be equal. There is no projection in closed form: `project`
    raises, and so does `contains` for traced values.

    Attributes:
        vertices: shape (num_vertices, d), with coordinates in the order of
            `jax.flatten_util.ravel_pytree`; a pytree leaf.

    Raises:
        ValueError: If vertices is not a real matrix with at least one entry, and all
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

    def contains(self, params: PyTree, tolerance: Scalar = 1e-5) -> jax.Array:
        """See `Constraint.contains`: l2 distance to the hull, by least squares."""
        _validate.non_negative(tolerance=tolerance)
        numbers = [*jax.tree.leaves(params), self.vertices]
        if not all(map(_validate.is_concrete, numbers)):
            return super().contains(params, tolerance)
        vector, _ = flatten(params, "params")
        check_coordinates(vector.size, self.vertices.shape[1])
        vertices, point = (np.asarray(x, np.float64) for x in (self.vertices, vector))
        # A convex combination has weights >= 0 that sum to one: a row of ones, weighted
        # as the largest entry, enforces the sum.
        unit = max(np.abs(vertices).max(), 1e-300)
        rows = np.vstack([vertices.T / unit, np.ones(len(vertices))])
        _, distance = scipy.optimize.nnls(rows, np.append(point / unit, 1.0))
        return jnp.asarray(distance * unit <= tolerance)

    def diameter(self, norm: Norm, num_coordinates: int) -> Scalar:
        """See `Constraint.diameter`: |V|^2 d steps, in the memory of one |V| d."""
        check_diameter(norm, num_coordinates)
        check_coordinates(num_coordinates, self.vertices.shape[1])
        dtype = jnp.asarray(self.vertices).dtype
        dtype = dtype if dtype == jnp.float64 else jnp.float32
        vertices = jnp.asarray(self.vertices).astype(dtype)
        # In units in which no square overflows: a power of two, because rounded
        # quotients of vertices far from zero would lose their distance.
        largest = jax.lax.stop_gradient(jnp.max(jnp.abs(vertices)))
        unit = jnp.ldexp(jnp.ones_like(largest), jnp.frexp(largest)[1])
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

    def score_error(self, num_coordinates: int) -> Scalar:
        """See `VertexConstraint.score_error`: k roundings of a sum of k terms.

        In any order, the error of k products is at most k 2^-24 of the sum of their
        magnitudes (Higham 2002, eq. 3.4), without products by zero. Twice that is
        stated, for accelerators that compose float32 products of shorter ones.
        """
        check_coordinates(num_coordinates, self.vertices.shape[1])
        sizes = jnp.abs(jnp.asarray(self.vertices).astype(jnp.float32))
        num_terms = jnp.sum((sizes > 0).astype(jnp.float32), axis=1)
        return 2 * ROUNDOFF * jnp.max(num_terms * jnp.sum(sizes, axis=1))

    def vertex_scores(self, gradient: PyTree) -> jax.Array:
        """See `VertexConstraint.vertex_scores`: -vertices g."""
        vector, _ = flatten(gradient, "gradient")
        check_coordinates(vector.size, self.vertices.shape[1])
        vertices = jnp.asarray(self.vertices).astype(vector.dtype)
        vector = kept_finite(vector, jnp.max(jnp.sum(jnp.abs(vertices), axis=1)))
        # The default on accelerators is half precision, with large errors of scores.
        return -jnp.matmul(vertices, vector, precision=jax.lax.Precision.HIGHEST)

    def _vertex(self, index, vector):
        check_coordinates(vector.size, self.vertices.shape[1])
        return jnp.asarray(self.vertices)[index].astype(vector.dtype)
