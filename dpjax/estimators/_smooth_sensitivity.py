"""The trimmed mean of one array, and its smooth sensitivity, safe in float32.

Let x_(1) <= ... <= x_(n) be the ordered samples, x_(i) = -inf for i < 1 and +inf for
i > n, N = n - 2m, W = b - a the width of the range, and w_k = max(e^(-kt), floor). With

    term(top, bottom) = min(W, (top - bottom) / N)                                  (1)

the smooth sensitivity at smoothness t is the maximum of w_m W and

    exact:  w_k term(x_(n-m+1+k-l), x_(m+1-l)),  0 <= k < m, 0 <= l <= k + 1;       (2)
    fast:   w_k term(x_(n-m+1+k), x_(m-k)),      0 <= k < m.                        (3)

It bounds the change of the mean between neighbors, and is t-smooth: a term k of one is
at most a term k + 1 of the other. (3) is at most twice (2). Proof:
`docs/privacy/proofs/sums.md`, 1.9.

Rounding. Samples are clipped to ±1e30, so no sum overflows. Let G be the largest
magnitude in the window and u = 2^-24. The error of the window's sum is at most u of
itself and (2^-7 + 2^-11) u N G (see `_order_statistics.py`), and the sum is multiplied
by the rounded 1/N: except for that common factor the error of the mean is 2.01 u G. For
x and for x', G is at most max(top, -bottom) of the term that bounds the change. Hence

    term(top, bottom) = min(W, (top - bottom) / N + 5 u max(top, -bottom)),         (4)

which still increases in top and decreases in bottom; the proof uses nothing else. A
term is a sum of products of non-negative numbers: each of its fewer than 8 operations
has a relative error of u, however it is compiled. `SLACK` = 32 u covers 8 u for each of
two neighbors, and a few more for converting the result to a scale of noise: t is
lowered by it before, and the result raised by it after. The floor of w_k and the
smallest W keep every relevant number far above underflow.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._rounding import LEAST_WEIGHT, ROUNDOFF
from dpjax._sums.order_statistics import OrderStatistics
from dpjax._tree import like
from dpjax._types import Scalar

Bound = Literal["fast", "exact"]

SLACK = 2.0**-19
_MEAN_ROUNDOFF = 5 * ROUNDOFF  # 5 u in equation (4)


def smooth_weights(smoothness: float, trim_count: int) -> np.ndarray:
    """Returns w_0, ..., w_m, on the host for precise ratios."""
    steps = np.arange(trim_count + 1)
    return np.maximum(np.exp(-max(smoothness - SLACK, 0.0) * steps), LEAST_WEIGHT)


def smooth_sensitivity(
    order: OrderStatistics,
    weights: jax.Array,
    width: Scalar,
    *,
    num_kept: int,
    bound: Bound,
) -> jax.Array:
    """Returns the maximum of (2) or (3) with (4), for each of d columns."""
    low, high, _ = order
    trim_count, num_columns = len(low) - 1, low.shape[1]
    weights, width = like(weights, low), like(width, low)

    def term(top, bottom):
        rounding = _MEAN_ROUNDOFF * jnp.maximum(top, -bottom)
        return jnp.minimum(width, (top - bottom) * (1 / num_kept) + rounding)

    if bound == "fast":
        terms = term(high[1:], low[1:])  # equation (3), k = 0, ..., m - 1
        largest = (weights[:-1, None] * terms).max(axis=0)
    else:
        # Equation (2): top high[j] and bottom low[l] have k = j + l - 1. At k = -1 the
        # weight is zero, and w_m W covers the terms with k >= m.
        beyond = jnp.full(trim_count, weights[-1])
        padded = jnp.concatenate([jnp.zeros(1, low.dtype), weights, beyond])

        def widen(below, largest):  # below is l
            weight = jax.lax.dynamic_slice_in_dim(padded, below, trim_count + 1)
            terms = term(high, jax.lax.dynamic_slice_in_dim(low, below, 1))
            return jnp.maximum(largest, (weight[:, None] * terms).max(axis=0))

        zeros = jnp.zeros(num_columns, low.dtype)
        largest = jax.lax.fori_loop(0, trim_count + 1, widen, zeros)
    return jnp.maximum(largest, weights[-1] * width) * (1 + SLACK)
