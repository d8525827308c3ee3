"""Means of the pieces of one batch: what they are divided by, and how they round.

Piece k of K gives y_k, its sum of influences over the divisor n of the whole batch, as
two floats. A replaced record lies in one piece, and moves that one alone as it moves
the mean of a whole batch, its rounding included. What else rounding adds, u = 2^-24 the
unit roundoff and L >= |y_1 + ... + y_j| the bound of all their sums, by coordinate or
in the l2 norm as the influences are bounded:

The higher floats are added exactly, with remainders of at most u L each. Those and the
lower floats of the y_k, also u L at most, are added as floats: 2 K sums of up to
2 K u L, each off by u of itself, 4 K^2 u^2 L in all, and twice that for two neighbors.

L is 9/8 max(n, 4096) times limit / n, which is what one record moves by, masked. Of
that, 9 max(n, 4096) K^2 u^2 is the share. 2^-20 is for what underflows, and for the
rounding of this share. The sum is rounded after the noise is added.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._keys import secret_repr
from dpjax._rounding import ROUNDOFF
from dpjax._sums.exact import Unrounded, two_sum
from dpjax._sums.fold import FEW_ROWS, proven_divisor
from dpjax._tree import like, materialized
from dpjax._types import PyTree, Scalar
from dpjax.estimators import Estimator


def of_batch(
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
    return (
        divisor,
        estimator.limit * (most / normalize_by),
        1 + 2.0**-20 + 9 * most * (num_pieces * ROUNDOFF) ** 2,
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

    def plus(self, piece: Unrounded, limit: Scalar) -> "PieceSum":
        """Returns the sum with one more piece."""

        def scaled(x: jax.Array) -> jax.Array:
            return x / _unit(limit, x)

        def rest(x: jax.Array, y: jax.Array, *lows: jax.Array) -> jax.Array:
            return sum(lows, start=two_sum(x, y)[1])

        piece = materialized(piece.map(partial(jax.tree.map, scaled)))
        return PieceSum(
            jax.tree.map(jnp.add, self.high, piece.high),
            jax.tree.map(rest, self.high, piece.high, piece.low, self.low),
        )

    def value(self, limit: Scalar) -> Unrounded:
        """Returns the sum before it is rounded."""
        units = partial(jax.tree.map, lambda x: x * _unit(limit, x))
        return Unrounded(self.high, self.low).map(units)


def _unit(limit: Scalar, x: jax.Array) -> jax.Array:
    """Returns the power of two by which numbers up to the limit are near one."""
    _, exponent = jnp.frexp(like(limit, x))
    return jnp.ldexp(like(1, x), exponent)
