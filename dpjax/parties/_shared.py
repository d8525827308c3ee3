"""Names of parties for other layers of dpjax, not for users."""

from dpjax.parties._quantize import Grid

__all__ = ["Grid"]
