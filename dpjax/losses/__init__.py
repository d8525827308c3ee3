"""Losses of a linear predictor, per example: `loss_fn(params, example) -> scalar`.

`params` is the weight vector w, shape (d,), and `example` is the pair (x, y) of a
feature vector, shape (d,), and a scalar target; a column of ones among the features
gives an intercept. `jax.vmap(loss_fn, (None, 0))` takes a data set.

A loss, a `LinearLoss`, is also a function of the prediction <w, x> and the target:
`value`, `derivative`, `curvature` and `mean_of`, with the bounds `derivative_bound` and
`curvature_bound`, and `target_range`. To add a ridge penalty, write a loss that adds
l2 / 2 · `optax.tree.norm(params, squared=True)`.

An argument out of its range raises `ValueError`; no value of the data raises. Gradients
are finite for finite data, if <w, x> and the product of a feature and the residual stay
within the range of the dtype.

A loss compares and hashes by its hyperparameters, so `huber(1.0)` may be a static
argument of `jax.jit` without compiling anew at each call.
"""

from dpjax.losses._linear_loss import LinearLoss as LinearLoss  # for annotations
from dpjax.losses._log_link import gamma, poisson, tweedie
from dpjax.losses._log_link import log_link as log_link  # for tables
from dpjax.losses._margin_loss import MarginLoss, logistic, softmax
from dpjax.losses._residual_losses import absolute, biweight, huber, squared

__all__ = [
    "MarginLoss",
    "absolute",
    "biweight",
    "gamma",
    "huber",
    "logistic",
    "poisson",
    "softmax",
    "squared",
    "tweedie",
]
