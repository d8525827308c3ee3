"""A private quantile, and its interval: choices among public bins by ranks."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _keys, _validate, mechanisms
from dpjax._sharding import check_key_of_rows, gathered
from dpjax._tree import arrays
from dpjax._types import ArrayLike, Key, Scalar, SelectionName
from dpjax.solvers.statistics._noisy_quantile import MOST_RECORDS
from dpjax.solvers.training._calibration import FAILURE_PROB, Choices
from dpjax.solvers.training._solution import Solution

RANGE = 2.0  # of the scores' change, when one record is replaced
APART = 1.959964  # standard errors of a rank at which an interval is seen: 95 per cent
# Widths are preferred as their square, as far as this share of the ranks beyond allows.
_WIDE, _SPARE = 2.0, 0.25
_HALF_BINS = 0.8  # with 1.28 standard errors, at level 0.8, all of a half bin
_GOLDEN = 2_654_435_769  # 2^32 / 1.618...: its multiples spread evenly modulo 2^32

# Bins of the default: 50 a decade from 1e-6 to 1e9 on both sides, and one at zero.
# Powers of ten are edges to the bit, in float32 too.
_SIZES = np.array([float(f"{x:.12g}") for x in np.logspace(-6, 9, 15 * 50 + 1)])
EDGES = np.concatenate([-_SIZES[::-1], _SIZES])
# In half bins, below which a width says nothing.
_WIDTH_EDGES = np.concatenate([[0.0], _SIZES[_SIZES >= 1]])


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

    minus the smallest number of records to replace for the r-th smallest to lie in it.
    Permute-and-flip chooses a bin, whose midpoint is released. For any distribution of
    the samples, the error in rank grows with the logarithm of the number of bins. A
    second choice, with the same epsilon, gives the interval: a distance from that
    midpoint within which the two samples lie whose ranks are two standard errors below
    and above the quantile. It reaches the next number if samples repeat a few, as ages
    do: wide distances are preferred by public weights.

    Args:
        samples: shape (n,), real; n is public. Values beyond the edges, including
            infinities, count in the first or the last bin. NaN is a missing value: at a
            share `quantile` of the indices it counts as the lowest, at the others as
            the highest, which does not change the quantile of the other samples.
        key: a typed key.
        epsilon: privacy parameter, positive, any size.
        quantile: from 0, the smallest, to 1, the largest.
        edges: increasing, shape (k + 1,) with k >= 2, chosen without the samples; bin j
            is (edges[j], edges[j + 1]]. By default 1,501 logarithmic bins: 50 a decade
            (5 per cent wide) from 1e-6 to 1e9 and from -1e9 to -1e-6, and one at zero.

    Returns:
        A `Solution` whose params are a scalar, with standard_errors and `interval` for
        the quantile of the distribution of the samples. They count sampling, both
        choices and the width of a bin, at levels of 0.8 or more (measured in
        `benchmarks/COVERAGE.md`), and are infinite in the first or the last bin, and if
        the rank may be that of an extreme. Its stats hold rank, num_bins, and
        rank_error: with probability 0.99 at most rank_error records lie between the bin
        and the r-th smallest.

    Privacy:
        epsilon-DP under replace-one, for every input: two choices with half of epsilon
        each, the second one from the distances to the first result. The bin of a record
        depends only on the record and its public index; -u(j) is a number of records to
        replace, so one more replaced record moves it by at most 1. The difference of
        two scores thus moves by at most 2, which a record that jumps over the r-th
        smallest attains. Counts and scores are integers, cut at -2^24, so they are
        exact in float32. Quantile and edges must not depend on the samples.

    Example:
        >>> import jax, numpy as np
        >>> samples = 3.0 + np.random.default_rng(0).standard_cauchy(10_000)
        >>> solution = dp_quantile(samples, key=jax.random.key(1), epsilon=0.5)
        >>> low, high = solution.interval()
        >>> print(f"{solution.params:.1f} {low:.1f} {high:.1f}")
        3.0 2.8 3.1

    Reference:
        Smith (2011), "Privacy-preserving statistical estimation with optimal
        convergence rates", Algorithm 2. Scores: Asi, Duchi (2020), "Instance-optimality
        in differential privacy via approximate inverse sensitivity mechanisms".
    """
    _validate.positive(epsilon=epsilon)
    check_key_of_rows(key, samples)
    _validate.within(0.0, 1.0, quantile=quantile)
    samples = checked_samples(samples, num_axes=1)
    bins = checked_edges(EDGES if edges is None else edges, samples)
    choices = Choices.tight(2, epsilon, 0.0)
    params, errors = _with_error(
        (choices.mechanism, float(quantile)), key, samples, bins, choices.epsilon
    )
    num_bins = bins.size - 1
    # Pr[score < best - (range / epsilon) log(k / p)] <= p, and the best score is 0.
    stats: dict[str, Scalar] = {
        "rank": _rank(quantile, samples.size),
        "num_bins": num_bins,
        "rank_error": RANGE / choices.epsilon * math.log(num_bins / FAILURE_PROB),
    }
    return Solution(params, choices.guarantee(samples.size), stats, errors)


@partial(jax.jit, static_argnums=0)
def _with_error(
    static: tuple[SelectionName, float],
    key: Key,
    samples: jax.Array,
    edges: jax.Array,
    epsilon: Scalar,
) -> tuple[jax.Array, jax.Array]:
    """Releases a quantile, and its standard error."""
    mechanism, quantile = static
    center_key, width_key = _keys.split(key)
    scores = scores_of(samples, edges, quantile)
    index = choose(mechanism, center_key, scores, epsilon)
    center = edges[index] / 2 + edges[index + 1] / 2
    half = edges[index + 1] / 2 - edges[index] / 2
    # A choice errs about as a Laplace law of scale 2 / epsilon does, and that of the
    # width as two: all widths between two samples have one score.
    num_samples, epsilon = samples.size, jnp.asarray(epsilon, "float32")
    sampling = num_samples * quantile * (1 - quantile)
    rank_error = jnp.sqrt(sampling + 4 * (RANGE / epsilon) ** 2)
    apart = jnp.minimum(jnp.ceil(APART * rank_error), num_samples).astype("int32")
    sizes = jnp.asarray(_WIDTH_EDGES, samples.dtype)
    nearest = min(_rank(quantile, num_samples), num_samples * (1 - quantile))
    spare = _SPARE * (nearest - apart.astype("float32"))
    preferred = _preference(sizes, spare, RANGE / epsilon)
    scores = _width_scores((samples - center) / half, sizes, quantile, apart)
    scores = jnp.maximum(scores - preferred, -MOST_RECORDS)
    width = choose(mechanism, width_key, scores, epsilon)
    error = half * jnp.maximum(sizes[width + 1] / APART, _HALF_BINS)
    log_odds = math.log((edges.size - 1) / FAILURE_PROB)
    farthest = jnp.maximum(APART * rank_error, RANGE / epsilon * log_odds)
    is_inside = (index > 0) & (index < edges.size - 2) & (width < sizes.size - 2)
    return center, jnp.where(is_inside & (farthest < nearest), error, jnp.inf)


def choose(
    mechanism: SelectionName, key: Key, scores: jax.Array, epsilon: Scalar
) -> jax.Array:
    """Releases the index of a bin with a large score."""
    return getattr(mechanisms, mechanism)(
        key, scores, epsilon=epsilon, sensitivity_range=RANGE
    )


def scores_of(samples: jax.Array, edges: jax.Array, quantile: float) -> jax.Array:
    """Returns u(j), integers in float32, shape (num_bins,)."""
    up_to = num_up_to(samples, edges, quantile) - _rank(quantile, samples.size)
    first = jnp.full((1,), -_rank(quantile, samples.size), "int32")
    return _scores(jnp.concatenate([first, up_to[:-1]]), up_to)


def num_up_to(samples: jax.Array, edges: jax.Array, quantile: float) -> jax.Array:
    """Returns how many samples each bin and those before it hold, (num_bins,)."""
    multiples = jnp.arange(samples.size, dtype="uint32") * jnp.uint32(_GOLDEN)
    is_low = multiples < jnp.uint32(min(int(quantile * 2**32), 2**32 - 1))
    missing = jnp.where(is_low, -jnp.inf, jnp.inf).astype(samples.dtype)
    values = jnp.where(jnp.isnan(samples), missing, samples)
    bins = jnp.searchsorted(edges[1:-1], values, side="left")
    counts = jnp.zeros(edges.size - 1, "int32").at[bins].add(1)
    return jnp.cumsum(counts, dtype="int32")


def _scores(lower: jax.Array, upper: jax.Array) -> jax.Array:
    """Returns minus the number of records to replace for a count to reach zero.

    The count grows from bin to bin; given are those at the ends of each bin.
    """
    distances = jnp.maximum(jnp.maximum(lower + 1, -upper), 0)
    return -jnp.minimum(distances, MOST_RECORDS).astype("float32")


def _rank(quantile: float, num_samples: int) -> int:
    """Returns r of the r-th smallest sample, from 1 on."""
    return max(1, math.ceil(quantile * num_samples))


def _width_scores(
    samples: jax.Array, edges: jax.Array, quantile: float, apart: jax.Array
) -> jax.Array:
    """Returns the scores of distances from zero, by the ranks that lie within.

    Within -d to d are to lie the samples of ranks r - apart and r + apart. Both ends
    are looked at, because where samples repeat a number that number alone may hold
    2 apart of them, and the quantile of the law be its neighbor. Each of the counts,
    and so their least, moves by 1 where a record is replaced.
    """
    rank = _rank(quantile, samples.size)
    up_to = num_up_to(samples, edges, quantile)
    down_to = num_up_to(-samples, edges, 1 - quantile)
    above = up_to - (rank + apart)
    below = down_to - (samples.size - rank + apart + 1)
    spare = jnp.minimum(above, below)
    first = jnp.full((1,), -samples.size, "int32")  # nothing lies within less than zero
    return _scores(jnp.concatenate([first, spare[:-1]]), spare)


def _preference(sizes: jax.Array, most: Scalar, scale: Scalar) -> jax.Array:
    """Returns what scores lose in each bin of widths, integers; wide ones nothing.

    Between numbers that samples repeat all widths have one score, and those are many
    times as many as the bin that reaches the next number. Weights proportional to a
    power of the width make those too short count as about ten.

    Args:
        sizes: edges of the bins.
        most: that it may cost at all, or wide intervals would cost less than the ranks
            that they hold beyond those wanted.
        scale: of the noise of scores.
    """
    sizes = jnp.log(jnp.maximum(sizes[1:], 1.0)).astype("float32")
    scale = jnp.clip(scale, 1e-30, 1e30)  # zero or infinite for the wildest epsilons
    power = jnp.clip(most / (scale * sizes[-1]), 0.0, _WIDE)
    lost = jnp.round(power * scale * (sizes[-1] - sizes))
    return jnp.minimum(lost, MOST_RECORDS)


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
    if array.ndim != 1 or array.size < 3 or jnp.iscomplexobj(array):
        shape = jax.ShapeDtypeStruct(array.shape, array.dtype)
        raise ValueError(f"edges must be a real vector of three or more, got {shape}.")
    array = array.astype(samples.dtype)
    if _validate.is_concrete(array):
        numbers = np.asarray(array)
        is_fine = bool(np.isfinite(numbers).all() and (np.diff(numbers) > 0).all())
        rule = f"finite and increasing in {array.dtype}"
        _validate.require(is_fine, "edges", numbers, rule)
    return array
