"""What other layers take from models, and users do not."""

from dpjax.models._bounded_column import BoundedColumn
from dpjax.models._file import model_file
from dpjax.models._measures import Interval, Measure, PrivateScores
from dpjax.models._params import bending_features
from dpjax.models._terms import MEANS, Link

__all__ = [
    "MEANS",
    "BoundedColumn",
    "Interval",
    "Link",
    "Measure",
    "PrivateScores",
    "bending_features",
    "model_file",
]
