"""Sample and aggregate under attack: neighbors, rounding, the worst pair."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.solvers.papers import _smooth_center
from tests.unit.solvers.test_sample_and_aggregate import solve

SMOOTHNESS = 0.2


def point_sets(rng, num_points, num_coordinates):
    """Yields sets in the ball of diameter 1: clusters, ties, outliers, constants."""
    m, d = num_points, num_coordinates
    for _ in range(200):
        kind = rng.integers(6)
        x = rng.uniform(-1, 1, (m, d)) * 10.0 ** rng.uniform(-6, 0)
        if kind == 1:  # a few places, shared by many
            x = rng.uniform(-1, 1, (3, d))[rng.integers(3, size=m)]
        elif kind == 2:  # two clusters, about half each
            x[: m // 2 + rng.integers(-1, 2)] += rng.uniform(-1, 1, d)
        elif kind == 3:  # outliers
            x[: rng.integers(1, m)] = rng.uniform(-9, 9, d)
        elif kind == 4:
            x[:] = x[0]
        elif kind == 5:  # equally spaced
            x = np.linspace(-1, 1, m)[:, None] * rng.uniform(-1, 1, d)
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        yield rng.permutation(x / np.maximum(1, 2 * norms)).astype(np.float32)


def neighbours(rng, x, overlap):
    """Yields sets that differ in at most so many points, near and far ones."""
    direction = rng.normal(size=x.shape[1])
    edge = direction / np.linalg.norm(direction) / 2.00001
    moved = rng.choice(len(x), overlap, replace=False)
    centre = rng.choice(len(x))
    for place in (edge, -edge, x[centre], x[centre] + 1e-4 * direction, 0 * edge):
        other = x.copy()
        other[moved] = place / max(1, 2 * np.linalg.norm(place))
        yield other


def pairs_of(overlap, num_points, num_coordinates):
    rng = np.random.default_rng(overlap)
    sets = point_sets(rng, num_points, num_coordinates)
    pairs = [(x, other) for x in sets for other in neighbours(rng, x, overlap)]
    return tuple(np.stack(side) for side in zip(*pairs, strict=True))


@pytest.mark.parametrize(
    ("overlap", "num_points", "num_coordinates"),
    [(1, 9, 1), (1, 10, 3), (2, 15, 1), (3, 26, 3)],
)
def test_bound_is_smooth_and_bounds_the_movement(overlap, num_points, num_coordinates):
    steps = _smooth_center.num_steps(num_points, overlap)
    weights = _smooth_center.smooth_weights(SMOOTHNESS, steps)

    @jax.jit
    @jax.vmap
    def centre(x):
        return _smooth_center.smooth_center(x, weights, overlap=overlap)

    (g, s), (h, t) = map(centre, pairs_of(overlap, num_points, num_coordinates))
    s, t = np.float64(s), np.float64(t)
    moved = np.linalg.norm(np.float64(g) - np.float64(h), axis=1)
    assert np.all(moved <= np.minimum(s, t))
    # Both bounds are attained, or nearly: the fuzz would see a smaller one.
    assert np.max(moved / np.minimum(s, t)) > 0.85
    assert 0.95 * SMOOTHNESS < np.max(np.abs(np.log(s / t))) <= SMOOTHNESS


def test_bound_in_float32_is_never_below_the_exact_one():
    rng, steps = np.random.default_rng(5), _smooth_center.num_steps(11, 1)
    weights = _smooth_center.smooth_weights(SMOOTHNESS, steps)
    for size in (1e-25, 1e-20, 1e-12, 1e-6, 1e-3, 0.3):
        for d in (1, 50, 2000):
            x = 0.3 / math.sqrt(d) + size * rng.normal(size=(11, d)) / math.sqrt(d)
            x = x.astype(np.float32)
            _, bound = _smooth_center.smooth_center(jnp.asarray(x), weights, overlap=1)
            x = x.astype(np.float64)
            radii = np.sort(np.linalg.norm(x[:, None] - x[None], axis=2), axis=1)
            balls = [np.sort(radii[:, 6 + k])[k] for k in range(5)]  # t_0 = 7 of 11
            bounds = [min(1.0, a + b) for a, b in itertools.pairwise(balls)]
            pairs = zip(weights, [*bounds, 1.0], strict=True)
            exact = max(weight * bound for weight, bound in pairs)
            assert exact <= float(bound) <= exact * 1.01


def test_audit_of_the_worst_pair():
    # Half the results at each end, and one moves over: the centre moves by the
    # diameter, which is S for both. Estimates of delta less 5 standard errors, of
    # 200,000 draws each: false alarms 1e-6.
    epsilon, delta = 1.0, 0.1
    ends = jnp.where(jnp.arange(100) < 50, -0.5, 0.5)
    options = {"epsilon": epsilon, "delta": delta, "num_subsets": 100, "diameter": 1.0}

    @jax.jit
    def release(data, keys):
        one = lambda key: solve(data, jnp.mean, key=key, **options).params  # noqa: E731
        return jax.lax.map(one, keys, batch_size=1000)

    keys = jax.random.split(jax.random.key(7), (2, 200_000))
    noise = np.asarray(release(ends, keys[0]), np.float64) + 0.5
    noise_of_other = np.asarray(release(ends.at[0].set(0.5), keys[1]), np.float64) - 0.5
    assert abs(noise.mean()) < 0.05 > abs(noise_of_other.mean())

    def least_delta(share):
        # The likelihood ratio is e^epsilon at x = -epsilon variance.
        threshold = -epsilon * np.var(share * noise)
        p = np.mean(share * noise - 0.5 < threshold)
        q = np.mean(share * noise_of_other + 0.5 < threshold)
        variance = p * (1 - p) + math.exp(2 * epsilon) * q * (1 - q)
        return p - math.exp(epsilon) * q - 5 * math.sqrt(variance / noise.size)

    assert 0.3 * delta < least_delta(1.0) < delta
    assert least_delta(2 / 3) > delta  # an audit that can fail


def test_scale_moves_by_no_more_than_its_smoothness(key):
    # One of equal results goes to the other end: S grows by e^beta; draws are the same.
    data, center = jnp.zeros((200, 2)), jnp.array([4.0, 0.0])
    options = {"num_subsets": 200, "center": center}
    first = solve(data, key=jax.random.clone(key), **options)
    second = solve(data.at[7, 0].set(100.0), key=key, **options)
    ratio = np.asarray(second.params, np.float64) / np.asarray(first.params, np.float64)
    np.testing.assert_allclose(np.log(ratio), first.stats["smoothness"], rtol=1e-3)
    assert first.stats == second.stats


@pytest.mark.parametrize("overlap", [1, 4])
def test_the_smallest_number_of_subsets_is_named(overlap):
    def fit(subset):
        raise AssertionError("the data were touched")

    def stats(number):
        options = {"num_subsets": number, "overlap": overlap, "vectorize": False}
        options |= {"epsilon": 1.0, "center": np.zeros(10, np.float32)}
        return solve(np.zeros((3000, 2)), fit, **options).stats

    with pytest.raises(ValueError, match="num_subsets must be at least") as error:
        stats(20)
    least = int(str(error.value).split("at least ")[1].split()[0])
    with pytest.raises(ValueError, match=f"at least {least} for epsilon = 1"):
        stats(least - 1)
    assert stats(least)["least_stddev"] < 8.0  # the diameter
