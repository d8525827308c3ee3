"""Steps around a fit: draws a sample, cleans records, and returns weights by column."""

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
from dpjax.gradients._users import UserRecords
from dpjax.losses import LinearLoss
from dpjax.losses._residual_losses import Huber
from dpjax.solvers.linear._fit import fit
from dpjax.solvers.linear._intervals import fit_with_errors
from dpjax.solvers.linear._kind import CheckedData, Examples, ModelKind
from dpjax.solvers.training._curves import bounded
from dpjax.solvers.training._loop import Execution
from dpjax.solvers.training._solution import Solution


def rows_of(
    data: Any,
    offsets: ArrayLike | None,
    weights: ArrayLike | None,
    max_records: int | None,
) -> tuple[Any, ArrayLike | None, ArrayLike | None, int]:
    """Returns data, offsets and weights as rows, and how many rows a user has.

    The records of `gradients.by_user` become consecutive rows, with weight zero where a
    user has none. Other data are returned as they are, with one row.
    """
    if not isinstance(data, UserRecords):
        return data, offsets, weights, 1
    rule = "None for users: draw them, with all their records, before the fit"
    _validate.require(max_records is None, "max_records", max_records, rule)
    shape, given = data.is_record.shape, {"offsets": offsets, "weights": weights}
    known: Any = {k: arrays(x, k) for k, x in given.items() if x is not None}
    for name, x in known.items():
        rule = f"of shape {shape}, one for each place of a user's records"
        _validate.require(x.shape == shape, name, x.shape, rule)
    records, is_record, known = with_auto_axes((data.records, data.is_record, known))
    known["weights"] = jnp.where(is_record, known.get("weights", 1.0), 0.0)
    both = records, known
    records, known = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), both)
    return records, known.get("offsets"), known["weights"], shape[1]


def on_sample(
    fit: Callable[..., Solution],
    data: tuple[jax.Array, jax.Array],  # features (n, d), targets (n,)
    max_records: int | None,  # None: all
    *,
    key: Key,
    epsilon: float | None,  # must be given if there are more than max_records
    delta: float,
    **by_record: ArrayLike | None,
) -> Solution | None:
    """Returns a fit to `max_records` random records, to save time on large tables.

    Its guarantee is for all n records: sampling amplifies privacy, so `fit` is called
    with a larger epsilon, and with data, key, delta and `by_record`, arrays (n,) such
    as weights. Returns None if n is at most `max_records`: the caller then fits to all.
    """
    num_samples = len(data[1])
    if max_records is not None:
        _validate.count(max_records=max_records)
    if max_records is None or max_records >= num_samples:
        return None
    rule = "given with max_records, instead of noise_multiplier"
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
    """Returns offsets or weights of records, (n,): `values`, or the default if None."""
    # They are checked against the targets (n,), under `name` in error messages.
    if values is None:
        if _validate.is_concrete(targets) and not row_axes(targets, None):
            # A NumPy array needs no compiled program; a JAX array would.
            return cast(Any, np.full(targets.shape, default, targets.dtype))
        return jnp.full_like(targets, default)
    array = jnp.asarray(with_auto_axes(arrays(values, name)))
    rule = f"real numbers of shape {targets.shape}, one for each row"
    is_fine = array.shape == targets.shape and not jnp.iscomplexobj(array)
    _validate.require(is_fine, name, f"{array.dtype}{list(array.shape)}", rule)
    return array.astype(targets.dtype)


def problem(
    table: CheckedData,  # loss, features, targets, index of the intercept's column
    offsets: ArrayLike | None,  # (n,)
    weights: ArrayLike | None,  # (n,)
    max_weight: Scalar,  # weights are clipped to it
    user_size: int,  # rows of a user
) -> tuple[ModelKind, Examples]:
    """Returns the static options of a model, and its records, for `fit_columns`."""
    # Records are finite, and without the intercept's column, whose index `table` has.
    loss, features, targets, intercept = table
    deleted = intercept
    is_alone = intercept is not None and features.shape[1] == 1
    if is_alone and (offsets is not None or isinstance(loss, Huber)):
        # With offsets, or the Huber loss, the best intercept is not a mean of targets,
        # so it is fitted by steps, with a column of zeros in place of the ones.
        features, deleted = jnp.zeros_like(features), None
    examples = Examples(
        features,
        targets,
        per_record("offsets", offsets, targets, 0.0),
        per_record("weights", weights, targets, 1.0),
    )
    kind = ModelKind(
        loss,
        has_intercept=intercept is not None,
        has_exposures=offsets is not None and loss.has_log_link,
        axis_name=row_axes(features, None) or None,
        user_size=user_size,
    )
    return kind, cleaned(loss, deleted, examples, max_weight)


@partial(jax.jit, static_argnums=(0, 1))
def cleaned(
    loss: LinearLoss, column: int | None, examples: Examples, max_weight: Scalar
) -> Examples:
    """Returns finite records with weights in [0, 1], as bounds of releases assume."""
    # `column` is the index of the intercept's column, which is left out, or None. Each
    # result depends on one record alone: replacing a record replaces one result.
    features = examples.features
    if column is not None:
        features = jnp.delete(features, column, axis=1, assume_unique_indices=True)
    weights = jnp.clip(jnp.nan_to_num(examples.weights), 0.0, max_weight)
    # A record without a target has weight zero.
    weights = jnp.where(jnp.isnan(examples.targets), 0.0, weights)
    return Examples(
        bounded(features),
        loss.targets_of(examples.targets),
        bounded(examples.offsets),
        weights / max_weight,
    )


def fit_columns(
    kind: ModelKind,  # the static description of the model
    examples: Examples,  # features: the selected columns, or all
    num_columns: int,  # with the intercept's column
    intercept: int | None,  # index of its column
    selected: jax.Array | None = None,  # indices of columns; None: all
    *,
    key: Key,
    noise_multiplier: float,  # of all releases
    execution: Execution,  # microbatches, callback, checkpoint
    intervals: bool,
) -> tuple[jax.Array, dict[str, Any], jax.Array | None, jax.Array | None]:
    """Releases weights, stats, standard errors and correlations for a `Solution`.

    Weights and errors have shape (d,), or (d, K) for K outputs, and correlations of the
    errors (d, d), in the user's order of the d columns. Stats are released numbers by
    name. Without `intervals` errors and correlations are None.
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
    stats["noise_errors"] = by_column(stats["noise_errors"])
    if intercept is not None:
        indices = jnp.append(jnp.asarray(indices), intercept)
    order = jnp.argsort(indices)
    correlations = correlations[order][:, order]
    of_noise = stats["noise_correlations"]
    stats["noise_correlations"] = of_noise[order][:, order]
    return by_column(params), stats, by_column(errors), correlations


@partial(jax.jit, static_argnums=(0, 1))
def _by_column(
    num_columns: int,
    column: int | None,  # the intercept's column
    indices: jax.Array,  # columns of the weights, in order
    params: dict[str, jax.Array],  # weights, and perhaps an intercept
) -> jax.Array:
    """Returns a fit's weights, or their errors, in the user's order of columns."""
    # Shape (num_columns,) or (num_columns, K); zero for columns that were not selected.
    # The intercept, which a fit computes apart, goes to its column.
    weights = params["weights"]
    full = jnp.zeros((num_columns, *weights.shape[1:]), weights.dtype)
    full = full.at[indices].set(weights)
    if column is not None:
        full = full.at[column].set(params["intercept"])
    return full
