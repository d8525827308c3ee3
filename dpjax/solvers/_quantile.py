"""Private quantiles, whatever the law of the samples."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._sharding import gathered
from dpjax._types import ArrayLike, Key, Scalar
from dpjax.accounting import PrivacyGuarantee, selection_event
from dpjax.mechanisms import permute_and_flip
from dpjax.solvers._solution import Solution
from dpjax.solvers._vertex_choice import FAILURE_PROB

_RANGE = 2.0  # of the scores' change, when one record is replaced
_MOST_RECORDS = 2**24  # integers up to here are exact in float32
_GOLDEN = 2_654_435_769  # 2^32 / 1.618...: its multiples spread evenly modulo 2^32

# Bins of the default: 50 a decade from 1e-6 to 1e9 on both sides, and one at zero.
# Powers of ten are edges to the bit, in float32 too.
_SIZES = np.array([float(f"{x:.12g}") for x in np.logspace(-6, 9, 15 * 50 + 1)])
_EDGES = np.concatenate([-_SIZES[::-1], _SIZES])


def dp_quantile(
    samples: ArrayLike,
    *,
    key: Key,
    epsilon: float,
    quantile: float = 0.5,
    edges: ArrayLike | None = None,
) -> Solution:
    """Releases a quantile of heavy-tailed samples, to the width of a public bin.

    With r = ceil(quantile n), bin j has the score

        u(j) = -max(0, #{x <= lower edge} + 1 - r, r - #{x <= upper edge}),

    minus the least number of records to replace for the r-th smallest to lie in it.
    Permute-and-flip chooses a bin, whose midpoint is released. Nothing is assumed about
    the law of the samples: the error in rank grows with the logarithm of the number of
    bins.

    Args:
        samples: shape (n,), real; n is public. Values beyond the edges, infinities too,
            count in the first or the last bin. NaN is a missing value: at a share
            `quantile` of the indices it counts as the lowest, at the others as the
            highest, so that the quantile of the other samples is found.
        key: a typed key.
        epsilon: privacy parameter, positive, any size.
        quantile: from 0, the smallest, to 1, the largest.
        edges: increasing, shape (k + 1,) with k >= 2, chosen without the samples; bin j
            is (edges[j], edges[j + 1]]. By default 1,501 logarithmic bins: 50 a decade
            (5 per cent wide) from 1e-6 to 1e9 and from -1e9 to -1e-6, and one at zero.

    Returns:
        A `Solution` whose params are a scalar. Its stats hold rank, num_bins, and
        rank_error: with probability 0.99 no more records than that lie between the bin
        and the r-th smallest.

    Raises:
        ValueError: where an argument is out of its range; before any computation.

    Privacy:
        epsilon-DP under replace-one, for every input. A record falls into a bin, from
        itself and its public index alone; -u(j) is a distance from the data set in
        numbers of replaced records, so one more moves it by at most 1. Scores thus move
        by at most 2 against each other, which a record that jumps over the r-th
        smallest attains. Counts are integers, and scores too, cut at -2^24: exact in
        float32. Quantile and edges must not depend on the samples.

    Example:
        >>> import jax, numpy as np
        >>> samples = 3.0 + np.random.default_rng(0).standard_cauchy(10_000)
        >>> solution = dp_quantile(samples, key=jax.random.key(1), epsilon=0.5)
        >>> print(f"{solution.params:.1f} {solution.stats['rank_error']:.0f}")
        3.0 48

    Reference:
        Smith (2011), "Privacy-preserving statistical estimation with optimal
        convergence rates", Algorithm 2, for the exponential mechanism on quantiles.
        Scores: Asi, Duchi (2020), "Instance-optimality in differential privacy via
        approximate inverse sensitivity mechanisms".
    """
    _validate.positive(epsilon=epsilon)
    _validate.typed_key(key)
    _validate.within(0.0, 1.0, quantile=quantile)
    samples = _samples(samples)
    bins = _bins(_EDGES if edges is None else edges, samples)
    params = _choose(float(quantile), key, samples, bins, epsilon)
    num_samples, num_bins = samples.size, bins.size - 1
    privacy = PrivacyGuarantee.of(
        epsilon,
        0.0,
        dp_event=selection_event(epsilon, mechanism="permute_and_flip"),
        num_samples=num_samples,
    )
    stats: dict[str, Scalar] = {
        "rank": _rank(quantile, num_samples),
        "num_bins": num_bins,
        "rank_error": _rank_error(epsilon, num_bins),
    }
    return Solution(params, privacy, stats)


@partial(jax.jit, static_argnums=0)
def _choose(
    quantile: float, key: Key, samples: jax.Array, edges: jax.Array, epsilon: Scalar
) -> jax.Array:
    scores = _scores(samples, edges, quantile)
    index = permute_and_flip(key, scores, epsilon=epsilon, sensitivity_range=_RANGE)
    return edges[index] / 2 + edges[index + 1] / 2


def _scores(samples: jax.Array, edges: jax.Array, quantile: float) -> jax.Array:
    """Returns u(j), integers in float32, shape (num_bins,)."""
    up_to = jnp.cumsum(_counts(samples, edges, quantile), dtype="int32")
    below = jnp.pad(up_to[:-1], (1, 0))
    rank = _rank(quantile, samples.size)
    distances = jnp.maximum(jnp.maximum(below + 1 - rank, rank - up_to), 0)
    return -jnp.minimum(distances, _MOST_RECORDS).astype("float32")


def _counts(samples: jax.Array, edges: jax.Array, quantile: float) -> jax.Array:
    """Returns how many samples each bin holds, shape (num_bins,)."""
    multiples = jnp.arange(samples.size, dtype="uint32") * jnp.uint32(_GOLDEN)
    is_low = multiples < jnp.uint32(min(int(quantile * 2**32), 2**32 - 1))
    missing = jnp.where(is_low, -jnp.inf, jnp.inf).astype(samples.dtype)
    values = jnp.where(jnp.isnan(samples), missing, samples)
    bins = jnp.searchsorted(edges[1:-1], values, side="left")
    return jnp.zeros(edges.size - 1, "int32").at[bins].add(1)


def _rank(quantile: float, num_samples: int) -> int:
    return max(1, math.ceil(quantile * num_samples))


def _rank_error(epsilon: float, num_candidates: int) -> float:
    """Pr[score < best - (range / epsilon) log(k / p)] <= p, and the best score is 0."""
    return _RANGE / epsilon * math.log(num_candidates / FAILURE_PROB)


def _samples(samples: ArrayLike) -> jax.Array:
    x = jnp.asarray(gathered(_validate.arrays(samples)))
    _validate.require(
        x.ndim == 1 and 0 < x.size < 2**31 and not jnp.iscomplexobj(x),
        "samples",
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        "a real vector with at least one entry",
    )
    return x.astype(jnp.float64 if x.dtype == jnp.float64 else jnp.float32)


def _bins(edges: ArrayLike, samples: jax.Array) -> jax.Array:
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
        _validate.require(
            bool(np.isfinite(numbers).all() and (np.diff(numbers) > 0).all()),
            "edges",
            numbers,
            f"finite and increasing in {array.dtype}",
        )
    return array
