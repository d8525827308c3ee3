"""The losses that `--loss` names, and how each relates predictions to the target."""

import functools
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from dpjax.losses import LinearLoss
    from dpjax.tables.models._terms import Link

LossName = Literal[
    "logistic",
    "squared",
    "huber",
    "poisson",
    "gamma",
    "tweedie",
]
_TWEEDIE = 1.5  # by default, halfway between counts and amounts
FOR_NUMBERS = [name for name in get_args(LossName) if name != "logistic"]
FOR_AMOUNTS: tuple[LossName, ...] = ("poisson", "gamma", "tweedie")
AMOUNTS = "poisson, gamma or tweedie"


def loss_of(name: LossName, power: float | None = None) -> "LinearLoss":
    """Returns a loss of targets in units of their scale; `power` is for tweedie."""
    from dpjax import losses

    return _losses()[name] if power is None else losses.log_link(power)


@functools.cache
def _losses() -> "dict[LossName, LinearLoss]":
    from dpjax import losses
    from dpjax.losses._residual_losses import named

    # For "huber" the linear model releases a threshold.
    return {
        "logistic": losses.logistic,
        "squared": losses.squared,
        "huber": named("huber"),
        "poisson": losses.log_link(1.0),
        "gamma": losses.log_link(2.0),
        "tweedie": losses.log_link(_TWEEDIE),
    }


def link_of(name: LossName | None) -> "Link":
    """Returns the link of a loss."""
    if name in FOR_AMOUNTS:
        return "log"
    return "logit" if name == "logistic" else "identity"
