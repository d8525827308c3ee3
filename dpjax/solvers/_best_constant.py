"""The best model that is a constant: where a linear one starts."""

from functools import partial
from typing import cast

import jax
import jax.numpy as jnp

from dpjax._sharding import gathered
from dpjax._tree import like
from dpjax._types import Key, Scalar
from dpjax.estimators import Clipping, Winsorization
from dpjax.solvers._linear_problem import Problem, Records, Shares
from dpjax.solvers._noisy_quantile import noisy_quantile
from dpjax.transforms import privatize

_BEYOND_TARGETS = 2.0  # the bound of targets, in what a histogram lets see


def best_constant(
    problem: Problem, records: Records, keys: tuple[Key, Key], multipliers: Shares
) -> tuple[jax.Array, Scalar, dict[str, jax.Array]]:
    """Releases the best constant, zero without intercept, and how large targets are.

    Returns:
        The constant, () or (K,), the size, and both as stats.

    Privacy:
        Under replace-one as two Gaussian mechanisms, of the multipliers `target_size`
        and `mean`; labels need no size.
    """
    size_key, mean_key = keys
    dtype = records.features.dtype
    outputs = (problem.loss.num_outputs,) if problem.loss.num_outputs > 1 else ()
    size, stats = jnp.ones((), dtype), {}
    if not problem.has_intercept:
        return jnp.zeros(outputs, dtype), size, stats
    if not problem.has_labels:
        size = stats["target_size"] = _BEYOND_TARGETS * noisy_quantile(
            size_key,
            gathered(_target_sizes(records)),
            num_above=2 * multipliers.mean,
            noise_multiplier=multipliers.target_size,
        )
    constant = _constant(problem, records, size, multipliers.mean, mean_key)
    return constant, size, stats | {"constant": constant}


@jax.jit
def _target_sizes(records: Records) -> jax.Array:
    return jnp.where(records.weights > 0, jnp.abs(records.targets), 0.0)


@partial(jax.jit, static_argnums=0)
def _constant(
    problem: Problem, records: Records, size: Scalar, multiplier: Scalar, key: Key
) -> jax.Array:
    """Releases the constant prediction of the mean target."""
    mean = _mean(problem, records, size, multiplier, key)
    return problem.loss.constant_prediction(mean)


def _mean(
    problem: Problem, records: Records, size: Scalar, multiplier: Scalar, key: Key
) -> jax.Array:
    """Releases the mean target within ±size, or the shares of classes.

    With weights, sums over n of weighted targets and of weights are released together,
    and the mean is their ratio. So are exposures, which count like weights: the best
    constant beside them is that of a unit of exposure. Those above 1 count as 1, and a
    mean below 0.05 as 0.05: no noise makes the ratio large.
    """
    targets, weights = records.targets, records.weights
    is_ratio = problem.has_weights or problem.has_exposures
    if problem.loss.num_outputs > 1:
        classes = problem.loss.num_outputs
        samples = jax.nn.one_hot(targets.astype("int32"), classes, dtype=targets.dtype)
        samples, estimator = samples * weights[:, None], Clipping(1.0)
    else:
        samples = weights * jnp.clip(targets / like(size, targets), -1.0, 1.0)
        estimator = Winsorization(1.0)
        counted = weights
        if problem.has_exposures:
            counted = weights * jnp.exp(jnp.minimum(records.offsets, 0.0))
        if is_ratio:
            samples = jnp.stack([samples, counted], axis=1)
    release = privatize(
        estimator, noise_multiplier=multiplier, key=key, axis_name=problem.axis_name
    )
    mean = cast(jax.Array, release.update(samples, release.init(samples))[0])
    if problem.loss.num_outputs > 1:
        return mean / jnp.maximum(jnp.sum(mean), 0.05)
    if is_ratio:
        mean = jnp.clip(mean[0] / jnp.maximum(mean[1], 0.05), -1.0, 1.0)
    return mean * like(size, mean)


@partial(jax.jit, static_argnums=0)
def largest_slope(problem: Problem, constant: jax.Array, size: Scalar) -> jax.Array:
    """Returns how long the derivative at the constant is for targets within ±size."""
    loss = problem.loss
    if problem.has_labels:
        return jnp.asarray(loss.derivative_bound, constant.dtype)
    ends = loss.targets_of(jnp.stack([-size, size]))
    return jnp.max(jnp.abs(loss.derivative(jnp.stack([constant, constant]), ends)))
