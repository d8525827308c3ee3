"""What other layers take from batching, and users do not."""

from dpjax.batching._batching import BatchState

__all__ = ["BatchState"]
