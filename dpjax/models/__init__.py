"""A trained model as one file: it predicts in the units of the table it is of."""

from dpjax.models._file import load_model, model_file
from dpjax.models._model import Model

__all__ = ["Model", "load_model", "model_file"]
