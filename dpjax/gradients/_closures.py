"""Arrays that a loss closes over: they may be the batch, which no clipping sees."""

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np


def warn_of_closures(loss_fn: Callable[..., Any], num_rows: int) -> None:
    """Warns of arrays of num_rows rows that a loss closes over.

    A loss of pairs, or one that compares an example with the batch, takes other records
    in this way. Only names and shapes are looked at, and a single row tells nothing.
    """
    while isinstance(loss_fn, partial):
        loss_fn = loss_fn.func
    if num_rows == 1 or not inspect.isfunction(loss_fn):
        return
    variables = inspect.getclosurevars(loss_fn)
    for name, value in {**variables.globals, **variables.nonlocals}.items():
        leaves = jax.tree.leaves(value)
        arrays = [x for x in leaves if isinstance(x, jax.Array | np.ndarray)]
        shapes = [x.shape for x in arrays if x.ndim and len(x) == num_rows]
        if shapes:
            warnings.warn(
                f"loss_fn closes over {name}, with an array of shape {shapes[0]}: as "
                "many rows as the batch. If these are records, one of them moves the "
                "gradients of all others, and no clipping bounds that: let the pairs "
                "be the records. If they are public, nothing is wrong.",
                stacklevel=4,
            )
