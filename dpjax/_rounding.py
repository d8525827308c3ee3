"""Rounding of float32 numbers, and of privacy parameters in text.

In text an upper bound is rounded up, a lower bound down: a printed epsilon or delta is
never smaller than the true one, nor a printed lower bound larger than the proved one.
"""

import math
import sys
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

import numpy as np

ROUNDOFF = 2.0**-24  # unit roundoff of float32; float64 rounds less
ROUNDED_UP = 1 + 2.0**-21  # covers the rounding of the few products in a scale
LEAST_WEIGHT = 2.0**-40  # a smooth sensitivity in float32 resolves no smaller weight

# Thresholds, scales, norms and radii are in this range, so that in float32 their sums
# over any number of rows or coordinates do not overflow, nor their digits underflow.
SMALLEST, LARGEST = 1e-20, 1e30


def rounded_up(value: float | Decimal, digits: int) -> str:
    """Returns a value rounded up to `digits` significant digits, as text.

    A float stands for the shortest decimal that reads back to it, so 0.1, which is a
    little more in binary, is 0.1. Rounding is exact; infinity is "inf".

    Example:
        >>> rounded_up(10.0049, 4), rounded_up(1.0, 4), rounded_up(1e-5, 4)
        ('10.01', '1', '1e-05')
    """
    return _rounded(value, digits, ROUND_CEILING)


def claim(epsilon: float, delta: float, digits: int = 6) -> str:
    """Returns a guarantee as text, with epsilon and delta rounded up, so that it holds.

    Example:
        >>> claim(0.12345678, 1e-5)
        'epsilon = 0.123457, delta = 1e-05'
    """
    return (
        f"epsilon = {rounded_up(epsilon, digits)}, delta = {rounded_up(delta, digits)}"
    )


def rounded_down(value: float | Decimal, digits: int) -> str:
    """Returns a value rounded down to `digits` significant digits, as text."""
    return _rounded(value, digits, ROUND_FLOOR)


def as_decimal(value: float) -> Decimal:
    """Returns the shortest decimal that reads back to a float."""
    return Decimal(repr(float(value)))


def factor_up(epsilon: float) -> str:
    """Returns e^epsilon as text for a claim, rounded up at 3 digits of e^epsilon - 1.

    Example:
        >>> factor_up(1.0), factor_up(0.001), factor_up(0.0)
        ('2.72', '1.00101', '1')
    """
    if epsilon == 0:
        return "1"
    factor = Context(prec=50).exp(as_decimal(epsilon))
    step = Decimal(1).scaleb((factor - 1).adjusted() - 2)
    return _text(factor.quantize(step, ROUND_CEILING, Context(prec=50)), 6)


def sum_up(
    *values: float, exactly: Callable[[float], Decimal | Fraction] = Fraction
) -> float:
    """Returns the smallest float that is at least the exact sum, to add privacy costs.

    `exactly` reads a float as a number: as its binary value, or with `as_decimal` as
    its shortest decimal, by which ten costs of 0.1 fit in a limit of 1.

    Example:
        >>> sum_up(1.0, 1e-20), sum_up(1e308, 1e308)
        (1.0000000000000002, inf)
    """
    if math.inf in values:
        return math.inf
    exact = sum(Fraction(exactly(value)) for value in values)
    if exact > sys.float_info.max:
        return math.inf
    nearest = float(exact)
    is_enough = Fraction(exactly(nearest)) >= exact
    return nearest if is_enough else math.nextafter(nearest, math.inf)


def difference_down(total: float, part: float) -> float:
    """Returns a budget's rest, total - part, rounded down: part + rest <= total.

    Example:
        >>> 0.1 * 0.3 + (0.3 - 0.1 * 0.3) > 0.3
        True
        >>> 0.1 * 0.3 + difference_down(0.3, 0.1 * 0.3) > 0.3
        False
    """
    exact = Fraction(total) - Fraction(part)
    nearest = float(exact)
    return nearest if nearest <= exact else math.nextafter(nearest, -math.inf)


def digits(number: float) -> str:
    """Returns a number as text for reports: four digits, an exponent only if needed.

    Example:
        >>> digits(12_669.3), digits(-0.00012345), digits(3e12)
        ('12670', '-0.0001234', '3e+12')
    """
    if not 1e-4 <= abs(number) < 1e9:
        return f"{number:.4g}"
    return np.format_float_positional(number, 4, fractional=False, trim="-")


def _rounded(value: float | Decimal, digits: int, rounding: str) -> str:
    exact = value if isinstance(value, Decimal) else as_decimal(value)
    if not math.isfinite(exact):
        return str(float(exact))
    return _text(Context(prec=digits, rounding=rounding).plus(exact), digits)


def _text(value: Decimal, width: int) -> str:
    """Returns a value with all digits, and an exponent if Python's `:.{width}g` has."""
    value = value.normalize(Context(prec=60))
    if -5 < value.adjusted() < width:
        return f"{value:f}"
    mantissa, exponent = f"{value:e}".split("e")
    return f"{mantissa}e{int(exponent):+03d}"
