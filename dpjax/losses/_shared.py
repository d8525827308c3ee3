"""What other layers take from losses, and users do not."""

from dpjax.losses._named import named

__all__ = ["named"]
