"""Gradients of single examples as factors, where a loss multiplies or looks up once.

`_uses` reads a loss's program for how it uses each parameter, `_grad` makes gradients
in that form, and `_explain` tells a user which form, and why.
"""

from dpjax.gradients.factored._explain import Explanation, LeafRoute, explain
from dpjax.gradients.factored._grad import factored_grad

__all__ = ["Explanation", "LeafRoute", "explain", "factored_grad"]
