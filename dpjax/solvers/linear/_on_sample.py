"""A fit on a random sample of the records, at the budget that sampling allows."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _keys, _validate
from dpjax._sharding import row_axes, with_auto_axes
from dpjax._tree import arrays
from dpjax._types import ArrayLike, Key
from dpjax.accounting._sample import sample_budget
from dpjax.accounting._sample_privacy import sample_privacy
from dpjax.batching._without_replacement import uniform_subset
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
