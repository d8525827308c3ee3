"""Checks of static arguments: they name argument, value and rule, and skip tracers."""

import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import _validate
from dpjax.estimators import Truncation

NAN, INF = math.nan, math.inf
GOOD = {
    "positive": [1, 1e-300, np.float32(2), np.ones(3), jnp.ones(())],
    "non_negative": [0, 0.0, 1e300, np.zeros(2)],
    "probability": [1e-300, 0.5, 1 - 1e-16],
}
BAD = [
    ("positive", "positive and finite", [0, -1, NAN, INF, None, np.array([1, 0])]),
    ("non_negative", "non-negative and finite", [-1e-9, NAN, INF, None]),
    ("probability", "strictly between 0 and 1", [0, 1, -0.5, NAN, None]),
    ("count", "an integer of at least 1", [0, -1, 1.0, True, None, "1", NAN]),
]
NOT_NUMBERS = ["1", "one", 1j]


@pytest.mark.parametrize(("check", "values"), GOOD.items())
def test_good_values(check, values):
    for value in values:
        getattr(_validate, check)(argument=value)


@pytest.mark.parametrize(
    ("check", "rule", "value"),
    [(check, rule, value) for check, rule, values in BAD for value in values],
)
def test_errors_name_argument_rule_and_value(check, rule, value):
    with pytest.raises(ValueError, match="argument") as error:
        getattr(_validate, check)(argument=value)
    assert str(error.value) == f"argument must be {rule}, got {value!r}."


@pytest.mark.parametrize("check", ["positive", "non_negative", "probability"])
@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_what_is_no_number(check, value):
    with pytest.raises(ValueError, match="argument must be a number, got"):
        getattr(_validate, check)(argument=value)


def test_within():
    for value in (0, 1, INF):
        _validate.within(0, INF, a=value, b=INF)
    with pytest.raises(ValueError, match=r"b must be between 0 and 1, got 1\.5"):
        _validate.within(0, 1, a=0.5, b=1.5)
    with pytest.raises(ValueError, match="a must be between 0 and 1, got nan"):
        _validate.within(0, 1, a=NAN)


@pytest.mark.parametrize("value", [-0.1, 1.0, NAN, None])
def test_delta(value):
    _validate.delta(0.0)
    with pytest.raises(ValueError, match=r"delta must be in \[0, 1\), got"):
        _validate.delta(value)


def test_choice():
    _validate.choice(Literal["gumbel", "laplace"], noise="gumbel")
    for value in ("Gumbel", None, 1):
        with pytest.raises(ValueError, match="noise must be gumbel or laplace, got"):
            _validate.choice(Literal["gumbel", "laplace"], noise=value)


def test_traced_values_are_not_looked_at():
    @jax.jit
    def check(x):
        _validate.positive(x=x)
        _validate.non_negative(x=x)
        _validate.probability(x=x)
        _validate.within(0, 1, x=x)
        return x

    assert check(-1.0) == -1
    jax.vmap(check)(jnp.array([-1.0, jnp.nan]))
    jax.grad(check)(-2.0)


def test_estimator():
    _validate.estimator(Truncation(1.0))
    for value in (Truncation, None, 1.0, lambda x: x):
        with pytest.raises(ValueError, match="estimator must be an estimator, such"):
            _validate.estimator(value)


def test_leading_size():
    assert _validate.leading_size({"a": np.zeros((3, 2)), "b": jnp.zeros(3)}, "x") == 3
    for tree, rule in (
        ({}, "at least one array"),
        ((np.zeros(3), 1.0), "share one leading sample axis"),
        ((np.zeros(3), np.zeros((4, 3))), "share one leading sample axis"),
        (np.zeros((0, 2)), "at least one sample"),
    ):
        with pytest.raises(ValueError, match=rf"x must be .*{rule}, got \["):
            _validate.leading_size(tree, "x")


def test_mask():
    _validate.mask(None, 3)
    _validate.mask(np.zeros(3, bool), 3)
    for bad in (np.zeros(3), np.zeros(4, bool), np.zeros((3, 1), bool)):
        with pytest.raises(ValueError, match=r"is_padding_example must be .*\(3,\)"):
            _validate.mask(bad, 3)


def test_typed_key(key):
    _validate.typed_key(key)
    for bad in (0, None, np.zeros(2, np.uint32), jax.random.split(key)):
        with pytest.raises(ValueError, match="key must be a single typed JAX key"):
            _validate.typed_key(bad)


def test_no_integer_wraps_around():
    """Nor does a feature or a target, which becomes a float."""
    cells = np.array([2**53 + 1, -(2**32) - 1, 7])
    nearest = [2**31 - 1, -(2**31), 7]
    np.testing.assert_array_equal(_validate.arrays(cells), nearest)
    _, targets = _validate.linear_data(cells[:, None], cells)
    np.testing.assert_array_equal(targets, cells.astype(np.float32))


def test_arrays_are_copies():
    for size in range(1000, 1020):  # some of them begin where JAX would read in place
        given = np.ones(size, np.float32)
        array = _validate.arrays(given)
        given[:] = 2
        assert array[0] == 1
    with pytest.raises(ValueError, match="masked"):
        _validate.arrays(np.ma.masked_array([1.0, 2.0], [False, True]))
