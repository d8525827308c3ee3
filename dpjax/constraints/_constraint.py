"""Convex sets of parameters, and those with a projection in closed form."""

import abc
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import _validate
from dpjax._rounding import LARGEST, ROUNDOFF, SMALLEST
from dpjax._tree import flatten, like, register
from dpjax._types import PyTree, Scalar

Norm = Literal["l1", "l2"]


def kept_finite(gradient: jax.Array, largest_norm: Scalar) -> jax.Array:
    """Returns gradient g clipped so that <v, g> is finite for ||v||_1 <= largest_norm.

    A score that overflows to -inf for one of two neighboring data sets would exclude
    its vertex there only. Clipping increases no distance of gradients in any
    coordinate, so their linf distance still bounds the difference of scores. Scores are
    at most a quarter of the largest float, so that no difference overflows.
    """
    limit = jnp.finfo(gradient.dtype).max / 4 / like(largest_norm, gradient)
    return jnp.clip(gradient, -limit, limit)


class Constraint(abc.ABC):
    """A compact convex set of parameters; a pytree of parameters is one vector.

    A subclass is a frozen dataclass and a pytree with its radius or bounds as leaves: a
    sweep over radii compiles once, and `vmap` and `grad` over a radius work.

    Parameters and gradients must be finite and real, and have the shapes of the set.
    Results have their structure and dtypes, float32 for integers. In half precision the
    result is rounded last, so a projection may lie outside the set by that rounding.
    """

    def project(self, params: PyTree) -> PyTree:
        """Returns the point of the set nearest to the parameters in l2 norm.

        Args:
            params: pytree of real arrays, all finite.

        Raises:
            ValueError: If params are not real arrays or do not fit the set, or the set
                has no projection in closed form (`Polytope`).
        """
        rule = "constraint must be a set with a projection, as L2Ball has"
        raise ValueError(f"{rule}, got {type(self).__name__}.")

    @abc.abstractmethod
    def contains(self, params: PyTree, tolerance: Scalar = 1e-5) -> jax.Array:
        """Returns whether the parameters lie in the set, a boolean scalar.

        Args:
            params: pytree of real arrays; the result is False for NaN.
            tolerance: slack of the set's inequalities, in units of the parameters.

        Raises:
            ValueError: If tolerance < 0, params do not fit, or are traced (`Polytope`).
        """

    @abc.abstractmethod
    def diameter(self, norm: Norm, num_coordinates: int) -> Scalar:
        """Returns the largest distance max ||v - w|| of two points of the set.

        If a gradient g becomes g', the changes of the linear score -<v, g> at two
        points v differ by at most diameter("l1")·||g - g'||_inf. With the linf
        sensitivity of g this bounds the sensitivity range of a selection mechanism.

        Args:
            norm: "l1" or "l2".
            num_coordinates: number of entries of all leaves of the parameters together.

        Raises:
            ValueError: If norm is neither "l1" nor "l2", or the set has another number
                of coordinates.

        Reference:
            Hu et al. (2022), Algorithm 1, which has max ||v||_1 instead. The diameter
            does not grow with the distance of the set from zero.
        """

    @abc.abstractmethod
    def minimize_linear(self, gradient: PyTree) -> PyTree:
        """Returns a point v of the set with the smallest <v, gradient>: NOT private.

        Raises:
            ValueError: If gradient is no real arrays or does not fit the set.
        """


class VertexConstraint(Constraint):
    """The convex hull of a few vertices, each with a score.

    A private Frank-Wolfe step selects an index by score, and moves towards `vertex`.
    """

    @abc.abstractmethod
    def num_vertices(self, num_coordinates: int) -> int:
        """Returns the number of vertices for parameters of num_coordinates entries."""

    @abc.abstractmethod
    def score_error(self, num_coordinates: int) -> Scalar:
        """Returns the float32 rounding error of a score, per unit of max |gradient|.

        It bounds |computed score - exact score| / max |gradient| for every vertex.

        Raises:
            ValueError: If the set has another number of coordinates.
        """

    @abc.abstractmethod
    def vertex_scores(self, gradient: PyTree) -> jax.Array:
        """Returns the score -<v, gradient> of every vertex v; higher is better.

        The shape is (num_vertices,), the dtype float64 if a leaf has it, else float32.
        Gradients are clipped so that no score exceeds a quarter of the largest float.

        Raises:
            ValueError: If gradient is no real arrays or does not fit the set.
        """

    def vertex(self, index: Scalar, like: PyTree) -> PyTree:
        """Returns the vertex with an index in the order of `vertex_scores`.

        Args:
            index: integer from 0 to num_vertices - 1; may be traced.
            like: pytree shaped as the parameters; its values do not matter.

        Raises:
            ValueError: If index is out of range, or like does not fit the set.
        """
        vector, unflatten = flatten(like, "like")
        if _validate.is_concrete(index):
            number, last = np.asarray(index), self.num_vertices(vector.size) - 1
            is_integer = number.ndim == 0 and np.issubdtype(number.dtype, np.integer)
            is_fine = bool(is_integer and 0 <= number <= last)
            _validate.require(is_fine, "index", index, f"an integer from 0 to {last}")
        return unflatten(self._vertex(jnp.asarray(index), vector))

    def minimize_linear(self, gradient: PyTree) -> PyTree:
        """Returns the first vertex with the highest score: NOT private."""
        return self.vertex(jnp.argmax(self.vertex_scores(gradient)), gradient)

    @abc.abstractmethod
    def _vertex(self, index: jax.Array, vector: jax.Array) -> jax.Array:
        """Returns the vertex of an index, in the shape and dtype of the vector."""


def check_diameter(norm: str, num_coordinates: int) -> None:
    """Refuses arguments of `diameter` that are out of their ranges."""
    _validate.require(norm in ("l1", "l2"), "norm", norm, "l1 or l2")
    _validate.count(num_coordinates=num_coordinates)


def check_coordinates(num_coordinates: int, expected: int) -> None:
    """Refuses a number of coordinates that differs from the set's, `expected`."""
    rule = f"{expected}, the number of coordinates of the set"
    is_fine = num_coordinates == expected
    _validate.require(is_fine, "num_coordinates", num_coordinates, rule)


@register("lower", "upper")
@dataclass(frozen=True)
class Box(Constraint):
    """The set of all x with lower <= x <= upper.

    The projection clips. The minimum of <v, g> is at lower if g > 0, else at upper. The
    diameter is the norm of upper - lower. The box has 2^d vertices, too many to score.

    Attributes:
        lower: one number for all coordinates, or a pytree of arrays of the shapes of
            the parameters; its arrays are pytree leaves.
        upper: of the same structure and shapes as lower, nowhere below lower.

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
        """Requires bounds of one structure within ±1e30, with lower <= upper."""
        shapes, rule = _shapes(self.lower), "a number or a pytree of arrays"
        _validate.require(bool(shapes[1]), "lower", self.lower, rule)
        is_fine = _shapes(self.upper) == shapes
        _validate.require(is_fine, "upper", self.upper, "a pytree shaped as lower")
        pairs = zip(*map(jax.tree.leaves, (self.lower, self.upper)), strict=True)
        for low, high in pairs:
            _validate.within(-LARGEST, LARGEST, lower=low, upper=high)
            if _validate.is_concrete(low) and _validate.is_concrete(high):
                is_fine = bool(np.all(np.asarray(low) <= np.asarray(high)))
                rule = f"at least lower, {low!r}, in every entry"
                _validate.require(is_fine, "upper", high, rule)

    def project(self, params: PyTree) -> PyTree:
        vector, unflatten, *bounds = self._flat(params, "params")
        return unflatten(optax.projections.projection_box(vector, *bounds))

    def contains(self, params: PyTree, tolerance: Scalar = 1e-5) -> jax.Array:
        """Returns whether lower - tolerance <= x <= upper + tolerance."""
        _validate.non_negative(tolerance=tolerance)
        vector, _, lower, upper = self._flat(params, "params")
        slack = like(tolerance, vector)
        return jnp.all((vector >= lower - slack) & (vector <= upper + slack))

    def diameter(self, norm: Norm, num_coordinates: int) -> Scalar:
        check_diameter(norm, num_coordinates)
        if self._is_uniform():
            factor = num_coordinates if norm == "l1" else math.sqrt(num_coordinates)
            return factor * (self.upper - self.lower)
        lower, upper = (flatten(x, "bound")[0] for x in (self.lower, self.upper))
        check_coordinates(num_coordinates, lower.size)
        return jnp.linalg.norm(upper - lower, ord=1 if norm == "l1" else 2)

    def minimize_linear(self, gradient: PyTree) -> PyTree:
        vector, unflatten, lower, upper = self._flat(gradient, "gradient")
        return unflatten(jnp.where(vector > 0, lower, upper))

    def _is_uniform(self) -> bool:
        structure, shapes = _shapes(self.lower)
        return structure.num_nodes == 1 and shapes == [()]

    def _flat(self, tree: PyTree, name: str) -> Any:
        """Returns a tree as a vector (d,), the map back, and both bounds as vectors."""
        vector, unflatten = flatten(tree, name)
        if not self._is_uniform():
            rule = f"of the structure and shapes of the bounds, {_shapes(self.lower)}"
            is_fine = _shapes(tree) == _shapes(self.lower)
            _validate.require(is_fine, name, _shapes(tree), rule)
        bounds = [flatten(x, "bound")[0] for x in (self.lower, self.upper)]
        bounds = [like(jnp.broadcast_to(x, vector.shape), vector) for x in bounds]
        return vector, unflatten, *bounds


def _shapes(tree: PyTree) -> tuple[Any, list[tuple[int, ...]]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [np.shape(leaf) for leaf in leaves]


@dataclass(frozen=True)
class RadiusConstraint(Constraint):
    """A set in proportion to its radius, which is a pytree leaf."""

    radius: Scalar

    def __post_init__(self):
        _validate.within(SMALLEST, LARGEST, radius=self.radius)

    def contains(self, params: PyTree, tolerance: Scalar = 1e-5) -> jax.Array:
        """Returns whether the set's inequalities hold, up to the tolerance."""
        _validate.non_negative(tolerance=tolerance)
        vector, _ = flatten(params, "params")
        return self._holds(vector, like(self.radius, vector), like(tolerance, vector))

    @abc.abstractmethod
    def _holds(self, x: jax.Array, radius: jax.Array, slack: jax.Array) -> jax.Array:
        """Returns whether a vector is in the set, up to the slack."""


@register("radius")
@dataclass(frozen=True)
class L2Ball(RadiusConstraint):
    """The set of all x with ||x||_2 <= radius.

    The projection is x min(1, radius / ||x||). The minimum of <v, g> is at
    -radius g / ||g||, or at zero if g is zero. The diameter is 2 radius in l2 and
    2 radius sqrt(d) in l1.

    Attributes:
        radius: r in [1e-20, 1e30], in units of the parameters; a pytree leaf.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.constraints import L2Ball
        >>> ball = L2Ball(1.0)
        >>> print(ball.project(jnp.array([3.0, -4.0])).round(3))
        [ 0.6 -0.8]
        >>> print(ball.minimize_linear(jnp.array([3.0, -4.0])).round(3))
        [-0.6  0.8]
    """

    def project(self, params: PyTree) -> PyTree:
        vector, unflatten = flatten(params, "params")
        norm, unit = _norm(vector)
        is_inside = norm <= like(self.radius, vector) / unit
        return unflatten(jnp.where(is_inside, vector, self._along(vector)))

    def _holds(self, x: jax.Array, radius: jax.Array, slack: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(x / (radius + slack))) <= 1

    def diameter(self, norm: Norm, num_coordinates: int) -> Scalar:
        check_diameter(norm, num_coordinates)
        return (2 if norm == "l2" else 2 * math.sqrt(num_coordinates)) * self.radius

    def minimize_linear(self, gradient: PyTree) -> PyTree:
        vector, unflatten = flatten(gradient, "gradient")
        return unflatten(self._along(-vector))

    def _along(self, vector: jax.Array) -> jax.Array:
        """Returns the vector scaled to the norm `radius`; zero remains zero."""
        norm, unit = _norm(vector)
        return like(self.radius, vector) * (vector / unit / norm)


def _norm(vector: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns ||vector|| in a unit in which no square overflows, and the unit."""
    # Both are 1 for a zero vector. optax squares entries, and gives zero above 1e19.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(vector)))
    unit = jnp.where(largest > 0, largest, 1)
    squares = jnp.sum(jnp.square(vector / unit))
    return jnp.sqrt(jnp.where(squares > 0, squares, 1)), unit


@dataclass(frozen=True)
class AxisConstraint(RadiusConstraint, VertexConstraint):
    """The convex hull of radius e_j, and of -radius e_j if num_signs is 2."""

    num_signs: ClassVar[int]

    def num_vertices(self, num_coordinates: int) -> int:
        _validate.count(num_coordinates=num_coordinates)
        return self.num_signs * num_coordinates

    def score_error(self, num_coordinates: int) -> Scalar:
        """Returns 2^-24 radius, because a score is a single product."""
        _validate.count(num_coordinates=num_coordinates)
        return ROUNDOFF * self.radius

    def vertex_scores(self, gradient: PyTree) -> jax.Array:
        vector, _ = flatten(gradient, "gradient")
        scores = -like(self.radius, vector) * kept_finite(vector, self.radius)
        return scores if self.num_signs == 1 else jnp.concatenate([scores, -scores])

    def _vertex(self, index, vector):
        radius = like(self.radius, vector)
        value = jnp.where(index < vector.size, radius, -radius)
        return jnp.zeros_like(vector).at[index % vector.size].set(value)


@register("radius")
@dataclass(frozen=True)
class L1Ball(AxisConstraint):
    """The set of all x with ||x||_1 <= radius.

    The projection keeps x inside the ball; outside it is sign(x) max(|x| - tau, 0),
    with tau such that its norm is radius. Vertex j < d is radius e_j, with score
    -radius g_j, and vertex d + j is -radius e_j, with score radius g_j; no matrix of
    vertices is stored. The diameter is 2 radius in both norms.

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

    num_signs: ClassVar[int] = 2

    def project(self, params: PyTree) -> PyTree:
        vector, unflatten = flatten(params, "params")
        radius, size = like(self.radius, vector), jnp.abs(vector)
        on_sphere = jnp.sign(vector) * _project_simplex(size, radius)
        return unflatten(jnp.where(jnp.sum(size) <= radius, vector, on_sphere))

    def _holds(self, x: jax.Array, radius: jax.Array, slack: jax.Array) -> jax.Array:
        return jnp.sum(jnp.abs(x)) <= radius + slack

    def diameter(self, norm: Norm, num_coordinates: int) -> Scalar:
        check_diameter(norm, num_coordinates)
        return 2 * self.radius


@register("radius")
@dataclass(frozen=True)
class Simplex(AxisConstraint):
    """The set of all x >= 0 with sum radius: for radius 1, the probability vectors.

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

    num_signs: ClassVar[int] = 1

    def project(self, params: PyTree) -> PyTree:
        vector, unflatten = flatten(params, "params")
        return unflatten(_project_simplex(vector, like(self.radius, vector)))

    def _holds(self, x: jax.Array, radius: jax.Array, slack: jax.Array) -> jax.Array:
        return jnp.all(x >= -slack) & (jnp.abs(jnp.sum(x) - radius) <= slack)

    def diameter(self, norm: Norm, num_coordinates: int) -> Scalar:
        check_diameter(norm, num_coordinates)
        if num_coordinates == 1:
            return 0 * self.radius
        return (2 if norm == "l1" else math.sqrt(2)) * self.radius


@jax.jit
def _project_simplex(vector: jax.Array, radius: jax.Array) -> jax.Array:
    """Returns the projection onto {x >= 0, sum x = radius}: max(vector - tau, 0).

    See Held, Wolfe and Crowder (1974); Duchi et al. (2008), Figure 1. The function of
    optax mixes integers and floats, and loses the radius in sums of large entries.
    """
    # Adding a constant to all entries changes no projection. With the largest entry at
    # zero, -1 <= tau < 0 in units of the radius, so smaller entries are clipped to -1.
    shifted = vector - jax.lax.stop_gradient(jnp.max(vector))
    units = jnp.maximum(shifted, -radius) / radius
    sums = jnp.cumsum(jnp.sort(units, descending=True))
    counts = jnp.arange(1, vector.size + 1).astype(vector.dtype)
    # Every count gives a lower bound of tau, and the support's size gives tau itself.
    tau = jnp.max((sums - 1) / counts)

    def newton_step(above):  # returns the increase of tau that makes the sum 1
        support = jnp.maximum(jnp.sum((above > 0).astype(above.dtype)), 1)
        return (jnp.sum(jax.nn.relu(above)) - 1) / support

    # Two Newton steps remove the rounding errors of long sums. Only the last step is
    # differentiated: it has the derivative of tau, without differentiating the sort.
    tau = jax.lax.stop_gradient(tau + newton_step(units - tau))
    above = units - tau
    return radius * jax.nn.relu(above - newton_step(above))
