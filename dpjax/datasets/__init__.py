"""Heavy-tailed problems and real data sets, scaled by public constants only.

`load` reads a real one by its name. Synthetic problems are pure functions of a JAX key.
"""

from dpjax.datasets._dataset import Dataset
from dpjax.datasets._encoding import Categorical, Numeric, encode
from dpjax.datasets._heavy_tailed import linear_model, logistic_model, sparse_params
from dpjax.datasets._laws import LogNormal, Normal, Pareto, StudentT
from dpjax.datasets._load import load

__all__ = [
    "Categorical",
    "Dataset",
    "LogNormal",
    "Normal",
    "Numeric",
    "Pareto",
    "StudentT",
    "encode",
    "linear_model",
    "load",
    "logistic_model",
    "sparse_params",
]
