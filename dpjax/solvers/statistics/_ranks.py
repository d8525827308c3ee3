"""Choices among public bins by the ranks of their samples."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate, mechanisms
from dpjax._sharding import gathered
from dpjax._tree import arrays
from dpjax._types import ArrayLike, Key, Scalar, SelectionName
from dpjax.solvers.training._calibration import FAILURE_PROB

RANGE = 2.0  # of the scores' change, when one record is replaced
MOST_RECORDS = 2**24  # integers up to here are exact in float32
_GOLDEN = 2_654_435_769  # 2^32 / 1.618...: its multiples spread evenly modulo 2^32

# Bins of the default: 50 a decade from 1e-6 to 1e9 on both sides, and one at zero.
# Powers of ten are edges to the bit, in float32 too.
SIZES = np.array([float(f"{x:.12g}") for x in np.logspace(-6, 9, 15 * 50 + 1)])
EDGES = np.concatenate([-SIZES[::-1], SIZES])


def choose(
    mechanism: SelectionName, key: Key, scores: jax.Array, epsilon: Scalar
) -> jax.Array:
    """Releases the index of a bin with a large score."""
    return getattr(mechanisms, mechanism)(
        key, scores, epsilon=epsilon, sensitivity_range=RANGE
    )


def scores_of(samples: jax.Array, edges: jax.Array, quantile: float) -> jax.Array:
    """Returns u(j), integers in float32, shape (num_bins,)."""
    rank = rank_of(quantile, samples.size)
    return as_scores(num_to_replace(counts_of(samples, edges, quantile), rank))


def counts_of(samples: jax.Array, edges: jax.Array, quantile: float) -> jax.Array:
    """Returns how many samples each bin holds, shape (num_bins,)."""
    multiples = jnp.arange(samples.size, dtype="uint32") * jnp.uint32(_GOLDEN)
    is_low = multiples < jnp.uint32(min(int(quantile * 2**32), 2**32 - 1))
    missing = jnp.where(is_low, -jnp.inf, jnp.inf).astype(samples.dtype)
    values = jnp.where(jnp.isnan(samples), missing, samples)
    bins = jnp.searchsorted(edges[1:-1], values, side="left")
    return jnp.zeros(edges.size - 1, "int32").at[bins].add(1)


def num_to_replace(counts: jax.Array, rank: int | jax.Array) -> jax.Array:
    """Returns how many records to replace for the rank to lie in each bin."""
    up_to = jnp.cumsum(counts, dtype="int32")
    return lacking(up_to - counts - rank, up_to - rank)


def lacking(lower: jax.Array, upper: jax.Array) -> jax.Array:
    """Returns how many records to replace for bins to be where a count reaches zero.

    The count grows from bin to bin; given are those at the ends of each.
    """
    return jnp.maximum(jnp.maximum(lower + 1, -upper), 0)


def as_scores(distances: jax.Array) -> jax.Array:
    """Returns numbers of records to replace as scores, exact in float32."""
    return -jnp.minimum(distances, MOST_RECORDS).astype("float32")


def rank_of(quantile: float, num_samples: int) -> int:
    """Returns r of the r-th smallest sample, from 1 on."""
    return max(1, math.ceil(quantile * num_samples))


def rank_error_of(epsilon: float, num_candidates: int) -> float:
    """Pr[score < best - (range / epsilon) log(k / p)] <= p, and the best score is 0."""
    return RANGE / epsilon * log_odds(num_candidates)


def log_odds(num_candidates: int) -> float:
    """Returns log(k / p) of k candidates."""
    return math.log(num_candidates / FAILURE_PROB)


def checked_samples(samples: ArrayLike, *, num_axes: int) -> jax.Array:
    """Returns samples as floats of so many axes, with the rows of all devices."""
    x = jnp.asarray(gathered(arrays(samples)))
    rule = f"a real array with {num_axes} axes and at least one entry"
    is_fine = x.ndim == num_axes and 0 < x.size < 2**31 and not jnp.iscomplexobj(x)
    _validate.require(is_fine, "samples", jax.ShapeDtypeStruct(x.shape, x.dtype), rule)
    return x.astype(jnp.float64 if x.dtype == jnp.float64 else jnp.float32)


def checked_edges(edges: ArrayLike, samples: jax.Array) -> jax.Array:
    """Returns checked edges in the dtype of the samples."""
    array = jnp.asarray(edges)
    _validate.require(
        array.ndim == 1 and array.size >= 3 and not jnp.iscomplexobj(array),
        "edges",
        jax.ShapeDtypeStruct(array.shape, array.dtype),
        "a real vector with at least three entries",
    )
    array = array.astype(samples.dtype)
    if _validate.is_concrete(array):
        numbers = np.asarray(array)
        rule = f"finite and increasing in {array.dtype}"
        is_fine = bool(np.isfinite(numbers).all() and (np.diff(numbers) > 0).all())
        _validate.require(is_fine, "edges", numbers, rule)
    return array
