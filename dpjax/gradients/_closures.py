"""Arrays that a loss closes over: they may be the batch, which no clipping sees."""

import inspect
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import jax
import numpy as np

MEANING = (
    "as many rows as there are examples. If these are records, one of them moves the "
    "gradients of all others, and no clipping bounds that: let the pairs be the "
    "records. If they are public, nothing is wrong."
)


def closed_over(loss_fn: Callable[..., Any]) -> dict[str, Any]:
    """Returns the pytrees that a function closes over, by name."""
    while isinstance(loss_fn, partial):
        loss_fn = loss_fn.func
    if not inspect.isfunction(loss_fn):
        return {}
    variables, found = inspect.getclosurevars(loss_fn), {}
    for name, value in {**variables.globals, **variables.nonlocals}.items():
        with suppress(Exception):  # not every dictionary is a pytree
            jax.tree.leaves(value)
            found[name] = value
    return found


def rows_closed_over(loss_fn: Callable[..., Any], num_rows: int) -> dict[Any, str]:
    """Returns a sentence for each variable that holds arrays of num_rows, by shape.

    Only names and shapes are looked at, and a single row tells nothing.
    """
    found = {}
    for name, value in closed_over(loss_fn).items() if num_rows > 1 else ():
        leaves = jax.tree.leaves(value)
        arrays = [x for x in leaves if isinstance(x, jax.Array | np.ndarray)]
        for shape in {x.shape for x in arrays if x.shape[:1] == (num_rows,)}:
            said = f"loss_fn closes over {name}, with an array of shape {shape}"
            found[shape] = f"{said}: {MEANING}"
    return found


def warn_of_closures(loss_fn: Callable[..., Any], num_rows: int) -> None:
    """Warns of these, because a loss of pairs takes other records in this way."""
    for sentence in rows_closed_over(loss_fn, num_rows).values():
        warnings.warn(sentence, stacklevel=4)
