"""Per-sample gradients, and their robust mean as a stream."""

from dpjax.gradients._per_sample import per_sample_grad
from dpjax.gradients._robust import robust_grad, streamed_grad
from dpjax.gradients._users import by_user
from dpjax.gradients.factored import explain

__all__ = ["by_user", "explain", "per_sample_grad", "robust_grad", "streamed_grad"]
