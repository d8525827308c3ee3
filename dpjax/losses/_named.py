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
    """Returns a loss by its name, or the loss itself where it is one already.

    Args:
        loss: "squared", "logistic", "huber" (of a threshold of 1.345
            scales of the residuals), or a `LinearLoss`.

    Returns:
        The loss.

    Raises:
        ValueError: if it is neither.

    Example:
        >>> named("huber")
        Huber(threshold=1.345, in_scales=True)

    Reference:
        P. W. Holland, R. E. Welsch, Robust regression using iteratively reweighted
        least-squares (1977), for the threshold of "huber".
    """
    if isinstance(loss, LinearLoss):
        return loss
    choices = " or ".join(repr(name) for name in _LOSSES)
    _validate.require(
        isinstance(loss, str) and loss in _LOSSES,
        "loss",
        loss,
        f"{choices} or a losses.LinearLoss",
    )
    return _LOSSES[loss]
