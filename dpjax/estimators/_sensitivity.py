"""The worst-case sensitivity of a robust mean, its float32 rounding included.

By default neighboring data sets are related by replace-one: n is public, and they
differ in one record. Under add/remove, one data set has this row masked as padding, so
all other rows keep their indices.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._rounding import ROUNDOFF
from dpjax._sums.fold import FEW_ROWS, MANY_ROWS, block_length
from dpjax._types import ADD_OR_REMOVE_ONE, REPLACE_ONE, Scalar


class Sensitivity(NamedTuple):
    """The largest change of an estimate between neighbors, in three norms.

    `privatize` adds noise of stddev `noise_multiplier * l2`, where l2 is computed with
    rounded=False. `linf` is the largest change of a single coordinate.

    Example:
        >>> from dpjax.estimators import Winsorization
        >>> sensitivity = Winsorization(1.0).sensitivity(1_000, 4)
        >>> print(f"{sensitivity.linf:.5f} {sensitivity.l2:.5f} {sensitivity.l1:.5f}")
        0.00200 0.00400 0.00800
    """

    l1: Scalar
    l2: Scalar
    linf: Scalar


def coordinate_sensitivity(limit, num_samples, num_coordinates, relation, *, rounded):
    """Returns the sensitivity of a mean of influences within ±limit by coordinate.

    One record moves a coordinate of the exact mean by at most 2 limit / n, and may move
    all d coordinates: l1 and l2 are d and sqrt(d) times as large.
    """
    limit, num_samples = of_one_type(limit, num_samples)
    args = _moved(relation), sum_error_in_turn
    if rounded:
        linf = _rounded_change(limit, num_samples, *args)
    else:
        linf = _change_before_rounding(limit, num_samples, 1, *args)
    return Sensitivity(num_coordinates * linf, math.sqrt(num_coordinates) * linf, linf)


def norm_sensitivity(
    limit, num_samples, num_coordinates, relation, *, norm_error, diameter, rounded
):
    """Returns the sensitivity for influences of norm at most limit (1 + norm_error).

    The distance of two influences is at most diameter·limit (1 + norm_error), and a
    record moves the exact mean by this divided by n. The mean has norm at most 9/8
    limit (the fold rejects more rows per divisor), and if `rounded`, rounding its
    coordinates to float32 moves the mean of each neighbor by 2^-24 of its norm.
    """
    limit, num_samples = of_one_type(limit, num_samples)
    moved = _moved(relation, diameter)
    longest = limit * (1 + norm_error)
    l2 = _change_before_rounding(
        longest, num_samples, num_coordinates, moved, sum_error
    )
    linf = l2
    if rounded:
        linf = _rounded_change(limit, num_samples, moved, sum_error, norm_error)
        l2 += 2 * ROUNDOFF * 1.125 * _largest_mean(longest, num_samples)
    if num_coordinates == 1:
        return Sensitivity(linf, linf, linf)
    return Sensitivity(math.sqrt(num_coordinates) * l2, l2, linf)


def largest_ulp(limit: Scalar, num_samples: Scalar) -> Scalar:
    """Returns the float32 spacing just below the largest value of an estimate."""
    limit, num_samples = of_one_type(limit, num_samples)
    xp = _numpy_for(limit, num_samples)
    mantissa, exponent = xp.frexp(_largest_mean(limit, num_samples))
    exponent = xp.where(mantissa == 0.5, exponent - 1, exponent)
    # A limit that is computed on the device may exceed a power of two by rounding.
    exponent = xp.where(mantissa > 1 - 16 * ROUNDOFF, exponent + 1, exponent)
    return xp.ldexp(xp.ones_like(mantissa), exponent - 24)


def _moved(relation, diameter=2.0):
    """Returns the distance of two neighbors' exact sums, in units of limit."""
    moved = {REPLACE_ONE: diameter, ADD_OR_REMOVE_ONE: 1.0}.get(relation, 0.0)
    rule = "REPLACE_ONE or ADD_OR_REMOVE_ONE"
    _validate.require(moved > 0, "relation", relation, rule)
    return moved


def _rounded_change(limit, num_samples, moved, error, excess=0.0):
    """Bounds the change of one coordinate of the float32 mean between neighbors.

    Two exact means differ by at most `change`; each is rounded to the nearest float32.
    Where both lie in the top binade, with spacing ulp, the results differ by a multiple
    of ulp that is at most change + ulp. Where one lies k binades lower they differ by a
    multiple of ulp/2^k that is at most change + (1/2 + 1/2^(k+1)) ulp.
    """
    xp = _numpy_for(limit, num_samples)
    longest = limit * (1 + excess)
    change = _change_before_rounding(longest, num_samples, 1, moved, error)
    ulp = largest_ulp(limit, num_samples)
    steps = change / ulp
    same_binade = xp.floor(steps) + 1
    next_binade = xp.floor(2 * steps + 1.5) / 2
    lower_binades = xp.maximum(xp.floor(4 * steps + 2.5) / 4, steps + 0.5625)
    rounded = ulp * xp.maximum(xp.maximum(same_binade, next_binade), lower_binades)
    if xp is np:
        return float(rounded)
    # Only the change is differentiated; the rounding counts as a constant.
    return change + jax.lax.stop_gradient(rounded - change)


def sum_error_in_turn(num_terms: int) -> float:
    """Returns the largest error of a float sum of K terms, in units of u limit.

    One after the other, results are largest: 2, 3, ..., K times the limit. 1.01 covers
    the second order (Higham 2002, eq. 4.3; `docs/privacy/proofs/sums.md`, 1.2).
    """
    return 1.01 * (num_terms * (num_terms + 1) / 2 - 1)


def sum_error(num_terms: int) -> float:
    """Returns the largest l2 error of a sum of K products, in units of u limit.

    Products are rounded too, and the order of additions may differ by coordinate, as in
    a product of matrices: see `_sums.fold`.
    """
    depths = [num_terms - 1, *range(num_terms - 1, 0, -1)]
    squares = num_terms * sum((1 + depth) ** 2 for depth in depths)
    return math.sqrt(squares) * (1 + num_terms * ROUNDOFF)


def _change_before_rounding(limit, num_samples, num_coordinates, moved, error):
    """Bounds the l2 change of the fold's mean before it is rounded to float32."""
    # A block's sum has a rounding error in each of the two neighbors.
    is_known = _validate.is_concrete(num_samples)
    length = block_length(float(num_samples) if is_known else MANY_ROWS)
    block = 2 * error(length) * ROUNDOFF
    # The block sum of each neighbor is divided by n, and the remainders below the
    # exact digits of all blocks are added as floats (`digit_layout`).
    rests = 2.0**-34
    digits = 2 * length * (rests * math.sqrt(num_coordinates) + ROUNDOFF)
    # Two floats hold the digits to 2^-41 of the mean.
    unit = limit / num_samples
    pairs = 2.25 * 2.0**-41 * _largest_mean(limit, num_samples)
    # 16 u covers rounding the limit to float32, and the rounding of this formula.
    return (unit * (moved + block + digits) + pairs) * (1 + 16 * ROUNDOFF)


def _largest_mean(limit, num_samples):
    """Returns the bound to which the mean is clipped, for any divisor."""
    xp = _numpy_for(limit, num_samples)
    return limit * xp.maximum(1.0, FEW_ROWS / num_samples)


def precise(x: Scalar) -> Scalar:
    """Returns x in 32 bits or more, because half precision may lose 0.7 per cent."""
    if _validate.is_concrete(x):
        return float(x)
    x = jnp.asarray(x)
    return x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x


def of_one_type(*values: Scalar) -> list[Scalar]:
    """Returns `precise` values, and converts arrays to their widest type."""
    exact = [precise(x) for x in values]
    types = [x.dtype for x in exact if isinstance(x, jax.Array)]
    widest = jnp.float64 if jnp.float64 in types else jnp.float32
    return [x.astype(widest) if isinstance(x, jax.Array) else x for x in exact]


def maximum(a: Scalar, b: Scalar) -> Scalar:
    """Returns the larger number: a Python float if both are concrete."""
    xp = _numpy_for(a, b)
    return float(xp.maximum(a, b)) if xp is np else xp.maximum(a, b)


def _numpy_for(*values: Any) -> Any:
    """Returns NumPy, which has float64, if all values are concrete, else jax.numpy."""
    return np if all(map(_validate.is_concrete, values)) else jnp
