"""Convex sets of parameters: projection, diameter, vertices, linear minimization.

An argument out of its range raises `ValueError`, and so do parameters and gradients
that are not real arrays or do not fit the set, and a wrong number of coordinates.
"""

from dpjax.constraints._constraint import Box, L1Ball, L2Ball, Simplex
from dpjax.constraints._polytope import Polytope, grid_net, halton_net

__all__ = ["Box", "L1Ball", "L2Ball", "Polytope", "Simplex", "grid_net", "halton_net"]
