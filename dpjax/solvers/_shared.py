"""What other layers take from solvers, and users do not."""

from dpjax.solvers._diameter import SetClipping
from dpjax.solvers._histogram import EDGES_SHARE, private_edges
from dpjax.solvers._knots import knots_of

__all__ = ["EDGES_SHARE", "SetClipping", "knots_of", "private_edges"]
