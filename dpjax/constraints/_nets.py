"""Nets: finitely many candidates that cover a set, chosen without any data."""

import math
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from dpjax import _validate
from dpjax._rounding import LARGEST, SMALLEST
from dpjax.constraints._box import Box
from dpjax.constraints._constraint import Constraint

MOST_CANDIDATES = 20_000_000


def grid_net(
    constraint: Constraint, num_coordinates: int, *, radius: float
) -> jax.Array:
    """Returns points of a set such that each point of it has one within a radius.

    The bounding box of the set is divided into cells of sides at most
    2·radius / sqrt(d): ceil(length_j sqrt(d) / (2 radius)) along coordinate j. Their
    centers are projected onto the set, except those farther from it than the radius.

    Every point of the box has a center within sqrt(d)·side / 2 <= radius, and a
    projection onto a convex set increases no distance: so this is a zeta-net for
    zeta = radius.

    Args:
        constraint: a set with a projection, of vectors: `Box`, `L1Ball`, `L2Ball`,
            `Simplex`.
        num_coordinates: d.
        radius: zeta > 0, in l2 norm.

    Returns:
        Shape (num_candidates, d).

    Raises:
        ValueError: If the set has no projection or another number of coordinates,
            radius is not in [1e-20, 1e30], or the grid would have more than 20 million
            cells.

    Example:
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
    # Keep a center that rounding puts just beyond the radius.
    is_near = jnp.linalg.norm(net - centres, axis=1) <= radius * (1 + 1e-5)
    return net[is_near]


def halton_net(box: Box, num_coordinates: int, *, num_candidates: int) -> jax.Array:
    """Returns the first points of a Halton sequence, stretched over a box.

    They spread evenly for any number of candidates (a grid needs counts^d), and are the
    same in every call. No covering radius is claimed. Above ten coordinates the points
    lie on lines, and every net is sparse.

    Args:
        box: the set, of vectors.
        num_coordinates: d.
        num_candidates: from 1 to 20 million.

    Returns:
        Shape (num_candidates, d).

    Raises:
        ValueError: If box is not a `Box` or has another number of coordinates, or
            num_candidates is out of range.

    Example:
        >>> print(halton_net(Box(0.0, 3.0), 2, num_candidates=3))
        [[0.   0.  ]
         [1.5  1.  ]
         [0.75 2.  ]]

    Reference:
        Halton (1960), "On the efficiency of certain quasi-random sequences".
    """
    _validate.require(isinstance(box, Box), "box", box, "a Box")
    _validate.count(num_candidates=num_candidates)
    rule = f"at most {MOST_CANDIDATES:,}"
    is_fine = num_candidates <= MOST_CANDIDATES
    _validate.require(is_fine, "num_candidates", num_candidates, rule)
    lower, upper = _bounding_box(box, num_coordinates)
    sequence = scipy.stats.qmc.Halton(num_coordinates, scramble=False)
    points = lower + (upper - lower) * sequence.random(num_candidates)
    return jnp.asarray(points, jnp.float32)


def _bounding_box(
    constraint: Constraint, num_coordinates: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the smallest and the largest value of each coordinate, in float64."""
    constraint.diameter("l2", num_coordinates)  # checks the number of coordinates
    axes = jnp.eye(num_coordinates)
    lower, upper = (
        np.asarray(jnp.diagonal(jax.vmap(constraint.minimize_linear)(x)), np.float64)
        for x in (axes, -axes)
    )
    return lower, upper
