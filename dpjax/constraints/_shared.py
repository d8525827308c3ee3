"""What other layers take from constraints, and users do not."""

from dpjax.constraints._constraint import VertexConstraint

__all__ = ["VertexConstraint"]
