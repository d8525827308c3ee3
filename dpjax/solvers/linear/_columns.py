"""From a user's data to a fit, on a sample if asked, and back to a weight a column."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _keys, _validate
from dpjax._sharding import row_axes, with_auto_axes
from dpjax._tree import arrays
from dpjax._types import ArrayLike, Key, Scalar
from dpjax.accounting._sample import sample_budget, sample_privacy
from dpjax.batching._fixed_size import uniform_subset
from dpjax.losses import LinearLoss
from dpjax.losses._residual_losses import Huber
from dpjax.solvers.linear._fit import fit
from dpjax.solvers.linear._intervals import fit_with_errors
from dpjax.solvers.linear._kind import Examples, ModelKind
from dpjax.solvers.training._curves import bounded
from dpjax.solvers.training._loop import Execution
from dpjax.solvers.training._solution import Solution


def on_sample(
    fit: Callable[..., Solution],
    data: tuple[jax.Array, jax.Array],
    max_records: int | None,
    *,
    key: Key,
    epsilon: float | None,
    delta: float,
    **by_record: ArrayLike | None,
) -> Solution | None:
    """Returns a fit on so many records, with its guarantee for all of them.

    Args:
        fit: of data, key, epsilon, delta and the others.
        data: features (n, d), targets (n,).
        max_records: m, public.
        key: of the sample and of the fit.
        epsilon: for all records; it must be given, not a noise multiplier.
        delta: for all records.
        by_record: what else records have, by name, of shape (n,), or None.

    Returns:
        The solution; None if there are no more records, which are then no sample.
    """
    num_samples = len(data[1])
    if max_records is not None:
        _validate.count(max_records=max_records)
    if max_records is None or max_records >= num_samples:
        return None
    rule = "given with max_records: a noise multiplier is of one fit"
    _validate.require(epsilon is not None, "epsilon", epsilon, rule)
    sizes: dict[str, Any] = {"num_samples": num_samples, "sample_size": max_records}
    own_epsilon, own_delta = sample_budget(float(epsilon or 0), delta, **sizes)
    by_record = {
        name: x if x is None else per_record(name, x, data[1], 0.0)
        for name, x in by_record.items()
    }
    sample_key, key = _keys.split(key)
    rows = uniform_subset(sample_key, num_samples, max_records)
    data, by_record = jax.tree.map(lambda x: x[rows], (data, by_record))
    solution = fit(data, key=key, epsilon=own_epsilon, delta=own_delta, **by_record)
    privacy = sample_privacy(solution.privacy, **sizes, unit="record")
    return replace(solution, privacy=privacy)


def per_record(
    name: str, values: ArrayLike | None, targets: jax.Array, default: float
) -> jax.Array:
    """Returns one number for each record: the default if there are none."""
    if values is None:
        if _validate.is_concrete(targets) and not row_axes(targets, None):
            # An array of the host: for one of JAX a program would be compiled.
            return cast(Any, np.full(targets.shape, default, targets.dtype))
        return jnp.full_like(targets, default)
    array = jnp.asarray(with_auto_axes(arrays(values)))
    rule = f"one real number for each of {len(targets)} rows"
    is_fine = array.shape == targets.shape and not jnp.iscomplexobj(array)
    _validate.require(is_fine, name, array.shape, rule)
    return array.astype(targets.dtype)


def problem(
    model: LinearLoss,
    features: jax.Array,
    targets: jax.Array,
    intercept: int | None,
    offsets: ArrayLike | None,
    weights: ArrayLike | None,
    max_weight: Scalar,
) -> tuple[ModelKind, Examples]:
    """Returns what is static, and the cleaned records, without the intercept's column.

    Arguments are as of `dp_linear_model`, the intercept's index from zero on.
    """
    deleted = intercept
    is_alone = intercept is not None and features.shape[1] == 1
    if is_alone and (offsets is not None or isinstance(model, Huber)):
        # With offsets, or the Huber loss, the best intercept is not a mean of targets,
        # so that it is fitted by steps, with a column of zeros in place of the ones.
        features, deleted = jnp.zeros_like(features), None
    examples = Examples(
        features,
        targets,
        per_record("offsets", offsets, targets, 0.0),
        per_record("weights", weights, targets, 1.0),
    )
    kind = ModelKind(
        model,
        has_intercept=intercept is not None,
        has_exposures=offsets is not None and model.has_log_link,
        axis_name=row_axes(features, None) or None,
    )
    return kind, cleaned(model, deleted, examples, max_weight)


@partial(jax.jit, static_argnums=(0, 1))
def cleaned(
    loss: LinearLoss, column: int | None, examples: Examples, max_weight: Scalar
) -> Examples:
    """Returns finite records without the column, from each record alone.

    A record whose target is missing has the weight zero.
    """
    features = examples.features
    if column is not None:
        features = jnp.delete(features, column, axis=1, assume_unique_indices=True)
    weights = jnp.clip(jnp.nan_to_num(examples.weights), 0.0, max_weight)
    weights = jnp.where(jnp.isnan(examples.targets), 0.0, weights)
    return Examples(
        bounded(features),
        loss.targets_of(examples.targets),
        bounded(examples.offsets),
        weights / max_weight,
    )


def fit_columns(
    kind: ModelKind,
    examples: Examples,
    num_columns: int,
    intercept: int | None,
    selected: jax.Array | None = None,
    *,
    key: Key,
    noise_multiplier: float,
    execution: Execution,
    intervals: bool,
) -> tuple[jax.Array, dict[str, Any], jax.Array | None, jax.Array | None]:
    """Returns weights of all columns, stats, standard errors and their correlations.

    Args:
        kind: of the `problem`.
        examples: of the `problem`.
        num_columns: how many columns it was of, with the intercept's.
        intercept: the index of the intercept among the weights, or None.
        selected: the indices of the columns that examples have. None: all.
        key: a typed key.
        noise_multiplier: of all that is released, as one Gaussian mechanism.
        execution: as of `dp_linear_model`.
        intervals: whether there are errors and correlations, else None.
    """
    release = {"key": key, "noise_multiplier": noise_multiplier, "execution": execution}
    columns = examples.features
    _, num_features = kind.shape(columns)
    num_weights = num_columns + num_features - columns.shape[1]
    indices: Any = selected
    if selected is None:
        indices = np.arange(num_weights, dtype="int32")
        if intercept is not None and num_features < num_weights:
            indices = np.delete(indices, intercept)
    by_column = partial(_by_column, num_weights, intercept, indices)
    if not intervals:
        params, stats = fit(kind, examples, **release)
        return by_column(params), stats, None, None
    params, errors, correlations, stats = fit_with_errors(kind, examples, **release)
    if intercept is not None:
        indices = jnp.append(jnp.asarray(indices), intercept)
    order = jnp.argsort(indices)
    correlations = correlations[order][:, order]
    return by_column(params), stats, by_column(errors), correlations


@partial(jax.jit, static_argnums=(0, 1))
def _by_column(
    num_columns: int,
    column: int | None,
    indices: jax.Array,
    params: dict[str, jax.Array],
) -> jax.Array:
    """Returns one weight for each column, zero for those that were not chosen."""
    weights = params["weights"]
    full = jnp.zeros((num_columns, *weights.shape[1:]), weights.dtype)
    full = full.at[indices].set(weights)
    if column is not None:
        full = full.at[column].set(params["intercept"])
    return full
