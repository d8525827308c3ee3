"""A trained model as one file, in the units of its table, and its private scores."""

from dpjax.models._file import load_model
from dpjax.models._model import Model
from dpjax.models._scores import private_scores

__all__ = ["Model", "load_model", "private_scores"]
