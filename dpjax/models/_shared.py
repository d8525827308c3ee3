"""What other layers take from models, and users do not."""

from dpjax.models._file import model_file
from dpjax.models._model import BoundedColumn, Link
from dpjax.models._noisy_counts import Interval, Measure
from dpjax.models._params import bending_features
from dpjax.models._scores import PrivateScores

__all__ = [
    "BoundedColumn",
    "Interval",
    "Link",
    "Measure",
    "PrivateScores",
    "bending_features",
    "model_file",
]
