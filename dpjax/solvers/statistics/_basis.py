"""Features of records, made of their columns where they are needed, a few at a time."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._sharding import AxisName, by_device, row_axes, zeros
from dpjax._types import PyTree

# Functions of each of n records, (n, c) to (n, d), of this record alone.
Basis = Callable[[jax.Array], jax.Array]
_MOST_NUMBERS = 2**20  # of the features of a block of records


def themselves(columns: jax.Array) -> jax.Array:
    """Returns the features of a linear model."""
    return columns


def num_features(basis: Basis, columns: jax.Array) -> int:
    """Returns the number of functions of a basis."""
    return jax.eval_shape(basis, columns).shape[1]


def by_block(
    function: Callable[[PyTree, PyTree], jax.Array],
    replicated: PyTree,
    rows: PyTree,
    *,
    width: int,
    axis_name: AxisName | None,
) -> jax.Array:
    """Returns `function(replicated, rows)`; only its result is ever complete in memory.

    Args:
        function: of each row by itself.
        replicated: pytree, what it needs beside them.
        rows: pytree, leaves of shape (n, ...).
        width: how many numbers it makes of a row, about.
        axis_name: the mesh axes over which rows are sharded.
    """
    most = max(_MOST_NUMBERS // max(width, 1), 1)

    def of_device(replicated: PyTree, rows: PyTree) -> tuple[PyTree, jax.Array]:
        num_rows = _validate.leading_size(rows, "rows")
        if num_rows <= most:
            return (), function(replicated, rows)

        def some(i) -> tuple[jax.Array, PyTree]:
            # The last block is shifted back: its first rows are made twice.
            start = jnp.minimum(i * most, num_rows - most)
            part = jax.tree.map(
                lambda x: jax.lax.dynamic_slice_in_dim(x, start, most), rows
            )
            return start, function(replicated, part)

        def fill(i, result: jax.Array) -> jax.Array:
            start, new = some(i)
            return jax.lax.dynamic_update_slice_in_dim(result, new, start, axis=0)

        new = jax.eval_shape(some, 0)[1]
        result = zeros(new, (num_rows, *new.shape[1:]))
        return (), jax.lax.fori_loop(0, math.ceil(num_rows / most), fill, result)

    return by_device(of_device, row_axes(rows, axis_name), replicated, rows)[1]
