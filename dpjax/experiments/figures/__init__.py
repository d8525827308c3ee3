"""The papers' figures, as data."""

from dpjax.experiments.figures._catalogue import panels
from dpjax.experiments.figures._draw import draw, read
from dpjax.experiments.figures._panel import Panel, Setting, Size

__all__ = ["Panel", "Setting", "Size", "draw", "panels", "read"]
