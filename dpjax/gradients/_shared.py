"""What other layers take from gradients, and users do not."""

from dpjax.gradients._loss import warn_of_rows
from dpjax.gradients._users import UserRecords

__all__ = ["UserRecords", "warn_of_rows"]
