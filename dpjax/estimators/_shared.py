"""Names of estimators for other layers of dpjax, not for users."""

from dpjax.estimators._clipping import clip_to_norm

__all__ = ["clip_to_norm"]
