"""The best constant prediction: the start of a linear model."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from dpjax import _keys
from dpjax._sharding import gathered
from dpjax._sums.exact import Unrounded
from dpjax._tree import like
from dpjax._types import Key, Scalar
from dpjax.estimators import Estimator, Winsorization
from dpjax.mechanisms._shared import gaussian_of_padded
from dpjax.solvers._diameter import SetClipping
from dpjax.solvers.linear._kind import Examples, ModelKind, Records, Shares
from dpjax.solvers.linear._mean import mean_and_stddevs
from dpjax.solvers.linear._noisy_quantile import noisy_quantile

_BEYOND_TARGETS = 2.0  # the bound of targets over their noisy quantile
# Records w e_k; and w (t, 1) and w (t, r), with w and r in [0, 1] and t in [-1, 1] or
# [0, 1]: `docs/privacy/proofs/linear.md`, 8.3.
_CLASSES = SetClipping(1.0, math.sqrt(2))
_WEIGHTED = SetClipping(math.sqrt(2), math.sqrt(2))
_EXPOSED = SetClipping(math.sqrt(2), math.sqrt(5 / 2))


def best_constant(
    kind: ModelKind, records: Records, keys: tuple[Key, ...], multipliers: Shares
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
    mean, stddevs, size = _mean(kind, examples, quantile, multipliers.mean)
    # The second of two keys, as `privatize` does, so that its draws and these agree.
    noisy = gaussian_of_padded(_keys.split(mean_key)[1], mean, stddevs)
    constant = _constant(kind, noisy, size)
    stats = {"constant": constant}
    return constant, size, stats if quantile is None else {"target_size": size} | stats


@partial(jax.jit, static_argnums=0)
def _mean(
    kind: ModelKind, examples: Examples, quantile: jax.Array | None, multiplier: Scalar
) -> tuple[Unrounded, jax.Array, jax.Array]:
    """Returns the mean of `_samples`, padded, the stddevs of its noise, and the bound.

    With weights, the means of weighted targets and of weights are released together.
    Exposures count like weights: the best constant is then that of a unit of exposure.
    An exposure above 1 counts as 1.
    """
    size = jnp.ones((), examples.features.dtype)
    if quantile is not None:
        size = _BEYOND_TARGETS * quantile
    samples, estimator = _samples(kind, examples, size)
    return *mean_and_stddevs(estimator, samples, multiplier, kind.axis_name), size


@partial(jax.jit, static_argnums=0)
def _constant(kind: ModelKind, noisy: jax.Array, size: jax.Array) -> jax.Array:
    """Returns the constant prediction of a noisy mean, or of the shares of classes.

    A mean weight below 0.05 counts as 0.05, because noise could otherwise make the
    ratio large.
    """
    classes = kind.loss.num_outputs
    if classes > 1:
        shares = noisy[:classes]
        mean = shares / jnp.maximum(jnp.sum(shares), 0.05)
    elif kind.has_exposures or kind.has_weights:
        mean = jnp.clip(noisy[0] / jnp.maximum(noisy[1], 0.05), -1.0, 1.0)
        mean = mean * like(size, mean)
    else:
        mean = noisy[0] * like(size, noisy)
    return kind.loss.constant_prediction(mean)


def _samples(
    kind: ModelKind, examples: Examples, size: Scalar
) -> tuple[jax.Array, Estimator]:
    """Returns what is averaged, (n,) or (n, k), and the estimator."""
    targets, weights = examples.targets, examples.weights
    if kind.loss.num_outputs > 1:
        classes = kind.loss.num_outputs
        samples = jax.nn.one_hot(targets.astype("int32"), classes, dtype=targets.dtype)
        return samples * weights[:, None], _CLASSES
    lowest = -1.0 if kind.loss.target_range[0] < 0 else 0.0
    samples = weights * jnp.clip(targets / like(size, targets), lowest, 1.0)
    estimator = Winsorization(1.0)
    if kind.has_exposures:
        exposures = jnp.exp(jnp.minimum(examples.offsets, 0.0))
        samples = jnp.stack([samples, weights * exposures], axis=1)
        estimator = _EXPOSED
    elif kind.has_weights:
        samples, estimator = jnp.stack([samples, weights], axis=1), _WEIGHTED
    if lowest == 0:  # none are farther apart than zero and all ones
        estimator = SetClipping(math.sqrt(samples.size / len(samples)), 1.0)
    return samples, estimator


def largest_slope(kind: ModelKind, constant: jax.Array, size: Scalar) -> jax.Array:
    """Returns the norm of the derivative at the constant for targets within ±size."""
    loss = kind.loss
    if kind.has_labels or kind.is_robust:
        return jnp.asarray(loss.derivative_bound, constant.dtype)
    ends = loss.targets_of(jnp.stack([-size, size]))
    return jnp.max(jnp.abs(loss.derivative(jnp.stack([constant, constant]), ends)))
