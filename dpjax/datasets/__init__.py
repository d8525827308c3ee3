"""Heavy-tailed problems and real data sets, scaled by public constants only.

`load` reads a real one by its name. Synthetic problems are pure functions of a JAX key.
"""

from dpjax.datasets._dataset import Dataset
from dpjax.datasets._encoding import Categorical, Numeric, encode
from dpjax.datasets._heavy_tailed import (
    l1_ball_params,
    linear_model,
    logistic_model,
    sparse_params,
)
from dpjax.datasets._laws import (
    Laplace,
    LogGamma,
    Logistic,
    LogLogistic,
    LogNormal,
    Normal,
    Pareto,
    StudentT,
)
from dpjax.datasets._load import load

__all__ = [
    "Categorical",
    "Dataset",
    "Laplace",
    "LogGamma",
    "LogLogistic",
    "LogNormal",
    "Logistic",
    "Normal",
    "Numeric",
    "Pareto",
    "StudentT",
    "encode",
    "l1_ball_params",
    "linear_model",
    "load",
    "logistic_model",
    "sparse_params",
]
