"""Optax transformations: robust aggregation, privacy, sparsity, averaging.

An argument out of its range raises `ValueError`, and so does an update without params
if it needs them.
"""

from dpjax.transforms._chain import accumulate, chain, dp_sgd
from dpjax.transforms._choices import frank_wolfe, peel
from dpjax.transforms._privatize import add_gaussian_noise, aggregate, privatize
from dpjax.transforms._steps import (
    average_iterates,
    average_params,
    project,
    scale_by_dp_adam,
)

__all__ = [
    "accumulate",
    "add_gaussian_noise",
    "aggregate",
    "average_iterates",
    "average_params",
    "chain",
    "dp_sgd",
    "frank_wolfe",
    "peel",
    "privatize",
    "project",
    "scale_by_dp_adam",
]
