"""The private mean of heavy-tailed samples (papers 001 and 003)."""

import math
from functools import partial
from typing import Literal, cast

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _keys, _validate
from dpjax._sharding import (
    AxisName,
    check_key_of_rows,
    gathered,
    row_axes,
    with_auto_axes,
)
from dpjax._tree import Static, arrays, as_float
from dpjax._types import Key, PyTree, Scalar
from dpjax.batching import Full
from dpjax.estimators import Clipping, Estimator
from dpjax.solvers.statistics._noisy_mean import noisy_mean, one_gaussian
from dpjax.solvers.statistics._noisy_quantile import noisy_size_histogram
from dpjax.solvers.statistics._untuned_mean import Round, Shares, untuned_mean
from dpjax.solvers.training._calibration import (
    calibrated_noise,
    check_budget,
    traceable,
)
from dpjax.solvers.training._solution import Solution
from dpjax.transforms import privatize

MeanMethod = Literal["clipped", "geometric_median"]
# The steps of the geometric median, and the first of them, whose sizes are constant:
# later sizes fall as 1/t.
_NUM_STEPS, _CONSTANT = 20, 4


def dp_mean(
    samples: PyTree,
    *,
    key: Key,
    epsilon: float,
    delta: float,
    estimator: Estimator | None = None,
    method: MeanMethod = "clipped",
) -> Solution:
    """Releases the mean of heavy-tailed samples with Gaussian noise.

    There are no hyperparameters. Medians, scales and second moments are released first.
    Rows are then clipped around the medians, in whitened coordinates, at norms that few
    rows exceed. With two and a half moments or more, the error is about as with the
    best clip norm in hindsight. Estimators give the papers' algorithms.

    Args:
        samples: pytree, leaves of shape (n, ...); n is public. Without an estimator NaN
            counts as zero, and scales must be from 1e-6 to 1e13, in a public unit.
        key: a typed key.
        epsilon: privacy parameter, positive, any size.
        delta: privacy parameter in (0, 1).
        estimator: the robust mean, with its hyperparameters.
        method: without an estimator, "clipped" as above, or "geometric_median": the
            point with the smallest mean distance, in the same coordinates, for two
            columns or more. It is the center of a symmetric distribution with any
            tails, but not the mean of a skewed one.

    Returns:
        A `Solution` whose params are the mean, leaves of shape (...). Its stats hold
        noise_multiplier; with an estimator l2_sensitivity and stddev, or only rho with
        `TrimmedMean`, whose noise depends on the data. Without an estimator, "clipped"
        also has l2_clip_norms, in whitened coordinates, left_out, an estimate of the
        mean length beyond them, and standard_errors in the shape of params, so
        `interval` works. The errors count sampling, noise and clipping, by the central
        limit theorem and a Pareto tail beyond the clip norms; they are infinite if
        noise hides the samples, and may be too small if noise hides a few records that
        carry much of the mean.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input: Gaussian mechanisms on
        counts, medians, second moments and a clipped mean, which compose exactly; or
        one on a mean of known sensitivity, or the guarantee of `transforms.privatize`.

    Example:
        >>> import jax, numpy as np
        >>> costs = np.random.default_rng(0).lognormal(10.0, 0.5, 10_000)
        >>> solution = dp_mean(costs, key=jax.random.key(0), epsilon=1.0, delta=1e-5)
        >>> print(f"{costs.mean():.0f} {solution.params:.0f}")
        25006 24876

    Reference:
        Without an estimator: Biswas, Dong, Kamath, Ullman (2020), "CoinPress", and
        James, Stein (1961); the geometric median: Haghifam, Steinke, Ullman (2024),
        arXiv 2406.07407. `Truncation`: Algorithm 1 of paper 003 (Tao, Wu, Cheng, Wang
        2022), with `MedianOfMeans` around it Algorithm 3.
        `SmoothedTruncation.for_moment`: (12) of paper 001 (Wang, Xiao, Devadas, Xu
        2020); `TrimmedMean`: its Algorithm 2.
    """
    check_budget(epsilon, delta)
    check_key_of_rows(key, samples)
    _validate.choice(MeanMethod, method=method)
    rule = "left out with an estimator"
    _validate.require(estimator is None or method == "clipped", "method", method, rule)
    samples = with_auto_axes(arrays(samples))
    num_samples = _validate.leading_size(samples, "samples")
    axis_name = row_axes(samples, None) or None
    if estimator is None:
        return _untuned(samples, axis_name, method, key, epsilon, delta)
    _validate.bounded_estimator(estimator)
    multiplier, privacy = calibrated_noise(
        estimator,
        Full(),
        num_samples=num_samples,
        num_steps=1,
        epsilon=epsilon,
        delta=delta,
    )
    traced = traceable(estimator, multiplier)
    mean = _release(axis_name, samples, key, estimator, traced)
    num_coordinates = sum(leaf.size for leaf in jax.tree.leaves(samples)) // num_samples
    stats = estimator.noise_parameters(multiplier, num_samples, num_coordinates)
    return Solution(mean, privacy, stats | {"noise_multiplier": multiplier})


def _untuned(
    samples: PyTree,
    axis_name: tuple[str, ...] | None,
    method: MeanMethod,
    key: Key,
    epsilon: float,
    delta: float,
) -> Solution:
    """Releases a mean or a geometric median without a given estimator."""
    _validate.real(samples=samples)
    rows = _rows(samples)
    multiplier, privacy = one_gaussian(epsilon, delta, len(rows))
    shares = Shares.of(rows.shape, multiplier)
    stats: dict[str, Scalar] = {"noise_multiplier": multiplier}
    if method == "geometric_median":
        rule = "at least two numbers each; the median of one is that of `dp_quantile`"
        _validate.require(rows.shape[1] > 1, "samples", samples, rule)
        # The steps get the share that a mean spends on squares.
        shares = shares._replace(squares=0.0, mean=shares.mean + shares.squares)
        multipliers = shares.multipliers(multiplier)
        point = _geometric_median(axis_name, rows, key, multipliers)
        return Solution(_leaves(point, samples), privacy, stats)
    estimate = untuned_mean(axis_name, rows, key, shares.multipliers(multiplier))
    mean, errors = (_leaves(x, samples) for x in estimate[:2])
    return Solution(mean, privacy, estimate.stats | stats, errors)


def _rows(samples: PyTree) -> jax.Array:
    """Returns all leaves side by side, shape (n, d), in float32 or float64."""
    leaves = [as_float(leaf) for leaf in jax.tree.leaves(samples)]
    return jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def _leaves(vector: jax.Array, samples: PyTree) -> PyTree:
    """Returns the entries of a row as the leaves of one sample."""
    leaves, structure = jax.tree.flatten(samples)
    ends = np.cumsum([leaf.size // len(leaf) for leaf in leaves])
    parts = [
        part.reshape(leaf.shape[1:])
        for part, leaf in zip(jnp.split(vector, ends[:-1]), leaves, strict=True)
    ]
    return structure.unflatten(parts)


@partial(jax.jit, static_argnums=0)
def _release(axis_name, samples, key, estimator, noise_multiplier):
    multiplier = Static.value_of(noise_multiplier)
    return noisy_mean(estimator, samples, multiplier, key, axis_name)


@partial(jax.jit, static_argnums=0)
def _geometric_median(
    axis_name: AxisName | None, samples: jax.Array, key: Key, multipliers: Shares
) -> jax.Array:
    """Releases the point of least mean distance, in whitened coordinates, for d >= 2.

    Privacy:
        As one Gaussian mechanism of the noise multiplier, under replace-one: unit
        vectors are clipped to norm 1, and T releases have sqrt(T) times the multiplier.
    """
    *round_keys, length_key, steps_key = _keys.split(key, 4)
    place = Round.of(round_keys, samples, multipliers, axis_name)
    lengths = gathered(jnp.sqrt(jnp.sum(place.rows**2, axis=1)))
    seen = noisy_size_histogram(length_key, lengths, multipliers.lengths)
    length = seen.quantile(0.0, 0.5).astype(place.rows.dtype)
    release = privatize(
        Clipping(1.0),
        noise_multiplier=multipliers.mean * math.sqrt(_NUM_STEPS),
        key=steps_key,
        axis_name=axis_name,
    )

    # theta <- theta + eta_t L (mean of unit vectors from theta + noise). The Hessian of
    # the mean distance is about 1 / L, for L the median distance. eta_t falls as 1/t in
    # the end, which averages the noise.
    def step(carry, count):
        theta, state = carry
        away = place.rows - theta[None]
        distance = jnp.sqrt(jnp.sum(away**2, axis=1, keepdims=True))
        mean, state = release.update(away / jnp.where(distance > 0, distance, 1), state)
        rate = jnp.minimum(1.0, _CONSTANT / (1.0 + count)).astype(theta.dtype)
        return (theta + rate * length * cast(jax.Array, mean), state), None

    start = jnp.zeros_like(place.rows[0]), release.init(place.rows)
    counts = jnp.arange(_NUM_STEPS, dtype="float32")
    (theta, _), _ = jax.lax.scan(step, start, counts)
    return place.back(theta)
