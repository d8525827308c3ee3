"""Shared type aliases and the neighboring relation."""

from collections.abc import Callable
from typing import Any, Literal

import jax
from dp_accounting import NeighboringRelation
from jax.typing import ArrayLike

PyTree = Any  # of arrays: chex.ArrayTree, or a tuple, or a module
Key = jax.Array
Scalar = float | jax.Array
LossFn = Callable[[PyTree, PyTree], Any]  # loss_fn(params, example) -> scalar
RandomBytes = Callable[[int], bytes]  # n -> n uniform, independent bytes
Calibration = Literal["tight", "paper"]  # exact constants, or those that are printed
NoiseName = Literal["gaussian", "laplace_log_normal"]  # in dpjax.mechanisms
PeelingNoise = Literal["gumbel", "laplace"]  # of `mechanisms.peeling`
Unit = Literal["record", "user"]  # what neighbors differ in
SelectionName = Literal["exponential", "permute_and_flip"]  # in dpjax.mechanisms

# Two data sets are neighbors when they have the same public size n and differ in one
# record. Everything in dpjax is stated for this relation unless it says otherwise.
REPLACE_ONE = NeighboringRelation.REPLACE_ONE
ADD_OR_REMOVE_ONE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL

__all__ = [
    "ADD_OR_REMOVE_ONE",
    "REPLACE_ONE",
    "REPLACE_SPECIAL",
    "ArrayLike",
    "Calibration",
    "Key",
    "LossFn",
    "NeighboringRelation",
    "NoiseName",
    "PeelingNoise",
    "PyTree",
    "RandomBytes",
    "Scalar",
    "SelectionName",
    "Unit",
]
