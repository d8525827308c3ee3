"""Trained models, in the units of their tables: files, exports and private scores."""

from typing import TYPE_CHECKING

from dpjax._lazy import lazily

if TYPE_CHECKING:
    from dpjax.tables.models._model import load_model
    from dpjax.tables.models._scores import private_scores

__getattr__, __dir__ = lazily(
    __name__,
    {
        "dpjax.tables.models._model": "load_model",
        "dpjax.tables.models._scores": "private_scores",
    },
)

__all__ = ["load_model", "private_scores"]
