"""Shared type aliases and the neighbouring relation."""

from collections.abc import Callable
from typing import Any

import chex
import jax
from dp_accounting import NeighboringRelation
from jax.typing import ArrayLike

PyTree = chex.ArrayTree
Key = jax.Array
Scalar = float | jax.Array
LossFn = Callable[[PyTree, PyTree], Any]  # loss_fn(params, example) -> scalar

# Two data sets are neighbours when they have the same public size n and differ in one
# record. Everything in dpjax is stated for this relation unless it says otherwise.
REPLACE_ONE = NeighboringRelation.REPLACE_ONE
ADD_OR_REMOVE_ONE = NeighboringRelation.ADD_OR_REMOVE_ONE

__all__ = [
    "ADD_OR_REMOVE_ONE",
    "REPLACE_ONE",
    "ArrayLike",
    "Key",
    "LossFn",
    "NeighboringRelation",
    "PyTree",
    "Scalar",
]
