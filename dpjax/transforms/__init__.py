"""Optax transformations: robust aggregation, privacy, sparsity, averaging."""

from dpjax.transforms._dp_sgd import dp_sgd
from dpjax.transforms._frank_wolfe import FrankWolfeState, frank_wolfe
from dpjax.transforms._iterates import (
    AverageIteratesState,
    average_iterates,
    average_params,
    project,
)
from dpjax.transforms._noise import AddGaussianNoiseState, add_gaussian_noise
from dpjax.transforms._peel import PeelState, laplace_peel, peel
from dpjax.transforms._privatize import PrivatizeState, aggregate, privatize

__all__ = [
    "AddGaussianNoiseState",
    "AverageIteratesState",
    "FrankWolfeState",
    "PeelState",
    "PrivatizeState",
    "add_gaussian_noise",
    "aggregate",
    "average_iterates",
    "average_params",
    "dp_sgd",
    "frank_wolfe",
    "laplace_peel",
    "peel",
    "privatize",
    "project",
]
