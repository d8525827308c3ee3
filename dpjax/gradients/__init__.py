"""Gradients of single examples, all at once or as a stream, and their robust mean."""

from dpjax.gradients._check_model import check_model
from dpjax.gradients._robust import per_sample_grad, robust_grad, streamed_grad
from dpjax.gradients._users import by_user

__all__ = ["by_user", "check_model", "per_sample_grad", "robust_grad", "streamed_grad"]
