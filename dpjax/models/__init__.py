"""A trained model as one file, in the units of its table; and how good it is."""

from dpjax.models._file import load_model, model_file
from dpjax.models._model import BoundedColumn, Link, Model
from dpjax.models._noisy_counts import Interval, Measure
from dpjax.models._scores import PrivateScores, private_scores

__all__ = [
    "BoundedColumn",
    "Interval",
    "Link",
    "Measure",
    "Model",
    "PrivateScores",
    "load_model",
    "model_file",
    "private_scores",
]
