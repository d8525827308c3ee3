"""A fit to finite records: second moments and norms, steps, and one Newton step.

With the Huber loss two such fits are made: the first to centered and scaled targets,
the second to the residuals of the first.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _keys
from dpjax._sharding import AxisName, gathered
from dpjax._sums.fold import Unrounded
from dpjax._types import Key, PyTree, Scalar
from dpjax.batching import Full
from dpjax.losses import LinearLoss, MarginLoss
from dpjax.losses._residual_losses import Huber
from dpjax.mechanisms._additive import gaussian_of_padded
from dpjax.solvers.linear._bends import with_bends
from dpjax.solvers.linear._constant import best_constant, largest_slope, of_rarer_class
from dpjax.solvers.linear._kind import Examples, ModelKind, Records, Shares, by_block
from dpjax.solvers.linear._steps import (
    BlockClipping,
    DistanceOverGradientsStep,
    ExampleLoss,
)
from dpjax.solvers.statistics._moments import (
    FLOORS,
    Whitening,
    second_moments,
    symmetric,
    whitening,
)
from dpjax.solvers.statistics._noisy_mean import SetClipping, mean_and_stddevs
from dpjax.solvers.statistics._noisy_quantile import (
    magnitudes,
    noisy_median,
    noisy_quantile,
    one_if_zero,
)
from dpjax.solvers.training._curves import LARGEST, bounded
from dpjax.solvers.training._loop import Batches, Execution, iterate
from dpjax.transforms import average_params

_FEWEST_STEPS, _MOST_STEPS = 50, 150  # in between, three for every two weights
# The number of clipped records, in 2 sqrt(d) multipliers, d the number of weights:
# there bias and noise of clipping are assumed to be equal. At most half of the records
# are clipped.
_CLIPPED, _MOST_CLIPPED = 1.0, 0.5
# The number of rows that second moments clip, in edges of their noise (in multipliers
# of one record), and at most a tenth of all rows.
_BEYOND_RADIUS, _MOST_BEYOND = 20.0, 0.1
# Rows are clipped to a radius R and get a column of the constant t R. The noise of
# second moments is then proportional to R^2 (1 + t^2), and the noise of the center to R
# (1 + t^2) / t. At t = 1/2 the first is a quarter larger than at 0, and the second is
# near its minimum. With ones instead, if R is large, the center would be mostly noise.
_ONES = 0.5
# The share of the moments' budget for features, if hat functions have the rest.
_LINES = 5 / 6
# The norm of the first step, in clip norm / sqrt(d), the size of a weight that matters.
# Few steps must begin with a large one, unless n is this multiple of a gradient's
# noise.
_FIRST_DISTANCE, _CLEAR_FIRST_DISTANCE, _CLEAR = 0.3, 0.1, 700
_MOST_SCALE = 3.0
_PRIOR = 0.1  # prior stddev of the errors of scale and level
_LEAST_CURVATURE = 0.05  # least mean curvature, over its bound
# Records are (t u, t, c, c u, c u^2) with t and u in [-1, 1] and c in [0, 1]:
# `docs/privacy/proofs/linear.md`, 8.4.
_RECORDS = SetClipping(math.sqrt(5), math.sqrt(11 / 5))
# Shares of the Huber loss's three scales, its median, and the first of two fits. The
# second fit has the rest.
_SCALE, _MEDIAN, _FIRST_FIT = 0.02, 0.03, 0.25
# A larger threshold, in scales of the targets, counts as this, because bins of
# magnitudes begin at 2^-20 units.
_MOST_SCALES = 1e4
_THRESHOLD = 1.345  # in units of the fits: one program serves all thresholds
_TO_STDDEV = 1.4826  # a normal stddev over the median absolute value

Params = dict[str, jax.Array]


def fit(
    kind: ModelKind,  # the static description of the model
    examples: Examples,  # features, targets, offsets, weights
    *,
    key: Key,
    noise_multiplier: float,  # of all releases together
    execution: Execution,  # microbatches, callback, checkpoint
) -> tuple[Params, dict[str, Any]]:  # params, stats
    """Releases weights and intercept of a linear model, and returns them and stats.

    With the Huber loss:

    1. With an intercept, the median of targets is released by bisection within twice
       their median absolute value.
    2. The median distance from it is the scale of targets in a first fit, which has a
       quarter of the budget, and no callback and checkpoint.
    3. The median absolute value of the residuals, or the loss's own threshold, is their
       scale in a second fit, which corrects the first.

    However large a few targets are, medians depend on their number alone, and slopes
    are at most the threshold.

    Privacy:
        One Gaussian mechanism of the noise multiplier under replace-one, for all that
        is returned and all iterates: with the Huber loss three noisy quantiles, a noisy
        median, and two fits.
    """
    if not isinstance(kind.loss, Huber):
        return _fit_once(kind, examples, key, noise_multiplier, execution)
    return _robust_fit(kind, kind.loss, examples, key, noise_multiplier, execution)


def _robust_fit(
    kind: ModelKind,  # the static description of the model
    loss: Huber,  # with its threshold
    examples: Examples,  # features, targets, offsets, weights
    key: Key,
    noise_multiplier: float,  # of all releases together
    execution: Execution,  # microbatches, callback, checkpoint
) -> tuple[Params, dict[str, Any]]:  # params, stats
    """Releases the sum of a Huber fit and a fit to its residuals, as `fit` explains."""
    # Both scale targets by a released number, so that no noise grows with outliers.
    threshold = jnp.clip(loss.threshold, 1 / LARGEST, LARGEST) / _THRESHOLD
    kind = kind._replace(loss=Huber(_THRESHOLD))
    shares = {
        "median_size": _SCALE if kind.has_intercept else 0.0,
        "median": _MEDIAN if kind.has_intercept else 0.0,
        "target_scale": _SCALE,
        "residual_scale": _SCALE if loss.in_scales else 0.0,
        "first_fit": _FIRST_FIT,
    }
    rest = 1 - math.fsum(shares.values())
    median_keys, scale_key, rescale_key, first_key, second_key = _keys.split(key, 5)

    def median_size(name: str, key: Key, targets: jax.Array) -> jax.Array:
        return noisy_quantile(
            key,
            gathered(magnitudes(targets, examples.weights)),
            share_above=0.5,
            noise_multiplier=noise_multiplier / math.sqrt(shares[name]),
        )

    def residual_fit(key: Key, share: float, targets: jax.Array, execution: Execution):
        residuals = examples._replace(targets=targets, offsets=jnp.zeros_like(targets))
        multiplier = noise_multiplier / math.sqrt(share)
        return _fit_once(kind, residuals, key, multiplier, execution)

    targets = _less(examples.targets, examples.offsets, 1.0)
    center, stats = jnp.zeros((), targets.dtype), {}
    if kind.has_intercept:
        size_key, median_key = _keys.split(median_keys)
        center = stats["constant"] = noisy_median(
            median_key,
            gathered(targets),
            gathered(examples.weights),
            bound=2 * median_size("median_size", size_key, targets),
            noise_multiplier=noise_multiplier / math.sqrt(_MEDIAN),
        )
    size = median_size("target_scale", scale_key, _less(targets, center, 1.0))
    unit = _TO_STDDEV * size
    if not loss.in_scales:  # a unit below the threshold gains nothing
        threshold = jnp.minimum(threshold, _MOST_SCALES * unit)
        unit = jnp.maximum(threshold, unit)
    targets = _less(targets, center, unit)
    without = Execution(microbatch_size=execution.microbatch_size)
    first, _ = residual_fit(first_key, _FIRST_FIT, targets, without)
    targets = _residuals(kind, examples.features, targets, first)
    if loss.in_scales:
        scale = _TO_STDDEV * median_size("residual_scale", rescale_key, targets)
        rescale, stats["residual_scale"] = threshold * scale, unit * scale
    else:
        rescale = threshold / unit
    residuals = _less(targets, 0.0, rescale)
    second, fit_stats = residual_fit(second_key, rest, residuals, execution)
    shares |= {name: rest * share for name, share in fit_stats["shares"].items()}
    stats |= {"shares": shares, "noise_multiplier": noise_multiplier}
    return _sum(center, unit, first, rescale, second), fit_stats | stats


@jax.jit
def _less(targets: jax.Array, center: jax.Array | Scalar, unit: Scalar) -> jax.Array:
    """Returns targets minus the center, in the unit."""
    unit = jnp.asarray(unit, targets.dtype)
    return jnp.clip((targets - center) / unit, -LARGEST, LARGEST)


@partial(jax.jit, static_argnums=0)
def _residuals(
    kind: ModelKind, columns: jax.Array, targets: jax.Array, params: Params
) -> jax.Array:
    """Returns targets less a first fit's predictions, (n,), for the second fit."""
    weights = params["weights"]
    scores = by_block(
        lambda weights, x: jnp.matmul(kind.basis(x), weights, precision="highest"),
        weights,
        columns,
        width=len(weights),
        axis_name=kind.axis_name,
    )
    residuals = targets - scores - params.get("intercept", 0.0)
    return bounded(residuals)


@jax.jit
def _sum(
    center: jax.Array, unit: Scalar, first: Params, rescale: Scalar, second: Params
) -> Params:
    """Returns the summed params of both fits, in the unit of the target."""
    params = jax.tree.map(lambda x, y: unit * (x + rescale * y), first, second)
    if "intercept" in params:
        params["intercept"] = params["intercept"] + center
    return params


class Coordinates(NamedTuple):
    """Holds the coordinates of the steps, and the clip norms of their gradients."""

    rows: tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # z, offset, target, weight
    whitening: Whitening  # the map from features to z, shape (n, d)
    constant: jax.Array  # the best constant as intercept, () or (K,)
    params: dict[str, jax.Array]  # where the steps start
    norms: dict[str, Scalar]  # clip norms of the leaves of params
    stats: dict[str, Any]  # released numbers


def _fit_once(
    kind: ModelKind,  # the static description of the model
    examples: Examples,  # features, targets, offsets, weights
    key: Key,
    noise_multiplier: float,  # of all releases together
    execution: Execution,  # microbatches, callback, checkpoint
) -> tuple[Params, dict[str, Any]]:  # params, stats
    """Releases a fit by noisy gradient steps; for robust losses `fit` makes two.

    Before the steps, the best constant, a whitening and clip norms are released; after
    them, a factor of the weights and a change of the intercept (`recalibration`).
    """
    num_samples, num_features = shape = kind.shape(examples.features)
    shares = Shares.of(kind, shape, noise_multiplier)
    multipliers = shares.multipliers(noise_multiplier)
    released = {"noise_multiplier": noise_multiplier, "shares": shares._asdict()}
    # Columns stay outside the program, because it would return a copy of them.
    shifted, sizes, norms = _of_records(kind, examples)
    records = Records(examples._replace(**shifted), sizes, norms)
    if num_features == 0:
        constant, _, stats = best_constant(kind, records, _keys.split(key), multipliers)
        weights = jnp.zeros((0, *constant.shape), constant.dtype)
        params = {"weights": weights, "intercept": constant}
        return params, stats | released | {"num_steps": 0}
    num_weights = num_features * kind.loss.num_outputs
    is_clear = num_samples >= _CLEAR * noise_multiplier * math.sqrt(num_weights)
    first_distance = _CLEAR_FIRST_DISTANCE if is_clear else _FIRST_DISTANCE
    num_steps = min(max(3 * num_weights // 2, _FEWEST_STEPS), _MOST_STEPS)
    start_key, step_key, end_key = _keys.split(key, 3)
    start = _coordinates(kind, num_steps, records, start_key, multipliers)
    # All steps together are one Gaussian mechanism with the share `steps`.
    step = DistanceOverGradientsStep(
        loss_fn=ExampleLoss(kind.loss),
        batches=Batches.of(start.rows, num_steps, Full(), execution),
        estimator=BlockClipping(start.norms, tuple(kind.block_shares.items())),
        noise_multiplier=multipliers.steps * math.sqrt(num_steps),
        first_distance=first_distance / math.sqrt(max(1, num_weights)),
    )
    _, state = iterate(
        step, start.params, start.rows, key=step_key, execution=execution
    )
    params, stats = average_params(state), start.stats
    if kind.has_intercept:
        params = {"intercept": start.constant} | params
    # Clipped gradients of skewed targets leave the weights too small; one Newton step
    # on the scale of predictions and the intercept corrects that.
    correction, white = None, start.whitening
    if kind.loss.num_outputs == 1:
        scores, level = _predicted(start.rows[0], params)
        predictor = Predictor(scores, level, *records.examples[1:])
        constant = start.constant
        del start  # frees z
        correction = recalibration(
            kind.loss,
            predictor,
            constant,
            key=end_key,
            has_level=kind.has_intercept,
            is_at_mean=kind.starts_at_mean,
            size_multiplier=multipliers.score_sizes,
            multiplier=multipliers.recalibration,
            axis_name=kind.axis_name,
        )
        stats["scale"] = correction[0]
    stats |= released | {"num_steps": num_steps}
    return _in_features(white, params, correction), stats


@partial(jax.jit, static_argnums=0)
def _of_records(
    kind: ModelKind, examples: Examples
) -> tuple[dict[str, jax.Array], jax.Array, jax.Array]:  # fields, sizes, norms
    """Returns shifted fields of examples, absolute targets (n,) and row norms (n,)."""
    # Releases need these numbers. If steps start at the mean of the targets, offsets
    # are subtracted from targets and become zero; else the dict of fields is empty.
    shifted = {}
    if kind.starts_at_mean:
        targets, offsets = examples.targets, examples.offsets
        shifted = {"targets": targets - offsets, "offsets": jnp.zeros_like(offsets)}
        examples = examples._replace(**shifted)
    sizes = magnitudes(examples.targets, examples.weights)
    return shifted, sizes, norms_of_rows(kind, examples)


def _coordinates(
    kind: ModelKind, num_steps: int, records: Records, key: Key, multipliers: Shares
) -> Coordinates:
    """Releases whitened features, first params and clip norms for the gradient steps.

    `multipliers` are the releases' noise multipliers, and `num_steps` steps follow.
    """
    # The programs are separate, so that noisy quantiles are compiled once.
    examples, lines = records.examples, kind._replace(bends=None)
    num_samples, num_features = lines.shape(examples.features)
    size_key, mean_key, radius_key, moments_key, norm_key = _keys.split(key, 5)
    keys = (moments_key,) if kind.bends is None else _keys.split(moments_key)
    mean_keys = size_key, mean_key
    constant, size, stats = best_constant(kind, records, mean_keys, multipliers)

    num_beyond = _BEYOND_RADIUS * math.sqrt(2 * num_features) * multipliers.moments
    radius = noisy_quantile(
        radius_key,
        gathered(records.row_norms),
        num_above=min(num_beyond, _MOST_BEYOND * num_samples),
        noise_multiplier=multipliers.radius,
    )
    # With a radius of almost zero, noise in columns of zeros would become huge weights.
    radius, share = one_if_zero(radius), 1.0 if kind.bends is None else _LINES
    multiplier = multipliers.moments / math.sqrt(share)
    white, z = whitened(lines, examples, radius, keys[0], multiplier)
    if kind.bends is not None:
        white, z = with_bends(
            kind,
            examples,
            white,
            z,
            stats["mean_weight"] if kind.has_intercept else None,
            keys[-1],
            multipliers.moments / math.sqrt(1 - share),
        )
    share = kind.block_shares["weights"]
    num_weights = z.shape[1] * kind.loss.num_outputs
    steps = multipliers.steps  # of all steps together
    num_clipped = _CLIPPED * 2 * steps * math.sqrt(num_steps * num_weights / share)
    first = _first(kind, examples, z, constant, size, num_clipped)
    offsets, params, gradient_norms, largest, num_above = first
    rows = z, offsets, examples.targets, examples.weights
    norms: dict[str, Scalar] = {
        "weights": noisy_quantile(
            norm_key,
            gathered(gradient_norms),
            num_above=num_above,
            noise_multiplier=multipliers.gradient_size,
        )
    }
    if largest is not None:
        norms["intercept"] = largest
    stats |= {"radius": radius, "share_kept": white.share_kept, "l2_clip_norms": norms}
    return Coordinates(rows, white, constant, params, norms, stats)


def _weighted(kind: ModelKind, columns: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns features times the roots of the weights: moments are weighted means."""
    return kind.basis(columns) * jnp.sqrt(weights)[:, None]


@partial(jax.jit, static_argnums=0)
def norms_of_rows(kind: ModelKind, examples: Examples) -> jax.Array:
    """Returns norms (n,) of features times roots of weights, to bound them.

    A number that few of them exceed is the radius to which rows are clipped.
    """
    columns = examples.features
    return by_block(
        lambda _, rows: row_norms(_weighted(kind, *rows)),
        (),
        (columns, examples.weights),
        width=kind.shape(columns)[1],
        axis_name=kind.axis_name,
    )


def whitened(
    kind: ModelKind,  # the static description of the model
    examples: Examples,  # features, targets, offsets, weights
    radius: jax.Array,  # clip norm of rows, released
    key: Key,
    multiplier: Scalar,  # the noise multiplier
    floors: tuple[float, float] = FLOORS,  # see `whitening`
) -> tuple[Whitening, jax.Array]:  # map, whitened features
    """Releases a whitening of features, and returns it and whitened features (n, d).

    In these coordinates directions have about equal spread, so steps need no tuning.
    """
    moments, stddevs, ones = _moments(kind, examples, radius, multiplier)
    noisy = gaussian_of_padded(key, moments, stddevs)
    return _whitened(kind, floors, examples.features, noisy, stddevs, ones)


@partial(jax.jit, static_argnums=0)
def _moments(
    kind: ModelKind,  # the static description of the model
    examples: Examples,  # features, targets, offsets, weights
    radius: jax.Array,  # clip norm of the features
    multiplier: Scalar,  # the noise multiplier
) -> tuple[Unrounded, jax.Array, jax.Array | None]:  # moments, stddevs, constant
    """Returns second moments of rows before noise, stddevs of noise, and a constant.

    The whitening map needs them. Moments (distinct entries) and stddevs are padded
    vectors. A row is a record's features times the root of its weight, and with an
    intercept also a constant times the root, for the center; else the constant is None.
    """
    columns, weights = examples.features, examples.weights
    ones = constants = None
    if kind.has_intercept:
        ones = _ONES * radius
        constants = ones * jnp.sqrt(weights)
        radius = math.sqrt(1 + _ONES**2) * radius

    def row_of(record: PyTree) -> jax.Array:
        columns, weight, constant = record
        (row,) = _weighted(kind, columns[None], weight[None])
        return row if constant is None else jnp.append(row, constant)

    records = columns, weights, constants
    return *second_moments(kind.axis_name, records, radius, multiplier, row_of), ones


@partial(jax.jit, static_argnums=(0, 1))
def _whitened(
    kind: ModelKind,
    floors: tuple[float, float],  # see `whitening`
    columns: jax.Array,
    noisy: jax.Array,  # distinct entries of the moments, padded with zeros
    stddevs: jax.Array,  # of their noise
    ones: jax.Array | None,  # the rows' constant; None: no intercept
) -> tuple[Whitening, jax.Array]:  # map, whitened features
    """Returns a whitening map, from noisy second moments, and mapped features."""
    _, num_features = kind.shape(columns)
    moments, stddev = symmetric(num_features + (ones is not None), noisy, stddevs)
    white = whitening(moments, stddev, ones=ones, floors=floors)

    def z_of(white: Whitening, columns: jax.Array) -> jax.Array:
        return product(kind.basis(columns) - white.center[None, :], white.matrix)

    return white, by_block(
        z_of, white, columns, width=num_features, axis_name=kind.axis_name
    )


@partial(jax.jit, static_argnums=0)
def _first(
    kind: ModelKind,
    examples: Examples,
    z: jax.Array,
    constant: jax.Array,
    size: Scalar,
    num_clipped: Scalar,
) -> tuple[jax.Array, dict[str, jax.Array], jax.Array, jax.Array | None, jax.Array]:
    """Returns offsets, first params, and sizes of gradients, for steps in z (n, k).

    Offsets include the best constant prediction if no step changes it. The sizes are
    norms (n,) of each record's gradient in the weights, a quantile of which is the clip
    norm, and the clip norm of the intercept's gradient, or None if the intercept takes
    no steps. z are whitened features, and targets are within ±size. With two classes
    norms are those of all records with the slope of the rarer class, because noise may
    hide its few records. Last is the number of clipped records: `num_clipped`, over
    the rarer class's share, and at most `_MOST_CLIPPED` of all.
    """
    _, targets, offsets, weights = examples
    outputs = constant.shape
    shape = (len(z), *outputs)
    shift = offsets.reshape(len(z), *(1 for _ in outputs))
    predictions = jnp.broadcast_to(constant, shape) + jnp.broadcast_to(shift, shape)
    slopes = weights * slope_norms(kind.loss.derivative(predictions, targets))
    if kind.has_two_classes:
        slope, share = of_rarer_class(kind, constant)
        slopes, num_clipped = weights * slope, num_clipped / share
    if kind.starts_at_mean:
        offsets = offsets + constant
    params = {"weights": jnp.zeros((z.shape[1], *outputs), constant.dtype)}
    largest = None
    if "intercept" in kind.block_shares:
        params["intercept"] = constant
        largest = largest_slope(kind, constant, size)
    num_above = jnp.minimum(num_clipped, _MOST_CLIPPED * len(z))
    return offsets, params, slopes * row_norms(z), largest, num_above


def slope_norms(slopes: jax.Array) -> jax.Array:
    """Returns the norms of derivatives (n,) or (n, K) in the prediction."""
    return jnp.abs(slopes) if slopes.ndim == 1 else row_norms(slopes)


@jax.jit
def row_norms(rows: jax.Array) -> jax.Array:
    """Returns the l2 norm of each row."""
    return jnp.sqrt(jnp.sum(rows**2, axis=1))


@jax.jit
def _predicted(
    z: jax.Array, params: dict[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Returns predictions without the intercept, and the intercept."""
    weights = params["weights"]
    level = params.get("intercept", jnp.zeros((), weights.dtype))
    return product(z, weights), level


@jax.jit
def product(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the product of matrices in full precision."""
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)


@jax.jit
def _in_features(
    white: Whitening,  # z = A^T (x - center) for features x
    params: dict[str, jax.Array],  # for z
    correction: tuple[jax.Array, jax.Array] | None,
) -> dict[str, jax.Array]:  # weights and intercept
    """Returns weights and intercept for features, from weights and intercept for z.

    `correction` is a factor of the weights and a change of the intercept, or None.
    """
    scale, change = (1.0, 0.0) if correction is None else correction
    weights = product(white.matrix, scale * params["weights"])
    if "intercept" not in params:
        return {"weights": weights}
    shift = product(white.center, weights)
    return {"weights": weights, "intercept": params["intercept"] + change - shift}


class Predictor(NamedTuple):
    """Holds scores <v, z> (n,) for released weights v, their level, and the records."""

    scores: jax.Array
    level: jax.Array
    targets: jax.Array
    offsets: jax.Array
    weights: jax.Array


def recalibration(
    loss: LinearLoss,  # of predictions and targets
    predictor: Predictor,  # scores and level of predictions, records
    constant: jax.Array,  # the best constant prediction, released
    *,
    key: Key,
    has_level: bool,  # whether there is an intercept
    is_at_mean: bool,  # whether it is a mean of targets
    size_multiplier: Scalar,  # of two bounds together
    multiplier: Scalar,  # of the means
    axis_name: AxisName | None,  # mesh axes of the records
) -> tuple[jax.Array, jax.Array]:  # factor, change
    """Releases the factor of the scores, from 0 to 3, and the change of the level.

    A prediction is score + level + offset, with the intercept as level. Clipped
    gradients leave scores too small, which one Newton step on both corrects. If
    `is_at_mean`, the loss is half the square, and the level a mean of the targets,
    without offsets. The change then only subtracts the mean of the scores, which has
    less noise than the mean of the slopes, because scores are smaller. For two classes
    the bound of slopes is public: a quantile could be that of the frequent class.

    Privacy:
        Under replace-one as two Gaussian mechanisms: one or two noisy quantiles of
        `size_multiplier` together, and a mean of five numbers, whose sum a record moves
        by at most sqrt(11), of `multiplier`.
    """
    keys = _keys.split(key, 3)
    has_two_classes = isinstance(loss, MarginLoss)
    samples = _magnitudes(loss, predictor)[: 1 if has_two_classes else 2]
    bounds = [
        noisy_quantile(
            quantile_key,
            gathered(x),
            num_above=2 * multiplier,
            noise_multiplier=math.sqrt(len(samples)) * size_multiplier,
        )
        for quantile_key, x in zip(keys, samples, strict=False)
    ]
    if has_two_classes:
        bounds.append(jnp.full_like(bounds[0], loss.derivative_bound))
    bounds.append(_largest_curvature(loss, constant, bounds[1]))
    means, stddevs = _means(loss, axis_name, predictor, bounds, multiplier)
    # The key is the second of two, so that the draws agree with `privatize`.
    noisy = gaussian_of_padded(_keys.split(keys[2])[1], means, stddevs)
    noise = math.sqrt(11) * multiplier / len(predictor.scores)
    return _newton_step(has_level, is_at_mean, predictor.level, bounds, noisy, noise)


@partial(jax.jit, static_argnums=0)
def _largest_curvature(
    loss: LinearLoss, constant: jax.Array, height: jax.Array
) -> jax.Array:
    """Returns a curvature that few records exceed, to clip curvatures at.

    With a log link the largest curvature is thousands of times the usual one. Most
    records have less than their absolute slope, for which `height` is a released bound,
    plus the curvature of a target that is the mean at the released `constant`.
    """
    if not loss.has_log_link:
        return jnp.full_like(height, loss.curvature_bound)
    usual = loss.curvature(constant, loss.mean_of(constant))
    return jnp.minimum(height + usual, loss.curvature_bound)


def _slopes(loss: LinearLoss, predictor: Predictor) -> jax.Array:
    scores, level, targets, offsets, weights = predictor
    return weights * loss.derivative(level + scores + offsets, targets)


@partial(jax.jit, static_argnums=0)
def _magnitudes(loss: LinearLoss, predictor: Predictor) -> list[jax.Array]:
    """Returns the absolute values of scores and slopes."""
    samples = predictor.scores, _slopes(loss, predictor)
    return [magnitudes(x, predictor.weights) for x in samples]


def _records(
    loss: LinearLoss, predictor: Predictor, bounds: list[jax.Array]
) -> jax.Array:
    """Returns five numbers of each record for the Newton step of `recalibration`.

    They are the loss's derivatives in scale and level, (n, 5). `bounds` clip scores,
    slopes (derivatives in the prediction) and curvatures, so that the mean's
    sensitivity is known.
    """
    scores, level, targets, offsets, weights = predictor
    spread, height, largest = bounds
    # All factors are clipped before they are multiplied.
    unit = jnp.clip(scores / spread, -1.0, 1.0)
    slopes = jnp.clip(_slopes(loss, predictor) / height, -1.0, 1.0)
    curvatures = loss.curvature(level + scores + offsets, targets)
    curvatures = jnp.clip(weights * curvatures / largest, 0.0, 1.0)
    return jnp.stack(
        [slopes * unit, slopes, curvatures, curvatures * unit, curvatures * unit**2],
        axis=1,
    )


@partial(jax.jit, static_argnums=(0, 1))
def _means(
    loss: LinearLoss,
    axis_name: AxisName | None,
    predictor: Predictor,  # scores and level of predictions, records
    bounds: list[jax.Array],  # of scores, slopes (derivatives of the loss), curvatures
    multiplier: Scalar,  # the noise multiplier
) -> tuple[Unrounded, jax.Array]:  # means, stddevs
    """Returns five means for `recalibration` before noise, and stddevs of the noise."""
    # They are gradient and Hessian in scale and level; both vectors are zero-padded.
    samples = _records(loss, predictor, bounds)
    return mean_and_stddevs(_RECORDS, samples, multiplier, axis_name)


@partial(jax.jit, static_argnums=(0, 1))
def _newton_step(
    has_level: bool,  # whether there is an intercept
    is_at_mean: bool,  # see `recalibration`
    level: jax.Array,  # the intercept
    bounds: list[jax.Array],  # of scores, slopes and curvatures
    means: jax.Array,  # of `_records`, with noise
    noise: Scalar,  # the stddev of the means
) -> tuple[jax.Array, jax.Array]:  # factor, change
    """Returns the factor of scores and the change of the level, for `recalibration`.

    The means are gradient and Hessian of the mean loss in (spread·scale, level), with
    the bound of scores as spread. The level is eliminated. Both parts of the gradient
    have the same clipped slopes, so an error of the level cancels.
    """
    spread, height, bound = bounds
    gradient, pull = height * means[0], height * means[1]
    curvature = bound * jnp.maximum(means[2], _LEAST_CURVATURE)
    mixed, own = bound * means[3], bound * means[4]
    if has_level:
        gradient = gradient - mixed / curvature * pull
        own = own - mixed**2 / curvature
    own = jnp.maximum(own, 0.0)
    doubt = (noise / _PRIOR) ** 2 * ((height / spread) ** 2 + bound**2)
    change = -gradient / spread * own / (own**2 + doubt)
    change = jnp.clip(change, -1.0, _MOST_SCALE - 1)
    if not has_level:
        return 1 + change, jnp.zeros_like(level)
    if is_at_mean:
        return 1 + change, -(1 + change) * mixed / curvature * spread
    pull = pull + mixed * spread * change
    doubt = (noise / _PRIOR * height) ** 2
    return 1 + change, -pull * curvature / (curvature**2 + doubt)
