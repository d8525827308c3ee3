"""Convex sets of parameters: projection, diameter, vertices, linear minimization.

An argument out of its range raises `ValueError`.
"""

from dpjax.constraints._box import Box
from dpjax.constraints._l1_ball import L1Ball
from dpjax.constraints._l2_ball import L2Ball
from dpjax.constraints._nets import grid_net, halton_net
from dpjax.constraints._polytope import Polytope
from dpjax.constraints._simplex import Simplex

__all__ = ["Box", "L1Ball", "L2Ball", "Polytope", "Simplex", "grid_net", "halton_net"]
