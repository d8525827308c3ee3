"""Exact sums of floats, held as two floats, and rounded once when noise is added.

All steps are correctly rounded additions: `docs/privacy/proofs/sums.md`, 1.11.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from dpjax._tree import materialized
from dpjax._types import PyTree


class Unrounded(NamedTuple):
    """A mean before it is rounded: the exact sum of two floats for each coordinate.

    Attributes:
        high: the mean, rounded.
        low: the rounding error, mean - high.
    """

    high: PyTree
    low: PyTree

    @classmethod
    def of(cls, mean: PyTree) -> Self:
        """Returns a mean of floats, with low = 0."""
        return cls(mean, jax.tree.map(jnp.zeros_like, mean))

    def map(self, function: Callable[[Any], Any]) -> Self:
        """Returns the mean with a function applied to both trees."""
        return type(self)(function(self.high), function(self.low))

    def plus(self, noise: PyTree) -> PyTree:
        """Returns the exact sum with noise, rounded to the nearest float."""
        return jax.tree.map(rounded_sum, *materialized((*self, noise)))


def two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns a + b rounded, and its exact error (Knuth 1997, Section 4.2.2)."""
    high = a + b
    part = high - a
    return high, (a - (high - part)) + (b - part)


def exact_sum(terms: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Returns the sum of terms, given in decreasing order of size, as two floats."""
    high, errors = terms[-1], jnp.zeros_like(terms[-1])
    for term in reversed(terms[:-1]):
        high, error = two_sum(term, high)
        errors = errors + error
    return two_sum(high, errors)


@jax.custom_jvp
def rounded_sum(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """Returns a + b + c, rounded once (Boldo, Melquiond 2008, Theorem 5)."""
    high, low = two_sum(b, c)
    high, rest = two_sum(a, high)
    # The remainder is rounded to odd, so that it is a tie only if the exact sum is.
    left, error = two_sum(rest, low)
    bits = jax.lax.bitcast_convert_type(left, f"int{8 * left.dtype.itemsize}")
    odd = bits + jnp.where((error > 0) == (left > 0), 1, -1).astype(bits.dtype)
    bits = jnp.where((error != 0) & (bits & 1 == 0), odd, bits)
    return high + jax.lax.bitcast_convert_type(bits, left.dtype)


@rounded_sum.defjvp
def _rounded_sum_jvp(primals, tangents):
    a, b, c = tangents
    return rounded_sum(*primals), a + b + c
