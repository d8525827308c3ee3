"""Checks of arguments: messages say argument, value and rule; tracers are skipped."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax._validate import (
    arrays,
    count,
    leading_size,
    linear_data,
    mask,
    non_negative,
    positive,
    probability,
    within,
)

NAN, INF = math.nan, math.inf


CASES = {
    positive: (
        *("positive and finite", [1, 1e-300, np.float32(2), np.ones(3), jnp.ones(())]),
        [0, -1, NAN, INF, None, np.array([1, 0])],
    ),
    non_negative: (
        *("non-negative and finite", [0, 0.0, 1e300, np.zeros(2)]),
        [-1e-9, NAN, INF, None],
    ),
    probability: (
        *("strictly between 0 and 1", [1e-300, 0.5, 1 - 1e-16]),
        [0, 1, -0.5, NAN, None],
    ),
    count: (
        *("an integer of at least 1", [1, np.int32(7)]),
        [0, -1, 1.0, True, None, "1", NAN],
    ),
}


@pytest.mark.parametrize("check", CASES)
def test_messages_name_argument_rule_and_value(check):
    rule, good, bad = CASES[check]
    for value in good:
        check(argument=value)
    for value in bad:
        with pytest.raises(ValueError, match="argument") as error:
            check(argument=value)
        assert str(error.value) == f"argument must be {rule}, got {value!r}."
    for value in ("1", "one", 1j) if check is not count else ():
        with pytest.raises(ValueError, match="argument must be a number, got"):
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


def test_arrays_share_an_axis_and_masks_have_it():
    assert leading_size({"a": np.zeros((3, 2)), "b": jnp.zeros(3)}, "x") == 3
    for tree, rule in (
        ({}, "at least one array"),
        ((np.zeros(3), 1.0), "share one leading sample axis"),
        ((np.zeros(3), np.zeros((4, 3))), "share one leading sample axis"),
        (np.zeros((0, 2)), "at least one sample"),
    ):
        with pytest.raises(ValueError, match=rf"x must be .*{rule}, got \["):
            leading_size(tree, "x")
    mask(None, 3)
    mask(np.zeros(3, bool), 3)
    for bad in (np.zeros(3), np.zeros(4, bool), np.zeros((3, 1), bool)):
        with pytest.raises(ValueError, match=r"is_padding_example must be .*\(3,\)"):
            mask(bad, 3)


def test_no_integer_wraps_around():
    """Nor does a feature or a target, which becomes a float."""
    cells = np.array([2**53 + 1, -(2**32) - 1, 7])
    np.testing.assert_array_equal(arrays(cells), [2**31 - 1, -(2**31), 7])
    _, targets = linear_data(cells[:, None], cells)
    np.testing.assert_array_equal(targets, cells.astype(np.float32))


def test_arrays_are_copies():
    for size in range(1000, 1020):  # some of them begin where JAX would read in place
        given = np.ones(size, np.float32)
        array = arrays(given)
        given[:] = 2
        assert array[0] == 1
    with pytest.raises(ValueError, match="masked"):
        arrays(np.ma.masked_array([1.0, 2.0], [False, True]))
