"""The scale and the level of a fitted predictor, mended by one noisy Newton step.

Clipped gradients of skewed targets stop short of the weights that fit best: their
direction is right, their length is not. Along the scores <w, x> there are but two
numbers to find, so that little noise is needed.
"""

import math
from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp

from dpjax import _keys
from dpjax._sharding import AxisName, gathered
from dpjax._types import Key, Scalar
from dpjax.losses import LinearLoss
from dpjax.solvers._diameter import DiameterMean
from dpjax.solvers.linear._noisy_quantile import noisy_quantile
from dpjax.transforms import privatize

_MOST_SCALE = 3.0
# How far scale and level are thought to be off, before anything is seen.
_PRIOR = 0.1
# A bound on products of score and slope is so many times what few records exceed: their
# tails are those of the targets.
_BEYOND_SLOPES = 2.0
_LEAST_CURVATURE = 0.05  # of the loss's bound, on average
# Records are two numbers in [-1, 1], and (c, c u, c u^2) with c in [0, 1] and u in
# [-1, 1]. Two of these triples are 2 apart at most: their squared distance is convex in
# either c, so that c is 0 or 1; from 0 it is 1 + u^2 + u^4 <= 3; from 1 to 1 it is
# d^2 (1 + s^2), with d the difference of the u and s their sum, |d| <= 2 - |s|, and
# (2 - s)^2 (1 + s^2) falls from 4 at s = 0 on: its slope is 2 (2 - s)(2 s - 1 - 2 s^2).
# All five: 4 + 4 + 4. The largest norm is that of ones.
_RECORDS = DiameterMean(radius=math.sqrt(5), diameter=math.sqrt(12))


class Predictor(NamedTuple):
    """A predictor level + score + offset, and the records that it is judged by.

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
    """Releases what scores should be multiplied by, and what to add to their level.

    Args:
        loss: of one prediction.
        predictor: what is to be mended.
        key: a typed key.
        has_level: whether there is an intercept.
        is_at_mean: whether the loss is half the square, and the level a mean of the
            targets: then only that of the scores is missing, which are smaller.
        size_multiplier: the noise multiplier of all three sizes together.
        multiplier: the noise multiplier of all five means together.
        axis_name: the mesh axes over which records are sharded.

    Returns:
        The scale, from 0 to 3, and the shift.

    Privacy:
        Under replace-one as two Gaussian mechanisms, one of each multiplier: three
        noisy quantiles, and a mean of five numbers, of which a record moves the sum by
        at most sqrt(12).
    """
    keys = _keys.split(key, 4)
    sizes = _sizes(loss, is_at_mean, predictor)
    quantiles = [
        noisy_quantile(
            quantile_key,
            gathered(x),
            num_above=2 * multiplier,
            noise_multiplier=math.sqrt(3) * size_multiplier,
        )
        for quantile_key, x in zip(keys[:3], sizes, strict=True)
    ]
    return _newton_step(
        loss,
        has_level,
        is_at_mean,
        axis_name,
        predictor,
        quantiles,
        keys[3],
        multiplier,
    )


def _samples(
    loss: LinearLoss, is_at_mean: bool, predictor: Predictor
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns scores, their products with slopes, and what pulls at the level."""
    scores, level, targets, offsets, weights = predictor
    slopes = weights * loss.derivative(level + scores + offsets, targets)
    pulls = weights * (scores + offsets) if is_at_mean else slopes
    return scores, scores * slopes, pulls


@partial(jax.jit, static_argnums=(0, 1))
def _sizes(loss: LinearLoss, is_at_mean: bool, predictor: Predictor) -> list[jax.Array]:
    """Returns how large these numbers are of each record that counts."""
    samples = _samples(loss, is_at_mean, predictor)
    return [jnp.where(predictor.weights > 0, jnp.abs(x), 0.0) for x in samples]


def _records(
    loss: LinearLoss,
    is_at_mean: bool,
    predictor: Predictor,
    sizes: tuple[jax.Array, jax.Array, jax.Array],
) -> jax.Array:
    """Returns five numbers of each record, shape (n, 5), in the set of `_RECORDS`."""
    scores, level, targets, offsets, weights = predictor
    spread, slope, height = sizes
    _, products, pulls = _samples(loss, is_at_mean, predictor)
    # All factors are within their ranges before they are multiplied.
    unit = jnp.clip(scores / spread, -1.0, 1.0)
    curvatures = loss.curvature(level + scores + offsets, targets)
    curvatures = jnp.clip(weights * curvatures / loss.curvature_bound, 0.0, 1.0)
    return jnp.stack(
        [
            jnp.clip(products / slope, -1.0, 1.0),
            jnp.clip(pulls / height, -1.0, 1.0),
            curvatures,
            curvatures * unit,
            curvatures * unit**2,
        ],
        axis=1,
    )


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _newton_step(
    loss: LinearLoss,
    has_level: bool,
    is_at_mean: bool,
    axis_name: AxisName | None,
    predictor: Predictor,
    sizes: list[jax.Array],
    key: Key,
    multiplier: Scalar,
) -> tuple[jax.Array, jax.Array]:
    """Releases scale and shift, from numbers that few records exceed."""
    level, bound = predictor.level, loss.curvature_bound
    spread, slope, height = sizes
    slope = _BEYOND_SLOPES * slope
    samples = _records(loss, is_at_mean, predictor, (spread, slope, height))
    release = privatize(
        _RECORDS, noise_multiplier=multiplier, key=key, axis_name=axis_name
    )
    means = cast(jax.Array, release.update(samples, release.init(samples))[0])
    noise = _RECORDS.diameter * multiplier / len(samples)
    # From here on only released numbers: gradient and Hessian of the mean loss in
    # (spread·scale, level), and Newton's step by elimination of the level.
    gradient, pull = slope / spread * means[0], height * means[1]
    curvature = bound * jnp.maximum(means[2], _LEAST_CURVATURE)
    mixed, own = bound * means[3], bound * means[4]
    if has_level:
        gradient = gradient - mixed / curvature * pull
        own = own - mixed**2 / curvature
    own = jnp.maximum(own, 0.0)
    doubt = (noise / _PRIOR) ** 2 * ((slope / spread**2) ** 2 + bound**2)
    change = -gradient / spread * own / (own**2 + doubt)
    change = jnp.clip(change, -1.0, _MOST_SCALE - 1)
    if not has_level:
        return 1 + change, jnp.zeros_like(level)
    pull = pull + mixed * spread * change
    doubt = 0.0 if is_at_mean else (noise / _PRIOR * height) ** 2
    return 1 + change, -pull * curvature / (curvature**2 + doubt)
