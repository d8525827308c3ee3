"""Private counts, means and quantiles of public groups."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _keys, _validate
from dpjax._rounding import ROUNDED_UP
from dpjax._sharding import check_key_of_rows, gathered
from dpjax._tree import arrays, like
from dpjax._types import ArrayLike, Key, Scalar
from dpjax.estimators import Clipping
from dpjax.solvers.statistics._mean import (
    HIDDEN_RECORDS,
    LEAST_BOUND,
    ONE_NUMBER,
    kept_of,
    layers_of,
    radii_of,
)
from dpjax.solvers.statistics._noisy_mean import SetClipping, noisy_mean, one_gaussian
from dpjax.solvers.statistics._noisy_quantile import (
    NUM_MEDIAN_HALVINGS,
    SizeHistogram,
    bisected,
    median_and_bound,
    noisy_quantile,
    noisy_size_histogram,
)
from dpjax.solvers.statistics._quantile import (
    APART,
    check_countable,
    checked_samples,
    noisy_counts,
)
from dpjax.solvers.training._calibration import check_budget
from dpjax.solvers.training._solution import Solution

# Shares of the budget of counts and means. Quantiles reduce all of these in proportion.
_COUNTS, _SIZE, _MEDIAN, _LENGTHS, _SQUARES = 0.2, 0.02, 0.03, 0.1, 0.1
_QUANTILES = 0.4
_LARGEST = 1e15  # samples are clipped to it, so that their squares are finite
_NARROWEST = 2.0**-20  # least half width of bounds, over their middle
_NO_LAYER = 1e15  # the weight of a layer without samples, whose noise then vanishes
_LEAST_COUNT = 4.0  # in stddevs of its noise; smaller groups have infinite errors
_HIDDEN = 3.0  # stddevs by which a group's squares may exceed the release
_BOUND = 0.02  # share of the quantiles' budget for a bound of all samples


def dp_group_means(
    samples: ArrayLike,
    groups: ArrayLike,
    *,
    key: Key,
    epsilon: float,
    delta: float,
    num_groups: int,
    quantiles: Sequence[float] = (),
    bounds: tuple[float, float] | None = None,
) -> Solution:
    """Releases the count and the mean of each group, and optionally quantiles.

    As in `dp_mean`, samples are clipped around a private median, in layers at distances
    from a private histogram; all groups share these. Sums of outer layers shrink: the
    total toward zero, and each group's sum toward its part of the total.

    Args:
        samples: shape (n,), real; n is public, at most 2^24. A record with NaN is
            missing and counts nowhere.
        groups: shape (n,), integers; records outside 0 to num_groups - 1 count nowhere.
        key: a typed key.
        epsilon: privacy parameter, positive, any size.
        delta: privacy parameter in (0, 1).
        num_groups: G, public.
        quantiles: public, each in (0, 1).
        bounds: public ends, to which samples are clipped: statistics are computed from
            clipped samples, and lie between the ends. None: no bounds are known.

    Returns:
        A `Solution` whose params are a dict of counts, integers of shape (G,), means,
        shape (G,), and quantiles, shape (G, len(quantiles)). Its standard_errors have
        the same structure, so `interval` works (`benchmarks/COVERAGE.md`). They count
        sampling and noise, and for means the bias of shrinking and clipping, as far as
        noise hides which group has it; small groups have wide or infinite errors. Its
        stats hold noise_multiplier; count_stddev, of a count's noise; parts_by_noise,
        the part of the squared error of a mean, or a quantile's rank, that is noise.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input; a replaced record may
        also change its group, which is private. Counts move by sqrt(2) in the l2 norm.
        A record adds a vector of norm 1 to the sums of its group, so sums move by 2,
        and sums of squares by sqrt(2). Quantiles take 40 bisection steps, each with the
        numbers of samples below, between and above two ends in every group, which move
        by sqrt(2). All are Gaussian mechanisms, and compose exactly. Where bounds are
        narrow, a sum adds up distances from their middle over the largest distance,
        also in [-1, 1]; released numbers determine which sum is made.

    Example:
        >>> import jax, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> region = rng.integers(3, size=30_000)
        >>> income = 20_000 * (1 + region) * rng.lognormal(0.0, 0.3, 30_000)
        >>> solution = dp_group_means(income, region, key=jax.random.key(0),
        ...                           epsilon=1.0, delta=1e-6, num_groups=3)
        >>> print(np.rint(solution.params["means"] / 1000))
        [21. 42. 63.]

    Reference:
        As for `dp_mean`. Quantiles: as for `dp_quantile`, by noisy counts instead.
    """
    check_budget(epsilon, delta)
    check_key_of_rows(key, (samples, groups))
    _validate.count(num_groups=num_groups)
    named = {f"quantiles[{i}]": value for i, value in enumerate(quantiles)}
    _validate.within(2.0**-20, 1 - 2.0**-20, **named)
    samples = checked_samples(samples, num_axes=1)
    check_countable(samples.size)
    rule = f"integers of shape {samples.shape}, one for each sample"
    indices = jnp.asarray(gathered(arrays(groups, "groups", rule)))
    if indices.shape != samples.shape or not jnp.issubdtype(indices.dtype, jnp.integer):
        shape = f"{indices.dtype}{list(indices.shape)}"
        raise ValueError(f"groups must be {rule}, got {shape}.")
    multiplier, privacy = one_gaussian(epsilon, delta, samples.size)
    args = key, samples, indices, num_groups, multiplier, quantiles, bounds
    params, errors, stats = group_statistics(*args)
    return Solution(params, privacy, stats | {"noise_multiplier": multiplier}, errors)


def group_statistics(key, samples, groups, num_groups, multiplier, quantiles, bounds):
    """Releases params, standard errors and stats of `dp_group_means`, in three dicts.

    All together are a Gaussian mechanism with the noise multiplier `multiplier`.
    """
    low, high = bounds or (-_LARGEST, _LARGEST)
    middle, reach = low / 2 + high / 2, high / 2 - low / 2
    is_fine = low >= -_LARGEST and high <= _LARGEST and reach > _NARROWEST * abs(middle)
    rule = f"(low, high) within {_LARGEST:g}, apart by more than 2^-19 of their middle"
    _validate.require(is_fine, "bounds", bounds, rule)
    count_key, mean_key, quantile_key = _keys.split(key, 3)
    of_rest = multiplier / math.sqrt(1 - _QUANTILES if quantiles else 1.0)
    args = samples, groups, middle, reach, of_rest / math.sqrt(_COUNTS)
    counted, of_counts = _counted(num_groups, count_key, *args)
    params, errors, noise = {"counts": counted.counts}, {"counts": of_counts}, {}
    released = {"means": _means(mean_key, counted, of_rest, reach)}
    if quantiles:
        shares, known = tuple(map(float, quantiles)), reach if bounds else None
        args = quantile_key, counted, multiplier / math.sqrt(_QUANTILES), known
        released["quantiles"] = _quantiles(shares, *args)
    for name, (values, errors[name], noise[name]) in released.items():
        params[name] = jnp.clip(values, -reach, reach) + middle  # between the bounds
    return params, errors, {"count_stddev": counted.stddev, "parts_by_noise": noise}


class Groups(NamedTuple):
    """Holds samples, their groups, and the released counts of all G groups."""

    values: jax.Array  # shape (n,), zero if a record does not count
    indices: jax.Array  # shape (n,), G if a record does not count
    counts: jax.Array  # shape (G,)
    stddev: jax.Array  # of the noise of a count


@partial(jax.jit, static_argnums=0)
def _counted(num_groups, key, samples, indices, middle, reach, multiplier):
    """Releases the counts of G groups; returns `Groups`, and standard errors (G,)."""
    # Samples (n,) of groups `indices` (n,) are clipped to middle ± reach. They do not
    # count if they are NaN or in no group.
    is_known = ~jnp.isnan(samples) & (indices >= 0) & (indices < num_groups)
    values = jnp.where(is_known, jnp.clip(samples - middle, -reach, reach), 0.0)
    indices = jnp.where(is_known, indices, num_groups).astype("int32")
    sizes = jnp.zeros(num_groups + 1, "int32").at[indices].add(1)[:-1]
    counts, errors, stddev = noisy_counts(key, sizes, multiplier, values.size)
    return Groups(values, indices, counts, stddev), errors


def _means(
    key: Key, groups: Groups, multiplier: float, reach: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Releases the mean of each group, with standard errors and parts by noise, (G,).

    Samples, within ±reach, are clipped about a median of all groups. `multiplier` is
    the noise multiplier of all releases except quantiles.
    """
    size_key, median_key, length_key, sum_key, square_key = _keys.split(key, 5)

    weights = (groups.indices < groups.counts.size).astype(groups.values.dtype)
    sums = 1 - _COUNTS - _SIZE - _MEDIAN - _LENGTHS - _SQUARES
    shares = _SIZE, _MEDIAN, sums, _SQUARES, _LENGTHS
    *parts, of_sums, of_squares, of_lengths = (multiplier / x**0.5 for x in shares)
    keys = size_key, median_key
    center, bound = median_and_bound(keys, groups.values, weights, (parts[0], parts[1]))
    lengths = jnp.abs(_centered(groups, center))
    seen = noisy_size_histogram(length_key, lengths, of_lengths)
    keys, place = (sum_key, square_key), (center, bound, reach * (1 + 1e-6))
    multipliers = of_sums, of_squares, of_lengths
    released = _sums(keys, groups, place, seen, multipliers)
    return _group_means(groups.counts, groups.stddev, released)


@jax.jit
def _centered(groups: Groups, center: jax.Array) -> jax.Array:
    is_known = groups.indices < groups.counts.size
    return jnp.where(is_known, groups.values - center, 0.0)


class _Sums(NamedTuple):
    """Holds released sums of distances from the center, each of shape (G,)."""

    center: jax.Array  # a scalar
    is_seen: jax.Array  # whether the noise shows any length
    values: jax.Array  # sums of clipped samples
    variance: jax.Array  # by noise, shrinking, and records that noise may hide
    squares: jax.Array  # sums of squares of clipped samples
    left_out: jax.Array  # a bound on the part beyond the last radius


@jax.jit
def _sums(
    keys: tuple[Key, Key],  # for sums, and for sums of squares
    groups: Groups,  # samples and their groups
    place: tuple[jax.Array, jax.Array, float],  # median, its bound, samples' bound
    seen: SizeHistogram,  # histogram of distances from the median
    multipliers: tuple[float, float, float],  # of sums, squares, and seen
) -> _Sums:
    """Releases each group's sums of samples and squares, for means and their errors.

    Samples are clipped at public bounds, or split into layers (parts between successive
    radii, each with noise of its own) where these have less noise.
    """
    (center, bound, reach), counts = place, groups.counts
    num_samples = groups.values.size
    radii, left_out = radii_of(seen, multipliers[0], num_samples, 1)
    # If all samples seem to be one number, noise may hide a few records far from it. If
    # that number is zero, and no bounds are known, no unit tells how far.
    is_bounded = reach < _LARGEST
    bound = bound.astype(radii.dtype)
    farthest = jnp.where(is_bounded, 2 * reach, bound)
    num_hidden = HIDDEN_RECORDS * math.sqrt(2) * multipliers[2]
    is_one_number = radii[1] < 4 * ONE_NUMBER * jnp.maximum(bound, farthest)
    hidden = jnp.where(is_one_number, num_hidden * farthest, 0.0)
    is_seen = (seen.top >= 0) & (is_bounded | (bound > LEAST_BOUND))

    def noise(radius: Any, of_squares: Any) -> jax.Array:
        """Returns a sum's variance by its noise and by the noise of its squares."""
        variances = 4 * multipliers[0] ** 2, 2 * multipliers[1]
        return variances[0] * radius**2 + variances[1] * of_squares**2

    # Narrow bounds need no layers, because all samples are within reach of the middle.
    of_layers = noise(radii[-1], radii[-1] / 2)
    of_layers += (num_samples * left_out) ** 2 + hidden**2
    of_all = noise(reach, reach) + (groups.stddev * like(center, radii)) ** 2
    is_narrow = is_bounded & ((seen.top < 0) | (of_all < of_layers))
    left_out = jnp.where(is_narrow, 0.0, left_out).astype(center.dtype)
    hidden = jnp.where(is_narrow, 0.0, hidden).astype(center.dtype)
    center = jnp.where(is_narrow, 0.0, center)
    z = _centered(groups, center)
    lengths = jnp.abs(z)
    layers, weights = layers_of(z[:, None], lengths, radii.astype(z.dtype))
    no_layers = jnp.zeros_like(layers).at[:, 0, 0].set(z / reach)
    layers = jnp.where(is_narrow, no_layers, layers)
    innermost = jnp.array([1 / reach, _NO_LAYER, _NO_LAYER], z.dtype)
    weights = jnp.where(is_narrow, innermost, weights)
    records, clipping = (groups.indices, layers[:, :, 0]), Clipping(1.0)
    noisy, stddev = noisy_sums(keys[0], records, counts.size, multipliers[0], clipping)
    noisy, variances = (noisy / weights[None]).T, (stddev / weights) ** 2
    values, taken_off = _shrunk(noisy, counts, variances)

    last = jnp.where(is_narrow, reach, radii[-1]).astype(z.dtype)
    # Squares beyond half of the last radius are read from the histogram: less noise.
    radius = jnp.where(is_narrow, 1.0, 0.5) * last
    # Without layers the center is the middle of the bounds, which may be far from the
    # mean: squares are then reduced by the squared mean.
    known = jnp.maximum(jnp.abs(values) - jnp.sqrt(jnp.sum(variances)), 0.0)
    squares_of_mean = known**2 / jnp.maximum(counts, 1).astype(z.dtype)
    of_mean = jnp.where(is_narrow, squares_of_mean, 0.0)
    short = ((jnp.minimum(lengths, radius) / radius) ** 2)[:, None]
    args = counts.size, multipliers[1], SetClipping(1.0, min(counts.size, 2) ** 0.5)
    squares, stddev = noisy_sums(keys[1], (groups.indices, short), *args)
    stddev = radius**2 * stddev
    squares = jnp.maximum(radius**2 * squares[:, 0] + stddev, 0.0)
    squares = jnp.maximum(squares - of_mean, stddev)
    total = jnp.maximum(seen.sum_of_squares(0.0, radius), stddev)
    # A group may have all that lies beyond the last radius, as far as its squares
    # allow, because a few long samples are seldom spread evenly.
    share = jnp.minimum((squares + (_HIDDEN - 1) * stddev) / total, 1.0)
    beyond = jnp.clip(seen.sum_of_squares(0.0, last) / total, 1.0, (last / radius) ** 2)
    is_seen, squares = is_narrow | is_seen, squares * beyond
    variance = jnp.sum(variances) + taken_off**2 + hidden**2
    left_out = num_samples * left_out * share
    return _Sums(center, is_seen, values, variance, squares, left_out)


def _shrunk(
    layers: jax.Array, counts: jax.Array, variances: jax.Array
) -> tuple[jax.Array, jax.Array]:  # both (G,)
    """Returns each group's sum over layers, shrunk toward zero, and the part removed.

    `layers` (3, G) are noisy sums of the parts of samples between successive radii,
    with `variances` (3,). Shrinking the outer two removes noise. The part removed is at
    worst a bias, in a group unlike the other groups.
    """
    sizes = jnp.maximum(counts, 1).astype(layers.dtype)
    # Skewed groups share a tail: the total shrinks toward zero, as in one mean, and
    # each group toward its part of the total, by its count.
    total = jnp.sum(layers, axis=1, keepdims=True)
    total = total[1:] * kept_of(total, counts.size * variances)[:, None]
    apart = layers.at[1:].add(-total * (sizes / jnp.sum(sizes))[None])
    shares = kept_of(apart, variances)
    taken_off = (1 - shares) @ apart[1:]
    return jnp.sum(layers, axis=0) - taken_off, taken_off


def noisy_sums(
    key: Key,
    records: tuple[jax.Array, jax.Array],  # groups (n,), and rows (n, k) to sum up
    num_groups: int,
    multiplier: Scalar,
    clipping: Clipping,  # bounds rows
) -> tuple[jax.Array, Scalar]:  # sums (G, k), and the stddev of their noise
    """Releases each group's sum of rows; a row beyond the groups must be zero."""
    (indices, rows), (num_samples, k) = records, records[1].shape

    def product(table: jax.Array, record: tuple[jax.Array, jax.Array]) -> jax.Array:
        group, row = record
        return jnp.vdot(table[group], row)

    args = clipping, (jnp.minimum(indices, num_groups - 1), rows), multiplier, key
    table = jnp.zeros((num_groups, k), rows.dtype)
    mean = noisy_mean(*args, product=product, weights=table)
    noise = clipping.noise_parameters(multiplier, num_samples, num_groups * k)
    return num_samples * mean, like(num_samples * noise["stddev"], table)


@jax.jit
def _group_means(
    counts: jax.Array, count_stddev: jax.Array, sums: _Sums
) -> tuple[jax.Array, jax.Array, jax.Array]:  # means, errors, parts by noise
    """Returns each group's mean and standard error, (G,), from its count and sums."""
    # Released `sums` are of distances from a center and of their squares. Errors count
    # sampling, noise and clipping; groups that noise hides have infinite errors. All
    # that is not by sampling is by noise.
    sizes = jnp.maximum(counts, 1).astype(sums.values.dtype)
    from_center = sums.values / sizes
    variance = (sums.squares + sums.variance) / sizes**2
    count_errors = from_center * like(count_stddev, sizes)
    variance = variance + (count_errors**2 + sums.left_out**2) / sizes**2
    is_seen = counts.astype("float32") > _LEAST_COUNT * count_stddev
    is_seen &= sums.is_seen
    errors = jnp.where(is_seen, jnp.sqrt(variance), jnp.inf)
    by_noise = jnp.maximum(1 - sums.squares / sizes**2 / variance, 0.0)
    return sums.center + from_center, errors, by_noise


def _quantiles(
    quantiles: tuple[float, ...],
    key: Key,
    groups: Groups,  # samples and their groups, with released counts
    multiplier: float,  # the noise multiplier of all of them
    reach: float | None,  # half width of public bounds, if known
) -> tuple[jax.Array, jax.Array, jax.Array]:  # quantiles, errors, parts by noise
    """Releases quantiles of each group, with standard errors and parts, all (G, Q).

    Privacy:
        Under replace-one Gaussian mechanisms that compose to one of the multiplier:
        `noisy_quantile`, and the counts of each step. A record is in one of them, so
        that they move by sqrt(2) in the l2 norm.
    """
    # Without a public reach, a bound of all samples is released.
    bound_key, key = _keys.split(key)
    bound: Any = reach
    if reach is None:
        sizes, of_bound = jnp.abs(groups.values), multiplier / math.sqrt(_BOUND)
        bound = 2 * noisy_quantile(bound_key, sizes, noise_multiplier=of_bound)
        multiplier /= math.sqrt(1 - _BOUND)
    return _bisected_quantiles(quantiles, key, groups, bound, multiplier)


@partial(jax.jit, static_argnums=0)
def _bisected_quantiles(quantiles, key: Key, groups: Groups, bound, multiplier):
    """Releases the groups' quantiles (G, Q) within ±bound, as `_quantiles`."""
    # Each of the Q quantiles of G groups is found by a bisection with noisy counts.
    # `multiplier` is the noise multiplier of all steps together.
    num_groups, counts = groups.counts.size, groups.counts
    num_steps = 2 * len(quantiles) * NUM_MEDIAN_HALVINGS
    stddev = math.sqrt(2 * num_steps) * ROUNDED_UP * multiplier
    stddev = jnp.asarray(stddev, "float32")
    sizes = jnp.maximum(counts, 1).astype("float32")
    requested = jnp.asarray(quantiles, "float32")[:, None]
    variances = requested * (1 - requested) * sizes[None] + stddev**2
    apart = APART * jnp.sqrt(variances) / sizes[None]  # of shares, (Q, G)
    # Samples are sorted within groups, and each group begins at its index of ends.
    indices, values = jax.lax.sort((groups.indices, groups.values), num_keys=2)
    ends = jnp.searchsorted(indices, jnp.arange(num_groups + 1, dtype="int32"))
    ends = ends.astype("int32")

    def end_of(key: Key, start: jax.Array, ends_of: Any, is_higher: Any) -> Any:
        """Returns where a bisection near `start` ends, and half its last step.

        A step goes up if `is_higher(below, between, above)` holds for noisy counts of
        samples below, between and above the two numbers `ends_of(middle)`.
        """
        return bisected(
            key,
            (start, jnp.asarray(bound, start.dtype) / 2),
            lambda middle: _beside(values, ends, *ends_of(middle)),
            lambda noisy, _: is_higher(*jnp.moveaxis(noisy, 1, 0)),
            NUM_MEDIAN_HALVINGS,
            stddev,
        )

    center_key, width_key = _keys.split(key)
    zeros = jnp.zeros((len(quantiles), num_groups), groups.values.dtype)

    def is_low(below: jax.Array, _: jax.Array, above: jax.Array) -> jax.Array:
        return requested * above > (1 - requested) * below

    center, off = end_of(center_key, zeros, lambda middle: (middle, middle), is_low)

    def is_short(below: jax.Array, between: jax.Array, above: jax.Array) -> jax.Array:
        # Both sides must reach: where samples repeat numbers, the quantile of the
        # distribution may be the next number on one side alone.
        total = below + between + above
        least = requested - apart, 1 - requested - apart
        return (below > least[0] * total) | (above > least[1] * total)

    # The width about each quantile reaches two standard errors of its rank both ways.
    widest = zeros + jnp.asarray(bound, zeros.dtype)
    width, _ = end_of(width_key, widest, lambda x: (center - x, center + x), is_short)
    is_inside = apart < jnp.minimum(requested, 1 - requested)
    is_seen = is_inside & (sizes > _LEAST_COUNT * groups.stddev)[None]
    off = 2 * off  # the last step of the bisection
    errors = (width + off) / APART + off
    # The last are the parts of the noise in the errors of ranks.
    return center.T, jnp.where(is_seen, errors, jnp.inf).T, (stddev**2 / variances).T


def _beside(
    values: jax.Array, ends: jax.Array, lows: jax.Array, highs: jax.Array
) -> jax.Array:
    """Counts the samples of each group below, between and above bounds: (..., 3, G).

    `values` (n,) are sorted within groups, which begin at indices `ends` (G + 1,).
    Bounds are `lows` and `highs`, (..., G); quantiles are bisected by these counts.
    """
    start, end = (jnp.broadcast_to(x, lows.shape) for x in (ends[:-1], ends[1:]))

    def first(is_before: Callable[..., jax.Array], bounds: jax.Array) -> jax.Array:
        """Returns each group's first index not before its bound, by binary search."""
        # The indices have the shape of `bounds`; is_before(value, bound) is < or <=.

        def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> Any:
            low, high = ends
            middle = (low + high) // 2
            value = values[jnp.minimum(middle, values.size - 1)]
            goes_on, is_low = low < high, is_before(value, bounds)
            low = jnp.where(goes_on & is_low, middle + 1, low)
            return low, jnp.where(goes_on & ~is_low, middle, high)

        num_steps = values.size.bit_length()
        return jax.lax.fori_loop(0, num_steps, halve, (start, end))[0]

    low, high = first(jnp.less, lows), first(jnp.less_equal, highs)
    return jnp.stack([low - start, high - low, end - high], axis=-2)
