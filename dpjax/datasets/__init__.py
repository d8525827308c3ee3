"""Heavy-tailed problems and real data sets, scaled by public constants only.

`adult` and `rand_hie` are carried in the package. The others are looked up in the
folder $DPJAX_DATA, then in the cache ($XDG_CACHE_HOME/dpjax, or ~/.cache/dpjax);
`blog_feedback` is fetched into the cache where it is in neither, and the others say how
to get them. Synthetic problems are pure functions of a JAX key.
"""

from dpjax.datasets._adult import adult
from dpjax.datasets._belgian_motor import belgian_motor
from dpjax.datasets._blog_feedback import blog_feedback
from dpjax.datasets._credit_default import credit_default
from dpjax.datasets._dataset import Dataset
from dpjax.datasets._encoding import Categorical, Numeric, Winsorized, encode
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
from dpjax.datasets._rand_hie import rand_hie
from dpjax.datasets._twitter import twitter
from dpjax.datasets._winnipeg import winnipeg
from dpjax.datasets._year_prediction import year_prediction

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
    "Winsorized",
    "adult",
    "belgian_motor",
    "blog_feedback",
    "credit_default",
    "encode",
    "l1_ball_params",
    "linear_model",
    "logistic_model",
    "rand_hie",
    "sparse_params",
    "twitter",
    "winnipeg",
    "year_prediction",
]
