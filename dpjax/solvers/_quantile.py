"""Private quantiles, and from them a center and a scale for every column."""

import math
from fractions import Fraction
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _keys, _validate, mechanisms
from dpjax._sharding import gathered
from dpjax._types import ArrayLike, Key, Scalar, SelectionName
from dpjax.solvers._solution import Solution
from dpjax.solvers._vertex_choice import FAILURE_PROB, Choices

APART = 1.959964  # standard errors of a rank at which an interval is seen: 95 per cent
# Widths are preferred as their square, as far as this share of the ranks beyond allows.
_WIDE, _SPARE = 2.0, 0.25
_HALF_BINS = 0.8  # with 1.28 standard errors, at level 0.8, all of a half bin
_RANGE = 2.0  # of the scores' change, when one record is replaced
_MOST_RECORDS = 2**24  # integers up to here are exact in float32
_GOLDEN = 2_654_435_769  # 2^32 / 1.618...: its multiples spread evenly modulo 2^32
_WITHIN_ONE_SCALE = 0.6827  # of a normal law, within one standard deviation
_SUPPORT = 0.25  # share of records that lie near a scale, a fifth of it to five times
_NEAR = 35  # bins of the default, a factor of five

# Bins of the default: 50 a decade from 1e-6 to 1e9 on both sides, and one at zero.
# Powers of ten are edges to the bit, in float32 too.
_SIZES = np.array([float(f"{x:.12g}") for x in np.logspace(-6, 9, 15 * 50 + 1)])
_EDGES = np.concatenate([-_SIZES[::-1], _SIZES])
_DISTANCE_EDGES = np.concatenate([[-_SIZES[0]], _SIZES])
# In half bins, below which a width says nothing.
_WIDTH_EDGES = np.concatenate([[0.0], _SIZES[_SIZES >= 1]])


def _roundest(low: float, high: float) -> float:
    """Returns the shortest decimal in (low, high]: 0, 1, 7, 2000, 0.5."""
    if low < 0 < high:
        return 0.0
    for exponent in range(9, -10, -1):
        multiple = math.floor(Fraction(high) / Fraction(10) ** exponent)
        number = float(Fraction(10) ** exponent * multiple)
        if low < number <= high:
            return number
    raise AssertionError("a bin holds a decimal of its own size")


@cache
def _roundest_of_bins() -> np.ndarray:
    return np.array(list(map(_roundest, _EDGES[:-1], _EDGES[1:])))


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
    the samples, the error in rank grows with the logarithm of the number of bins.

    A second choice, with the same epsilon, gives the interval: the distance from that
    midpoint within which the two samples lie whose ranks are two standard errors below
    and above the quantile. So an interval reaches the next number if samples repeat a
    few numbers, as ages do: wide distances are preferred by public weights, because all
    of those that are too short may have one score. Equal parts make the interval narrowest: with n = 1,000 and
    epsilon 0.2, for the median of a normal distribution, it had 2.9 times the width
    without privacy, and 4.0 with three quarters for the value.

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
        A `Solution` whose params are a scalar. Its standard_errors, and so `interval`,
        are for the quantile of the distribution of the samples. They count sampling,
        both choices, and the width of a bin, at levels of 0.8 or more. With 4,000 bins,
        n from 2,000 to 100,000, epsilon 0.5 to 3, and quantiles 0.1, 0.5 and 0.9 of
        normal, t3 and lognormal distributions, nominal 95 per cent intervals covered
        97.5 per cent on average and 95.7 or more of every quantile (400 runs), at 1.1
        to 2.0 times the width without privacy; `benchmarks/COVERAGE.md` has all
        results, also for real columns that repeat few numbers. An interval is infinite
        in the first or the last bin, which have no end, and if the rank may be that of
        an extreme (by n, quantile and epsilon alone). Its stats hold rank, num_bins,
        and rank_error: with probability 0.99 at most rank_error records lie between the
        bin and the r-th smallest.

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
        >>> print(f"{solution.params:.1f} {solution.stats['rank_error']:.0f}")
        3.0 95
        >>> low, high = solution.interval()
        >>> print(f"{low:.1f} {high:.1f}")
        2.8 3.1

    Reference:
        Smith (2011), "Privacy-preserving statistical estimation with optimal
        convergence rates", Algorithm 2, for the exponential mechanism on quantiles.
        Scores: Asi, Duchi (2020), "Instance-optimality in differential privacy via
        approximate inverse sensitivity mechanisms".
    """
    _validate.positive(epsilon=epsilon)
    _validate.typed_key(key)
    _validate.within(0.0, 1.0, quantile=quantile)
    samples = checked_samples(samples, num_axes=1)
    bins = checked_edges(_EDGES if edges is None else edges, samples)
    choices = Choices.tight(2, epsilon, 0.0)
    params, errors = _choose_quantile(
        (choices.mechanism, float(quantile)), key, samples, bins, choices.epsilon
    )
    num_samples, num_bins = samples.size, bins.size - 1
    stats: dict[str, Scalar] = {
        "rank": _rank(quantile, num_samples),
        "num_bins": num_bins,
        "rank_error": _rank_error(choices.epsilon, num_bins),
    }
    return Solution(params, choices.guarantee(num_samples), stats, errors)


def dp_center_and_scale(
    samples: ArrayLike, *, key: Key, epsilon: float, delta: float = 0.0
) -> Solution:
    """Releases for each column a center and a scale that standardize it.

    The center is a private median, as the roundest number of its bin, so a column that
    mostly repeats a number such as 0, 1 or 7 is centered on that number. The scale is a
    private 68 per cent quantile of |x - center|: for a normal distribution the standard
    deviation. It is 1 for a column that mostly repeats its center. A scale must have
    records near it: a quarter of all between a fifth of it and five times it. This
    excludes numbers between two values that a column repeats, which would be quantiles
    as well.

    Args:
        samples: shape (n, d), real; n is public. Missing values are NaN.
        key: a typed key.
        epsilon: privacy of all columns together, positive.
        delta: privacy of all columns together, in [0, 1).

    Returns:
        A `Solution` with params (centers, scales), each of shape (d,), in units of the
        columns; scales are positive. Its stats hold selection_epsilon, of one of the
        2d choices; rank_error, which with probability 0.99 bounds the error in rank of
        all of them; and is_informative, false if that is a quarter of the records or
        more: a scale may then have no records near it. All follow from n, d and the
        budget.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input. A record has a value in
        each column: 2d choices as in `dp_quantile`, each scale after its center, share
        the budget (`accounting.selection_epsilon`), by whichever mechanism gives more
        epsilon to each. Bins are the defaults of `dp_quantile`. The score of a scale is
        the smaller of the quantile's u(j) and near(j) - n/4, where near(j) counts the
        records from a fifth of the bin to five times it, and for the bin at zero the
        records in it. Replacing a record moves both by at most 1, so it moves their
        minimum by at most 1, and the difference of two scores by 2.

    Example:
        >>> import jax, numpy as np
        >>> normal = np.random.default_rng(0).normal(size=(20_000, 2))
        >>> samples = np.array([2000.0, -3.0]) + np.array([50.0, 0.1]) * normal
        >>> centers, scales = dp_center_and_scale(
        ...     samples, key=jax.random.key(0), epsilon=0.5).params
        >>> print(np.abs((np.array(centers) - [2000.0, -3.0]) / [50.0, 0.1]) < 1)
        [ True  True]

    Reference:
        As for `dp_quantile`.
    """
    _validate.positive(epsilon=epsilon)
    _validate.delta(delta)
    _validate.typed_key(key)
    samples = checked_samples(samples, num_axes=2)
    num_samples, num_choices = samples.shape[0], 2 * samples.shape[1]
    choices = Choices.tight(num_choices, epsilon, delta)
    params = _standardize(choices.mechanism, key, samples, choices.epsilon)
    rank_error = _rank_error(choices.epsilon, num_choices * (_EDGES.size - 1))
    stats: dict[str, Scalar] = {
        "selection_epsilon": choices.epsilon,
        "rank_error": rank_error,
        "is_informative": rank_error < _SUPPORT * num_samples,
    }
    return Solution(params, choices.guarantee(num_samples), stats)


@partial(jax.jit, static_argnums=0)
def _standardize(
    mechanism: SelectionName, key: Key, samples: jax.Array, epsilon: Scalar
) -> tuple[jax.Array, jax.Array]:
    edges, distance_edges, roundest = (
        jnp.asarray(table, samples.dtype)
        for table in (_EDGES, _DISTANCE_EDGES, _roundest_of_bins())
    )

    def choose(key: Key, scores: jax.Array) -> jax.Array:
        return _choose(mechanism, key, scores, epsilon)

    def of_column(key: Key, column: jax.Array) -> tuple[jax.Array, jax.Array]:
        first, second = jax.random.split(key)
        center = roundest[choose(first, _scores(column, edges, 0.5))]
        distances = jnp.abs(column - center)
        index = choose(second, _scale_scores(distances, distance_edges))
        scale = distance_edges[index] / 2 + distance_edges[index + 1] / 2
        return center, jnp.where(index > 0, scale, 1)  # the first bin is at zero

    keys = jax.random.split(key, samples.shape[1])
    return jax.vmap(of_column, (0, 1))(keys, samples)


@partial(jax.jit, static_argnums=0)
def _choose_quantile(
    static: tuple[SelectionName, float],
    key: Key,
    samples: jax.Array,
    edges: jax.Array,
    epsilon: Scalar,
) -> tuple[jax.Array, jax.Array]:
    """Releases a quantile, and its standard error."""
    mechanism, quantile = static
    center_key, width_key = _keys.split(key)
    index = _choose(mechanism, center_key, _scores(samples, edges, quantile), epsilon)
    center = edges[index] / 2 + edges[index + 1] / 2
    half = edges[index + 1] / 2 - edges[index] / 2
    # A choice errs about as a Laplace law of scale 2 / epsilon does, and that of the
    # width as two: all widths between two samples have one score.
    num_samples, epsilon = samples.size, jnp.asarray(epsilon, "float32")
    sampling = num_samples * quantile * (1 - quantile)
    rank_error = jnp.sqrt(sampling + 4 * (_RANGE / epsilon) ** 2)
    apart = jnp.minimum(jnp.ceil(APART * rank_error), num_samples).astype("int32")
    sizes = jnp.asarray(_WIDTH_EDGES, samples.dtype)
    nearest = min(_rank(quantile, num_samples), num_samples * (1 - quantile))
    spare = _SPARE * (nearest - apart.astype("float32"))
    preferred = _preference(sizes, spare, _RANGE / epsilon)
    scores = _width_scores((samples - center) / half, sizes, quantile, apart)
    scores = jnp.maximum(scores - preferred, -_MOST_RECORDS)
    width = _choose(mechanism, width_key, scores, epsilon)
    error = half * jnp.maximum(sizes[width + 1] / APART, _HALF_BINS)
    farthest = APART * rank_error
    farthest = jnp.maximum(farthest, _RANGE / epsilon * _log_odds(edges.size - 1))
    is_inside = (index > 0) & (index < edges.size - 2) & (width < sizes.size - 2)
    return center, jnp.where(is_inside & (farthest < nearest), error, jnp.inf)


def _choose(
    mechanism: SelectionName, key: Key, scores: jax.Array, epsilon: Scalar
) -> jax.Array:
    return getattr(mechanisms, mechanism)(
        key, scores, epsilon=epsilon, sensitivity_range=_RANGE
    )


def _scores(samples: jax.Array, edges: jax.Array, quantile: float) -> jax.Array:
    """Returns u(j), integers in float32, shape (num_bins,)."""
    rank = _rank(quantile, samples.size)
    return _as_scores(_distances(_counts(samples, edges, quantile), rank))


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
    up_to = jnp.cumsum(_counts(samples, edges, quantile), dtype="int32")
    down_to = jnp.cumsum(_counts(-samples, edges, 1 - quantile), dtype="int32")
    above = up_to - (rank + apart)
    below = down_to - (samples.size - rank + apart + 1)
    spare = jnp.minimum(above, below)
    first = jnp.full((1,), -samples.size, "int32")  # nothing lies within less than zero
    return _as_scores(_lacking(jnp.concatenate([first, spare[:-1]]), spare))


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
    scale = jnp.maximum(scale, 1e-30)  # zero for the largest epsilons
    power = jnp.clip(most / (scale * sizes[-1]), 0.0, _WIDE)
    lost = jnp.round(power * scale * (sizes[-1] - sizes))
    return jnp.minimum(lost, _MOST_RECORDS)


def _scale_scores(samples: jax.Array, edges: jax.Array) -> jax.Array:
    """Returns the scores of scales: their u(j), or less where too few lie near."""
    counts = _counts(samples, edges, _WITHIN_ONE_SCALE)
    below = jnp.pad(jnp.cumsum(counts, dtype="int32"), (1, 0))  # each edge
    bins = np.arange(counts.size)
    first, last = np.maximum(bins - _NEAR, 1), np.minimum(bins + _NEAR, bins[-1])
    first[0] = last[0] = 0  # nothing is near to zero but zero
    near = below[last + 1] - below[first]
    lacking = math.ceil(_SUPPORT * samples.size) - near
    rank = _rank(_WITHIN_ONE_SCALE, samples.size)
    return _as_scores(jnp.maximum(_distances(counts, rank), lacking))


def _counts(samples: jax.Array, edges: jax.Array, quantile: float) -> jax.Array:
    """Returns how many samples each bin holds, shape (num_bins,)."""
    multiples = jnp.arange(samples.size, dtype="uint32") * jnp.uint32(_GOLDEN)
    is_low = multiples < jnp.uint32(min(int(quantile * 2**32), 2**32 - 1))
    missing = jnp.where(is_low, -jnp.inf, jnp.inf).astype(samples.dtype)
    values = jnp.where(jnp.isnan(samples), missing, samples)
    bins = jnp.searchsorted(edges[1:-1], values, side="left")
    return jnp.zeros(edges.size - 1, "int32").at[bins].add(1)


def _distances(counts: jax.Array, rank: int | jax.Array) -> jax.Array:
    """Returns how many records to replace for the rank to lie in each bin."""
    up_to = jnp.cumsum(counts, dtype="int32")
    return _lacking(up_to - counts - rank, up_to - rank)


def _lacking(lower: jax.Array, upper: jax.Array) -> jax.Array:
    """Returns how many records to replace for bins to be where a count reaches zero.

    The count grows from bin to bin; given are those at the ends of each.
    """
    return jnp.maximum(jnp.maximum(lower + 1, -upper), 0)


def _as_scores(distances: jax.Array) -> jax.Array:
    return -jnp.minimum(distances, _MOST_RECORDS).astype("float32")


def _rank(quantile: float, num_samples: int) -> int:
    return max(1, math.ceil(quantile * num_samples))


def _rank_error(epsilon: float, num_candidates: int) -> float:
    """Pr[score < best - (range / epsilon) log(k / p)] <= p, and the best score is 0."""
    return _RANGE / epsilon * _log_odds(num_candidates)


def _log_odds(num_candidates: int) -> float:
    return math.log(num_candidates / FAILURE_PROB)


def checked_samples(samples: ArrayLike, *, num_axes: int) -> jax.Array:
    """Returns samples as floats of so many axes, with the rows of all devices."""
    x = jnp.asarray(gathered(_validate.arrays(samples)))
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
