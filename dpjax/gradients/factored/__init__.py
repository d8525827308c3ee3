"""Gradients of single examples as factors, where a loss multiplies or looks up.

`_reader` reads a loss's program for how it uses each parameter (`_uses`), and `_grad`
makes gradients in that form.
"""

from dpjax.gradients.factored._grad import factored_grad
from dpjax.gradients.factored._reader import uses

__all__ = ["factored_grad", "uses"]
