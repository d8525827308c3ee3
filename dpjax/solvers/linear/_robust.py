"""A fit with the Huber loss: centered at a private median, then scaled by residuals."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpjax import _keys
from dpjax._sharding import gathered
from dpjax._types import Key, Scalar
from dpjax.losses._residual_losses import Huber
from dpjax.solvers.linear._kind import Examples, ModelKind
from dpjax.solvers.statistics._basis import by_block
from dpjax.solvers.statistics._noisy_quantile import (
    magnitudes,
    noisy_median,
    noisy_quantile,
)
from dpjax.solvers.training._curves import LARGEST, bounded
from dpjax.solvers.training._loop import Execution

# Shares of the budget: of each of three scales, the median, and the first of two fits.
# The second has the rest.
_SCALE, _MEDIAN, _FIRST_FIT = 0.02, 0.03, 0.25
# A threshold of more scales of the targets counts as this, because bins of magnitudes
# begin at 2^-20 units.
_MOST_SCALES = 1e4
_THRESHOLD = 1.345  # of both fits, in their units: one program serves all thresholds
_TO_STDDEV = 1.4826  # of a normal law, over the median of its absolute values

Params = dict[str, jax.Array]
Fit = Callable[..., tuple[Params, dict[str, Any]]]


def robust_fit(
    fit_once: Fit,
    kind: ModelKind,
    examples: Examples,
    *,
    key: Key,
    noise_multiplier: float,
    execution: Execution,
) -> tuple[Params, dict[str, Any]]:
    """Returns released weights and intercept, and the stats.

    1. With an intercept, the median of targets, by bisection. It is searched within
       twice the median absolute value of the targets.
    2. The median distance from it: the unit of a first fit, which has a quarter of the
       budget.
    3. The median absolute value of the residuals of that fit. In that unit, or in that
       of the loss's own threshold, a second fit to the residuals corrects the first.

    However large a few targets are, medians depend on their number alone, and slopes
    are at most the threshold.

    Args:
        fit_once: a fit of this kind to targets of unit scale about zero.
        kind: what is static, with a loss `Huber`.
        examples: of which offsets are first subtracted from the targets.
        key: a typed key.
        noise_multiplier: of all releases together.
        execution: of the second fit, and of the first without callback and checkpoint.

    Privacy:
        One Gaussian mechanism of the noise multiplier under replace-one: three
        noisy quantiles, a noisy median, and two fits.
    """
    assert isinstance(kind.loss, Huber)
    in_scales = kind.loss.in_scales
    threshold = jnp.clip(kind.loss.threshold, 1 / LARGEST, LARGEST) / _THRESHOLD
    kind = kind._replace(loss=Huber(_THRESHOLD))
    shares = {
        "median_size": _SCALE if kind.has_intercept else 0.0,
        "median": _MEDIAN if kind.has_intercept else 0.0,
        "target_scale": _SCALE,
        "residual_scale": _SCALE if in_scales else 0.0,
        "first_fit": _FIRST_FIT,
    }
    rest = 1 - math.fsum(shares.values())
    multiplier = {
        name: noise_multiplier / math.sqrt(share)
        for name, share in shares.items()
        if share
    }
    median_keys, scale_key, rescale_key, first_key, second_key = _keys.split(key, 5)

    def median_size(name: str, key: Key, targets: jax.Array) -> jax.Array:
        return noisy_quantile(
            key,
            gathered(magnitudes(targets, examples.weights)),
            num_above=0.0,
            share_above=0.5,
            noise_multiplier=multiplier[name],
        )

    def fit(key: Key, share: float, targets: jax.Array, execution: Execution):
        return fit_once(
            kind,
            examples._replace(targets=targets, offsets=jnp.zeros_like(targets)),
            key=key,
            noise_multiplier=noise_multiplier / math.sqrt(share),
            execution=execution,
        )

    targets = _off(examples.targets, examples.offsets, 1.0)
    center, stats = jnp.zeros((), targets.dtype), {}
    if kind.has_intercept:
        size_key, median_key = _keys.split(median_keys)
        center = stats["constant"] = noisy_median(
            median_key,
            gathered(targets),
            gathered(examples.weights),
            bound=2 * median_size("median_size", size_key, targets),
            noise_multiplier=multiplier["median"],
        )
    unit = _TO_STDDEV * median_size(
        "target_scale", scale_key, _off(targets, center, 1.0)
    )
    if not in_scales:  # A unit below the threshold gains nothing.
        threshold = jnp.minimum(threshold, _MOST_SCALES * unit)
        unit = jnp.maximum(threshold, unit)
    targets = _off(targets, center, unit)
    without = Execution(microbatch_size=execution.microbatch_size)
    first, _ = fit(first_key, _FIRST_FIT, targets, without)
    targets = _residuals(kind, examples.features, targets, first)
    if in_scales:
        scale = _TO_STDDEV * median_size("residual_scale", rescale_key, targets)
        rescale, stats["residual_scale"] = threshold * scale, unit * scale
    else:
        rescale = threshold / unit
    second, fit_stats = fit(second_key, rest, _off(targets, 0.0, rescale), execution)
    shares |= {name: rest * share for name, share in fit_stats["shares"].items()}
    stats = fit_stats | stats | {"shares": shares, "noise_multiplier": noise_multiplier}
    return _sum(center, unit, first, rescale, second), stats


@jax.jit
def _off(targets: jax.Array, center: jax.Array | Scalar, unit: Scalar) -> jax.Array:
    """Returns targets less a center, or one of each, in a unit."""
    unit = jnp.asarray(unit, targets.dtype)
    return jnp.clip((targets - center) / unit, -LARGEST, LARGEST)


@partial(jax.jit, static_argnums=0)
def _residuals(
    kind: ModelKind, columns: jax.Array, targets: jax.Array, params: Params
) -> jax.Array:
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
    """Returns the params of both fits together, in the unit of the target."""
    params = jax.tree.map(lambda x, y: unit * (x + rescale * y), first, second)
    if "intercept" in params:
        params["intercept"] = params["intercept"] + center
    return params
