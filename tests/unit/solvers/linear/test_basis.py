"""Features that are made a block of records at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.solvers.linear import _basis


@pytest.mark.parametrize("num_rows", [1, 4, 8, 11])
def test_blocks_are_the_whole(num_rows, monkeypatch):
    monkeypatch.setattr(_basis, "_MOST_NUMBERS", 12)  # four rows of three
    rows = jnp.arange(2.0 * num_rows).reshape(num_rows, 2), jnp.arange(1.0 * num_rows)
    sizes = []

    def function(factor, rows):
        columns, weights = rows
        sizes.append(len(columns))
        return factor * jnp.concatenate([columns, weights[:, None]], axis=1)

    found = _basis.by_block(function, 3.0, rows, width=3, axis_name=None)
    assert max(sizes) <= 4
    np.testing.assert_array_equal(found, 3 * np.c_[rows[0], rows[1]])


def test_only_the_result_is_held_whole():
    def program(columns):
        def function(_, x):
            return jnp.tanh(jnp.tile(x, (1, 64)) @ jnp.ones((64, 1), x.dtype))

        return _basis.by_block(function, (), columns, width=64, axis_name=None)

    columns = jax.ShapeDtypeStruct((2**18, 1), "float32")
    memory = jax.jit(program).lower(columns).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 2**18 * 64 * 4 / 4
