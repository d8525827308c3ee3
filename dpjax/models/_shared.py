"""What other layers take from models, and users do not."""

from typing import TYPE_CHECKING

from dpjax._lazy import lazily

if TYPE_CHECKING:
    from dpjax.models._bounded_column import BoundedColumn
    from dpjax.models._file import model_file
    from dpjax.models._noisy_counts import Interval, Measure
    from dpjax.models._params import bending_features
    from dpjax.models._scores import PrivateScores
    from dpjax.models._terms import Link

__getattr__, __dir__ = lazily(
    __name__,
    {
        "dpjax.models._bounded_column": "BoundedColumn",
        "dpjax.models._file": "model_file",
        "dpjax.models._noisy_counts": "Interval Measure",
        "dpjax.models._params": "bending_features",
        "dpjax.models._scores": "PrivateScores",
        "dpjax.models._terms": "Link",
    },
)

__all__ = [
    "BoundedColumn",
    "Interval",
    "Link",
    "Measure",
    "PrivateScores",
    "bending_features",
    "model_file",
]
