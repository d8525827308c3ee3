"""Names of batching for other layers of dpjax, not for users."""

from dpjax.batching._batching import BatchState

__all__ = ["BatchState"]
