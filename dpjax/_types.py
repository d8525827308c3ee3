"""Shared type aliases and the neighboring relation."""

from collections.abc import Callable
from typing import Any, Literal

import jax
from dp_accounting import NeighboringRelation
from jax.typing import ArrayLike as ArrayLike  # for the other files

PyTree = Any  # a pytree of arrays, such as chex.ArrayTree, a tuple or a module
Key = jax.Array
Scalar = float | jax.Array
LossFn = Callable[[PyTree, PyTree], Any]  # loss_fn(params, example) -> scalar
RandomBytes = Callable[[int], bytes]  # n -> n uniform, independent bytes
NoiseName = Literal["gaussian", "laplace_log_normal"]  # in dpjax.mechanisms
PeelingNoise = Literal["gumbel", "laplace"]  # of `mechanisms.peeling`
Unit = Literal["record", "user"]  # neighboring data sets differ in one of these
SelectionName = Literal["exponential", "permute_and_flip"]  # in dpjax.mechanisms

#: Neighboring data sets have the same public size n and differ in one record. All
#: guarantees of dpjax are for this relation unless they say otherwise.
REPLACE_ONE = NeighboringRelation.REPLACE_ONE
#: One of two neighboring data sets has one record more; their sizes are not public.
ADD_OR_REMOVE_ONE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL
