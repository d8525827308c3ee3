"""A trained model as one file, in the units of its table; and how good it is."""

from dpjax.models._file import load_model, model_file
from dpjax.models._model import Model
from dpjax.models._scores import Interval, Measure, PrivateScores, private_scores

__all__ = [
    "Interval",
    "Measure",
    "Model",
    "PrivateScores",
    "load_model",
    "model_file",
    "private_scores",
]
