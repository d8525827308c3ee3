"""Localized one-pass descent for smooth linear losses (Asi, Liu, Tian 2024).

Phase i passes once over m_i records that no other phase uses. With z = <w, x> and c the
bound on the loss's curvature, a step is

    w <- Proj(w - eta rho h(z) x),    h(z) = clip(phi'(z, y), -+ C / ||x||),         (1)
    rho = min(1, 2 / (eta c ||x||^2)).

The phase releases the mean of its iterates plus N(0, (kappa 2 eta C)^2 I), and the next
phase starts there with eta / 4. A loss with the derivative h is C-Lipschitz and convex:
it is the Lipschitz extension of the loss, if there is one. With delta = 0 the noise has
the density exp(-epsilon ||z|| / (2 eta C)). Then kappa, the root mean square of a
coordinate over the sensitivity, is sqrt(d + 1) / epsilon.

Two neighboring runs are at most 2 eta C apart, in exact arithmetic. Steps are computed
in float64, for w - center, and are off by less than

    2^-43 (1 + d / 64) (R + ||center|| + eta C + L sqrt(2 eta / c)) ,                (2)

in each run: `docs/privacy/proofs/solvers.md`, 4.6. m times twice this is added to the
sensitivity. So is the error of rounding a mean to the released type. A record with
numbers that are not finite, or that overflow in (1), moves nothing.

Theory. With G^k >= E sup ||grad||^k, the excess risk is at most, to leading order,

    R^2 / (2 eta m) + eta (2 G^2 / 3 + 32 d (kappa C)^2 / m) + R b(C),   m = n / 2,  (3)

with b as in `_localized_descent`. C and eta minimize (3).
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import RandomizedResponseDpEvent

from dpjax import _validate
from dpjax._sharding import check_key_of_rows, gathered
from dpjax._tree import arrays, real_pair
from dpjax._types import Key, PyTree, Scalar
from dpjax.accounting import PrivacyGuarantee
from dpjax.accounting._subsampling import gaussian_event
from dpjax.losses import LinearLoss
from dpjax.mechanisms import gaussian, laplace
from dpjax.solvers.papers._localized_descent import Theory, check_size, phase_sizes
from dpjax.solvers.training._solution import Solution

_DECAY = 4  # eta is divided by this from one phase to the next


def dp_one_pass_sco(
    loss: LinearLoss,
    params: jax.Array,
    data: PyTree,
    *,
    key: Key,
    epsilon: float,
    delta: float,
    moment_bound: float,
    diameter: float,
    moment_order: float = 2.0,
) -> Solution:
    """Minimizes a smooth convex linear risk over a ball, in one pass over the data.

    The solver is the linear-time form of `dp_localized_sco`, at the same rate. Each
    record is used in one step, so the run costs about as much as one full gradient.

    Args:
        loss: a convex loss of one prediction with a finite curvature bound, such as
            `losses.squared`, `losses.logistic`, `losses.huber(1.0)`.
        params: the center of the ball, shape (d,), and the start; public.
        data: features, shape (n, d), and targets, shape (n,); n is public. Records are
            used in their order, which must not depend on their values.
        key: a typed key.
        epsilon: privacy of the whole run, positive.
        delta: privacy of the whole run, in [0, 1); 0 is pure epsilon-DP, with noise
            that grows with d instead of sqrt(d).
        moment_bound: public bound G^k, as in `dp_localized_sco`.
        diameter: diameter of the ball in which the optimum is sought.
        moment_order: k, at least 2.

    Returns:
        A `Solution`. Its stats hold num_phases; l2_clip_norm, learning_rate and stddev
        of the first phase; and risk_scale, a bound on the excess risk.

    Raises:
        ValueError: As `dp_localized_sco`, and if the loss is not convex or not smooth.

    Privacy:
        (epsilon, delta)-DP under replace-one for every input. A record is used in one
        phase. The phase's mean of iterates has the sensitivity 2 eta C, because steps
        along a smooth convex function of one prediction do not move two points apart,
        for any norm of x; the rounding of float64 is counted. It is assumed that the
        loss's derivative does not decrease and keeps its declared curvature bound.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import losses, solvers
        >>> features = jax.random.normal(jax.random.key(0), (100_000, 2))
        >>> odds = features @ jnp.array([1.0, 2.0])
        >>> labels = jnp.sign(odds + jax.random.logistic(jax.random.key(1), (100_000,)))
        >>> solution = solvers.dp_one_pass_sco(
        ...     losses.logistic, jnp.zeros(2), (features, labels),
        ...     key=jax.random.key(2), epsilon=1.0, delta=1e-6, diameter=6.0,
        ...     moment_bound=384.0, moment_order=8.0)  # E||x||^8
        >>> print([round(float(w), 1) for w in solution.params])
        [1.0, 2.1]

    Reference:
        Asi, Liu, Tian (2024), for smooth generalized linear models; Feldman, Koren,
        Talwar (2020). With delta = 0: Lowy (2026), arXiv 2604.06492.
    """
    _validate.positive(epsilon=epsilon)
    _validate.delta(delta)
    check_key_of_rows(key, data)
    rule = "a convex LinearLoss of one prediction with a finite curvature_bound"
    is_fine = isinstance(loss, LinearLoss) and loss.is_convex and loss.num_outputs == 1
    is_fine = is_fine and loss.curvature_bound < math.inf
    _validate.require(is_fine, "loss", loss, rule)
    is_fine = isinstance(data, tuple) and len(data) == 2
    _validate.require(is_fine, "data", type(data), "a pair (features, targets)")
    pair = real_pair(data[0], data[1], "targets")
    # Steps take all records in order, so each device needs all.
    features, targets = gathered(arrays(pair))
    params, num_features = jnp.asarray(params), features.shape[1]
    is_fine = params.shape == (num_features,)
    is_fine = is_fine and jnp.issubdtype(params.dtype, jnp.floating)
    rule = f"floats of shape ({num_features},), one for each feature"
    _validate.require(is_fine, "params", f"{params.dtype}{list(params.shape)}", rule)
    moments = moment_bound, moment_order
    theory = Theory.of(epsilon, delta, *moments, diameter, num_features)
    num_samples = check_size(
        lambda n: risk(theory, n // 2) / (theory.bound * theory.radius), features
    )
    sizes, numbers = phases_of(theory, num_samples)
    scalars = np.array([theory.radius, theory.noise_multiplier])
    with jax.enable_x64(True):
        static, data = (loss, delta == 0, sizes), (features, targets)
        released, stddev = _release(static, key, data, params, numbers, scalars)
    event = gaussian_event(theory.noise_multiplier)
    if delta == 0:
        # No event of dp_accounting has this noise. Randomized response dominates every
        # epsilon-DP mechanism, so its event is an upper bound.
        flips = 2 / (1 + math.exp(epsilon)) if epsilon < 700 else 0.0
        event = RandomizedResponseDpEvent(flips, 2)
    stats: dict[str, Scalar] = {
        "num_phases": len(sizes),
        "l2_clip_norm": float(numbers[0, 0]),
        "learning_rate": float(numbers[0, 1]),
        "stddev": stddev,
        "risk_scale": risk(theory, num_samples // 2),
    }
    privacy = PrivacyGuarantee.of(
        epsilon, delta, dp_event=event, num_samples=num_samples
    )
    return Solution(released, privacy, stats)


def clip_norm(theory: Theory, num_samples: int) -> float:
    """Returns the clip norm C that minimizes the risk bound (3)."""
    # With the best eta, the terms of (3) with C are 8 R kappa sqrt(d) C / m + R b(C).
    k = theory.order
    cost = 8 * theory.noise_multiplier * math.sqrt(theory.dimension) / num_samples
    return theory.bound * ((k - 1) * theory.excess / cost) ** (1 / k)


def learning_rate(theory: Theory, num_samples: int) -> float:
    """Returns the step size eta that minimizes the risk bound (3)."""
    return theory.radius / math.sqrt(2 * num_samples * _spread(theory, num_samples))


def risk(theory: Theory, num_samples: int) -> float:
    """Returns the risk bound (3) with the best C and eta; infinite without records."""
    if num_samples == 0:
        return math.inf
    bias = theory.bias(clip_norm(theory, num_samples))
    spread = math.sqrt(2 * _spread(theory, num_samples) / num_samples)
    return theory.radius * (spread + bias)


def _spread(theory: Theory, num_samples: int) -> float:
    """Returns the factor of eta in the risk bound (3), with the best C."""
    noise = theory.noise_multiplier * clip_norm(theory, num_samples)
    return 2 / 3 * theory.bound**2 + 32 * theory.dimension * noise**2 / num_samples


def phases_of(theory: Theory, num_samples: int) -> tuple[tuple[int, ...], np.ndarray]:
    """Returns each phase's size, and an array (phases, 2) of clip norms and step sizes.

    There are so many phases that the last one's noise adds no more than the risk bound.
    """
    half = num_samples // 2
    first, clipped = learning_rate(theory, half), clip_norm(theory, half)
    noise = 2 * theory.noise_multiplier * math.sqrt(theory.dimension) * first * clipped
    ratio = theory.bound * noise / risk(theory, half)
    num_phases = 1 + max(0, math.ceil(math.log(ratio, _DECAY)))
    sizes = tuple(phase_sizes(num_samples, num_phases))
    rates = [first / _DECAY**i for i in range(num_phases)]
    norms = [clip_norm(theory, size) for size in sizes]
    return sizes, np.array([norms, rates]).T


@partial(jax.jit, static_argnums=0)
def _release(static, key, data, center, numbers, scalars):
    """Returns the last phase's noisy mean of iterates, (d,), and phase one's stddev.

    `static` has the loss, whether delta is 0 (Laplace noise), and each phase's size;
    `numbers` each phase's (C, eta); `scalars` the radius and noise multiplier.
    """
    (loss, is_pure, sizes), (radius, noise_multiplier) = static, scalars
    wide = center.astype(jnp.float64)
    dtype = jnp.float64 if center.dtype == jnp.float64 else jnp.float32
    roundoff = float(jnp.finfo(dtype).eps)  # for the mean, which has norm R at most
    moved, first, stddevs = jnp.zeros_like(wide), 0, []
    keys = jax.random.split(key, len(sizes))
    for i, size in enumerate(sizes):
        clipped, rate = numbers[i]
        rows = jax.tree.map(lambda x, at=first, n=size: x[at : at + n], data)
        mean = _one_pass(loss, rows, wide, moved, radius, clipped, rate)
        # This adds the rounding (2) of each step, in each of two neighboring runs.
        reach = radius + jnp.linalg.norm(wide) + rate * clipped
        if loss.derivative_bound < math.inf:
            curvature = loss.curvature_bound
            reach += loss.derivative_bound * jnp.sqrt(2 * rate / curvature)
        rounding = 2.0**-42 * (1 + len(wide) / 64) * size * reach
        sensitivity = 2 * rate * clipped + rounding + roundoff * radius
        stddevs.append((noise_multiplier * sensitivity).astype(dtype))
        mean = mean.astype(dtype)
        if is_pure:
            scale = stddevs[-1] / math.sqrt(len(wide) + 1)
            noisy = laplace(keys[i], mean, scale=scale, norm="l2")
        else:
            noisy = gaussian(keys[i], mean, stddev=stddevs[-1])
        moved, first = _into_ball(noisy.astype(jnp.float64), radius), first + size
    return (wide + moved).astype(center.dtype), stddevs[0]


def _one_pass(loss, rows, center, start, radius, clipped, rate) -> jax.Array:
    """Returns the mean of a phase's iterates, relative to the center, shape (d,)."""
    # Each record makes a projected step with its clipped gradient. `rows` are features
    # and targets, `start` the first iterate, `clipped` the clip norm, `rate` eta.

    def step(carry, row):
        """Returns the carry after a step with a record (x, y), and None for `scan`."""
        # The carry is the iterate, the mean of the iterates, and their number.
        moved, mean, count = carry
        x, y = (part.astype(jnp.float64) for part in row)
        square, shift = jnp.dot(x, x), jnp.dot(x, center)
        # If ||x|| is below 1e-150, its square may underflow. The floor keeps the
        # quotient finite, and the step stays short.
        limit = clipped / jnp.maximum(jnp.sqrt(square), 1e-150)
        slope = rate * loss.curvature_bound * square
        rho = jnp.minimum(1.0, 2 * (1 - 2.0**-40) / slope)
        h = jnp.clip(loss.derivative(jnp.dot(x, moved) + shift, y), -limit, limit)
        # Whether a record is used must not depend on the iterate, so that a replaced
        # record has no effect on other records' steps.
        is_used = jnp.isfinite(square) & jnp.isfinite(shift) & ~jnp.isnan(y)
        along = jnp.where(is_used, rate * rho * h, 0.0) * jnp.where(is_used, x, 0.0)
        moved = _into_ball(moved - along, radius)
        count += 1
        return (moved, mean + (moved - mean) / count, count), None

    carry = start, jnp.zeros_like(start), jnp.zeros((), jnp.float64)
    return jax.lax.scan(step, carry, rows)[0][1]


def _into_ball(vector: jax.Array, radius: jax.Array) -> jax.Array:
    norm = jnp.linalg.norm(vector)
    return vector * jnp.where(norm > radius, radius / norm, 1.0)
