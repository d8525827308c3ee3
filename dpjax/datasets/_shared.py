"""What other layers take from datasets, and users do not."""

from dpjax.datasets._numbers import numbers_of

__all__ = ["numbers_of"]
