"""Heavy-tailed problems and real data sets, scaled by public constants only.

`load` reads a real data set by its name. Synthetic problems are pure functions of a JAX
key. An argument out of its range raises `ValueError`.
"""

from typing import TYPE_CHECKING

from dpjax._lazy import lazily

if TYPE_CHECKING:
    from dpjax.datasets._dataset import Dataset as Dataset  # for annotations
    from dpjax.datasets._dataset import load
    from dpjax.datasets._heavy_tailed import linear_model
    from dpjax.datasets._laws import LogNormal, Normal, Pareto, StudentT
    from dpjax.tables.columns._kinds import Categorical, Numeric

__getattr__, __dir__ = lazily(
    __name__,
    {
        "dpjax.datasets._dataset": "Dataset load",
        "dpjax.tables.columns._kinds": "Categorical Numeric",
        "dpjax.datasets._heavy_tailed": "linear_model",
        "dpjax.datasets._laws": "LogNormal Normal Pareto StudentT",
    },
)

__all__ = [
    "Categorical",
    "LogNormal",
    "Normal",
    "Numeric",
    "Pareto",
    "StudentT",
    "linear_model",
    "load",
]
