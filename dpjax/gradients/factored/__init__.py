"""Gradients of single examples as factors, where a loss multiplies or looks up.

`_uses` reads a loss's program for how it uses each parameter, `_products` has what is
multiplied, its norms and its sums, and `_grad` makes gradients in that form.
"""

from dpjax.gradients.factored._grad import factored_grad
from dpjax.gradients.factored._uses import uses

__all__ = ["factored_grad", "uses"]
