"""The private mean of heavy-tailed samples (papers 001 and 003)."""

import math
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp

from dpjax import _keys, _validate
from dpjax._sharding import AxisName, check_key_of_rows, row_axes, with_auto_axes
from dpjax._tree import Static, arrays, as_float, like, num_coordinates, split
from dpjax._types import Key, PyTree, Scalar
from dpjax.batching import Full
from dpjax.estimators import Clipping, Estimator
from dpjax.solvers.statistics._moments import noisy_second_moments, whitening
from dpjax.solvers.statistics._noisy_mean import SetClipping, noisy_mean, one_gaussian
from dpjax.solvers.statistics._noisy_quantile import (
    NUM_MEDIAN_HALVINGS,
    SizeHistogram,
    median_and_bound,
    noisy_quantile,
    noisy_size_histogram,
)
from dpjax.solvers.training._calibration import (
    calibrated_noise,
    check_budget,
    traceable,
)
from dpjax.solvers.training._solution import Solution
from dpjax.transforms import privatize

MeanMethod = Literal["clipped", "geometric_median"]
# The steps of the geometric median, and the first of them, whose sizes are constant:
# later sizes fall as 1/t.
_NUM_STEPS, _CONSTANT = 20, 4
# The noise that a release may have, as a share of the n records. It determines the
# release's share of the budget.
_SIZE_NOISE, _CENTER_NOISE, _SCALE_NOISE = 1 / 100, 1 / 30, 1 / 100
_LEAST, _MOST, _MOST_CENTER = 0.005, 0.05, 0.1  # limits of the shares of the budget
_RADIUS, _MOMENTS, _LENGTHS, _SQUARES = 0.025, 0.08, 0.06, 0.04
_LENGTHS_ALONE = 0.2  # for a single column, which needs no moments
_NUM_SKIPPED = 2  # bins that seem empty, below one with much of the mean
_SCALED_BEYOND = 0.02  # share of the records beyond the scale of a column
_BEYOND_RADIUS = 0.5  # share of the records; second moments need only show a shape
# The share of records beyond the first layer, and the number beyond the last layer, in
# 2 sqrt(d) multipliers: there bias and noise are alike if all of those records lie on
# one side.
_BEYOND_FIRST, _BEYOND_LAST = 0.2, 0.5
_FARTHEST = 4.0  # the end of the last layer, in the size where its tail begins
_NUM_LAYERS = 3
_WIDTH_POWER = 0.5  # a layer's share is in proportion to this power of its width
_HIDDEN = 3.0  # a larger edge of the noise hides eigenvalues, 1 on average
ONE_NUMBER, HIDDEN_RECORDS = 2.0**-19, 2.0  # in bounds, and in stddevs of counts
LEAST_BOUND = 1e-5  # sizes below 2^-19 are not seen, nor bounds below four of them
_ROUNDED = 4.0  # least standard error, in units of the center's last place
_LARGEST = 1e15  # numbers are clipped to it, so that squares are finite


def dp_mean(
    samples: PyTree,
    *,
    key: Key,
    epsilon: float,
    delta: float,
    estimator: Estimator | None = None,
    method: MeanMethod = "clipped",
) -> Solution:
    """Releases the mean of heavy-tailed samples with Gaussian noise.

    There are no hyperparameters. Medians, scales and second moments are released first.
    Rows are then clipped around the medians, in whitened coordinates, at norms that few
    rows exceed. With two and a half moments or more, the error is about as with the
    best clip norm in hindsight. Estimators give the papers' algorithms.

    Args:
        samples: pytree, leaves of shape (n, ...); n is public. Without an estimator NaN
            counts as zero, and scales must be from 1e-6 to 1e13, in a public unit.
        key: a typed key.
        epsilon: privacy parameter, positive, any size.
        delta: privacy parameter in (0, 1).
        estimator: the robust mean, with its hyperparameters.
        method: without an estimator, "clipped" as above, or "geometric_median": the
            point with the smallest mean distance, in the same coordinates, for two
            columns or more. It is the center of a symmetric distribution with any
            tails, but not the mean of a skewed one.

    Returns:
        A `Solution` whose params are the mean, leaves of shape (...). Its stats hold
        noise_multiplier; with an estimator l2_sensitivity and stddev, or only rho with
        `TrimmedMean`, whose noise depends on the data. Without an estimator, "clipped"
        also has l2_clip_norms, in whitened coordinates, left_out, an estimate of the
        mean length beyond them, and standard_errors in the shape of params, so
        `interval` works. The errors count sampling, noise and clipping, by the central
        limit theorem and a Pareto tail beyond the clip norms; they are infinite if
        noise hides the samples, and may be too small if noise hides a few records that
        carry much of the mean.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input: Gaussian mechanisms on
        counts, medians, second moments and a clipped mean, which compose exactly; or
        one on a mean of known sensitivity, or the guarantee of `transforms.privatize`.

    Example:
        >>> import jax, numpy as np
        >>> costs = np.random.default_rng(0).lognormal(10.0, 0.5, 10_000)
        >>> solution = dp_mean(costs, key=jax.random.key(0), epsilon=1.0, delta=1e-5)
        >>> print(f"{costs.mean():.0f} {solution.params:.0f}")
        25006 24876

    Reference:
        Without an estimator: Biswas, Dong, Kamath, Ullman (2020), "CoinPress", and
        James, Stein (1961); the geometric median: Haghifam, Steinke, Ullman (2024),
        arXiv 2406.07407. `Truncation`: Algorithm 1 of paper 003 (Tao, Wu, Cheng, Wang
        2022), with `MedianOfMeans` around it Algorithm 3.
        `SmoothedTruncation.for_moment`: (12) of paper 001 (Wang, Xiao, Devadas, Xu
        2020); `TrimmedMean`: its Algorithm 2.
    """
    check_budget(epsilon, delta)
    check_key_of_rows(key, samples)
    _validate.choice(MeanMethod, method=method)
    rule = "'clipped', the default, with an estimator"
    _validate.require(estimator is None or method == "clipped", "method", method, rule)
    samples = with_auto_axes(arrays(samples, "samples"))
    num_samples = _validate.leading_size(samples, "samples")
    axis_name = row_axes(samples, None) or None
    if estimator is not None:
        budget: Any = {"epsilon": epsilon, "delta": delta}
        multiplier, privacy = calibrated_noise(
            estimator, Full(), num_samples=num_samples, num_steps=1, **budget
        )
        traced = traceable(estimator, multiplier)
        mean = _release(axis_name, samples, key, estimator, traced)
        size = num_coordinates(samples) // num_samples
        stats = estimator.noise_parameters(multiplier, num_samples, size)
        return Solution(mean, privacy, stats | {"noise_multiplier": multiplier})
    _validate.real(samples=samples)
    # All leaves are side by side, shape (n, d), in float32 or float64.
    leaves = [as_float(leaf) for leaf in jax.tree.leaves(samples)]
    rows = jnp.concatenate([leaf.reshape(num_samples, -1) for leaf in leaves], axis=1)
    multiplier, privacy = one_gaussian(epsilon, delta, num_samples)
    shares = Shares.of(rows.shape, multiplier)
    stats: dict[str, Scalar] = {"noise_multiplier": multiplier}
    if method == "geometric_median":
        rule = "of two or more numbers each; for the median of one call `dp_quantile`"
        _validate.require(rows.shape[1] > 1, "samples", rows.shape, rule)
        # The steps get the share that a mean spends on squares.
        shares = shares._replace(squares=0.0, mean=shares.mean + shares.squares)
        multipliers = shares.multipliers(multiplier)
        point = _geometric_median(axis_name, rows, key, multipliers)
        return Solution(_leaves(point, samples), privacy, stats)
    mean, errors, more = untuned_mean(
        axis_name, rows, key, shares.multipliers(multiplier)
    )
    mean, errors = (_leaves(x, samples) for x in (mean, errors))
    return Solution(mean, privacy, more | stats, errors)


def _leaves(vector: jax.Array, samples: PyTree) -> PyTree:
    """Returns a released vector (d,) as a pytree like one of the user's samples."""
    leaves, structure = jax.tree.flatten(samples)
    parts = split(vector, [leaf.size // len(leaf) for leaf in leaves])
    pairs = zip(parts, leaves, strict=True)
    return structure.unflatten([x.reshape(leaf.shape[1:]) for x, leaf in pairs])


@partial(jax.jit, static_argnums=0)
def _release(axis_name, samples, key, estimator, noise_multiplier):
    multiplier = Static.value_of(noise_multiplier)
    return noisy_mean(estimator, samples, multiplier, key, axis_name)


@partial(jax.jit, static_argnums=0)
def _geometric_median(
    axis_name: AxisName | None, samples: jax.Array, key: Key, multipliers: "Shares"
) -> jax.Array:
    """Releases the point (d,) of least mean distance to samples (n, d), for d >= 2.

    Distances are in whitened coordinates; `multipliers` has each release's noise.

    Privacy:
        As one Gaussian mechanism of the noise multiplier, under replace-one: unit
        vectors are clipped to norm 1, and T releases have sqrt(T) times the multiplier.
    """
    *round_keys, length_key, steps_key = _keys.split(key, 4)
    place = Round.of(round_keys, samples, multipliers, axis_name)
    lengths = jnp.sqrt(jnp.sum(place.rows**2, axis=1))
    seen = noisy_size_histogram(length_key, lengths, multipliers.lengths)
    length = seen.quantile(0.0, 0.5).astype(place.rows.dtype)
    multiplier = multipliers.mean * math.sqrt(_NUM_STEPS)
    release = privatize(
        Clipping(1.0), noise_multiplier=multiplier, key=steps_key, axis_name=axis_name
    )

    # theta <- theta + eta_t L (mean of unit vectors from theta + noise). The Hessian of
    # the mean distance is about 1 / L, for L the median distance. eta_t falls as 1/t in
    # the end, which averages the noise.
    def step(carry, count):
        theta, state = carry
        away = place.rows - theta[None]
        distance = jnp.sqrt(jnp.sum(away**2, axis=1, keepdims=True))
        mean, state = release.update(away / jnp.where(distance > 0, distance, 1), state)
        rate = jnp.minimum(1.0, _CONSTANT / (1.0 + count)).astype(theta.dtype)
        return (theta + rate * length * cast(jax.Array, mean), state), None

    start = jnp.zeros_like(place.rows[0]), release.init(place.rows)
    counts = jnp.arange(_NUM_STEPS, dtype="float32")
    (theta, _), _ = jax.lax.scan(step, start, counts)
    return place.back(theta)


class Shares(NamedTuple):
    """Holds the share of the budget of each release; all add up to 1.

    Whitening (`Round`) needs the first five, and lengths, squares and the mean are in
    whitened coordinates. A share is None if there is no such release.
    """

    sizes: float
    centers: float
    scales: float | None
    radius: float | None
    moments: float | None
    lengths: float
    squares: float
    mean: float

    @classmethod
    def of(cls, shape: tuple[int, ...], noise_multiplier: float) -> "Shares":
        """Returns each release's share of the budget, for the mean of (n, d) samples.

        Sizes, centers and scales of columns get just enough for little noise; the mean
        has the rest. `noise_multiplier` is for all releases together.
        """
        num_samples, d = shape
        unit = noise_multiplier / num_samples

        def needed(num_counts: int, noise: float, most: float) -> float:
            share = (math.sqrt(2 * num_counts) * unit / noise) ** 2
            return min(max(share, _LEAST), most)

        sizes = needed(d, _SIZE_NOISE, _MOST)
        centers = needed(2 * NUM_MEDIAN_HALVINGS * d, _CENTER_NOISE, _MOST_CENTER)
        scales = needed(d, _SCALE_NOISE, _MOST) if d > 1 else None
        # Second moments are released unless noise hides their usual eigenvalue, 1.
        edge = math.sqrt(2 * d) * math.sqrt(2) * d * unit / math.sqrt(_MOMENTS)
        is_round = d == 1 or edge > _HIDDEN
        radius, moments = (None, None) if is_round else (_RADIUS, _MOMENTS)
        lengths = _LENGTHS_ALONE if d == 1 else _LENGTHS
        before = sizes, centers, scales, radius, moments, lengths, _SQUARES
        mean = 1 - math.fsum(share for share in before if share)
        return cls(*before, mean)

    def multipliers(self, noise_multiplier: float) -> "Shares":
        """Returns the noise multiplier of each release, from their total."""
        return jax.tree.map(
            lambda share: noise_multiplier / math.sqrt(share) if share else 0.0, self
        )


@partial(jax.jit, static_argnums=0)
def untuned_mean(
    axis_name: AxisName | None, samples: jax.Array, key: Key, multipliers: Shares
) -> tuple[jax.Array, jax.Array, dict[str, Scalar]]:  # mean, errors, stats
    """Releases the mean (d,) of rows (n, d), its standard errors (d,), and stats.

    Medians, scales and second moments of columns give coordinates z of equal spread
    (`Round`), whose mean is released in layers. With |z| the length of a row, and radii
    0 = C_0 < C_1 < C_2 < C_3 from a histogram of lengths, layer j adds the part

        z / |z| · min(max(|z| - C_(j-1), 0), C_j - C_(j-1)),

    and all layers together make the row clipped to length C_3. Outer layers have most
    of the noise, and often a mean near zero, toward which they are shrunk.

    Privacy:
        As one Gaussian mechanism of the noise multiplier, under replace-one. Each
        release is a `noisy_quantile`, `noisy_median`, `noisy_second_moments` or clipped
        mean, with parameters that were released before. Quantiles of d columns are d
        releases of sqrt(d) times the multiplier. Layers are one vector clipped to norm
        1: layer j, over its width, times the root of its share.
    """
    num_samples, d = samples.shape
    *round_keys, length_key, mean_key, square_key = _keys.split(key, 5)
    place = Round.of(round_keys, samples, multipliers, axis_name)
    z, bounds = place.rows, place.bounds
    lengths = jnp.sqrt(jnp.sum(z**2, axis=1))
    num_skipped = _NUM_SKIPPED if d == 1 else 0
    seen = noisy_size_histogram(
        length_key, lengths, multipliers.lengths, num_skipped=num_skipped
    )
    ends = radii_of(seen, multipliers.mean, num_samples, d)
    radii, left_out = (x.astype(z.dtype) for x in ends)
    sampling = jax.vmap(seen.sum_of_squares)(radii[:-1], radii[1:])
    sampling = sampling / (d * float(num_samples) ** 2)
    layers, weights = layers_of(z, lengths, radii)
    clipping, multiplier = Clipping(1.0), multipliers.mean
    noisy = noisy_mean(clipping, layers, multiplier, mean_key, axis_name)
    noisy = noisy / weights[:, None]
    noise = clipping.noise_parameters(multiplier, num_samples, _NUM_LAYERS * d)
    variances = (like(noise["stddev"], weights) / weights) ** 2
    mean = noisy[0] + kept_of(noisy, variances + sampling) @ noisy[1:]
    squares = _squares(square_key, z, lengths, seen, radii, multipliers, axis_name)
    bias = left_out / math.sqrt(d)
    variance = squares / num_samples + jnp.sum(variances) + bias**2
    if place.inverse is not None:
        variance = jnp.matmul(place.inverse**2, variance, precision="highest")
    errors = place.scales * jnp.sqrt(variance)
    # If all numbers of a column seem to be one number, noise may hide a few records.
    spread = place.scales if d > 1 else radii[1] * jnp.ones_like(bounds)
    hiding = multipliers.lengths if multipliers.scales is None else multipliers.scales
    num_hidden = HIDDEN_RECORDS * math.sqrt(2 * d) * hiding
    hidden = jnp.minimum(num_hidden / num_samples, 1.0) * bounds
    errors = errors + jnp.where(spread < ONE_NUMBER * bounds, hidden, 0.0)
    # Rounding must not make an interval a single point.
    errors = errors + _ROUNDED * jnp.finfo(z.dtype).eps * jnp.abs(place.centers)
    # If all numbers are about zero, no unit is known for records that noise may hide.
    is_seen = (seen.top >= 0) & (bounds > LEAST_BOUND)
    errors = jnp.where(is_seen, errors, jnp.inf)
    stats: dict[str, Scalar] = {"l2_clip_norms": radii[1:], "left_out": left_out}
    return place.back(mean), errors, stats


class Round(NamedTuple):
    """Holds rows in coordinates of about equal spread, z = A^T (x - center) / scale."""

    rows: jax.Array  # z, shape (n, d)
    centers: jax.Array  # the columns' medians
    scales: jax.Array  # few distances from the medians exceed them; 1 for one column
    bounds: jax.Array  # the medians were searched within ±bounds
    inverse: jax.Array | None  # of A^T; None if A is the identity

    @classmethod
    def of(cls, keys, samples: jax.Array, multipliers: Shares, axis_name) -> "Round":
        """Releases medians, scales and a whitening map A; maps samples (n, d) by it.

        `keys` are for medians and scales, and for second moments, which give A. If the
        moments have no noise multiplier in `multipliers`, A is the identity.
        """
        place_key, moments_key = keys
        size_key, median_key, scale_key = _keys.split(place_key, 3)
        num_samples, d = samples.shape
        samples = jnp.where(jnp.isnan(samples), 0.0, samples)
        weights = jnp.ones(num_samples, samples.dtype)
        both, parts = (size_key, median_key), (multipliers.sizes, multipliers.centers)
        centers, bounds = median_and_bound(both, samples, weights, parts)
        scales = jnp.ones_like(centers)
        if multipliers.scales is not None:
            quantile = partial(
                noisy_quantile,
                num_above=_SCALED_BEYOND * num_samples,
                noise_multiplier=multipliers.scales * math.sqrt(d),
            )
            distances = jnp.abs(samples - centers[None])
            each_key = jax.random.split(scale_key, d)
            scales = jax.vmap(quantile, (0, 1))(each_key, distances)
        z = (jnp.clip(samples, -_LARGEST, _LARGEST) - centers[None]) / scales[None]
        if multipliers.radius is None or multipliers.moments is None:
            return cls(z, centers, scales, bounds, None)
        radius_key, moments_key = _keys.split(moments_key)
        radius = noisy_quantile(
            radius_key,
            jnp.sqrt(jnp.sum(z**2, axis=1)),
            share_above=_BEYOND_RADIUS,
            noise_multiplier=multipliers.radius,
        )
        moments, stddev = noisy_second_moments(
            moments_key, z, radius, multipliers.moments, axis_name
        )
        matrix = whitening(moments, stddev).matrix
        rows = jnp.matmul(z, matrix, precision="highest")
        return cls(rows, centers, scales, bounds, jnp.linalg.inv(matrix.T))

    def back(self, row: jax.Array) -> jax.Array:
        """Returns `row` in the units of the columns."""
        if self.inverse is not None:
            row = jnp.matmul(self.inverse, row, precision="highest")
        return self.centers + self.scales * row


def radii_of(
    seen: SizeHistogram, multiplier: float, num_samples: int, d: int
) -> tuple[jax.Array, jax.Array]:  # radii, mean length beyond
    """Returns radii (4,), from zero, at which layers of rows end, and a mean length.

    A layer is the part of a row between two radii, and has noise of its own. `seen` is
    the released histogram of row lengths. A fifth of the rows are longer than the first
    layer, and few than the last. The mean length beyond the last radius estimates the
    bias of clipping there. `multiplier` is the noise multiplier of the mean.
    """
    first = seen.quantile(0.0, _BEYOND_FIRST)
    # The last radius follows from a Pareto tail, because few records are beyond it.
    size, number, index = seen.tail()
    requested = _BEYOND_LAST * 2 * multiplier * math.sqrt(d)
    reach = jnp.maximum(number / requested, 1.0) ** (1 / index)
    last = jnp.maximum(size * jnp.minimum(reach, _FARTHEST), 1.05 * first)
    passing = number * (size / last) ** index / num_samples
    middle = jnp.sqrt(first * last)
    radii = jnp.stack([jnp.zeros_like(first), first, middle, last])
    return radii, passing * last / (index - 1)


def layers_of(
    z: jax.Array, lengths: jax.Array, radii: jax.Array
) -> tuple[jax.Array, jax.Array]:  # layers and weights
    """Returns each row's weighted layers, shape (n, 3, d), and the weights, shape (3,).

    A layer is the part of a row z (n, d) between two `radii` (4,). The layers of a row
    have at most norm 1 together. Their mean, with noise, is divided by the weights.
    """
    widths = radii[1:] - radii[:-1]
    shares = widths**_WIDTH_POWER / jnp.sum(widths**_WIDTH_POWER)
    weights = jnp.sqrt(shares) / widths
    depth = jnp.clip(lengths[:, None] - radii[None, :-1], 0.0, widths[None])
    direction = z / jnp.where(lengths > 0, lengths, 1.0)[:, None]
    return (depth * weights[None])[:, :, None] * direction[:, None, :], weights


def kept_of(layers: jax.Array, variances: jax.Array) -> jax.Array:
    """Returns factors (2,) by which outer layers shrink toward zero (James and Stein).

    A factor is the share of a layer's sum of squares beyond what noise and sampling
    add: k variances. Noisy layers are (3, k), the variances of their entries (3,).
    """
    energy = jnp.sum(layers[1:] ** 2, axis=1)
    noise = layers.shape[1] * variances[1:]
    return jnp.maximum(0.0, 1 - noise / jnp.maximum(energy, noise))


def _squares(key, z, lengths, seen: SizeHistogram, radii, multipliers, axis_name):
    """Estimates mean squares (d,) of columns of z, for the mean's standard error.

    Rows of z (n, d) are clipped to radii[-1]. Squares of rows clipped to the smaller
    radii[-2] are released, with less noise. The rest is computed from `seen`, the
    released histogram of `lengths` |z|, an equal part for each column.
    """
    num_samples, d = z.shape
    middle, last = radii[-2], radii[-1]
    short = z * jnp.minimum(1.0, middle / jnp.maximum(lengths, middle))[:, None]
    clipping = SetClipping(1.0, math.sqrt(min(d, 2)))
    rows, multiplier = (short / middle) ** 2, multipliers.squares
    noisy = noisy_mean(clipping, rows, multiplier, key, axis_name)
    noise = clipping.noise_parameters(multiplier, num_samples, d)
    stddev = like(noise["stddev"], noisy)
    squares = middle**2 * jnp.maximum(noisy + stddev, 0.0)
    beyond = seen.sum_of_squares(0.0, last) - seen.sum_of_squares(0.0, middle)
    return squares + beyond / (num_samples * d)
