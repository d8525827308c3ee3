"""Sets given by points: a polytope by its vertices, and a net, chosen without data."""

import math
from dataclasses import dataclass
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from dpjax import _validate
from dpjax._rounding import LARGEST, ROUNDOFF, SMALLEST
from dpjax._tree import flatten, register
from dpjax._types import PyTree, Scalar
from dpjax.constraints._constraint import (
    Constraint,
    Norm,
    VertexConstraint,
    check_coordinates,
    check_diameter,
    kept_finite,
)

MOST_CANDIDATES = 20_000_000


@register("vertices")
@dataclass(frozen=True)
class Polytope(VertexConstraint):
    """The convex hull of the rows of a matrix.

    The diameter is the largest distance of two rows, because a norm is convex. Rows may
    lie inside the hull, or be equal. There is no projection in closed form: `project`
    raises `ValueError`, and so does `contains` for traced values.

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
        x, rule = self.vertices, "a real array of shape (num_vertices, num_coordinates)"
        is_fine = isinstance(x, np.ndarray | jax.Array) and x.ndim == 2 and x.size > 0
        is_fine = is_fine and not jnp.iscomplexobj(x)
        _validate.require(is_fine, "vertices", x, rule)
        _validate.within(-LARGEST, LARGEST, vertices=x)

    def contains(self, params: PyTree, tolerance: Scalar = 1e-5) -> jax.Array:
        """Returns whether the l2 distance to the hull is at most the tolerance."""
        _validate.non_negative(tolerance=tolerance)
        numbers = [*jax.tree.leaves(params), self.vertices]
        rule = "concrete for a polytope: call contains outside of jit, vmap and grad"
        is_fine = all(map(_validate.is_concrete, numbers))
        _validate.require(is_fine, "params", "traced values", rule)
        vector, _ = flatten(params, "params")
        check_coordinates(vector.size, self.vertices.shape[1])
        vertices, point = (np.asarray(x, np.float64) for x in (self.vertices, vector))
        # Non-negative least squares finds the nearest convex combination. A row of
        # ones, weighted as the largest entry, makes the weights sum to one.
        unit = max(np.abs(vertices).max(), 1e-300)
        rows = np.vstack([vertices.T / unit, np.ones(len(vertices))])
        _, distance = scipy.optimize.nnls(rows, np.append(point / unit, 1.0))
        return jnp.asarray(distance * unit <= tolerance)

    def diameter(self, norm: Norm, num_coordinates: int) -> Scalar:
        """Returns the largest distance of two vertices, and so of any two points."""
        check_diameter(norm, num_coordinates)
        check_coordinates(num_coordinates, self.vertices.shape[1])
        dtype = jnp.asarray(self.vertices).dtype
        dtype = dtype if dtype == jnp.float64 else jnp.float32
        vertices = jnp.asarray(self.vertices).astype(dtype)
        # The unit, in which no square overflows, is a power of two, because
        # rounded quotients of vertices far from zero would lose their distance.
        largest = jax.lax.stop_gradient(jnp.max(jnp.abs(vertices)))
        unit = jnp.ldexp(jnp.ones_like(largest), jnp.frexp(largest)[1])
        vertices = vertices / unit

        def farthest(vertex: jax.Array) -> jax.Array:
            gaps = jnp.abs(vertices - vertex[None, :])
            return jnp.max(jnp.sum(gaps if norm == "l1" else gaps**2, axis=1))

        farthest_of_all = jnp.max(jax.lax.map(farthest, vertices))
        if norm == "l1":
            return unit * farthest_of_all
        # The root has no derivative at zero, where all vertices coincide.
        is_point = farthest_of_all == 0
        root = jnp.sqrt(jnp.where(is_point, 1, farthest_of_all))
        return unit * jnp.where(is_point, 0, root)

    def num_vertices(self, num_coordinates: int) -> int:
        check_coordinates(num_coordinates, self.vertices.shape[1])
        return self.vertices.shape[0]

    def score_error(self, num_coordinates: int) -> Scalar:
        """Returns a bound on the rounding error of a score, per unit of max |gradient|.

        A sum of k products, in any order, errs by k 2^-24 times the sum of magnitudes,
        if k counts nonzero entries (Higham 2002, eq. 3.4). It is doubled for low
        precision of accelerators. `frank_wolfe` adds it to the sensitivity of scores.
        """
        check_coordinates(num_coordinates, self.vertices.shape[1])
        sizes = jnp.abs(jnp.asarray(self.vertices).astype(jnp.float32))
        num_terms = jnp.sum((sizes > 0).astype(jnp.float32), axis=1)
        return 2 * ROUNDOFF * jnp.max(num_terms * jnp.sum(sizes, axis=1))

    def vertex_scores(self, gradient: PyTree) -> jax.Array:
        vector, _ = flatten(gradient, "gradient")
        check_coordinates(vector.size, self.vertices.shape[1])
        vertices = jnp.asarray(self.vertices).astype(vector.dtype)
        vector = kept_finite(vector, jnp.max(jnp.sum(jnp.abs(vertices), axis=1)))
        # Errors in the default precision of accelerators would exceed `score_error`.
        return -jnp.matmul(vertices, vector, precision=jax.lax.Precision.HIGHEST)

    def _vertex(self, index, vector):
        check_coordinates(vector.size, self.vertices.shape[1])
        return jnp.asarray(self.vertices)[index].astype(vector.dtype)


def grid_net(
    constraint: Constraint, num_coordinates: int, *, radius: float
) -> jax.Array:
    """Returns a zeta-net of a set: each point of the set is near one of its points.

    Every point of the set is within zeta = radius of a returned point. The bounding box
    of the set is divided into cells with sides at most 2·radius / sqrt(d). Centers
    within the radius of the set are projected onto the set. The net covers the set
    because every point of the box is within sqrt(d)·side / 2 <= radius of a center, and
    a projection increases no distance.

    Args:
        constraint: a set of vectors with a projection: `Box`, `L1Ball`, `L2Ball` or
            `Simplex`.
        num_coordinates: d.
        radius: zeta > 0, in l2 norm.

    Returns:
        The points, shape (num_candidates, d).

    Raises:
        ValueError: If the set has no projection or another number of coordinates,
            radius is not in [1e-20, 1e30], or the grid would have more than 20 million
            cells.

    Example:
        >>> from dpjax.constraints import Box
        >>> print(grid_net(Box(0.0, 1.0), 2, radius=0.36))
        [[0.25 0.25]
         [0.25 0.75]
         [0.75 0.25]
         [0.75 0.75]]

    Reference:
        Wang, Xu (2022), Definition 4 and Lemma 2.
    """
    _validate.within(SMALLEST, LARGEST, radius=radius)
    lower, upper = _bounding_box(constraint, num_coordinates)
    side = 2 * radius / math.sqrt(num_coordinates)
    counts = [max(1, math.ceil(length / side)) for length in upper - lower]
    num_cells = math.prod(counts)
    rule = f"larger: {Decimal(num_cells):.3g} cells are more than {MOST_CANDIDATES:,}"
    _validate.require(num_cells <= MOST_CANDIDATES, "radius", radius, rule)
    cells = np.arange(num_cells)
    centres = np.empty((num_cells, num_coordinates), np.float32)
    for j in reversed(range(num_coordinates)):
        width = (upper[j] - lower[j]) / counts[j]
        cells, place = np.divmod(cells, counts[j])
        centres[:, j] = lower[j] + (place + 0.5) * width
    net = jax.vmap(constraint.project)(jnp.asarray(centres))
    # The factor keeps centers that rounding puts just beyond the radius.
    is_near = jnp.linalg.norm(net - centres, axis=1) <= radius * (1 + 1e-5)
    return net[is_near]


def _bounding_box(
    constraint: Constraint, num_coordinates: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ends, (d,) each, of the smallest box around a set, for its net."""
    constraint.diameter("l2", num_coordinates)  # checks the number of coordinates
    axes = jnp.eye(num_coordinates)
    lower, upper = (
        np.asarray(jnp.diagonal(jax.vmap(constraint.minimize_linear)(x)), np.float64)
        for x in (axes, -axes)
    )
    return lower, upper
