"""Rounding of privacy parameters: the direction, the digits, the text."""

import ast
import math
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import dpjax
from dpjax import _rounding
from dpjax._rounding import as_decimal, rounded_down, rounded_up, sum_up


@hypothesis.settings(max_examples=500, deadline=None, database=None)
@hypothesis.given(
    value=st.floats(0.0, 1e308) | st.floats(-320, 300).map(lambda x: 10**x),
    digits=st.integers(1, 17),
)
def test_a_rounded_number_is_on_its_side_and_next_to_the_value(value, digits):
    up, down = rounded_up(value, digits), rounded_down(value, digits)
    assert float(down) <= value <= float(up)
    exact = as_decimal(value)
    low, high = Decimal(down), Decimal(up)
    assert low <= exact <= high
    for text in (low, high):
        assert len(text.normalize().as_tuple().digits) <= digits
    # Neighbors, or equal: no number of so many digits lies between.
    gap = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    assert high - low == gap or low == high == exact


@pytest.mark.parametrize(
    ("value", "digits", "down", "up"),
    [
        (10.0049, 4, "10", "10.01"),
        (1.0, 4, "1", "1"),
        (1.0 + 2**-52, 4, "1", "1.001"),
        (1e-5, 6, "1e-05", "1e-05"),
        (0.1, 1, "0.1", "0.1"),  # in binary it is a little more
        (0.1 + 0.2, 3, "0.3", "0.301"),
        (9999.5, 4, "9999", "1e+04"),
        (0.00099999, 2, "0.00099", "0.001"),
        (5e-324, 3, "5e-324", "5e-324"),
        (1e300, 2, "1e+300", "1e+300"),
        (0.0, 3, "0", "0"),
        (math.inf, 3, "inf", "inf"),
        (np.float64(2.5), 1, "2", "3"),
        (1 - as_decimal(1 - 1e-6), 1, "1e-06", "1e-06"),
    ],
)
def test_rounded_numbers_are_written_with_few_digits(value, digits, down, up):
    assert rounded_down(value, digits) == down
    assert rounded_up(value, digits) == up


@hypothesis.settings(max_examples=500, deadline=None, database=None)
@hypothesis.given(
    total=st.floats(1e-6, 1e3), share=st.floats(0.0, 1.0), other=st.floats(0.0, 1e3)
)
def test_sums_are_on_their_side(total, share, other):
    part = share * total
    rest = _rounding.difference_down(total, part)
    assert Fraction(part) + Fraction(rest) <= Fraction(total)
    assert sum_up(part, rest) <= total
    assert total - part - 1e-15 * total <= rest
    assert Fraction(total) + Fraction(other) <= Fraction(sum_up(total, other))
    assert sum_up(total, other) <= math.nextafter(total + other, math.inf)


def test_no_epsilon_or_delta_is_rounded_to_nearest():
    # A format rounds to nearest; `rounded_up`, `rounded_down` and `claim` do not.
    texts = (path.read_text() for path in Path(dpjax.__file__).parent.rglob("*.py"))
    formatted = [
        ast.unparse(node.value)
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None
    ]
    private = re.compile("epsilon|delta|price|cost|divergence")
    assert len(formatted) > 50
    assert not list(filter(private.search, formatted))
