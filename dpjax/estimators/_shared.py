"""What other layers take from estimators, and users do not."""

from dpjax.estimators._clipping import clip_to_norm

__all__ = ["clip_to_norm"]
