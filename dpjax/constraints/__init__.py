"""Convex sets of parameters: projection, diameter, vertices, linear minimization.

An argument out of its range raises `ValueError`.
"""

from dpjax.constraints._constraint import Box, L1Ball, L2Ball, Simplex
from dpjax.constraints._polytope import Polytope, grid_net

__all__ = ["Box", "L1Ball", "L2Ball", "Polytope", "Simplex", "grid_net"]
