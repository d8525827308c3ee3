"""The papers' algorithms: data and a budget in, a released solution out."""

from dpjax.solvers._descent import Watch
from dpjax.solvers._gradient_descent import (
    dp_gradient_descent,
    robust_gradient_descent,
)
from dpjax.solvers._private_mean import private_mean
from dpjax.solvers._solution import Solution

__all__ = [
    "Solution",
    "Watch",
    "dp_gradient_descent",
    "private_mean",
    "robust_gradient_descent",
]
