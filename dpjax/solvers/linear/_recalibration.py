"""The scale and the level of a fitted predictor, corrected by one noisy Newton step.

With clipped gradients of skewed targets, steps stop before the best weights: the
direction is right, the norm is too small. Scale and level are two numbers only, so that
little noise is needed.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _keys
from dpjax._sharding import AxisName, gathered
from dpjax._sums.exact import Unrounded
from dpjax._types import Key, Scalar
from dpjax.losses import LinearLoss
from dpjax.mechanisms._additive import gaussian_of_padded
from dpjax.solvers.statistics._noisy_mean import SetClipping, mean_and_stddevs
from dpjax.solvers.statistics._noisy_quantile import magnitudes, noisy_quantile

_MOST_SCALE = 3.0
_PRIOR = 0.1  # the stddev of the errors of scale and level, a priori
_LEAST_CURVATURE = 0.05  # of the loss's bound, on average
# Records are (t u, t, c, c u, c u^2) with t and u in [-1, 1] and c in [0, 1]:
# `docs/privacy/proofs/linear.md`, 8.4.
_RECORDS = SetClipping(math.sqrt(5), math.sqrt(11 / 5))


class Predictor(NamedTuple):
    """A predictor level + score + offset, and its records.

    Attributes:
        scores: shape (n,), of released weights.
        level: the intercept, released; zero where there is none.
        targets: shape (n,).
        offsets: shape (n,).
        weights: shape (n,), in [0, 1].
    """

    scores: jax.Array
    level: jax.Array
    targets: jax.Array
    offsets: jax.Array
    weights: jax.Array


def recalibration(
    loss: LinearLoss,
    predictor: Predictor,
    *,
    key: Key,
    has_level: bool,
    is_at_mean: bool,
    size_multiplier: Scalar,
    multiplier: Scalar,
    axis_name: AxisName | None,
) -> tuple[jax.Array, jax.Array]:
    """Releases the factor of the scores, and the change of the level.

    Args:
        loss: of one prediction.
        predictor: to be corrected.
        key: a typed key.
        has_level: whether there is an intercept.
        is_at_mean: whether the loss is half the square, and the level a mean of the
            targets, without offsets. Then only the mean of the scores is subtracted
            from it, because they are smaller than slopes.
        size_multiplier: the noise multiplier of both bounds together.
        multiplier: the noise multiplier of all five means together.
        axis_name: the mesh axes over which records are sharded.

    Returns:
        The scale, from 0 to 3, and the shift.

    Privacy:
        Under replace-one as two Gaussian mechanisms, one of each multiplier: two
        noisy quantiles, and a mean of five numbers, whose sum a record moves by at most
        sqrt(11).
    """
    keys = _keys.split(key, 3)
    bounds = [
        noisy_quantile(
            quantile_key,
            gathered(x),
            num_above=2 * multiplier,
            noise_multiplier=math.sqrt(2) * size_multiplier,
        )
        for quantile_key, x in zip(keys[:2], _magnitudes(loss, predictor), strict=True)
    ]
    means, stddevs = _means(loss, axis_name, predictor, bounds, multiplier)
    # The second of two keys, as `privatize` does, so that its draws and these agree.
    noisy = gaussian_of_padded(_keys.split(keys[2])[1], means, stddevs)
    noise = math.sqrt(11) * multiplier / len(predictor.scores)
    return _newton_step(
        loss, has_level, is_at_mean, predictor.level, bounds, noisy, noise
    )


def _slopes(loss: LinearLoss, predictor: Predictor) -> jax.Array:
    scores, level, targets, offsets, weights = predictor
    return weights * loss.derivative(level + scores + offsets, targets)


@partial(jax.jit, static_argnums=0)
def _magnitudes(loss: LinearLoss, predictor: Predictor) -> list[jax.Array]:
    """Returns the absolute values of scores and slopes."""
    samples = predictor.scores, _slopes(loss, predictor)
    return [magnitudes(x, predictor.weights) for x in samples]


def _records(
    loss: LinearLoss, predictor: Predictor, bounds: tuple[jax.Array, jax.Array]
) -> jax.Array:
    """Returns five numbers of each record, shape (n, 5), in the set of `_RECORDS`."""
    scores, level, targets, offsets, weights = predictor
    spread, height = bounds
    # All factors are within their ranges before they are multiplied.
    unit = jnp.clip(scores / spread, -1.0, 1.0)
    slopes = jnp.clip(_slopes(loss, predictor) / height, -1.0, 1.0)
    curvatures = loss.curvature(level + scores + offsets, targets)
    curvatures = jnp.clip(weights * curvatures / loss.curvature_bound, 0.0, 1.0)
    return jnp.stack(
        [slopes * unit, slopes, curvatures, curvatures * unit, curvatures * unit**2],
        axis=1,
    )


@partial(jax.jit, static_argnums=(0, 1))
def _means(
    loss: LinearLoss,
    axis_name: AxisName | None,
    predictor: Predictor,
    bounds: list[jax.Array],
    multiplier: Scalar,
) -> tuple[Unrounded, jax.Array]:
    """Returns the means of `_records`, padded, and the stddevs of their noise."""
    samples = _records(loss, predictor, (bounds[0], bounds[1]))
    return mean_and_stddevs(_RECORDS, samples, multiplier, axis_name)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _newton_step(
    loss: LinearLoss,
    has_level: bool,
    is_at_mean: bool,
    level: jax.Array,
    bounds: list[jax.Array],
    means: jax.Array,
    noise: Scalar,
) -> tuple[jax.Array, jax.Array]:
    """Returns scale and shift, from released bounds and means, and their noise.

    The means are gradient and Hessian of the mean loss in (spread·scale, level), and
    this is Newton's step by elimination of the level. Both parts of the gradient have
    the same clipped slopes, so an error of the level cancels.
    """
    spread, height = bounds
    bound = loss.curvature_bound
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
