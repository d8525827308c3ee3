"""Gradients of single examples as factors, where a loss multiplies or looks up.

`_grad` reads a loss's program for how it uses each parameter, and makes gradients in
that form. What each use needs of an example, and what gradient it gives, is in a file
of its own: `_products`, `_convolutions`, `_lookups`, and layers with `_rules`.
"""

from dpjax.gradients.factored._grad import factored_grad, uses

__all__ = ["factored_grad", "uses"]
