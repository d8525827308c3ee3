"""Names of losses for other layers of dpjax, not for users."""

from dpjax.losses._log_link import LogLink
from dpjax.losses._named import named
from dpjax.losses._residual_losses import Huber

__all__ = ["Huber", "LogLink", "named"]
