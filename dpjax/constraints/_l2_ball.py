"""The l2 ball."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._rounding import LARGEST, SMALLEST
from dpjax._tree import flatten, like, register
from dpjax._types import PyTree, Scalar
from dpjax.constraints._constraint import Constraint, Norm, check_diameter


@register("radius")
@dataclass(frozen=True)
class L2Ball(Constraint):
    """All x with ||x||_2 <= radius.

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

    radius: Scalar

    def __post_init__(self):
        _validate.within(SMALLEST, LARGEST, radius=self.radius)

    def project(self, params: PyTree) -> PyTree:
        vector, unflatten = flatten(params, "params")
        norm, unit = _norm(vector)
        is_inside = norm <= like(self.radius, vector) / unit
        return unflatten(jnp.where(is_inside, vector, self._along(vector)))

    def contains(self, params: PyTree, tolerance: Scalar = 1e-5) -> jax.Array:
        """See `Constraint.contains`: ||x||_2 <= radius + tolerance."""
        _validate.non_negative(tolerance=tolerance)
        vector, _ = flatten(params, "params")
        limit = like(self.radius, vector) + like(tolerance, vector)
        return jnp.sum(jnp.square(vector / limit)) <= 1

    def diameter(self, norm: Norm, num_coordinates: int) -> Scalar:
        check_diameter(norm, num_coordinates)
        return (2 if norm == "l2" else 2 * math.sqrt(num_coordinates)) * self.radius

    def minimize_linear(self, gradient: PyTree) -> PyTree:
        vector, unflatten = flatten(gradient, "gradient")
        return unflatten(self._along(-vector))

    def _along(self, vector: jax.Array) -> jax.Array:
        """Returns the point of the sphere in the direction of the vector, or zero."""
        norm, unit = _norm(vector)
        return like(self.radius, vector) * (vector / unit / norm)


def _norm(vector: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns ||vector|| in units in which no square overflows, and the unit.

    `optax.projections.projection_l2_ball` squares the entries themselves, so its result
    is zero for float32 parameters, or a radius, above 1e19. Of zero both are 1.
    """
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(vector)))
    unit = jnp.where(largest > 0, largest, 1)
    squares = jnp.sum(jnp.square(vector / unit))
    return jnp.sqrt(jnp.where(squares > 0, squares, 1)), unit
