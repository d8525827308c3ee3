"""Which of many features a linear model gets, chosen privately in two rounds."""

import math
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp

from dpjax import _keys
from dpjax._rounding import ROUNDED_UP
from dpjax._sharding import gathered
from dpjax._types import Key, Scalar
from dpjax.estimators import Winsorization
from dpjax.gradients import streamed_grad
from dpjax.mechanisms import peeling
from dpjax.solvers.linear._fit import fit, slope_norms
from dpjax.solvers.linear._kind import Examples, ModelKind
from dpjax.solvers.statistics._noisy_quantile import noisy_quantile
from dpjax.solvers.training._loop import Execution
from dpjax.transforms import aggregate

# Shares of the budget, in each round: the norm of products, and the choices. The model
# between the rounds has the rest.
_SIZE, _CHOICES = 0.04, 0.26
_CLIPPED, _BEYOND_SIZE = 0.1, 3.0  # share of records above a norm, and bound / norm


def choose_features(
    kind: ModelKind,
    examples: Examples,
    *,
    key: Key,
    num_chosen: int,
    noise_multiplier: float,
    execution: Execution,
) -> jax.Array:
    """Releases a set of features: their indices in ascending order, (num_chosen,).

    The score of a feature is the absolute value of its gradient: the mean of feature
    times slope of the loss, clipped. The first half is chosen at zero weights, the rest
    at a model of the first half, because some features matter only together with
    others.

    Args:
        kind: what is static.
        examples: all features.
        key: a typed key.
        num_chosen: how many, fewer than there are.
        noise_multiplier: of all that is released, as of one Gaussian mechanism.
        execution: of the model between the rounds, without checkpoint.

    Privacy:
        1 / (2 noise_multiplier^2)-zCDP under replace-one.
    """
    first_key, model_key, second_key = _keys.split(key, 3)
    first = -(-num_chosen // 2)
    choose = partial(
        _choose,
        kind,
        size_multiplier=noise_multiplier / math.sqrt(_SIZE),
        rho=_CHOICES / (2 * noise_multiplier**2),
    )
    zeros = jnp.zeros_like(examples.targets)
    predictions = jnp.zeros((len(zeros), *_outputs(kind)), zeros.dtype)
    chosen = choose(first, examples, predictions, None, first_key)
    if num_chosen == 1:
        return chosen
    part = examples._replace(features=examples.features[:, chosen])
    share = 1 - 2 * (_SIZE + _CHOICES)
    params, _ = fit(
        kind,
        part,
        key=model_key,
        noise_multiplier=noise_multiplier / math.sqrt(share),
        execution=Execution(microbatch_size=execution.microbatch_size),
    )
    predictions = part.features @ params["weights"] + params.get("intercept", 0.0)
    second = choose(num_chosen - first, examples, predictions, chosen, second_key)
    # The set is released. The order within it would cost more privacy.
    return jnp.sort(jnp.concatenate([chosen, second]))


def _outputs(kind: ModelKind) -> tuple[int, ...]:
    return (kind.loss.num_outputs,) if kind.loss.num_outputs > 1 else ()


@partial(jax.jit, static_argnums=(0, 1))
def _choose(
    kind: ModelKind,
    num_chosen: int,
    examples: Examples,
    predictions: jax.Array,
    chosen: jax.Array | None,
    key: Key,
    *,
    size_multiplier: Scalar,
    rho: Scalar,
) -> jax.Array:
    """Releases which features, of those not yet chosen, have the largest mean products.

    Their indices are in ascending order.

    Scores move by at most D, and Gumbel noise has the scale D sqrt(k / (2 rho)):
    `docs/privacy/proofs/linear.md`, 8.6.
    """
    loss = kind.loss
    features, targets, offsets, weights = examples
    num_samples, num_features = features.shape
    size_key, choice_key = _keys.split(key)
    if loss.num_outputs > 1:
        shape = predictions.shape
        offsets = jnp.broadcast_to(offsets[:, None], shape)
        weights = jnp.broadcast_to(weights[:, None], shape)
    slopes = weights * loss.derivative(predictions + offsets, targets)
    row_norms = jnp.sqrt(jnp.mean(features**2, axis=1))  # one number for each record
    size = noisy_quantile(
        size_key,
        gathered(row_norms * slope_norms(slopes)),
        num_above=_CLIPPED * num_samples,
        noise_multiplier=size_multiplier,
    )
    estimator = Winsorization(_BEYOND_SIZE * size)
    products = streamed_grad(lambda w, row: jnp.sum((row[0] @ w) * row[1]))
    shape = jnp.zeros((num_features, *slopes.shape[1:]), features.dtype)
    mean = aggregate(estimator, axis_name=kind.axis_name)
    gradients = cast(Any, products(shape, (features, slopes)))
    scores = cast(jax.Array, mean.update(gradients, mean.init(shape))[0])
    bound = estimator.sensitivity(num_samples, scores.size).linf
    scores = jnp.abs(scores)
    if scores.ndim > 1:
        scores = jnp.max(scores, axis=1)
    free = jnp.arange(num_features)
    if chosen is not None:
        is_chosen = jnp.zeros(num_features, "int32").at[chosen].set(1)
        free = jnp.argsort(is_chosen, stable=True)[: num_features - len(chosen)]
    noisy = peeling(
        choice_key,
        scores[free],
        sparsity=num_chosen,
        selection_scale=bound * jnp.sqrt(num_chosen / (2 * rho)) * ROUNDED_UP,
        release_stddev=jnp.inf,  # the set alone
    )
    return free[jnp.flatnonzero(noisy, size=num_chosen)]
