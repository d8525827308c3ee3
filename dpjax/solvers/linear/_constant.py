"""The best constant prediction: the start of a linear model."""

import math
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp

from dpjax._sharding import gathered
from dpjax._tree import like
from dpjax._types import Key, Scalar
from dpjax.estimators import Estimator, Winsorization
from dpjax.solvers._diameter import DiameterMean
from dpjax.solvers.linear._kind import Examples, ModelKind, Shares
from dpjax.solvers.linear._noisy_quantile import magnitudes, noisy_quantile
from dpjax.transforms import privatize

_BEYOND_TARGETS = 2.0  # the bound of targets over their noisy quantile
# Records w e_k of a class k and a weight w in [0, 1]: the distance of two classes is
# sqrt(w^2 + w'^2), within a class it is |w - w'|.
_CLASSES = DiameterMean(radius=1.0, diameter=math.sqrt(2))
# Records w (t, 1), t in [-1, 1]: the distance is convex in each w, so that both are 0
# or 1. From 0 it is at most sqrt(2), from 1 to 1 it is |t - t'|.
_WEIGHTED = DiameterMean(radius=math.sqrt(2), diameter=2.0)
# Records w (t, r) with an exposure r in [0, 1] lie in [-1, 1] x [0, 1].
_EXPOSED = DiameterMean(radius=math.sqrt(2), diameter=math.sqrt(5))


def best_constant(
    kind: ModelKind, examples: Examples, keys: tuple[Key, Key], multipliers: Shares
) -> tuple[jax.Array, Scalar, dict[str, jax.Array]]:
    """Releases the best constant, and a bound of the targets.

    Without an intercept the constant is zero. For robust losses too, because their
    targets are already centered at a median.

    Returns:
        The constant, () or (K,), the bound, and both as stats.

    Privacy:
        Under replace-one as two Gaussian mechanisms, of the multipliers `target_size`
        and `mean`; labels need no bound.
    """
    size_key, mean_key = keys
    dtype = examples.features.dtype
    outputs = (kind.loss.num_outputs,) if kind.loss.num_outputs > 1 else ()
    size, stats = jnp.ones((), dtype), {}
    if not kind.has_intercept or kind.is_robust:
        return jnp.zeros(outputs, dtype), size, stats
    if not kind.has_labels:
        size = stats["target_size"] = _BEYOND_TARGETS * noisy_quantile(
            size_key,
            gathered(magnitudes(examples.targets, examples.weights)),
            num_above=2 * multipliers.mean,
            noise_multiplier=multipliers.target_size,
        )
    constant = _constant(kind, examples, size, multipliers.mean, mean_key)
    return constant, size, stats | {"constant": constant}


@partial(jax.jit, static_argnums=0)
def _constant(
    kind: ModelKind, examples: Examples, size: Scalar, multiplier: Scalar, key: Key
) -> jax.Array:
    """Releases the constant prediction of the mean target."""
    mean = _mean(kind, examples, size, multiplier, key)
    return kind.loss.constant_prediction(mean)


def _mean(
    kind: ModelKind, examples: Examples, size: Scalar, multiplier: Scalar, key: Key
) -> jax.Array:
    """Releases the mean target within ±size, or the shares of classes.

    With weights, the means of weighted targets and of weights are released together,
    and their ratio is returned. Exposures count like weights: the best constant is then
    that of a unit of exposure. An exposure above 1 counts as 1. A mean below 0.05
    counts as 0.05, because noise could otherwise make the ratio large.
    """
    samples, estimator = _samples(kind, examples, size)
    release = privatize(
        estimator, noise_multiplier=multiplier, key=key, axis_name=kind.axis_name
    )
    mean = cast(jax.Array, release.update(samples, release.init(samples))[0])
    if kind.loss.num_outputs > 1:
        return mean / jnp.maximum(jnp.sum(mean), 0.05)
    if mean.ndim > 0:
        mean = jnp.clip(mean[0] / jnp.maximum(mean[1], 0.05), -1.0, 1.0)
    return mean * like(size, mean)


def _samples(
    kind: ModelKind, examples: Examples, size: Scalar
) -> tuple[jax.Array, Estimator]:
    """Returns what is averaged, (n,) or (n, k), and the estimator."""
    targets, weights = examples.targets, examples.weights
    if kind.loss.num_outputs > 1:
        classes = kind.loss.num_outputs
        samples = jax.nn.one_hot(targets.astype("int32"), classes, dtype=targets.dtype)
        return samples * weights[:, None], _CLASSES
    samples = weights * jnp.clip(targets / like(size, targets), -1.0, 1.0)
    if kind.has_exposures:
        exposures = jnp.exp(jnp.minimum(examples.offsets, 0.0))
        return jnp.stack([samples, weights * exposures], axis=1), _EXPOSED
    if kind.has_weights:
        return jnp.stack([samples, weights], axis=1), _WEIGHTED
    return samples, Winsorization(1.0)


@partial(jax.jit, static_argnums=0)
def largest_slope(kind: ModelKind, constant: jax.Array, size: Scalar) -> jax.Array:
    """Returns the norm of the derivative at the constant for targets within ±size."""
    loss = kind.loss
    if kind.has_labels or kind.is_robust:
        return jnp.asarray(loss.derivative_bound, constant.dtype)
    ends = loss.targets_of(jnp.stack([-size, size]))
    return jnp.max(jnp.abs(loss.derivative(jnp.stack([constant, constant]), ends)))
