"""The base classes of convex sets of parameters."""

import abc
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._tree import flatten, like
from dpjax._types import PyTree, Scalar

Norm = Literal["l1", "l2"]


def kept_finite(gradient: jax.Array, largest_norm: Scalar) -> jax.Array:
    """Clips a gradient g so that <v, g> is finite for all ||v||_1 <= largest_norm.

    A score that overflows to -inf for one of two neighboring data sets would exclude
    its vertex there only. Clipping increases no distance of two gradients in any
    coordinate, so their linf distance still bounds the difference of the scores. Scores
    are at most a quarter of the largest float, so that no difference overflows.
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

    Example:
        >>> from dpjax.constraints import L2Ball
        >>> print(L2Ball(1.0).diameter("l2", num_coordinates=3))
        2.0
    """

    def project(self, params: PyTree) -> PyTree:
        """Returns the point of the set nearest to the parameters in l2 norm.

        Args:
            params: pytree of real arrays, all finite.

        Raises:
            ValueError: If params are not real arrays or do not fit the set, or the set
                has no projection in closed form (`Polytope`).
        """
        raise self._has_no("projection")

    def contains(self, params: PyTree, tolerance: Scalar = 1e-5) -> jax.Array:
        """Returns whether the parameters lie in the set, a boolean scalar.

        Args:
            params: pytree of real arrays; the result is False for NaN.
            tolerance: slack of the set's inequalities, in units of the parameters.

        Raises:
            ValueError: If tolerance is negative, params do not fit the set, or the set
                has no test in closed form (`Polytope`).
        """
        raise self._has_no("membership test")

    def _has_no(self, name: str) -> ValueError:
        rule = f"constraint must be a set with a {name} in closed form"
        return ValueError(f"{rule}, got {type(self).__name__}.")

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

    A private Frank-Wolfe step selects an index by `vertex_scores` and moves towards
    `vertex(index, params)`.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.constraints import L1Ball
        >>> print(L1Ball(2.0).vertex_scores(jnp.array([1.0, -3.0])))
        [-2.  6.  2. -6.]
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
    """Refuses a number of coordinates other than that of the set."""
    rule = f"{expected}, the coordinates of the set"
    is_fine = num_coordinates == expected
    _validate.require(is_fine, "num_coordinates", num_coordinates, rule)
