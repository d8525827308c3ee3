"""Per-example gradients as factors, for parameters in products and look-ups.

`_uses` reads from a loss's program how it uses each parameter, `_products` computes the
factors of products, their norms and sums, and `_grad` computes gradients as factors.
"""

from dpjax.gradients.factored._grad import factored_grad as factored_grad
from dpjax.gradients.factored._uses import uses as uses
