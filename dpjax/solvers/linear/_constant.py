"""The best constant prediction: the start of a linear model."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _keys
from dpjax._sharding import gathered
from dpjax._sums.fold import Unrounded
from dpjax._tree import like
from dpjax._types import Key, Scalar
from dpjax.estimators import Estimator
from dpjax.mechanisms._additive import gaussian_of_padded
from dpjax.solvers.linear._kind import Examples, ModelKind, Records, Shares
from dpjax.solvers.statistics._noisy_mean import (
    BESIDE_WEIGHT,
    WEIGHTED,
    SetClipping,
    mean_and_stddevs,
)
from dpjax.solvers.statistics._noisy_quantile import noisy_quantile, one_if_zero

_BEYOND_TARGETS = 2.0  # the bound of targets, over their noisy quantile
_MANY_MISSING = 0.05  # share of the records without a target
_FROM_ENDS = 0.5  # least distance of label shares from 0 and 1, in stddevs
_CLEAR_WEIGHT = 3.0  # least mean weight, in stddevs of its noise
# Sets of records: w e_k; w (t, r) and w (c t, 1), with w and r in [0, 1] and t in [-1,
# 1]; and w (t, 1) and w (t, r) with t in [0, 1]: `docs/privacy/proofs/linear.md`, 8.3.
_CLASSES = SetClipping(1.0, math.sqrt(2))
_EXPOSED = SetClipping(math.sqrt(2), math.sqrt(5 / 2))
_NON_NEGATIVE = SetClipping(math.sqrt(2), 1.0)


def best_constant(
    kind: ModelKind, records: Records, keys: tuple[Key, ...], multipliers: Shares
) -> tuple[jax.Array, Scalar, dict[str, jax.Array]]:  # constant, bound, stats
    """Releases the best prediction without features, a bound of targets, and stats.

    Steps start at this constant, () or (K,), on the scale of the loss's link. It is
    zero without an intercept, and for robust losses, whose targets are centered at a
    median. The keys are for the bound and a mean; `multipliers` has each one's noise.

    Privacy:
        Under replace-one as two Gaussian mechanisms, with the multipliers `target_size`
        and `mean`; labels need no bound.
    """
    size_key, mean_key = keys
    examples = records.examples
    dtype = examples.features.dtype
    outputs = (kind.loss.num_outputs,) if kind.loss.num_outputs > 1 else ()
    if not kind.has_intercept or kind.is_robust:
        return jnp.zeros(outputs, dtype), jnp.ones((), dtype), {}
    quantile = None
    if not kind.has_labels:
        quantile = noisy_quantile(
            size_key,
            gathered(records.target_sizes),
            num_above=2 * multipliers.mean,
            noise_multiplier=multipliers.target_size,
        )
        if kind.loss.target_range[0] >= 0:  # no mean of counts or amounts is zero
            quantile = one_if_zero(quantile)
    mean, stddevs, size = _mean(kind, examples, quantile, multipliers.mean)
    # The key is the second of two, so that the draws agree with `privatize`.
    noisy = gaussian_of_padded(_keys.split(mean_key)[1], mean, stddevs)
    constant, mean_weight = _constant(kind, noisy, stddevs, size)
    stats = {"constant": constant}
    if not kind.has_exposures:
        stats["mean_weight"] = mean_weight
    return constant, size, stats if quantile is None else {"target_size": size} | stats


@partial(jax.jit, static_argnums=0)
def _mean(
    kind: ModelKind, examples: Examples, quantile: jax.Array | None, multiplier: Scalar
) -> tuple[Unrounded, jax.Array, jax.Array]:  # mean, stddevs, bound
    """Returns the mean for `best_constant` before noise, the noise's stddevs, a bound.

    It averages pairs of clipped target and weight, or weighted class indicators. Mean
    and stddevs are padded with zeros for the Gaussian release. Targets are clipped to
    the bound: twice their released `quantile`, or 1 for labels, where it is None.
    """
    size = jnp.ones((), examples.features.dtype)
    if quantile is not None:
        size = _BEYOND_TARGETS * quantile
    # Targets and weights are averaged together: a record without target has no weight.
    samples, estimator = _samples(kind, examples, size)
    return *mean_and_stddevs(estimator, samples, multiplier, kind.axis_name), size


@partial(jax.jit, static_argnums=0)
def _constant(
    kind: ModelKind, noisy: jax.Array, stddevs: jax.Array, size: jax.Array
) -> tuple[jax.Array, jax.Array]:  # constant, mean weight
    """Returns the best prediction without features, and the mean weight in [0, 1]."""
    # The prediction, () or (K,) for K classes, is on the scale of the loss's link.
    # `noisy` is the mean of `_mean` with noise of `stddevs`; `size` bounds the targets.
    classes = kind.loss.num_outputs
    total = jnp.sum(noisy[:classes]) if classes > 1 else noisy[1]
    # Noise near a divisor of zero could make the ratio large. It must not say that a
    # class is impossible either, so a class has a share above zero.
    least = jnp.minimum(_CLEAR_WEIGHT * stddevs[0], 0.05)
    divisor = jnp.maximum(total, least)
    if classes > 1:
        mean = jnp.maximum(noisy[:classes], _FROM_ENDS * stddevs[0]) / divisor
    else:
        is_alone = kind.has_exposures or kind.loss.target_range[0] >= 0
        unit = divisor * (1.0 if is_alone else BESIDE_WEIGHT)
        end = math.inf if kind.has_exposures else 1.0  # large for small exposures
        if kind.has_labels:
            end = jnp.maximum(1 - _FROM_ENDS * stddevs[0] / unit, 0.0)
        # A mean of counts or amounts is above zero, as a share of a class is.
        low = jnp.minimum(_FROM_ENDS * stddevs[0] / unit, 1.0) if is_alone else -end
        mean = jnp.clip(noisy[0] / unit, low, end) * like(size, noisy)
    return kind.loss.constant_prediction(mean), jnp.clip(total, 0.0, 1.0)


def _samples(
    kind: ModelKind, examples: Examples, size: Scalar
) -> tuple[jax.Array, Estimator]:
    """Returns vectors (n, k) whose mean gives the best constant, and its estimator.

    They are pairs (c · weight · clipped target / `size`, weight · exposure) for a fixed
    c, or weighted indicators of K classes. The estimator states their sensitivity.
    """
    targets, weights = examples.targets, examples.weights
    if kind.loss.num_outputs > 1:
        classes = kind.loss.num_outputs
        samples = jax.nn.one_hot(targets.astype("int32"), classes, dtype=targets.dtype)
        return samples * weights[:, None], _CLASSES
    lowest = -1.0 if kind.loss.target_range[0] < 0 else 0.0
    samples = weights * jnp.clip(targets / like(size, targets), lowest, 1.0)
    if kind.has_exposures:
        # Exposures count like weights, so that the constant is the mean per unit of
        # exposure. An exposure above 1 counts as 1.
        exposures = jnp.exp(jnp.minimum(examples.offsets, 0.0))
        pairs, estimator = (samples, weights * exposures), _EXPOSED
    else:
        unit = BESIDE_WEIGHT if lowest < 0 else 1.0
        pairs, estimator = (unit * samples, weights), WEIGHTED
    # No two pairs without negative numbers are farther apart than zero and (1, 1).
    return jnp.stack(pairs, axis=1), estimator if lowest < 0 else _NON_NEGATIVE


def missing_share(stats: Mapping[str, Any], num_samples: int) -> float:
    """Returns the share of records without a target, to report after an unweighted fit.

    It uses released numbers alone, the `stats` of a `Solution`, and is 0 if the share
    may be small or was not released.
    """
    if "mean_weight" not in stats:
        return 0.0
    classes = np.size(stats["constant"])
    estimator = _NON_NEGATIVE if classes == 1 else _CLASSES  # the noisier choice
    of_one = estimator.sensitivity(num_samples, max(classes, 2)).l2
    multiplier = stats["noise_multiplier"] / math.sqrt(stats["shares"]["mean"])
    missing = 1 - float(stats["mean_weight"])
    least = _MANY_MISSING + 2 * math.sqrt(classes) * multiplier * float(of_one)
    return missing if missing > least else 0.0


def largest_slope(kind: ModelKind, constant: jax.Array, size: Scalar) -> jax.Array:
    """Returns the loss's largest absolute derivative at a constant prediction."""
    # Targets are within ±size. It is the clip norm of the intercept's gradient.
    loss = kind.loss
    if kind.has_labels or kind.is_robust:
        return jnp.asarray(loss.derivative_bound, constant.dtype)
    ends = loss.targets_of(jnp.stack([-size, size]))
    if kind.has_exposures:  # of a mean within ±size, as records have
        constant = jnp.minimum(constant, loss.constant_prediction(ends[1]))
    return jnp.max(jnp.abs(loss.derivative(jnp.stack([constant, constant]), ends)))


def of_rarer_class(kind: ModelKind, constant: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns slope and share of the rarer of two classes, at the released constant."""
    ends = kind.loss.derivative(constant, jnp.array([-1.0, 1.0], constant.dtype))
    share = kind.loss.mean_of(constant)
    return jnp.max(jnp.abs(ends)), jnp.minimum(share, 1 - share)
