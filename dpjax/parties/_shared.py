"""What other layers take from parties, and users do not."""

from dpjax.parties._quantize import Grid

__all__ = ["Grid"]
