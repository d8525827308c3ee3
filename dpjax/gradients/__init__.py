"""Per-sample gradients, and their robust mean as a stream."""

from dpjax.gradients._factored import Explanation, LeafRoute, explain
from dpjax.gradients._per_sample import per_sample_grad
from dpjax.gradients._robust import robust_grad, streamed_grad

__all__ = [
    "Explanation",
    "LeafRoute",
    "explain",
    "per_sample_grad",
    "robust_grad",
    "streamed_grad",
]
