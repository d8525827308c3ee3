"""The papers' algorithms: data and a budget in, a released solution out."""

from dpjax.solvers._checkpoint import Checkpoint
from dpjax.solvers._frank_wolfe import dp_frank_wolfe
from dpjax.solvers._gradient_descent import (
    dp_gradient_descent,
    robust_gradient_descent,
)
from dpjax.solvers._hard_thresholding import dp_iterative_hard_thresholding
from dpjax.solvers._l1_regression import dp_l1_regression
from dpjax.solvers._lasso import dp_lasso
from dpjax.solvers._loop import Execution
from dpjax.solvers._margin_loss import MarginLoss
from dpjax.solvers._multiparty import multiparty_gradient_descent
from dpjax.solvers._multiparty_objective import multiparty_objective_perturbation
from dpjax.solvers._objective_perturbation import objective_perturbation
from dpjax.solvers._private_mean import private_mean
from dpjax.solvers._private_quantile import (
    private_center_and_scale,
    private_quantile,
)
from dpjax.solvers._sample_and_aggregate import sample_and_aggregate
from dpjax.solvers._solution import Solution
from dpjax.solvers._sparse_regression import dp_sparse_linear_regression

__all__ = [
    "Checkpoint",
    "Execution",
    "MarginLoss",
    "Solution",
    "dp_frank_wolfe",
    "dp_gradient_descent",
    "dp_iterative_hard_thresholding",
    "dp_l1_regression",
    "dp_lasso",
    "dp_sparse_linear_regression",
    "multiparty_gradient_descent",
    "multiparty_objective_perturbation",
    "objective_perturbation",
    "private_center_and_scale",
    "private_mean",
    "private_quantile",
    "robust_gradient_descent",
    "sample_and_aggregate",
]
