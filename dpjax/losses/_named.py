"""Losses by their names."""

from dpjax import _validate
from dpjax.losses._linear_loss import LinearLoss
from dpjax.losses._margin_loss import logistic
from dpjax.losses._residual_losses import huber, squared

_LOSSES: dict[str, LinearLoss] = {
    "squared": squared,
    "logistic": logistic,
    # 95 per cent efficiency for standard normal errors (Holland and Welsch 1977).
    "huber": huber(1.345),
}


def named(loss: str | LinearLoss) -> LinearLoss:
    """Returns a loss by its name, or the loss itself where it is one already.

    Args:
        loss: "squared", "logistic", "huber" (of threshold 1.345, in units of the
            target), or a `LinearLoss`.

    Returns:
        The loss.

    Raises:
        ValueError: if it is neither.

    Example:
        >>> named("huber")
        _Huber(threshold=1.345)

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
