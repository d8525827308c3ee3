"""Private counts, means and quantiles of public groups."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from dpjax import _keys, _validate
from dpjax._rounding import ROUNDED_UP
from dpjax._sharding import gathered
from dpjax._tree import like
from dpjax._types import ArrayLike, Key, Scalar
from dpjax.accounting import PrivacyGuarantee, gaussian_event, noise_multiplier
from dpjax.estimators import Clipping
from dpjax.gradients import streamed_grad
from dpjax.mechanisms import gaussian
from dpjax.solvers._calibration import check_budget
from dpjax.solvers._grouped_samples import Groups, Ordered
from dpjax.solvers._histogram import check_countable, count_errors, noisy_integers
from dpjax.solvers._quantile import APART, checked_samples
from dpjax.solvers._solution import Solution
from dpjax.solvers._untuned_mean import layers_of, radii_of, shrunk
from dpjax.solvers.linear._noisy_quantile import (
    SizeHistogram,
    noisy_quantile,
    noisy_size_histogram,
)
from dpjax.solvers.linear._robust import median_and_bound
from dpjax.transforms import privatize

# Of the budget; quantiles take theirs from the rest in proportion.
_COUNTS, _SIZE, _MEDIAN, _LENGTHS, _SQUARES = 0.2, 0.02, 0.03, 0.1, 0.1
_QUANTILES = 0.4
_NUM_HALVINGS = 20
_LARGEST = 1e15  # samples are held within it: their squares stay finite
_LEAST_COUNT = 4.0  # stddevs of a noisy count, below which a group says nothing


def dp_group_means(
    samples: ArrayLike,
    groups: ArrayLike,
    *,
    key: Key,
    epsilon: float,
    delta: float,
    num_groups: int,
    quantiles: Sequence[float] = (),
) -> Solution:
    """Releases the count and the mean of each group, and quantiles where asked for.

    As `dp_mean` does for all samples, means clip about a private median at lengths that
    a private histogram shows, in layers of which outer ones are shrunk; all groups
    share these. Where a group holds few samples, its intervals are wide or infinite.

    Args:
        samples: shape (n,), real; n is public, at most 2^24. NaN is a missing value,
            and that record counts nowhere.
        groups: shape (n,), integers; records of others than 0 to num_groups - 1 count
            nowhere.
        key: a typed key.
        epsilon: privacy parameter, positive, any size.
        delta: privacy parameter in (0, 1).
        num_groups: G, public.
        quantiles: public, each in (0, 1).

    Returns:
        A `Solution` whose params are a dict of counts, integers of shape (G,), means,
        shape (G,), and quantiles, shape (G, len(quantiles)). Its standard_errors are of
        that structure, hence `interval`: they count sampling and noise, of means as
        for `dp_mean`. At n = 20,000 and epsilon .5 to 3 a nominal 95 per cent covered
        96 to 100 of means and quantiles, of normal, lognormal and t laws of 3 degrees
        of freedom. Its stats hold noise_multiplier.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input; a record that is
        replaced may also change its group, which is private. Counts move by sqrt(2) in
        the l2 norm. A record adds to the sums of its group a vector of norm 1, so that
        they move by 2. Quantiles are found by 20 halvings, each by the number of
        samples above and below in every group, which moves by sqrt(2). All are Gaussian
        mechanisms, and compose exactly.

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
    _validate.typed_key(key)
    _validate.count(num_groups=num_groups)
    _validate.within(2.0**-20, 1 - 2.0**-20, **_named(quantiles))
    samples = checked_samples(samples, num_axes=1)
    check_countable(samples.size)
    indices = jnp.asarray(gathered(_validate.arrays(groups)))
    _validate.require(
        indices.shape == samples.shape and jnp.issubdtype(indices.dtype, jnp.integer),
        "groups",
        jax.ShapeDtypeStruct(indices.shape, indices.dtype),
        f"integers of shape {samples.shape}",
    )
    multiplier = noise_multiplier(epsilon, delta, num_steps=1)
    count_key, mean_key, quantile_key = _keys.split(key, 3)
    all_groups = _known(num_groups, samples, indices)
    rest = 1 - _QUANTILES if quantiles else 1.0
    params, errors = {}, {}
    params["counts"], errors["counts"], stddev = _counted(
        num_groups, count_key, all_groups, multiplier / math.sqrt(rest * _COUNTS)
    )
    params["means"], errors["means"] = _means(
        num_groups, mean_key, all_groups, params["counts"], stddev, multiplier, rest
    )
    if quantiles:
        params["quantiles"], errors["quantiles"] = _quantiles(
            (num_groups, tuple(map(float, quantiles))),
            quantile_key,
            all_groups,
            params["counts"],
            stddev,
            multiplier / math.sqrt(_QUANTILES),
        )
    privacy = PrivacyGuarantee.of(
        epsilon, delta, dp_event=gaussian_event(multiplier), num_samples=samples.size
    )
    stats: dict[str, Scalar] = {"noise_multiplier": multiplier}
    return Solution(params, privacy, stats, errors)


def _named(quantiles: Sequence[float]) -> dict[str, float]:
    return {f"quantiles[{i}]": value for i, value in enumerate(quantiles)}


@partial(jax.jit, static_argnums=0)
def _known(num_groups: int, samples: jax.Array, groups: jax.Array) -> Groups:
    is_known = ~jnp.isnan(samples) & (groups >= 0) & (groups < num_groups)
    values = jnp.where(is_known, jnp.clip(samples, -_LARGEST, _LARGEST), 0.0)
    return Groups(values, jnp.where(is_known, groups, num_groups).astype("int32"))


@partial(jax.jit, static_argnums=0)
def _counted(
    num_groups: int, key: Key, groups: Groups, multiplier: Scalar
) -> tuple[jax.Array, jax.Array, jax.Array]:
    stddev = math.sqrt(2) * ROUNDED_UP * jnp.asarray(multiplier, "float32")
    held = groups.counts(num_groups, jnp.ones_like(groups.indices))
    counts = noisy_integers(key, held, stddev)
    return counts, count_errors(counts, stddev, groups.values.size), stddev


def _means(
    num_groups: int,
    key: Key,
    groups: Groups,
    counts: jax.Array,
    count_stddev: jax.Array,
    multiplier: float,
    rest: float,
) -> tuple[jax.Array, jax.Array]:
    """Releases the mean of each group, and returns its standard errors."""
    size_key, median_key, length_key, sum_key, square_key = _keys.split(key, 5)

    def part(share: float) -> float:
        return multiplier / math.sqrt(rest * share)

    center, _ = median_and_bound(
        (size_key, median_key),
        groups.values,
        (groups.indices < num_groups).astype(groups.values.dtype),
        size_multiplier=part(_SIZE),
        multiplier=part(_MEDIAN),
    )
    z, lengths = _centered(num_groups, groups, center)
    seen = noisy_size_histogram(length_key, lengths, part(_LENGTHS))
    sums = 1 - _COUNTS - _SIZE - _MEDIAN - _LENGTHS - _SQUARES
    released = _sums(
        num_groups,
        (sum_key, square_key),
        groups,
        (z, lengths),
        seen,
        (part(sums), part(_SQUARES)),
    )
    return _group_means(center, counts, count_stddev, released, seen.top)


@partial(jax.jit, static_argnums=0)
def _centered(
    num_groups: int, groups: Groups, center: jax.Array
) -> tuple[jax.Array, jax.Array]:
    z = jnp.where(groups.indices < num_groups, groups.values - center, 0.0)
    return z, jnp.abs(z)


class _Sums(NamedTuple):
    """Released sums of the groups, each of shape (G,), about the center.

    Attributes:
        values: of clipped samples.
        variance: of their noise.
        squares: of clipped samples squared.
        left_out: what a sample has beyond the last radius, on average.
    """

    values: jax.Array
    variance: jax.Array
    squares: jax.Array
    left_out: jax.Array


@partial(jax.jit, static_argnums=0)
def _sums(
    num_groups: int,
    keys: tuple[Key, Key],
    groups: Groups,
    place: tuple[jax.Array, jax.Array],
    seen: SizeHistogram,
    multipliers: tuple[float, float],
) -> _Sums:
    z, lengths = place
    num_samples = z.size
    radii, left_out = radii_of(seen, multipliers[0], num_samples, 1)
    radii, left_out = radii.astype(z.dtype), left_out.astype(z.dtype)
    layers, weights = layers_of(z[:, None], lengths, radii)
    noisy, stddev = _noisy_sums(
        num_groups, keys[0], groups, layers[:, :, 0], multipliers[0]
    )
    noisy, variances = noisy / weights[None], (stddev / weights) ** 2
    # As of one mean, for the groups in place of the coordinates.
    sampling = jax.vmap(seen.sum_of_squares)(radii[:-1], radii[1:])
    values = shrunk(noisy.T, variances + sampling / num_groups)

    middle, last = radii[-2], radii[-1]
    short = (jnp.minimum(lengths, middle) / middle) ** 2
    squares, stddev = _noisy_sums(
        num_groups, keys[1], groups, short[:, None], multipliers[1]
    )
    squares = middle**2 * jnp.maximum(squares[:, 0] + stddev, 0.0)
    # What longer samples have beyond is shared by the groups as the squares are.
    beyond = seen.sum_of_squares(0.0, last) - seen.sum_of_squares(0.0, middle)
    more = 1 + beyond / jnp.maximum(jnp.sum(squares), beyond)
    return _Sums(values, jnp.sum(variances), squares * more, left_out)


def _noisy_sums(
    num_groups: int, key: Key, groups: Groups, rows: jax.Array, multiplier: Scalar
) -> tuple[jax.Array, Scalar]:
    """Releases the sum in each group of rows of norm 1 at most, shape (G, k)."""
    num_samples, k = rows.shape

    def product(table: jax.Array, record: tuple[jax.Array, jax.Array]) -> jax.Array:
        group, row = record
        return jnp.vdot(table[group], row)

    clipping = Clipping(1.0)
    release = privatize(clipping, noise_multiplier=multiplier, key=key)
    table = jnp.zeros((num_groups, k), rows.dtype)
    # Rows of samples that do not count are zero.
    records = jnp.minimum(groups.indices, num_groups - 1), rows
    stream = cast(Any, streamed_grad(product)(table, records))
    mean = cast(jax.Array, release.update(stream, release.init(table))[0])
    noise = clipping.noise_parameters(multiplier, num_samples, num_groups * k)
    return num_samples * mean, num_samples * noise["stddev"]


@jax.jit
def _group_means(
    center: jax.Array,
    counts: jax.Array,
    count_stddev: jax.Array,
    sums: _Sums,
    top: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    sizes = jnp.maximum(counts, 1).astype(center.dtype)
    from_center = sums.values / sizes
    variance = (sums.squares + sums.variance) / sizes**2
    variance = (
        variance
        + (from_center * like(count_stddev, sizes) / sizes) ** 2
        + sums.left_out**2
    )
    is_seen = (counts.astype("float32") > _LEAST_COUNT * count_stddev) & (top >= 0)
    return center + from_center, jnp.where(is_seen, jnp.sqrt(variance), jnp.inf)


def _quantiles(
    static: tuple[int, tuple[float, ...]],
    key: Key,
    groups: Groups,
    counts: jax.Array,
    count_stddev: jax.Array,
    multiplier: float,
) -> tuple[jax.Array, jax.Array]:
    """Releases quantiles of each group, and returns their standard errors.

    Each is found with two others, two standard errors of its rank below and above it.
    """
    bound_key, key = _keys.split(key)
    bound = 2 * noisy_quantile(
        bound_key,
        jnp.abs(groups.values),
        num_above=0.0,
        noise_multiplier=multiplier / math.sqrt(_SIZE),
    )
    return _halved(
        static,
        key,
        groups,
        counts,
        count_stddev,
        bound,
        multiplier / math.sqrt(1 - _SIZE),
    )


@partial(jax.jit, static_argnums=0)
def _halved(
    static: tuple[int, tuple[float, ...]],
    key: Key,
    groups: Groups,
    counts: jax.Array,
    count_stddev: jax.Array,
    bound: jax.Array,
    multiplier: Scalar,
) -> tuple[jax.Array, jax.Array]:
    num_groups, quantiles = static
    num_searches = 3 * len(quantiles)
    stddev = math.sqrt(2 * num_searches * _NUM_HALVINGS) * ROUNDED_UP * multiplier
    stddev = jnp.asarray(stddev, "float32")
    sizes = jnp.maximum(counts, 1).astype("float32")
    wanted = jnp.repeat(jnp.asarray(quantiles, "float32"), 3)[:, None]  # of searches
    variances = wanted * (1 - wanted) * sizes[None] + stddev**2
    rank_error = jnp.sqrt(variances) / sizes[None]
    is_inside = APART * rank_error < jnp.minimum(wanted, 1 - wanted)  # (searches, G)
    apart = jnp.array([0.0, -APART, APART], wanted.dtype)
    off = jnp.tile(apart, len(quantiles))[:, None]
    wanted = jnp.clip(wanted + off * rank_error, 0.0, 1.0)
    ordered = Ordered.of(num_groups, groups)

    def halve(step: Any, state: tuple[jax.Array, jax.Array]) -> Any:
        middle, half = state  # (searches, G)
        held = ordered.beside(middle)
        noisy = gaussian(
            jax.random.fold_in(key, step), held.astype("float32"), stddev=stddev
        )
        is_above = wanted * noisy[:, 0] > (1 - wanted) * noisy[:, 1]
        half = half / 2
        return middle + jnp.where(is_above, half, -half), half

    middle = jnp.zeros((num_searches, num_groups), groups.values.dtype)
    whole = middle, jnp.asarray(bound, middle.dtype)
    found, half = jax.lax.fori_loop(0, _NUM_HALVINGS, halve, whole)
    center, low, high = found.reshape(len(quantiles), 3, num_groups).swapaxes(0, 1)
    errors = jnp.maximum(high - low, 0.0) / (2 * APART) + half
    is_seen = is_inside[::3] & (sizes > _LEAST_COUNT * count_stddev)[None]
    return center.T, jnp.where(is_seen, errors, jnp.inf).T
