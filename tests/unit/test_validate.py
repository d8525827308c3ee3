"""Checks of arguments: messages say argument and value; tracers are skipped."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax._validate import (
    count,
    mask,
    non_negative,
    positive,
    probability,
    within,
)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (positive, [1, 1e-300, np.float32(2), np.ones(3), jnp.ones(())], [0, math.inf]),
        (non_negative, [0, 0.0, 1e300, np.zeros(2)], [-1e-9, math.nan]),
        (probability, [1e-300, 0.5, 1 - 1e-16], [0, 1]),
        (count, [1, np.int32(7)], [0, 1.0, True]),
    ],
)
def test_messages_name_argument_and_value(check, good, bad):
    for value in good:
        check(argument=value)
    for value in bad:
        with pytest.raises(ValueError, match=f"^argument must be .*, got {value!r}.$"):
            check(argument=value)


def test_traced_values_are_not_looked_at():
    @jax.jit
    def check(x):
        positive(x=x)
        non_negative(x=x)
        probability(x=x)
        within(0, 1, x=x)
        return x

    assert check(-1.0) == -1
    jax.vmap(check)(jnp.array([-1.0, jnp.nan]))
    jax.grad(check)(-2.0)


def test_a_mask_has_the_axis_of_the_samples():
    mask(None, 3)
    mask(np.zeros(3, bool), 3)
    for bad in (np.zeros(3), np.zeros(4, bool), np.zeros((3, 1), bool)):
        with pytest.raises(ValueError, match=r"is_padding_example must be .*\(3,\)"):
            mask(bad, 3)
