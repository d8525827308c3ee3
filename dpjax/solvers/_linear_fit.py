"""A linear model of cleaned records: scale by scale, then steps. No choice is made."""

import math
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from dpjax._sharding import AxisName, gathered
from dpjax._tree import like
from dpjax._types import Key, Scalar
from dpjax.batching import Full
from dpjax.estimators import Clipping, Winsorization
from dpjax.losses import LinearLoss
from dpjax.solvers._linear_steps import (
    BlockClipping,
    DistanceOverGradientsStep,
    ExampleLoss,
)
from dpjax.solvers._loop import Batches, Execution, iterate
from dpjax.solvers._noisy_quantile import noisy_quantile
from dpjax.solvers._recalibration import Predictor, recalibration
from dpjax.solvers._second_moments import Whitening, noisy_second_moments, whitening
from dpjax.transforms import average_params, privatize

_FEWEST_STEPS, _MOST_STEPS = 50, 150  # three for two weights in between
# Bias and noise of clipping are taken to be alike where so many times 2 sqrt(d)
# multipliers of records are clipped, d the number of weights; never more than half.
_CLIPPED, _MOST_CLIPPED = 1.0, 0.5
_BEYOND_TARGETS = 2.0  # the bound of targets, in what a histogram lets see
# Rows that second moments scale down: so many times the edge of their noise, in
# multipliers of one record, and never more than a tenth of all.
_BEYOND_RADIUS, _MOST_BEYOND = 20.0, 0.1
_INTERCEPT_SHARE = 0.1  # of the steps' budget
# The first step's length, of threshold / sqrt(d), the size of a weight that matters. So
# few steps cannot begin slowly, but where n is so many times the noise of a gradient.
_FIRST_DISTANCE, _CLEAR_FIRST_DISTANCE, _CLEAR = 0.3, 0.1, 700


class Problem(NamedTuple):
    """What is static about a model.

    Attributes:
        loss: of a prediction.
        has_intercept: whether an intercept is fitted.
        has_weights: whether records have weights of their own.
        axis_name: the mesh axes over which records are sharded.
    """

    loss: LinearLoss
    has_intercept: bool
    has_weights: bool
    axis_name: AxisName | None

    @property
    def has_labels(self) -> bool:
        """Whether targets are classes, whose shares need no clipping."""
        return self.loss.num_outputs > 1 or self.loss.target_range == (-1.0, 1.0)

    @property
    def starts_at_mean(self) -> bool:
        """Whether the best constant is a mean that steps need not find again."""
        return self.has_intercept and math.isinf(self.loss.derivative_bound)

    @property
    def block_shares(self) -> dict[str, float]:
        """What part of the steps' budget each leaf of params takes."""
        if not self.has_intercept or self.starts_at_mean:
            return {"weights": 1.0}
        return {"weights": 1 - _INTERCEPT_SHARE, "intercept": _INTERCEPT_SHARE}


class Records(NamedTuple):
    """Finite features (n, d), and targets, offsets and weights in [0, 1], (n,)."""

    features: jax.Array
    targets: jax.Array
    offsets: jax.Array
    weights: jax.Array


class Shares(NamedTuple):
    """What part of the budget each release takes, 1 in all.

    Attributes:
        target_size: how large targets are.
        mean: the mean of the targets.
        radius: how long rows are.
        moments: the second moments of features.
        gradient_size: how long gradients are.
        steps: all steps together.
        score_sizes: how large scores and slopes are in the end.
        recalibration: scale and level of the scores.
    """

    target_size: float
    mean: float
    radius: float
    moments: float
    gradient_size: float
    steps: float
    score_sizes: float
    recalibration: float

    @classmethod
    def of(
        cls, problem: Problem, shape: tuple[int, ...], noise_multiplier: float
    ) -> "Shares":
        """Returns the shares of a model of features of that shape.

        What it does not need goes to the steps; all goes to a constant without any. The
        less the budget lets see, the more of it goes to the constant, so that it is no
        worse than that of a model which is nothing else.
        """
        num_samples, num_features = shape
        size = 0.0 if problem.has_labels else 0.4
        if num_features == 0:
            return cls(size, 1 - size, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        if not problem.has_intercept:
            start = 0.0
        elif problem.has_labels:
            start = 0.03
        else:
            start = min(0.1 + 400 * noise_multiplier / num_samples, 0.5)
        before = size * start, (1 - size) * start, 0.03, 0.12, 0.04
        after = (0.03, 0.05) if problem.loss.num_outputs == 1 else (0.0, 0.0)
        return cls(*before, 1 - math.fsum(before + after), *after)

    def multipliers(self, noise_multiplier: float) -> "Shares":
        """Returns the noise multiplier of each release, from that of all together.

        Inverse squares of multipliers add up, and these are shares of them.
        """
        return Shares(*(noise_multiplier / math.sqrt(x) if x else 0.0 for x in self))


class Coordinates(NamedTuple):
    """Where the steps take place, and how long their gradients are.

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
    norms: dict[str, jax.Array]
    stats: dict[str, jax.Array]


def fit(
    problem: Problem,
    records: Records,
    *,
    key: Key,
    noise_multiplier: float,
    execution: Execution,
) -> tuple[dict[str, jax.Array], dict[str, Any]]:
    """Returns released weights and intercept, and the stats.

    Privacy:
        As one Gaussian mechanism of the noise multiplier, under replace-one, for all
        that is returned and all iterates.
    """
    num_samples, num_features = records.features.shape
    shares = Shares.of(problem, records.features.shape, noise_multiplier)
    multipliers = shares.multipliers(noise_multiplier)
    released = {"noise_multiplier": noise_multiplier, "shares": shares._asdict()}
    if num_features == 0:
        size_key, mean_key = jax.random.split(key)
        mean_keys = size_key, mean_key
        constant, _, stats = _constant(problem, records, mean_keys, multipliers)
        weights = jnp.zeros((0, *constant.shape), constant.dtype)
        params = {"weights": weights, "intercept": constant}
        return params, stats | released | {"num_steps": 0}
    num_weights = num_features * problem.loss.num_outputs
    is_clear = num_samples >= _CLEAR * noise_multiplier * math.sqrt(num_weights)
    first_distance = _CLEAR_FIRST_DISTANCE if is_clear else _FIRST_DISTANCE
    num_steps = min(max(3 * num_weights // 2, _FEWEST_STEPS), _MOST_STEPS)
    place_key, step_key, end_key = jax.random.split(key, 3)
    place = _coordinates(problem, num_steps, records, place_key, multipliers)
    blocks = problem.block_shares
    outputs = place.constant.shape
    params = {"weights": jnp.zeros((num_features, *outputs), place.constant.dtype)}
    if "intercept" in blocks:
        params["intercept"] = place.constant
    distance = first_distance / math.sqrt(max(1, num_weights)) * place.norms["weights"]
    step = DistanceOverGradientsStep(
        loss_fn=ExampleLoss(problem.loss),
        batches=Batches.of(place.rows, num_steps, Full(), execution),
        estimator=BlockClipping(place.norms, tuple(blocks.items())),
        noise_multiplier=multipliers.steps * math.sqrt(num_steps),
        first_distances={name: distance for name in blocks},
    )
    _, state = iterate(
        step,
        params,
        place.rows,
        key=step_key,
        num_steps=num_steps,
        batching=Full(),
        execution=execution,
    )
    params, stats = average_params(state), place.stats
    if problem.has_intercept:
        params = {"intercept": place.constant} | params
    if problem.loss.num_outputs == 1:
        params, stats["scale"] = _recalibrated(
            problem, records, place.rows[0], params, end_key, multipliers
        )
    stats |= released | {"num_steps": num_steps}
    return _in_features(place.whitening, params), stats


@partial(jax.jit, static_argnums=(0, 1))
def _coordinates(
    problem: Problem, num_steps: int, records: Records, key: Key, multipliers: Shares
) -> Coordinates:
    """Releases constant, scales and second moments, each after those before it."""
    loss, axis_name = problem.loss, problem.axis_name
    features, targets, offsets, weights = records
    num_samples, num_features = features.shape
    size_key, mean_key, radius_key, moments_key, norm_key = jax.random.split(key, 5)
    mean_keys = size_key, mean_key
    constant, size, stats = _constant(problem, records, mean_keys, multipliers)

    lengths = _lengths(features)
    num_beyond = _BEYOND_RADIUS * math.sqrt(2 * num_features) * multipliers.moments
    radius = noisy_quantile(
        radius_key,
        gathered(lengths),
        num_above=jnp.minimum(num_beyond, _MOST_BEYOND * num_samples),
        noise_multiplier=multipliers.radius,
    )
    extended = features
    if problem.has_intercept:
        extended = jnp.concatenate([features, jnp.ones_like(features[:, :1])], axis=1)
    moments, stddev = noisy_second_moments(
        moments_key,
        extended,
        radius=radius,
        noise_multiplier=multipliers.moments,
        axis_name=axis_name,
    )
    white = whitening(moments, stddev, is_centered=problem.has_intercept)
    z = jnp.matmul(
        features - white.center[None, :],
        white.matrix,
        precision=jax.lax.Precision.HIGHEST,
    )

    outputs = constant.shape
    shape = (num_samples, *outputs)
    shift = offsets.reshape(num_samples, *(1 for _ in outputs))
    predictions = jnp.broadcast_to(constant, shape) + jnp.broadcast_to(shift, shape)
    slopes = weights * slope_sizes(loss.derivative(predictions, targets))
    steps = multipliers.steps  # of all together, as of one
    share = problem.block_shares["weights"]
    num_weights = num_features * loss.num_outputs
    num_clipped = _CLIPPED * 2 * steps * math.sqrt(num_steps * num_weights / share)
    norms = {
        "weights": noisy_quantile(
            norm_key,
            gathered(slopes * _lengths(z)),
            num_above=jnp.minimum(num_clipped, _MOST_CLIPPED * num_samples),
            noise_multiplier=multipliers.gradient_size,
        )
    }
    stats |= {"radius": radius, "share_kept": white.share_kept}
    if "intercept" in problem.block_shares:
        norms["intercept"] = _largest_slope(problem, constant, size)
    stats["l2_clip_norms"] = norms
    if problem.starts_at_mean:
        offsets = offsets + constant
    return Coordinates((z, offsets, targets, weights), white, constant, norms, stats)


@partial(jax.jit, static_argnums=0)
def _constant(
    problem: Problem, records: Records, keys: tuple[Key, Key], multipliers: Shares
) -> tuple[jax.Array, Scalar, dict[str, jax.Array]]:
    """Releases the best constant, zero without intercept, and how large targets are."""
    loss, (size_key, mean_key) = problem.loss, keys
    dtype = records.features.dtype
    outputs = (loss.num_outputs,) if loss.num_outputs > 1 else ()
    size, stats = jnp.ones((), dtype), {}
    if not problem.has_intercept:
        return jnp.zeros(outputs, dtype), size, stats
    if not problem.has_labels:
        sizes = jnp.where(records.weights > 0, jnp.abs(records.targets), 0.0)
        size = stats["target_size"] = _BEYOND_TARGETS * noisy_quantile(
            size_key,
            gathered(sizes),
            num_above=2 * multipliers.mean,
            noise_multiplier=multipliers.target_size,
        )
    mean = _mean(problem, records, size, multipliers.mean, mean_key)
    constant = stats["constant"] = loss.constant_prediction(mean)
    return constant, size, stats


def _mean(
    problem: Problem, records: Records, size: Scalar, multiplier: Scalar, key: Key
) -> jax.Array:
    """Releases the mean target within ±size, or the shares of classes.

    With weights, sums over n of weighted targets and of weights are released together,
    and the mean is their ratio.
    """
    targets, weights = records.targets, records.weights
    if problem.loss.num_outputs > 1:
        classes = problem.loss.num_outputs
        samples = jax.nn.one_hot(targets.astype("int32"), classes, dtype=targets.dtype)
        samples, estimator = samples * weights[:, None], Clipping(1.0)
    else:
        samples = weights * jnp.clip(targets / like(size, targets), -1.0, 1.0)
        estimator = Winsorization(1.0)
        if problem.has_weights:
            samples = jnp.stack([samples, weights], axis=1)
    release = privatize(
        estimator, noise_multiplier=multiplier, key=key, axis_name=problem.axis_name
    )
    mean = cast(jax.Array, release.update(samples, release.init(samples))[0])
    if problem.loss.num_outputs > 1:
        return mean / jnp.maximum(jnp.sum(mean), 0.05)
    if problem.has_weights:
        mean = jnp.clip(mean[0] / jnp.maximum(mean[1], 0.05), -1.0, 1.0)
    return mean * like(size, mean)


def _largest_slope(problem: Problem, constant: jax.Array, size: Scalar) -> jax.Array:
    """Returns how long the derivative at the constant is for targets within ±size."""
    loss = problem.loss
    if problem.has_labels:
        return jnp.asarray(loss.derivative_bound, constant.dtype)
    ends = loss.targets_of(jnp.stack([-size, size]))
    return jnp.max(jnp.abs(loss.derivative(jnp.stack([constant, constant]), ends)))


def slope_sizes(slopes: jax.Array) -> jax.Array:
    """Returns how long the derivative in the prediction, (n,) or (n, K), is."""
    return jnp.abs(slopes) if slopes.ndim == 1 else _lengths(slopes)


def _lengths(rows: jax.Array) -> jax.Array:
    """Returns the l2 norm of each row."""
    return jnp.sqrt(jnp.sum(rows**2, axis=1))


@partial(jax.jit, static_argnums=0)
def _recalibrated(
    problem: Problem,
    records: Records,
    z: jax.Array,
    params: dict[str, jax.Array],
    key: Key,
    multipliers: Shares,
) -> tuple[dict[str, jax.Array], jax.Array]:
    """Releases weights of the length that fits, with their intercept, and the scale."""
    precise = jax.lax.Precision.HIGHEST
    weights = params["weights"]
    level = params.get("intercept", jnp.zeros((), weights.dtype))
    scale, shift = recalibration(
        problem.loss,
        Predictor(jnp.matmul(z, weights, precision=precise), level, *records[1:]),
        key=key,
        has_level=problem.has_intercept,
        is_at_mean=problem.starts_at_mean,
        size_multiplier=multipliers.score_sizes,
        multiplier=multipliers.recalibration,
        axis_name=problem.axis_name,
    )
    fitted = {"weights": scale * weights}
    if problem.has_intercept:
        fitted["intercept"] = level + shift
    return fitted, scale


@jax.jit
def _in_features(
    white: Whitening, params: dict[str, jax.Array]
) -> dict[str, jax.Array]:
    """Returns weights and intercept for features, from those for z."""
    product = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    weights = product(white.matrix, params["weights"])
    if "intercept" not in params:
        return {"weights": weights}
    shift = product(white.center, weights)
    return {"weights": weights, "intercept": params["intercept"] - shift}
