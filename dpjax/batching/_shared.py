"""Names of batching for other layers of dpjax, not for users."""

from dpjax.batching._batching import BatchState
from dpjax.batching._without_replacement import uniform_subset

__all__ = ["BatchState", "uniform_subset"]
