"""Arrays that a loss closes over: they may be the batch, which no clipping sees."""

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

MEANING = (
    "as many rows as the batch. If these are records, one of them moves the "
    "gradients of all others, and no clipping bounds that: let the pairs "
    "be the records. If they are public, nothing is wrong."
)


def closed_over(loss_fn: Callable[..., Any]) -> dict[str, Any]:
    """Returns the variables that a function closes over, by name."""
    while isinstance(loss_fn, partial):
        loss_fn = loss_fn.func
    if not inspect.isfunction(loss_fn):
        return {}
    variables = inspect.getclosurevars(loss_fn)
    return {**variables.globals, **variables.nonlocals}


def rows_closed_over(
    loss_fn: Callable[..., Any], num_rows: int
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of closed-over arrays of num_rows rows, by name.

    Only names and shapes are looked at, and a single row tells nothing.
    """
    found = {}
    for name, value in closed_over(loss_fn).items() if num_rows > 1 else ():
        arrays = [
            x for x in jax.tree.leaves(value) if isinstance(x, jax.Array | np.ndarray)
        ]
        shapes = [x.shape for x in arrays if x.ndim and len(x) == num_rows]
        if shapes:
            found[name] = shapes[0]
    return found


def warn_of_closures(loss_fn: Callable[..., Any], num_rows: int) -> None:
    """Warns of arrays of num_rows rows that a loss closes over.

    A loss of pairs, or one that compares an example with the batch, takes other records
    in this way.
    """
    for name, shape in rows_closed_over(loss_fn, num_rows).items():
        warnings.warn(
            f"loss_fn closes over {name}, with an array of shape {shape}: {MEANING}",
            stacklevel=4,
        )
