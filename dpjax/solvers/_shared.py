"""What other layers take from solvers, and users do not."""

from dpjax.solvers._additive_model import knots_of
from dpjax.solvers._histogram import EDGES_SHARE, private_edges

__all__ = ["EDGES_SHARE", "knots_of", "private_edges"]
