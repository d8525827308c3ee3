"""Convex sets of parameters: projection, diameter, vertices, linear minimization.

An argument out of its range raises `ValueError`, and so do parameters or gradients that
are not real arrays or do not fit the set, and another number of coordinates than its.
"""

from dpjax.constraints._constraint import Box, L1Ball, L2Ball, Simplex
from dpjax.constraints._polytope import Polytope, grid_net, halton_net

__all__ = ["Box", "L1Ball", "L2Ball", "Polytope", "Simplex", "grid_net", "halton_net"]
