"""A private histogram, with public or private edges."""

import math

import jax
import jax.numpy as jnp

from dpjax import _keys, _validate
from dpjax._rounding import ROUNDED_UP
from dpjax._sharding import check_key_of_rows, gathered
from dpjax._types import ArrayLike, Key, Scalar
from dpjax.mechanisms import gaussian
from dpjax.solvers.statistics._noisy_mean import one_gaussian
from dpjax.solvers.statistics._noisy_quantile import (
    MOST_RECORDS,
    median_and_bound,
    noisy_quantile,
)
from dpjax.solvers.statistics._quantile import checked_edges, checked_samples
from dpjax.solvers.training._calibration import check_budget
from dpjax.solvers.training._solution import Solution

# Shares of the budget for edges: the size of numbers, their median, and distances from
# it.
_SIZE, _MEDIAN, _DISTANCE = 0.02, 0.04, 0.04
EDGES_SHARE = _SIZE + _MEDIAN + _DISTANCE
_BEYOND = 0.05  # share of the records beyond the edges
_NUM_BINS, _STEPS_APART = 20, 8.0
_LEAST_VARIANCE = 1 / 12  # of rounding to integers


def dp_histogram(
    samples: ArrayLike,
    *,
    key: Key,
    epsilon: float,
    delta: float,
    edges: ArrayLike | None = None,
) -> Solution:
    """Releases the number of samples in each bin, as integers.

    Args:
        samples: shape (n,), real; n is public, at most 2^24. Values beyond the edges,
            including infinities, count in the first or the last bin, and NaN in none.
        key: a typed key.
        epsilon: privacy parameter, positive, any size.
        delta: privacy parameter in (0, 1).
        edges: increasing, shape (k + 1,) with k >= 2, chosen without the samples; bin j
            is (edges[j], edges[j + 1]]. By default 21 round numbers around a private
            median, which enclose most samples; they cost a tenth of the budget.

    Returns:
        A `Solution` whose params are the counts, int32 of shape (k,); noise may make
        some negative. Its standard_errors, and so `interval`, are for n times the
        probability of each bin, and count sampling and noise. Its stats hold edges, the
        stddev of the noise, and noise_multiplier.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input. A replaced record moves
        two counts by 1, sqrt(2) in the l2 norm. Counts are exact, and noisy counts are
        rounded to integers. Private edges follow from Gaussian mechanisms on counts,
        and all compose exactly.

    Example:
        >>> import jax, numpy as np
        >>> ages = np.random.default_rng(0).normal(40.0, 10.0, 20_000)
        >>> solution = dp_histogram(ages, key=jax.random.key(0), epsilon=1.0,
        ...                         delta=1e-6, edges=[0, 30, 40, 50, 100])
        >>> print(solution.params)
        [3118 6931 6751 3210]

    Reference:
        Dwork, McSherry, Nissim, Smith (2006), "Calibrating noise to sensitivity in
        private data analysis", Section 3.2.
    """
    check_budget(epsilon, delta)
    check_key_of_rows(key, samples)
    samples = checked_samples(samples, num_axes=1)
    check_countable(samples.size)
    multiplier, privacy = one_gaussian(epsilon, delta, samples.size)
    edge_key, key = _keys.split(key)
    if edges is None:
        share, bins = EDGES_SHARE, private_edges(edge_key, samples, multiplier)
    else:
        share, bins = 0.0, checked_edges(edges, samples)
    of_counts = multiplier / math.sqrt(1 - share)
    counts, errors, stddev = _counted(key, samples, bins, of_counts)
    stats = {"edges": bins, "stddev": stddev, "noise_multiplier": multiplier}
    return Solution(counts, privacy, stats, errors)


def check_countable(num_samples: int) -> None:
    """Requires at most 2^24 samples, so that float32 holds every count."""
    is_fine = num_samples <= MOST_RECORDS
    _validate.require(is_fine, "samples", num_samples, "at most 2^24")


@jax.jit
def _counted(
    key: Key, samples: jax.Array, edges: jax.Array, multiplier: Scalar
) -> tuple[jax.Array, jax.Array, jax.Array]:
    samples = gathered(samples)
    bins = jnp.searchsorted(edges[1:-1], samples, side="left")
    known = (~jnp.isnan(samples)).astype("int32")
    counts = jnp.zeros(edges.size - 1, "int32").at[bins].add(known)
    return noisy_counts(key, counts, multiplier, samples.size)


def noisy_counts(
    key: Key, counts: jax.Array, multiplier: Scalar, num_samples: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Releases counts as integers, and returns errors and the stddev of the noise.

    A record moves the counts by sqrt(2). They are exact in float32. The errors are of
    estimates of n times a probability.
    """
    stddev = math.sqrt(2) * ROUNDED_UP * jnp.asarray(multiplier, "float32")
    noisy = gaussian(key, counts.astype("float32"), stddev=stddev)
    counts = jnp.rint(jnp.clip(noisy, -(2.0**30), 2.0**30)).astype("int32")
    share = jnp.clip(counts.astype("float32") / num_samples, 0.0, 1.0)
    sampling = num_samples * share * (1 - share)
    return counts, jnp.sqrt(sampling + stddev**2 + _LEAST_VARIANCE), stddev


def private_edges(key: Key, samples: jax.Array, multiplier: float) -> jax.Array:
    """Releases 21 increasing round edges, for `EDGES_SHARE` of the budget."""
    size_key, median_key, distance_key = _keys.split(key, 3)
    known = ~jnp.isnan(gathered(samples))
    values = jnp.where(known, gathered(samples), 0.0)
    median, _ = median_and_bound(
        (size_key, median_key),
        values,
        known.astype(values.dtype),
        size_multiplier=multiplier / math.sqrt(_SIZE),
        multiplier=multiplier / math.sqrt(_MEDIAN),
    )
    reach = noisy_quantile(
        distance_key,
        jnp.where(known, jnp.abs(values - median), 0.0),
        share_above=_BEYOND,
        noise_multiplier=multiplier / math.sqrt(_DISTANCE),
    )
    return _round_edges(median, reach)


@jax.jit
def _round_edges(median: jax.Array, reach: jax.Array) -> jax.Array:
    """Returns ascending multiples of 1, 2 or 5 times a power of ten."""
    least = 2 * reach / (_NUM_BINS - 1)  # so that a first edge may be rounded down
    apart = _STEPS_APART * jnp.finfo(least.dtype).eps  # so that edges differ
    least = jnp.maximum(least, apart * jnp.abs(median))
    power = 10.0 ** jnp.floor(jnp.log10(least))
    steps = power * jnp.array([1.0, 2.0, 5.0, 10.0], least.dtype)
    step = jnp.min(jnp.where(steps >= least, steps, steps[-1]))
    first = jnp.floor((median - reach) / step)
    return step * (first + jnp.arange(_NUM_BINS + 1, dtype=least.dtype))
