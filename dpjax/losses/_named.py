"""Losses by their names."""

from dpjax import _validate
from dpjax.losses._linear_loss import LinearLoss
from dpjax.losses._margin_loss import logistic
from dpjax.losses._residual_losses import Huber, squared

_LOSSES: dict[str, LinearLoss] = {
    "squared": squared,
    "logistic": logistic,
    # 95 per cent efficiency for standard normal errors (Holland and Welsch 1977).
    "huber": Huber(1.345, in_scales=True),
}


def named(loss: str | LinearLoss) -> LinearLoss:
    """Returns a `LinearLoss`, or the loss "squared", "logistic" or "huber" by its name.

    The threshold of "huber" is 1.345 scales of the residuals (P. W. Holland, R. E.
    Welsch, Robust regression using iteratively reweighted least-squares, 1977).

    Example:
        >>> named("huber")
        Huber(threshold=1.345, in_scales=True)
    """
    if isinstance(loss, LinearLoss):
        return loss
    choices = " or ".join(repr(name) for name in _LOSSES)
    rule = f"{choices} or a losses.LinearLoss"
    _validate.require(isinstance(loss, str) and loss in _LOSSES, "loss", loss, rule)
    return _LOSSES[loss]
