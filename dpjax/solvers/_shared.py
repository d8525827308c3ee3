"""What other layers take from solvers, and users do not."""

from dpjax.solvers._curves import hats
from dpjax.solvers._diameter import BESIDE_WEIGHT, WEIGHTED
from dpjax.solvers._histogram import EDGES_SHARE, private_edges
from dpjax.solvers._knots import FINE, knots_of
from dpjax.solvers.linear._constant import missing_share

__all__ = ["BESIDE_WEIGHT", "EDGES_SHARE", "FINE", "WEIGHTED"]
__all__ += ["hats", "knots_of", "missing_share", "private_edges"]
