"""Private quantiles and histograms.

A quantile is a choice among public bins by ranks; a histogram has Gaussian noise.
`docs/privacy/proofs/counts.md`, 7.1 and 7.2, proves what they cost.
"""

import math
from collections.abc import Sequence
from functools import partial
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _keys, _validate, mechanisms
from dpjax._rounding import ROUNDED_UP
from dpjax._sharding import check_key_of_rows, gathered
from dpjax._tree import arrays
from dpjax._types import ArrayLike, Key, Scalar, SelectionName
from dpjax.solvers.statistics._noisy_mean import one_gaussian
from dpjax.solvers.statistics._noisy_quantile import (
    MOST_RECORDS,
    median_and_bound,
    noisy_quantile,
)
from dpjax.solvers.training._calibration import FAILURE_PROB, Choices, check_budget
from dpjax.solvers.training._solution import Solution

RANGE = 2.0  # of the scores' changes when a record is replaced
APART = 1.959964  # half an interval, in standard errors of a rank: 95 percent
# The power of the width in its public weight, and the share of the ranks beyond that
# the weight may cost.
_WIDE, _SPARE = 2.0, 0.25
_HALF_BINS = 0.8  # at level 0.8, 1.28 of these errors cover a half bin
_GOLDEN = 2_654_435_769  # 2^32 / 1.618...: its multiples spread evenly modulo 2^32
# For several quantiles: the number of cells that bins are divided into, at least one
# each, and the weight of the next but one gap between quantiles in a width's unit.
_NUM_CELLS, _DECAY = 2**18, 0.25

# Edges of the default bins: 50 a decade from 1e-6 to 1e9 on both sides, and a bin at
# zero. Powers of ten are edges to the bit, in float32 too.
_SIZES = np.array([float(f"{x:.12g}") for x in np.logspace(-6, 9, 15 * 50 + 1)])
EDGES = np.concatenate([-_SIZES[::-1], _SIZES])
# Edges of widths, in half bins: a width below one half bin has no meaning.
_WIDTH_EDGES = np.concatenate([[0.0], _SIZES[_SIZES >= 1]])

# Shares of the budget for edges: size of numbers, their median, distances from it.
_SIZE, _MEDIAN, _DISTANCE = 0.02, 0.04, 0.04
EDGES_SHARE = _SIZE + _MEDIAN + _DISTANCE
_BEYOND = 0.05  # share of the records beyond the edges
_NUM_BINS, _STEPS_APART = 20, 8.0
_LEAST_VARIANCE = 1 / 12  # of rounding to integers


def dp_quantile(
    samples: ArrayLike,
    *,
    key: Key,
    epsilon: float,
    quantile: float | Sequence[float] = 0.5,
    edges: ArrayLike | None = None,
) -> Solution:
    """Releases quantiles of heavy-tailed samples, to the width of a public bin.

    For r = ceil(quantile n), bin j has the score
    u(j) = -max(0, #{x <= lower edge} + 1 - r, r - #{x <= upper edge}), minus the number
    of records to replace for the r-th smallest to lie in it. Permute-and-flip chooses a
    bin and releases its midpoint. For any distribution, the error in rank grows with
    the logarithm of the number of bins. Of several quantiles the middle one is chosen
    first, and divides the samples into two parts for the others, and so on. A last
    choice gives intervals: distances that cover two standard errors of all ranks.

    Args:
        samples: shape (n,), real; n is public. Values beyond the edges count in the
            first or the last bin. NaN is missing: it counts as the lowest value at a
            share `quantile` of the indices, else as the highest, which does not change
            the quantile of the other samples.
        key: a typed key.
        epsilon: privacy parameter, positive, any size; of all quantiles together.
        quantile: one number, or m increasing ones, strictly between 0 and 1.
        edges: increasing, shape (k + 1,) with k >= 2, chosen without the samples; bin j
            is (edges[j], edges[j + 1]]. By default 1,501 logarithmic bins: 50 a decade
            (5 percent wide) from 1e-6 to 1e9 and from -1e9 to -1e-6, and one at zero.

    Returns:
        A `Solution` whose params are a scalar, or m increasing numbers for several. Its
        standard_errors and `interval` are for quantiles of the distribution, count
        sampling, all choices and the width of a bin, at levels of 0.8 or more
        (`benchmarks/COVERAGE.md`), and are infinite in the first or the last bin, or if
        the rank may be an extreme. Several hold all at once at levels of 0.95 or more.
        Its stats hold rank, num_bins, and for one number rank_error: with probability
        0.99 at most rank_error records lie between the bin and the r-th smallest.

    Raises:
        ValueError: If an argument is out of its range, such as quantile=1: one record
            alone determines the maximum.

    Privacy:
        epsilon-DP under replace-one, for every input: one choice in each of the L + 1
        levels with epsilon / (L + 1), L = 1 for one number and floor(log2 m) + 1 for m.
        Replacing a record moves scores by at most 1, and differences of two by 2. Of
        several quantiles, it leaves one part and enters another, or moves within one;
        the parts' sizes are private, and ranks are public. Counts and scores are
        integers, cut at -2^24, so they are exact in float32. Quantile and edges must
        not depend on the samples.

    Example:
        >>> import jax, numpy as np
        >>> samples = 3.0 + np.random.default_rng(0).standard_cauchy(10_000)
        >>> solution = dp_quantile(samples, key=jax.random.key(1), epsilon=0.5)
        >>> low, high = solution.interval()
        >>> print(f"{solution.params:.1f} {low:.1f} {high:.1f}")
        3.0 2.8 3.1

    Reference:
        Smith (2011), "Privacy-preserving statistical estimation with optimal
        convergence rates", Algorithm 2. Asi, Duchi (2020): scores. Kaplan, Schnapp,
        Stemmer (2022), "Differentially private approximate quantiles": several.
    """
    _validate.positive(epsilon=epsilon)
    check_key_of_rows(key, samples)
    quantiles = _checked_quantiles(quantile)
    samples = checked_samples(samples, num_axes=1)
    bins = checked_edges(EDGES if edges is None else edges, samples)
    choices = Choices.tight(1 + len(quantiles).bit_length(), epsilon, 0.0)
    static = choices.mechanism, quantiles, np.ndim(quantile) > 0
    params, errors = _with_errors(static, key, samples, bins, choices.epsilon)
    num_bins = bins.size - 1
    ranks = [_rank(share, samples.size) for share in quantiles]
    stats: dict[str, Any] = {"rank": jnp.array(ranks), "num_bins": num_bins}
    if np.ndim(quantile) == 0:
        params, errors = params[0], errors[0]
        # Pr[score < best - (range / epsilon) log(k / p)] <= p, and the best score is 0.
        rank_error = RANGE / choices.epsilon * math.log(num_bins / FAILURE_PROB)
        stats |= {"rank": ranks[0], "rank_error": rank_error}
    return Solution(params, choices.guarantee(samples.size), stats, errors)


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
    # Given edges are checked before the key is used.
    share, bins = 0.0, None if edges is None else checked_edges(edges, samples)
    edge_key, key = _keys.split(key)
    if bins is None:
        share, bins = EDGES_SHARE, private_edges(edge_key, samples, multiplier)
    of_counts = multiplier / math.sqrt(1 - share)
    counts, errors, stddev = _counted(key, samples, bins, of_counts)
    stats = {"edges": bins, "stddev": stddev, "noise_multiplier": multiplier}
    return Solution(counts, privacy, stats, errors)


@partial(jax.jit, static_argnums=0)
def _with_errors(static, key, samples, edges, epsilon):
    """Releases quantiles and their standard errors, both (m,).

    `static` names the mechanism of choices and the quantiles, and tells whether they
    are several. A last choice, of widths that cover two standard errors of each rank,
    gives the errors; they are infinite if a choice is at an end of the bins.
    """
    mechanism, quantiles, are_several = static
    shares, num_samples = np.array(quantiles), samples.size
    ranks = np.array([_rank(share, num_samples) for share in quantiles], np.int32)
    release = partial(_halved, ranks) if are_several else _chosen
    center_key, width_key = _keys.split(key)
    given = mechanism, center_key, samples, edges, epsilon
    centers, index = release(quantiles, *given)
    halves = edges[index + 1] / 2 - edges[index] / 2
    # A choice errs about as a Laplace variable of scale 2 / epsilon, and the choice of
    # the width as two of them: all widths between two samples have one score.
    epsilon = jnp.asarray(epsilon, "float32")
    sampling = num_samples * shares * (1 - shares)
    rank_errors = jnp.sqrt(np.float32(sampling) + 4 * (RANGE / epsilon) ** 2)
    reach = NormalDist().inv_cdf(1 - 0.025 / len(ranks)) * rank_errors
    apart = jnp.minimum(jnp.ceil(reach), num_samples)
    log_odds = math.log((edges.size - 1) / FAILURE_PROB)
    nearest = np.float32(np.minimum(ranks, num_samples * (1 - shares)))
    is_known = jnp.maximum(reach, RANGE / epsilon * log_odds) < nearest
    linear = _slopes(centers, ranks, is_known) * apart.astype(centers.dtype)
    units = jnp.maximum(halves, linear)
    sizes = jnp.asarray(_WIDTH_EDGES, samples.dtype)
    spare = _SPARE * jnp.min(jnp.where(is_known, nearest - apart, num_samples))
    preferred = _preference(sizes, spare, RANGE / epsilon)
    places = centers, units, apart.astype("int32"), is_known
    scores = _width_scores(samples, sizes, quantiles, places)
    scores = jnp.maximum(scores - preferred, -MOST_RECORDS)
    width = choose(mechanism, width_key, scores, epsilon)
    errors = jnp.maximum(units * (sizes[width + 1] / APART), halves * _HALF_BINS)
    is_inside = (index > 0) & (index < edges.size - 2) & (width < sizes.size - 2)
    return centers, jnp.where(is_inside & is_known, errors, jnp.inf)


def _chosen(quantiles, mechanism, key, samples, edges, epsilon):
    """Releases the midpoint of a bin for a single quantile, and the bin, both (1,)."""
    scores = scores_of(samples, edges, *quantiles)
    index = choose(mechanism, key, scores, epsilon)[None]
    return edges[index] / 2 + edges[index + 1] / 2, index


def _halved(ranks, quantiles, mechanism, key, samples, edges, epsilon):
    """Releases several quantiles by recursive halving, and their bins, both (m,).

    The middle quantile divides the samples into two parts, where the others are chosen
    in the same way. A bin is divided into cells, and a record's public index determines
    its cell in the bin, so that samples that repeat a number can be divided, too. Each
    part should have as many more records on the left of a quantile than on its right as
    public ranks say, so that errors of both ends of a part count half.
    """
    num_samples, num_bins = samples.size, edges.size - 1
    # Half cells are counted, because a chosen cell is divided in its middle.
    num_parts = 2 * max(1, min(num_samples, _NUM_CELLS // num_bins))
    hashes, known = _hashes(num_samples), (~jnp.isnan(samples)).astype("int32")
    parts = ((hashes >> 18) * jnp.uint32(num_parts) >> 14).astype("int32")
    bins = jnp.searchsorted(edges[1:-1], samples, side="left")
    counts = jnp.zeros((num_bins, num_parts), "int32").at[bins, parts].add(known)
    up_to = jnp.append(0, jnp.cumsum(counts, dtype="int32"))
    # A missing value is on the left of all quantiles above its hash.
    levels = jnp.array([_level(share) for share in quantiles])
    after = jnp.searchsorted(levels, hashes, side="right") + 1
    missing = jnp.zeros(len(ranks) + 2, "int32").at[after].add(1 - known)
    goals = jnp.array([0, *ranks, num_samples], "int32")
    goals -= jnp.cumsum(missing, dtype="int32")
    middles = jnp.arange(1, up_to.size, 2, dtype="int32")

    def divide(ends: jax.Array, node: jax.Array) -> tuple[jax.Array, None]:
        """Returns ends with the cell that is chosen for a quantile, and None."""
        # A node has the indices of the quantile and of the quantiles on both sides of
        # it, whose cells are in `ends` already.
        low, index, high = node
        start, end = ends[low], ends[high]

        def balance(end_of_cell: jax.Array) -> jax.Array:
            here = up_to[end_of_cell] - goals[index]
            left = here - (up_to[start] - goals[low])
            right = up_to[end] - goals[high] - here
            most = MOST_RECORDS
            return jnp.clip(left, -most, most) - jnp.clip(right, -most, most)

        lower, upper = jnp.maximum(middles - 1, start), jnp.minimum(middles + 1, end)
        is_inside = (middles >= start) & (middles <= end)
        scores = jnp.where(is_inside, _scores(balance(lower), balance(upper)), -jnp.inf)
        # A record moves the balance of one part by 2, or of two parts by 1 each: scores
        # are twice as large as for one quantile, and have twice the range.
        own_key = jax.random.fold_in(key, index)
        chosen = choose(mechanism, own_key, scores, epsilon / 2)
        return ends.at[index].set(middles[chosen]), None

    ends = jnp.zeros(goals.size, "int32").at[-1].set(up_to.size - 1)
    ends, _ = jax.lax.scan(divide, ends, jnp.array(_nodes(0, goals.size - 1)))
    index, place = jnp.divmod(ends[1:-1], num_parts)
    share = place.astype(samples.dtype) / num_parts
    centers = (1 - share) * edges[index] + share * edges[index + 1]
    return jax.lax.cummax(centers), index  # they increase, whatever rounding does


def _nodes(low: int, high: int) -> list[tuple[int, int, int]]:
    """Returns (low, middle, high) of all parts, each before the parts within it."""
    middle = (low + high) // 2
    if middle == low:
        return []
    return [(low, middle, high), *_nodes(low, middle), *_nodes(middle, high)]


def _slopes(centers: jax.Array, ranks: np.ndarray, is_known: jax.Array) -> jax.Array:
    """Estimates half of the change of each quantile (m,) if its rank changes by 1."""
    # It is the unit of the width of an interval, from the gaps between the released
    # quantiles `centers`, of `ranks`; gaps at quantiles that are not known count zero.
    if len(ranks) == 1:
        return jnp.zeros_like(centers)
    # Samples may repeat the number of some quantiles, so that farther gaps count too.
    apart = 2 * np.maximum(np.diff(ranks), 1)
    slopes = jnp.diff(centers) / apart.astype(centers.dtype)
    slopes = jnp.where(is_known[1:] & is_known[:-1], slopes, 0.0)
    away = np.arange(len(ranks))[:, None] - np.arange(len(ranks) - 1)
    weights = jnp.asarray(_DECAY ** np.maximum(-away, away - 1), centers.dtype)
    return jnp.max(slopes[None] * weights, axis=1)


def choose(
    mechanism: SelectionName, key: Key, scores: jax.Array, epsilon: Scalar
) -> jax.Array:
    """Releases the index of a bin with a large score."""
    return getattr(mechanisms, mechanism)(
        key, scores, epsilon=epsilon, sensitivity_range=RANGE
    )


def scores_of(samples: jax.Array, edges: jax.Array, quantile: float) -> jax.Array:
    """Returns u(j), integers in float32, shape (num_bins,)."""
    up_to = num_up_to(samples, edges, _level(quantile)) - _rank(quantile, samples.size)
    first = jnp.full((1,), -_rank(quantile, samples.size), "int32")
    return _scores(jnp.concatenate([first, up_to[:-1]]), up_to)


def num_up_to(samples: jax.Array, edges: jax.Array, level: ArrayLike) -> jax.Array:
    """Counts the samples (n,) up to the upper edge of each bin, shape (num_bins,)."""
    # Scores of bins follow from these counts; `level` only serves missing values.
    # A missing value's public index determines its side: each record counts by itself.
    is_low = _hashes(samples.size) < level
    missing = jnp.where(is_low, -jnp.inf, jnp.inf).astype(samples.dtype)
    values = jnp.where(jnp.isnan(samples), missing, samples)
    bins = jnp.searchsorted(edges[1:-1], values, side="left")
    counts = jnp.zeros(edges.size - 1, "int32").at[bins].add(1)
    return jnp.cumsum(counts, dtype="int32")


def _hashes(num_samples: int) -> jax.Array:
    """Returns public numbers of the indices (n,), spread evenly up to 2^32."""
    return jnp.arange(num_samples, dtype="uint32") * jnp.uint32(_GOLDEN)


def _level(quantile: float) -> np.uint32:
    """Returns the number below which are a share `quantile` of the hashes."""
    return np.uint32(min(int(quantile * 2**32), 2**32 - 1))


def _scores(lower: jax.Array, upper: jax.Array) -> jax.Array:
    """Returns minus the number of records to replace for a growing count to reach zero.

    `lower` and `upper` are the counts at the ends of each bin.
    """
    distances = jnp.maximum(jnp.maximum(lower + 1, -upper), 0)
    return -jnp.minimum(distances, MOST_RECORDS).astype("float32")


def _rank(quantile: float, num_samples: int) -> int:
    """Returns the rank r of the quantile, counted from 1."""
    return max(1, math.ceil(quantile * num_samples))


def _width_scores(
    samples: jax.Array,
    edges: jax.Array,
    quantiles: tuple[float, ...],
    places: tuple[jax.Array, ...],  # each (m,)
) -> jax.Array:
    """Returns scores by which the half widths d of quantiles' intervals are chosen.

    `places` are released quantiles of ranks r, units of their widths, ranks apart, and
    whether they count. A bin of d has score 0 if d is the least to cover the samples of
    ranks r - apart and r + apart within d units of each quantile, else less. If one of
    the samples (n,) is replaced, scores move by at most 1.
    """
    ranks = jnp.array([_rank(x, samples.size) for x in quantiles], "int32")
    levels = (
        jnp.array([*map(_level, x)]) for x in (quantiles, 1 - np.array(quantiles))
    )

    def spare(of_one: tuple[jax.Array, ...]) -> jax.Array:
        """Returns by how many samples each half width exceeds what a quantile needs."""
        center, unit, apart, is_known, rank, level, other = of_one
        away = (samples - center) / unit
        up_to = num_up_to(away, edges, level)
        down_to = num_up_to(-away, edges, other)
        # Both ends are checked: a number that samples repeat may alone cover 2 apart
        # ranks, while the quantile of the distribution is the number next to it.
        above = up_to - (rank + apart)
        below = down_to - (samples.size - rank + apart + 1)
        return jnp.where(is_known, jnp.minimum(above, below), samples.size)

    least = jnp.min(jax.lax.map(spare, (*places, ranks, *levels)), axis=0)
    first = jnp.full((1,), -samples.size, "int32")  # no distance is negative
    return _scores(jnp.concatenate([first, least[:-1]]), least)


def _preference(sizes: jax.Array, most: Scalar, scale: Scalar) -> jax.Array:
    """Returns penalties of narrow intervals, an integer for each bin of widths.

    They are subtracted from scores, so that a large width is chosen among about equal
    scores. The widest bin has zero, all bins at most `most`. `sizes` are the bins'
    edges; `scale` is the scale of the noise of scores.
    """
    # Between repeated numbers many widths have the same score, and only one bin reaches
    # the next number. With weights proportional to a power of the width, all widths
    # that are too short count as about ten.
    sizes = jnp.log(jnp.maximum(sizes[1:], 1.0)).astype("float32")
    scale = jnp.clip(scale, 1e-30, 1e30)  # zero or infinite at extreme epsilons
    power = jnp.clip(most / (scale * sizes[-1]), 0.0, _WIDE)
    lost = jnp.round(power * scale * (sizes[-1] - sizes))
    return jnp.minimum(lost, MOST_RECORDS)


def _checked_quantiles(quantile: float | Sequence[float]) -> tuple[float, ...]:
    """Returns quantiles as a tuple; requires that they increase within (0, 1)."""
    _validate.within(0.0, 1.0, quantile=quantile)
    shares = np.atleast_1d(np.asarray(quantile, float))
    increases = np.all(np.diff(shares, prepend=0.0, append=1.0) > 0)
    is_fine = shares.ndim == 1 and shares.size > 0 and bool(increases)
    rule = "strictly between 0 and 1, and several must increase: one record alone"
    rule += " determines the smallest and the largest of the samples"
    _validate.require(is_fine, "quantile", quantile, rule)
    return tuple(shares.tolist())


def checked_samples(samples: ArrayLike, *, num_axes: int) -> jax.Array:
    """Returns samples as floats with `num_axes` axes, gathered from all devices."""
    x = jnp.asarray(gathered(arrays(samples, "samples")))
    rule = f"a real array of ndim {num_axes} with 1 to 2^31 - 1 entries"
    is_fine = x.ndim == num_axes and 0 < x.size < 2**31 and not jnp.iscomplexobj(x)
    _validate.require(is_fine, "samples", jax.ShapeDtypeStruct(x.shape, x.dtype), rule)
    return x.astype(jnp.float64 if x.dtype == jnp.float64 else jnp.float32)


def checked_edges(edges: ArrayLike, samples: jax.Array) -> jax.Array:
    """Returns bin edges in the dtype of the samples; requires that they increase."""
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


def check_countable(num_samples: int) -> None:
    """Requires at most 2^24 samples, so that float32 holds every count."""
    is_fine = num_samples <= MOST_RECORDS
    _validate.require(is_fine, "samples", num_samples, "at most 2^24 numbers")


@jax.jit
def _counted(
    key: Key, samples: jax.Array, edges: jax.Array, multiplier: Scalar
) -> tuple[jax.Array, jax.Array, jax.Array]:
    bins = jnp.searchsorted(edges[1:-1], samples, side="left")
    known = (~jnp.isnan(samples)).astype("int32")
    counts = jnp.zeros(edges.size - 1, "int32").at[bins].add(known)
    return noisy_counts(key, counts, multiplier, samples.size)


def noisy_counts(
    key: Key, counts: jax.Array, multiplier: Scalar, num_samples: int
) -> tuple[jax.Array, jax.Array, jax.Array]:  # counts, errors, stddev
    """Releases counts of bins as integers, with errors and the stddev of the noise.

    Errors (k,) are standard errors of estimates of n times a bin's probability, by
    sampling and noise. `multiplier` is stddev / sqrt(2), because a replaced record
    moves the counts (k,) by sqrt(2). They are exact in float32.
    """
    stddev = math.sqrt(2) * ROUNDED_UP * jnp.asarray(multiplier, "float32")
    noisy = mechanisms.gaussian(key, counts.astype("float32"), stddev=stddev)
    counts = jnp.rint(jnp.clip(noisy, -(2.0**30), 2.0**30)).astype("int32")
    share = jnp.clip(counts.astype("float32") / num_samples, 0.0, 1.0)
    sampling = num_samples * share * (1 - share)
    return counts, jnp.sqrt(sampling + stddev**2 + _LEAST_VARIANCE), stddev


def private_edges(key: Key, samples: jax.Array, multiplier: float) -> jax.Array:
    """Releases edges (21,) for `dp_histogram`, around the median of samples (n,).

    They are adjacent multiples of 1, 2 or 5 times a power of ten, with a twentieth of
    the samples outside. They cost a tenth of the budget of `multiplier`.
    """
    size_key, median_key, distance_key = _keys.split(key, 3)
    known = ~jnp.isnan(samples)
    values = jnp.where(known, samples, 0.0)
    weights, keys = known.astype(values.dtype), (size_key, median_key)
    multipliers = multiplier / math.sqrt(_SIZE), multiplier / math.sqrt(_MEDIAN)
    median, _ = median_and_bound(keys, values, weights, multipliers)
    distances = jnp.where(known, jnp.abs(values - median), 0.0)
    multiplier /= math.sqrt(_DISTANCE)
    reach = noisy_quantile(
        distance_key, distances, share_above=_BEYOND, noise_multiplier=multiplier
    )
    return _round_edges(median, reach)


@jax.jit
def _round_edges(median: jax.Array, reach: jax.Array) -> jax.Array:
    """Returns 21 multiples of 1, 2 or 5 times a power of ten around median ± reach."""
    least = 2 * reach / (_NUM_BINS - 1)  # so that a first edge may be rounded down
    apart = _STEPS_APART * jnp.finfo(least.dtype).eps  # so that edges differ
    least = jnp.maximum(least, apart * jnp.abs(median))
    power = 10.0 ** jnp.floor(jnp.log10(least))
    steps = power * jnp.array([1.0, 2.0, 5.0, 10.0], least.dtype)
    step = jnp.min(jnp.where(steps >= least, steps, steps[-1]))
    first = jnp.floor((median - reach) / step)
    return step * (first + jnp.arange(_NUM_BINS + 1, dtype=least.dtype))
