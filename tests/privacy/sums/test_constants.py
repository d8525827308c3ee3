"""Norms of constants, which the compiler may compute by itself."""

import jax
import jax.numpy as jnp
import pytest

from dpjax._sums.samples import LONGEST, FactoredSamples


@pytest.mark.parametrize("constant", [0.0, 1e-12, 1.0, 1e12, 1e30])
def test_constant_entries_are_measured_too(constant):
    # Of a parameter that the loss does not use the gradient is a constant, which the
    # compiler may square by itself, and the unit by itself: infinity times zero.
    @jax.jit
    def squares(x):
        return FactoredSamples([jnp.full(9, constant), x]).squared_norm(1 / x[0])

    for x in (1e-12, 1.0, 1e12, 1e30):
        measured = float(squares(jnp.full(4, x, jnp.float32)))
        expected = 9 * (constant / x) ** 2 + 4
        if expected < LONGEST**2:
            assert measured == pytest.approx(expected, rel=1e-6)
        else:
            assert measured >= LONGEST**2
