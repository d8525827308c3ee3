"""The papers' figures: their panels as data, and what runs and draws them."""

from dpjax.figures._catalogue import REPEATS, figures, panels
from dpjax.figures._draw import draw, read
from dpjax.figures._panel import Panel, Setting, Size
from dpjax.figures._run import CELLS, run_panel

__all__ = [
    "CELLS",
    "REPEATS",
    "Panel",
    "Setting",
    "Size",
    "draw",
    "figures",
    "panels",
    "read",
    "run_panel",
]
