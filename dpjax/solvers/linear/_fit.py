"""A linear model of finite records: norms and second moments first, then steps."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _keys
from dpjax._sharding import gathered
from dpjax._types import Key, Scalar
from dpjax.batching import Full
from dpjax.solvers._loop import Batches, Execution, iterate
from dpjax.solvers.linear._constant import best_constant, largest_slope
from dpjax.solvers.linear._kind import Examples, ModelKind, Shares
from dpjax.solvers.linear._moments import (
    FLOORS,
    Whitening,
    noisy_second_moments,
    whitening,
)
from dpjax.solvers.linear._noisy_quantile import noisy_quantile
from dpjax.solvers.linear._recalibration import Predictor, recalibration
from dpjax.solvers.linear._robust import robust_fit
from dpjax.solvers.linear._steps import (
    BlockClipping,
    DistanceOverGradientsStep,
    ExampleLoss,
)
from dpjax.transforms import average_params

_FEWEST_STEPS, _MOST_STEPS = 50, 150  # in between, three for every two weights
# Bias and noise of clipping are assumed to be equal if this times 2 sqrt(d) multipliers
# of records are clipped, d the number of weights; never more than half of them.
_CLIPPED, _MOST_CLIPPED = 1.0, 0.5
# Rows that second moments clip: this times the edge of their noise, in multipliers of
# one record, and never more than a tenth of all.
_BEYOND_RADIUS, _MOST_BEYOND = 20.0, 0.1
# Rows are clipped to a radius R and get a column of the constant t R. The noise of
# second moments is then proportional to R^2 (1 + t^2), and that of the center to
# R (1 + t^2) / t. A half makes the first a quarter larger than 0 does, and the second
# near its minimum. With ones instead, if R is large, the center would be mostly noise.
_ONES = 0.5
# The norm of the first step, in threshold / sqrt(d), the size of a weight that matters.
# So few steps must begin with a large one, unless n is this times a gradient's noise.
_FIRST_DISTANCE, _CLEAR_FIRST_DISTANCE, _CLEAR = 0.3, 0.1, 700


class Coordinates(NamedTuple):
    """The coordinates of the steps, and the clipping thresholds of their gradients.

    Attributes:
        rows: (z, offset, target, weight), z of shape (n, d).
        whitening: the map from features to z.
        constant: the intercept of the best constant, () or (K,).
        norms: clipping thresholds of the leaves of params.
        stats: released numbers.
    """

    rows: tuple[jax.Array, jax.Array, jax.Array, jax.Array]
    whitening: Whitening
    constant: jax.Array
    norms: dict[str, Scalar]
    stats: dict[str, Any]


def fit(
    kind: ModelKind,
    examples: Examples,
    *,
    key: Key,
    noise_multiplier: float,
    execution: Execution,
) -> tuple[dict[str, jax.Array], dict[str, Any]]:
    """Returns released weights and intercept, and the stats.

    Privacy:
        One Gaussian mechanism of the noise multiplier under replace-one, for all that
        is returned and all iterates.
    """
    release = partial(robust_fit, _fit_once) if kind.is_robust else _fit_once
    return release(
        kind, examples, key=key, noise_multiplier=noise_multiplier, execution=execution
    )


def _fit_once(
    kind: ModelKind,
    examples: Examples,
    *,
    key: Key,
    noise_multiplier: float,
    execution: Execution,
) -> tuple[dict[str, jax.Array], dict[str, Any]]:
    """See `fit`. Targets of robust losses are about zero, of about unit scale."""
    if kind.starts_at_mean:
        examples = _without_offsets(examples)
    num_samples, num_features = examples.features.shape
    shares = Shares.of(kind, examples.features.shape, noise_multiplier)
    multipliers = shares.multipliers(noise_multiplier)
    released = {"noise_multiplier": noise_multiplier, "shares": shares._asdict()}
    if num_features == 0:
        size_key, mean_key = _keys.split(key)
        mean_keys = size_key, mean_key
        constant, _, stats = best_constant(kind, examples, mean_keys, multipliers)
        weights = jnp.zeros((0, *constant.shape), constant.dtype)
        params = {"weights": weights, "intercept": constant}
        return params, stats | released | {"num_steps": 0}
    num_weights = num_features * kind.loss.num_outputs
    is_clear = num_samples >= _CLEAR * noise_multiplier * math.sqrt(num_weights)
    first_distance = _CLEAR_FIRST_DISTANCE if is_clear else _FIRST_DISTANCE
    num_steps = min(max(3 * num_weights // 2, _FEWEST_STEPS), _MOST_STEPS)
    start_key, step_key, end_key = _keys.split(key, 3)
    start = _coordinates(kind, num_steps, examples, start_key, multipliers)
    blocks = kind.block_shares
    outputs = start.constant.shape
    params = {"weights": jnp.zeros((num_features, *outputs), start.constant.dtype)}
    if "intercept" in blocks:
        params["intercept"] = start.constant
    distance = first_distance / math.sqrt(max(1, num_weights)) * start.norms["weights"]
    step = DistanceOverGradientsStep(
        loss_fn=ExampleLoss(kind.loss),
        batches=Batches.of(start.rows, num_steps, Full(), execution),
        estimator=BlockClipping(start.norms, tuple(blocks.items())),
        noise_multiplier=multipliers.steps * math.sqrt(num_steps),
        first_distances={name: distance for name in blocks},
    )
    _, state = iterate(step, params, start.rows, key=step_key, execution=execution)
    params, stats = average_params(state), start.stats
    if kind.has_intercept:
        params = {"intercept": start.constant} | params
    if kind.loss.num_outputs == 1:
        params, stats["scale"] = _recalibrated(
            kind, examples, start.rows[0], params, end_key, multipliers
        )
    stats |= released | {"num_steps": num_steps}
    return _in_features(start.whitening, params), stats


@jax.jit
def _without_offsets(examples: Examples) -> Examples:
    """Returns the examples with offsets subtracted from the targets."""
    targets, offsets = examples.targets - examples.offsets, examples.offsets
    return examples._replace(targets=targets, offsets=jnp.zeros_like(offsets))


def _coordinates(
    kind: ModelKind, num_steps: int, examples: Examples, key: Key, multipliers: Shares
) -> Coordinates:
    """Releases constant, scales and second moments, each after those before it."""
    # One program after the other, so that that of noisy quantiles is compiled once.
    num_samples, num_features = examples.features.shape
    size_key, mean_key, radius_key, moments_key, norm_key = _keys.split(key, 5)
    mean_keys = size_key, mean_key
    constant, size, stats = best_constant(kind, examples, mean_keys, multipliers)

    rows = weighted(kind, examples)
    num_beyond = _BEYOND_RADIUS * math.sqrt(2 * num_features) * multipliers.moments
    radius = noisy_quantile(
        radius_key,
        gathered(row_norms(rows)),
        num_above=min(num_beyond, _MOST_BEYOND * num_samples),
        noise_multiplier=multipliers.radius,
    )
    white, z = whitened(kind, examples, rows, radius, moments_key, multipliers.moments)

    rows, gradient_norms = _gradient_norms(kind, examples, z, constant)
    share = kind.block_shares["weights"]
    num_weights = num_features * kind.loss.num_outputs
    steps = multipliers.steps  # of all steps together
    num_clipped = _CLIPPED * 2 * steps * math.sqrt(num_steps * num_weights / share)
    norms: dict[str, Scalar] = {
        "weights": noisy_quantile(
            norm_key,
            gathered(gradient_norms),
            num_above=min(num_clipped, _MOST_CLIPPED * num_samples),
            noise_multiplier=multipliers.gradient_size,
        )
    }
    if "intercept" in kind.block_shares:
        norms["intercept"] = largest_slope(kind, constant, size)
    stats |= {"radius": radius, "share_kept": white.share_kept, "l2_clip_norms": norms}
    return Coordinates(rows, white, constant, norms, stats)


@partial(jax.jit, static_argnums=0)
def weighted(kind: ModelKind, examples: Examples) -> jax.Array:
    """Returns features times the roots of the weights.

    The second moments are then weighted means.
    """
    if not kind.has_weights:
        return examples.features
    return examples.features * jnp.sqrt(examples.weights)[:, None]


@partial(jax.jit, static_argnums=0, static_argnames="floors")
def whitened(
    kind: ModelKind,
    examples: Examples,
    rows: jax.Array,
    radius: jax.Array,
    key: Key,
    multiplier: Scalar,
    floors: tuple[float, float] = FLOORS,
) -> tuple[Whitening, jax.Array]:
    """Releases a whitening of the rows, and returns the whitened features."""
    ones = None
    if kind.has_intercept:
        ones = _ONES * radius
        column = jnp.full_like(rows[:, :1], ones)
        if kind.has_weights:
            column = column * jnp.sqrt(examples.weights)[:, None]
        rows = jnp.concatenate([rows, column], axis=1)
        radius = math.sqrt(1 + _ONES**2) * radius
    moments, stddev = noisy_second_moments(
        key, rows, radius=radius, noise_multiplier=multiplier, axis_name=kind.axis_name
    )
    white = whitening(moments, stddev, ones=ones, floors=floors)
    return white, product(examples.features - white.center[None, :], white.matrix)


@partial(jax.jit, static_argnums=0)
def _gradient_norms(
    kind: ModelKind, examples: Examples, z: jax.Array, constant: jax.Array
) -> tuple[tuple[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]:
    """Returns the rows of the steps, and the norms of their first gradients."""
    _, targets, offsets, weights = examples
    outputs = constant.shape
    shape = (len(z), *outputs)
    shift = offsets.reshape(len(z), *(1 for _ in outputs))
    predictions = jnp.broadcast_to(constant, shape) + jnp.broadcast_to(shift, shape)
    slopes = weights * slope_norms(kind.loss.derivative(predictions, targets))
    if kind.starts_at_mean:
        offsets = offsets + constant
    return (z, offsets, targets, weights), slopes * row_norms(z)


def slope_norms(slopes: jax.Array) -> jax.Array:
    """Returns the norms of derivatives in the prediction, (n,) or (n, K)."""
    return jnp.abs(slopes) if slopes.ndim == 1 else row_norms(slopes)


@jax.jit
def row_norms(rows: jax.Array) -> jax.Array:
    """Returns the l2 norm of each row."""
    return jnp.sqrt(jnp.sum(rows**2, axis=1))


def _recalibrated(
    kind: ModelKind,
    examples: Examples,
    z: jax.Array,
    params: dict[str, jax.Array],
    key: Key,
    multipliers: Shares,
) -> tuple[dict[str, jax.Array], jax.Array]:
    """Releases weights of the best norm, with their intercept, and the scale."""
    level = params.get("intercept", jnp.zeros_like(params["weights"][0]))
    scale, shift = recalibration(
        kind.loss,
        Predictor(product(z, params["weights"]), level, *examples[1:]),
        key=key,
        has_level=kind.has_intercept,
        is_at_mean=kind.starts_at_mean,
        size_multiplier=multipliers.score_sizes,
        multiplier=multipliers.recalibration,
        axis_name=kind.axis_name,
    )
    return _rescaled(params, scale, shift), scale


@jax.jit
def _rescaled(
    params: dict[str, jax.Array], scale: jax.Array, shift: jax.Array
) -> dict[str, jax.Array]:
    fitted = {"weights": scale * params["weights"]}
    if "intercept" in params:
        fitted["intercept"] = params["intercept"] + shift
    return fitted


@jax.jit
def product(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the product of matrices, to the precision of their type."""
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)


@jax.jit
def _in_features(
    white: Whitening, params: dict[str, jax.Array]
) -> dict[str, jax.Array]:
    """Returns weights and intercept for features, from those for z."""
    weights = product(white.matrix, params["weights"])
    if "intercept" not in params:
        return {"weights": weights}
    shift = product(white.center, weights)
    return {"weights": weights, "intercept": params["intercept"] - shift}
