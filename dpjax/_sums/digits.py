"""Sums that neighbours share: floats written as integer digits, and a small rest."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax._sharding import zeros
from dpjax._tree import materialized
from dpjax._types import PyTree, Scalar
from dpjax._validate import require


class Digits(NamedTuple):
    """Writes block sums as digits, so that they add without rounding that matters.

    A sum x stands as x / normalize_by = (d0 + d1/base + d2/base^2) / unit, exactly. All
    digits but the last are integers so small that those of all blocks, on all devices,
    add up within the float's mantissa: whatever sums are taken first, they are exact.
    `unit` and `base` are powers of two, the same for all blocks.

    The last digit is the rest, a float of size base/2 at most. Sums of rests round, by
    far less than a record moves: `digit_layout` sees to that. And since nothing is
    dropped, values far below the limit keep their own precision.
    """

    unit: jax.Array | None  # None for plain sums: of influences without bound, of one
    base: float
    num_digits: int
    normalize_by: Any

    @classmethod
    def of(cls, num_sums: int, length: int, shape: PyTree, limit, normalize_by):
        """Returns digits for `num_sums` sums of `length` values within ±limit each.

        Args:
            num_sums: on all devices together.
            length: values in a sum, at most.
            shape: the sums' pytree of shapes and dtypes.
            limit: None where values are unbounded.
            normalize_by: the divisor, or an array of several.
        """
        if limit is None:
            return cls(None, 1.0, 1, normalize_by)
        nmant = min(int(jnp.finfo(x.dtype).nmant) for x in jax.tree.leaves(shape))
        layout = digit_layout(num_sums, nmant)
        if layout.num_digits == 1:
            return cls(None, 1.0, 1, normalize_by)
        # The largest power of two with |x / normalize_by| unit <= 2^high_bits.
        limit, divisor = (
            jnp.asarray(x).astype(jnp.float32) for x in (limit, normalize_by)
        )
        _, exponent = jnp.frexp(jax.lax.stop_gradient(limit * length / divisor))
        unit = jnp.ldexp(jnp.float32(1), jnp.minimum(layout.high_bits - exponent, 126))
        return cls(unit, 2.0**layout.base_bits, layout.num_digits, normalize_by)

    def of_group(self, index: Scalar) -> "Digits":
        """Returns the digits for one of several divisors."""
        unit = None if self.unit is None else self.unit[index]
        return self._replace(unit=unit, normalize_by=self.normalize_by[index])

    def zeros(self, shape: PyTree) -> tuple[PyTree, ...]:
        """Returns digits that are all zero."""
        return (jax.tree.map(zeros, shape),) * self.num_digits

    def add(self, total: tuple[PyTree, ...], sums: PyTree) -> tuple[PyTree, ...]:
        """Adds the sums of some blocks, along the first axis, digit by digit."""

        def scaled(x):
            x = x / jnp.asarray(self.normalize_by).astype(x.dtype)
            return x if self.unit is None else x * self.unit.astype(x.dtype)

        if self.num_digits > 1:  # all are digits of one number
            sums = materialized(sums)
        digits = _split(jax.tree.map(scaled, sums), self.base, self.num_digits)
        return jax.tree.map(lambda old, x: old + x.sum(axis=0), total, digits)

    def mean(self, total: tuple[PyTree, ...]) -> PyTree:
        """Returns the number that the digits stand for."""
        if self.unit is None:
            return total[0]
        digits = list(total)
        # Carry, so that each lower digit is less than the base: exact, and then the
        # sum of the lower digits is rounded far below the last place of the first.
        for i in range(self.num_digits - 1, 0, -1):
            carry = jax.tree.map(lambda x: jnp.round(x / self.base), digits[i])
            digits[i] = jax.tree.map(lambda x, c: x - c * self.base, digits[i], carry)
            digits[i - 1] = jax.tree.map(jnp.add, digits[i - 1], carry)
        value = digits[-1]
        for digit in reversed(digits[:-1]):
            value = jax.tree.map(lambda d, low: d + low / self.base, digit, value)
        unit = self.unit
        return jax.tree.map(lambda x: x / unit.astype(x.dtype), value)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _split(scaled: PyTree, base: float, num_digits: int) -> tuple[PyTree, ...]:
    digits = []
    for _ in range(num_digits - 1):
        digits.append(jax.tree.map(jnp.round, scaled))
        scaled = jax.tree.map(lambda x, d: (x - d) * base, scaled, digits[-1])
    return (*digits, scaled)


@_split.defjvp
def _split_jvp(base, num_digits, primals, tangents):
    # The digits stand for the number itself, so its derivative goes to the first one.
    (tangent,) = tangents
    zeros = (jax.tree.map(jnp.zeros_like, tangent),) * (num_digits - 1)
    return _split(*primals, base, num_digits), (tangent, *zeros)


class DigitLayout(NamedTuple):
    """Bits of the first digit, bits of the base, and how many digits there are."""

    high_bits: int
    base_bits: int
    num_digits: int


def digit_layout(num_sums: int, nmant: int) -> DigitLayout:
    """Returns digits such that `num_sums` of them add exactly in `nmant` + 1 bits.

    The first digit is at most 2^high_bits, the others at most base/2 in size. Only sums
    of the last one round, by 2^-(nmant + 11) of a block's bound at most.
    """
    bits = max(num_sums - 1, 0).bit_length()
    require(
        bits < nmant,
        "samples",
        f"{num_sums:,} blocks of them",
        f"at most 2^{nmant - 1} blocks (the sum of more could not be exact)",
    )
    high, base = nmant - bits, nmant + 1 - bits
    if bits == 0:  # one sum: nothing is added to it
        return DigitLayout(high, base, 1)
    # Rests of 2^bits sums are at most 2^-(b + 1) of a block's bound each, where b bits
    # stand before them. In whatever order they are added, their sum is off by at most
    # 2^(2 bits) 2^-(nmant + 1) (1 + 1/3) times that: b = 11 + 2 bits is enough.
    # (Coordinates round apart from each other: the slack counts sqrt(d) times that.)
    more = max(0, -(-(11 + 2 * bits - high) // base))
    return DigitLayout(high, base, 2 + more)
