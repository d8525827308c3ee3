"""Names of constraints for other layers of dpjax, not for users."""

from dpjax.constraints._constraint import VertexConstraint

__all__ = ["VertexConstraint"]
