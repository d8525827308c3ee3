"""What other layers take from solvers, and users do not."""

from dpjax.solvers._additive_model import knots_of

__all__ = ["knots_of"]
