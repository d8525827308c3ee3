"""A trained model as one file, in the units of its table, and its private scores."""

from typing import TYPE_CHECKING

from dpjax._lazy import lazily

if TYPE_CHECKING:
    from dpjax.models._file import load_model
    from dpjax.models._model import Model
    from dpjax.models._scores import private_scores

__getattr__, __dir__ = lazily(
    __name__,
    {
        "dpjax.models._file": "load_model",
        "dpjax.models._model": "Model",
        "dpjax.models._scores": "private_scores",
    },
)

__all__ = ["Model", "load_model", "private_scores"]
