"""What other layers take from models, and users do not."""

from dpjax.models._file import model_file
from dpjax.models._model import BoundedColumn, Link, numeric_features
from dpjax.models._noisy_counts import Interval, Measure
from dpjax.models._scores import PrivateScores

__all__ = [
    "BoundedColumn",
    "Interval",
    "Link",
    "Measure",
    "PrivateScores",
    "model_file",
    "numeric_features",
]
