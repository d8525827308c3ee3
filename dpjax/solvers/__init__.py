"""Solvers of papers and of this project: data and a budget in, a `Solution` out.

Guarantees are for noise in real numbers: see `dpjax.mechanisms`. An argument out of its
range raises `ValueError`, before any computation on records.
"""

from dpjax.solvers.additive._model import dp_additive_model
from dpjax.solvers.linear._model import dp_linear_model
from dpjax.solvers.papers._frank_wolfe import dp_frank_wolfe, dp_lasso
from dpjax.solvers.papers._gradient_descent import (
    dp_gradient_descent,
    dp_multiparty_gradient_descent,
    robust_gradient_descent,
)
from dpjax.solvers.papers._hard_thresholding import (
    dp_iterative_hard_thresholding,
    dp_sparse_linear_regression,
)
from dpjax.solvers.papers._l1_regression import dp_l1_regression
from dpjax.solvers.papers._localized_descent import dp_localized_sco
from dpjax.solvers.papers._multiparty_objective import (
    dp_multiparty_objective_perturbation,
)
from dpjax.solvers.papers._objective_perturbation import dp_objective_perturbation
from dpjax.solvers.papers._one_pass import dp_one_pass_sco
from dpjax.solvers.papers._sample_and_aggregate import dp_sample_and_aggregate
from dpjax.solvers.statistics._group_means import dp_group_means
from dpjax.solvers.statistics._mean import dp_mean
from dpjax.solvers.statistics._quantile import dp_histogram, dp_quantile
from dpjax.solvers.statistics._scales import dp_center_and_scale
from dpjax.solvers.training._checkpoint import Checkpoint
from dpjax.solvers.training._curves import Curves as Curves  # for annotations
from dpjax.solvers.training._loop import Execution
from dpjax.solvers.training._private_training import PrivateTraining, recommend
from dpjax.solvers.training._solution import Solution

__all__ = [
    "Checkpoint",
    "Execution",
    "PrivateTraining",
    "Solution",
    "dp_additive_model",
    "dp_center_and_scale",
    "dp_frank_wolfe",
    "dp_gradient_descent",
    "dp_group_means",
    "dp_histogram",
    "dp_iterative_hard_thresholding",
    "dp_l1_regression",
    "dp_lasso",
    "dp_linear_model",
    "dp_localized_sco",
    "dp_mean",
    "dp_multiparty_gradient_descent",
    "dp_multiparty_objective_perturbation",
    "dp_objective_perturbation",
    "dp_one_pass_sco",
    "dp_quantile",
    "dp_sample_and_aggregate",
    "dp_sparse_linear_regression",
    "recommend",
    "robust_gradient_descent",
]
