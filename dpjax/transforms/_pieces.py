"""Means of the pieces of one batch: what they are divided by, and how they round.

Piece k of K gives y_k, its sum of influences over the divisor n of the whole batch, as
a float32. A replaced record lies in one piece, and moves that one alone: in exact
arithmetic the sum of all y_k moves as the mean of the whole batch does. What rounding
adds to that, u = 2^-24 the unit roundoff and L >= |y_1 + ... + y_j| the bound of all
their sums, by coordinate or in the l2 norm as the influences are bounded:

1. y_k itself is rounded. K pieces of its size are no more than 9/8 max(n, 4096) rows,
   so that both neighbors together are off by 2 u L / K.
2. The y_k are added in two floats: each addition is exact, and so is its remainder of
   at most u L (Knuth 1997, Section 4.2.2, Theorem B). To add up the remainders rounds
   by u (K u L) each of K times: 2 K^2 u^2 L for both neighbors.
3. The sum is rounded once, as the mean of a whole batch is: `sensitivity()` counts
   that. For coordinates it counts in steps of the last place, and what 1 and 2 add may
   be one step more, of 2 u L.

L is 9/8 max(n, 4096) times limit / n, which is what one record moves by, masked. Of
that, 2.25 max(n, 4096) u (1 + 1/K + K^2 u) is the share of all three. 2^-20 is for what
underflows, and for the rounding of this share.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._keys import secret_repr
from dpjax._rounding import ROUNDOFF
from dpjax._sums.fold import FEW_ROWS, proven_divisor
from dpjax._tree import clip, like, materialized
from dpjax._types import PyTree, Scalar
from dpjax.estimators import Estimator


def whole(
    estimator: Estimator, normalize_by: Scalar | None, num_rows: int, num_pieces: int
) -> tuple[Scalar, Scalar, Scalar]:
    """Returns what a piece has to know of the whole batch: three numbers.

    The divisor; the bound of the sum of all pieces by coordinate; and by what factor
    its sensitivity is larger than that of a batch in one piece. `ValueError` without a
    divisor, with too many rows for it, and for estimators that group rows.
    """
    rule = "given to privatize inside accumulate: the public size of the whole batch"
    _validate.require(normalize_by is not None, "normalize_by", normalize_by, rule)
    rule = "one that adds influences: others take no batch in pieces"
    _validate.require(not estimator.groups_by_index, "estimator", estimator, rule)
    assert normalize_by is not None
    assert estimator.limit is not None
    divisor = proven_divisor(num_rows * num_pieces, normalize_by)
    if _validate.is_concrete(normalize_by):
        most = max(float(normalize_by), FEW_ROWS)
    else:
        most = jnp.maximum(normalize_by, FEW_ROWS)
    times = 1 + 1 / num_pieces + num_pieces**2 * ROUNDOFF
    return (
        divisor,
        estimator.limit * (most / normalize_by),
        1 + 2.0**-20 + 2.25 * most * ROUNDOFF * times,
    )


class PieceSum(NamedTuple):
    """A sum in two floats, in units of a power of two near its limit.

    Attributes:
        high: the sum, rounded.
        low: the remainders of its additions.
    """

    high: PyTree
    low: PyTree
    __repr__ = secret_repr

    @classmethod
    def zero(cls, tree: PyTree) -> "PieceSum":
        """Returns the sum of no pieces like a tree of arrays, or of their shapes."""
        return cls(*(jax.tree.map(jnp.zeros_like, tree) for _ in range(2)))

    def plus(self, piece: PyTree, limit: Scalar) -> "PieceSum":
        """Returns the sum with one more piece."""

        def scaled(x: jax.Array) -> jax.Array:
            return x / _unit(limit, x)

        def remainder(a: jax.Array, x: jax.Array, high: jax.Array) -> jax.Array:
            part = high - a
            return (a - (high - part)) + (x - part)

        piece = materialized(jax.tree.map(scaled, piece))
        high = jax.tree.map(jnp.add, self.high, piece)
        rest = jax.tree.map(remainder, self.high, piece, high)
        return PieceSum(high, jax.tree.map(jnp.add, self.low, rest))

    def value(self, limit: Scalar) -> PyTree:
        """Returns the sum, rounded once, and clipped to the limit by coordinate."""
        total = jax.tree.map(jnp.add, self.high, self.low)
        return clip(jax.tree.map(lambda x: x * _unit(limit, x), total), limit)


def _unit(limit: Scalar, x: jax.Array) -> jax.Array:
    """Returns the power of two by which numbers up to the limit are near one."""
    _, exponent = jnp.frexp(like(limit, x))
    return jnp.ldexp(like(1, x), exponent)
