"""The center of a majority of points, and how far one record can move it.

m points z_i lie in a set of l2 diameter 1, and a record changes at most s of them. Let
r_i(t) be the least radius of a ball around z_i that holds t points, z_i included, and

    t_0 = floor((m + s) / 2) + 1,     g = z_i for the i with the least r_i(t_0),
    K = floor((m - t_0) / s),         V_k = the (ks + 1)-th smallest r_i(t_0 + ks),
    S = max over 0 <= k <= K of w_k L_k,   L_k = min(1, V_k + V_(k+1)),              (1)

with V_(K+1) = inf and public weights 1 = w_0 >= w_k >= w_(k+1) >= e^(-B) w_k. If z'
differs from z in s points, then |g - g'| <= min(S, S') and S <= e^B S', because
V_k <= V'_(k+1): each ball of z' holds s more points than the ball of z needs. The proof
is in `docs/privacy/proofs/solvers.md`, 4.3. For rounding, with u = 2^-24 in float32,
the share (2d + 32) u is added to S, and `smooth_weights` leaves 2^-20 of B unused.

Paper 001 prints 2 e^(-beta k) times the mean of the top ceil(s/2) of r_i(t_0 + (k+1)s)
in place of (1), which is not smooth: `docs/privacy/proofs/papers.md`, 5.2.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._rounding import LEAST_WEIGHT
from dpjax._tree import like
from dpjax._types import ArrayLike

_SLACK = 2.0**-20


def majority(num_points: int, overlap: int) -> int:
    """Returns t_0: any two sets of t_0 of m points share a point that is unchanged."""
    return (num_points + overlap) // 2 + 1


def num_steps(num_points: int, overlap: int) -> int:
    """Returns K, the largest number of changed records that S of (1) looks at."""
    return (num_points - majority(num_points, overlap)) // overlap


def least_num_points(num_steps: int, overlap: int) -> int:
    """Returns the smallest number of points with a K of at least num_steps."""
    # This solves K = floor((m - t_0) / s), with m - t_0 = ceil((m - s) / 2) - 1.
    return 2 * overlap * num_steps + overlap + 1


def smooth_weights(smoothness: float, num_steps: int) -> np.ndarray:
    """Returns w_0, ..., w_K = e^(-Bk), not below 2^-40: on the host, in float64."""
    steps = np.arange(num_steps + 1)
    return np.maximum(np.exp(-max(smoothness - _SLACK, 0.0) * steps), LEAST_WEIGHT)


def smooth_center(
    points: jax.Array, weights: ArrayLike, *, overlap: int
) -> tuple[jax.Array, jax.Array]:
    """Returns a center (d,) of m points (m, d), and its smooth sensitivity, a scalar S.

    The center is the point with the smallest ball that holds a majority of the points.
    Noise in proportion to S hides a record that changes `overlap` of them. The points
    must be in a set of diameter 1. S is the largest w_k L_k, with `weights` w (K + 1,)
    from `smooth_weights`, and L_k a bound on how far a record moves the center if k
    other records have changed.
    """
    num_points, num_coordinates = points.shape
    first = majority(num_points, overlap) - 1  # r_i(t_0) has this index, from zero

    def radii(point: jax.Array) -> jax.Array:
        # Differences come first, because |x|^2 - 2 <x, y> + |y|^2 would cancel.
        squares = jnp.square(points - point[None])
        return jnp.sort(jnp.sqrt(jnp.sum(squares, axis=1)))[first::overlap]

    by_point = jax.lax.map(radii, points)  # (m, K + 1): r_i(t_0 + ks)
    center = points[jnp.argmin(by_point[:, 0])]
    steps = np.arange(by_point.shape[1])
    balls = jnp.sort(by_point, axis=0)[steps * overlap, steps]  # V_0, ..., V_K
    bounds = jnp.minimum(1.0, balls[:-1] + balls[1:])
    weight = jnp.asarray(weights).astype(points.dtype)
    largest = jnp.max(weight[:-1] * bounds, initial=0.0)
    roundoff = float(jnp.finfo(points.dtype).eps) / 2
    inflation = math.exp((2 * num_coordinates + 32) * roundoff)
    return center, jnp.maximum(largest, weight[-1]) * like(inflation, points)
