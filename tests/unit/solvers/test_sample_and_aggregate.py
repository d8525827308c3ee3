"""Sample and aggregate: its smooth bound, its noise, its neighbours, its errors."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax import accounting
from dpjax.accounting._shared import smooth_gaussian_multiplier
from dpjax.solvers import _smooth_center, dp_sample_and_aggregate
from dpjax.solvers._sample_and_aggregate import _Subsets
from tests.unit.refusals import refused

SMOOTHNESS = 0.2


def settings(**changes):
    arguments = {"key": jax.random.key(1), "epsilon": 2.0, "delta": 1e-5}
    arguments |= {"num_subsets": 400, "diameter": 8.0}
    return arguments | changes


def mean(subset):
    return subset.mean(axis=0)


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
    pairs = [
        (x, other)
        for x in point_sets(rng, num_points, num_coordinates)
        for other in neighbours(rng, x, overlap)
    ]
    return tuple(np.stack(side) for side in zip(*pairs, strict=True))


@pytest.mark.quick(2)
@pytest.mark.parametrize("num_coordinates", [1, 3])
@pytest.mark.parametrize(("overlap", "num_points"), [(1, 9), (1, 10), (2, 15), (3, 26)])
def test_bound_is_smooth_and_bounds_the_movement(overlap, num_points, num_coordinates):
    steps = _smooth_center.num_steps(num_points, overlap)
    weights = _smooth_center.smooth_weights(SMOOTHNESS, steps)
    centre = jax.jit(
        jax.vmap(lambda x: _smooth_center.smooth_center(x, weights, overlap=overlap))
    )
    first, second = pairs_of(overlap, num_points, num_coordinates)
    (g, s), (h, t) = centre(first), centre(second)
    s, t = np.asarray(s, np.float64), np.asarray(t, np.float64)
    moved = np.linalg.norm(
        np.asarray(g, np.float64) - np.asarray(h, np.float64), axis=1
    )
    assert np.all(moved <= np.minimum(s, t))
    assert np.all(np.abs(np.log(s / t)) <= SMOOTHNESS)
    # Both bounds are attained, or nearly: the fuzz would see a smaller one.
    assert np.max(moved / np.minimum(s, t)) > 0.85
    assert np.max(np.abs(np.log(s / t))) > 0.95 * SMOOTHNESS


def printed_bound(x, *, overlap, averaged, largest, smoothness):
    """2 max e^(-beta k) rho(t_0 + (k+1)s), rho the mean of some of the m radii."""
    m = len(x)
    radii = np.sort(np.linalg.norm(x[:, None] - x[None], axis=2), axis=1)
    first, k, bound = (m + overlap) // 2 + 1, 0, 0.0
    while True:
        t = first + (k + 1) * overlap
        if t > m:
            return max(bound, 2 * math.exp(-smoothness * k))
        ordered = np.sort(radii[:, t - 1])
        rho = (ordered[-averaged:] if largest else ordered[:averaged]).mean()
        bound = max(bound, 2 * math.exp(-smoothness * k) * rho)
        k += 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("largest", [True, False])
def test_printed_bound_is_not_smooth(largest):
    # ceil(s / 2) radii, the largest or the smallest: more than the 2 beta of a proof.
    rule = {"overlap": 3, "averaged": 2, "largest": largest, "smoothness": SMOOTHNESS}
    first, second = pairs_of(3, 26, 1)
    changes = [
        abs(math.log(printed_bound(x, **rule) / printed_bound(y, **rule)))
        for x, y in zip(first, second, strict=True)
    ]
    assert max(changes) > 2 * SMOOTHNESS + 0.1


@pytest.mark.slow
def test_bound_in_float32_is_never_below_the_exact_one():
    rng = np.random.default_rng(5)
    for size in (1e-25, 1e-20, 1e-12, 1e-6, 1e-3, 0.3):
        for d in (1, 50, 2000):
            x = 0.3 / math.sqrt(d) + size * rng.normal(size=(11, d)) / math.sqrt(d)
            x = x.astype(np.float32)
            weights = _smooth_center.smooth_weights(
                SMOOTHNESS, _smooth_center.num_steps(11, 1)
            )
            _, found = _smooth_center.smooth_center(jnp.asarray(x), weights, overlap=1)
            exact = exact_bound(x.astype(np.float64), weights)
            assert exact <= float(found) <= exact * 1.01


def exact_bound(x, weights):
    m = len(x)
    radii = np.sort(np.linalg.norm(x[:, None] - x[None], axis=2), axis=1)
    t0 = (m + 1) // 2 + 1
    balls = [np.sort(radii[:, t0 - 1 + k])[k] for k in range(m - t0 + 1)]
    bounds = [min(1.0, a + b) for a, b in itertools.pairwise(balls)]
    return max(w * b for w, b in zip(weights, [*bounds, 1.0], strict=True))


def test_weights_and_counts():
    weights = _smooth_center.smooth_weights(0.3, 200)
    assert weights[0] == 1.0
    assert weights[-1] == 2.0**-40
    narrowed = np.float32(weights)
    assert np.all(np.log(narrowed[:-1] / np.float64(narrowed[1:])) < 0.3 - 2.0**-21)
    for overlap in (1, 2, 5, 9):
        for steps in (0, 1, 7):
            least = _smooth_center.least_num_points(steps, overlap)
            assert _smooth_center.majority(least, overlap) <= least
            assert _smooth_center.num_steps(least, overlap) == steps
            assert _smooth_center.num_steps(least - 1, overlap) == steps - 1


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("num_samples", "number", "overlap"), [(103, 10, 1), (103, 10, 3), (50, 7, 7)]
)
def test_a_record_is_in_few_subsets(num_samples, number, overlap, key):
    subsets = _Subsets(num_samples, number, overlap)
    rows = np.asarray(subsets.rows(key))
    assert rows.shape == (number, num_samples // math.ceil(number / overlap))
    counts = np.bincount(rows.ravel(), minlength=num_samples)
    assert counts.max() == overlap
    assert all(len(set(row)) == len(row) for row in rows)
    if overlap == 1:
        np.testing.assert_array_equal(rows.ravel(), np.arange(rows.size))


@pytest.mark.quick(1)
@pytest.mark.parametrize("overlap", [1, 2])
def test_mean_of_heavy_tails(overlap):
    # Student t, 2.5 degrees of freedom, round a mean far from the ball's centre. Means
    # of 2,000 spread over 0.2; S is a few times that, and the noise 2 to 4 times S.
    samples = 30.0 + np.random.default_rng(0).standard_t(2.5, 1_000_000)
    solution = dp_sample_and_aggregate(
        mean,
        samples.astype(np.float32),
        **settings(num_subsets=500 * overlap, overlap=overlap, diameter=100.0),
    )
    np.testing.assert_allclose(solution.params, 30.0, atol=2.0)


@pytest.mark.slow
def test_outliers_do_not_matter():
    # A quarter of the subsets hold a record of size 1e30.
    samples = jax.random.normal(jax.random.key(0), (60_000, 2))
    wild = samples.at[:15_000:30].set(1e30)
    solution = dp_sample_and_aggregate(mean, wild, **settings(num_subsets=2000))
    np.testing.assert_allclose(solution.params, 0.0, atol=1.0)


def test_noise_has_the_stated_scale():
    # Equal results leave the floor, which is public: so the noise's scale is known.
    data = jnp.ones((1200, 3))

    def solve(key):
        return dp_sample_and_aggregate(mean, data, **settings(key=key))

    solutions = jax.jit(jax.vmap(solve))(jax.random.split(jax.random.key(5), 700))
    stats = jax.tree.map(lambda x: float(x[0]), solutions.stats)
    steps = _smooth_center.num_steps(400, 1)
    expected = 8.0 * stats["noise_multiplier"] * math.exp(-stats["smoothness"] * steps)
    assert stats["least_stddev"] == pytest.approx(expected, rel=1e-3)
    draws = np.asarray(solutions.params, np.float64) - 1.0
    total = np.sum(draws**2) / stats["least_stddev"] ** 2
    law = scipy.stats.chi2(draws.size)  # false alarms: 1e-6
    assert law.ppf(5e-7) < total < law.isf(5e-7)
    assert total * 4 / 9 < law.ppf(5e-7)
    assert total * 9 / 4 > law.isf(5e-7)
    multiplier = smooth_gaussian_multiplier(
        2.0, 1e-5, smoothness=stats["smoothness"], num_coordinates=3
    )
    assert stats["noise_multiplier"] == pytest.approx(multiplier)
    assert stats["subset_size"] == 3
    assert stats["spread"] == pytest.approx(0.08)


@pytest.mark.slow
def test_audit_of_the_worst_pair():
    # Half the results at each end, and one moves over: the centre moves by the
    # diameter, which is S for both. Estimates of delta less 5 standard errors, of
    # 200,000 draws each: false alarms 1e-6.
    epsilon, delta = 1.0, 0.1
    ends = jnp.where(jnp.arange(100) < 50, -0.5, 0.5)
    arguments = settings(epsilon=epsilon, delta=delta, num_subsets=100, diameter=1.0)

    @jax.jit
    def release(data, keys):
        def solve(key):
            return dp_sample_and_aggregate(jnp.mean, data, **(arguments | {"key": key}))

        return jax.lax.map(lambda key: solve(key).params, keys, batch_size=1000)

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
    # Equal results at one end, and one that goes to the other: S grows by e^beta, and
    # the draws of the noise are the same.
    data, center = jnp.zeros((200, 2)), jnp.array([4.0, 0.0])
    arguments = settings(key=jax.random.clone(key), num_subsets=200, center=center)
    first = dp_sample_and_aggregate(mean, data, **(arguments | {"key": key}))
    second = dp_sample_and_aggregate(mean, data.at[7, 0].set(100.0), **arguments)
    ratio = np.asarray(second.params, np.float64) / np.asarray(first.params, np.float64)
    smoothness = first.stats["smoothness"]
    np.testing.assert_allclose(np.log(ratio), smoothness, rtol=1e-3)
    assert first.stats == second.stats


@pytest.mark.quick(1)
@pytest.mark.parametrize("wild", [math.nan, math.inf, -math.inf, 1e38, -3e38, 1e-40])
@pytest.mark.parametrize("vectorize", [True, False])
def test_wild_records_are_harmless(wild, vectorize):
    data = np.ones((800, 2), np.float32)
    data[3] = wild
    center = np.zeros(2, np.float32)
    with np.errstate(all="ignore"):
        solution = dp_sample_and_aggregate(
            mean, data, **settings(vectorize=vectorize, center=center)
        )
    np.testing.assert_allclose(solution.params, 1.0, atol=0.5)
    all_wild = dp_sample_and_aggregate(
        mean, jnp.full((800, 2), wild), **settings(center=center)
    )
    assert np.isfinite(all_wild.params).all()


def test_fit_fn_that_raises_or_returns_other_shapes():
    def fit(subset):
        if subset[0] == 5:
            raise RuntimeError
        if subset[0] == 6:
            return {"a": np.zeros(3), "b": 0.0}
        if subset[0] == 7:
            return "nothing"
        return {"a": np.ones(2), "b": subset.mean()}

    data = np.ones(800)
    data[[0, 100, 200]] = 5.0, 6.0, 7.0
    center = {"a": np.zeros(2, np.float32), "b": np.float32(0)}
    solution = dp_sample_and_aggregate(
        fit, data, **settings(vectorize=False, center=center)
    )
    np.testing.assert_allclose(solution.params["a"], 1.0, atol=0.5)
    np.testing.assert_allclose(solution.params["b"], 1.0, atol=0.5)
    assert solution.params["a"].dtype == jnp.float32


@pytest.mark.quick(1)
@pytest.mark.parametrize("overlap", [1, 3])
def test_loop_equals_vmap(overlap):
    data = {"x": np.random.default_rng(0).normal(size=(1700, 2)).astype(np.float32)}
    center = {"w": np.full(2, 0.5, np.float32)}

    def fit(subset):
        return {"w": subset["x"].mean(axis=0)}

    arguments = {"center": center, "overlap": overlap, "num_subsets": 800}
    one, other = (
        dp_sample_and_aggregate(fit, data, **settings(vectorize=vectorize, **arguments))
        for vectorize in (True, False)
    )
    np.testing.assert_allclose(one.params["w"], other.params["w"], rtol=1e-5)
    assert one.stats == other.stats


def test_results_are_projected_round_the_center():
    data = jnp.full((800, 2), 100.0)
    center = jnp.array([30.0, 40.0])
    solution = dp_sample_and_aggregate(
        mean, data, **settings(center=center, diameter=10.0)
    )
    edge = np.array([70.0, 60.0]) / math.hypot(70, 60) * 5 + np.asarray(center)
    np.testing.assert_allclose(solution.params, edge, atol=0.1)


def test_any_pytree_and_dtype():
    def fit(subset):
        return (
            subset.mean(axis=0).astype(jnp.bfloat16),
            {"matrix": jnp.outer(subset[0], subset[0]), "count": jnp.int32(3)},
        )

    data = jnp.ones((800, 2))
    solution = dp_sample_and_aggregate(fit, data, **settings(diameter=20.0))
    low, rest = solution.params
    assert low.dtype == jnp.bfloat16
    assert rest["matrix"].shape == (2, 2)
    assert rest["count"].dtype == jnp.float32
    np.testing.assert_allclose(rest["matrix"], 1.0, atol=0.5)
    np.testing.assert_allclose(rest["count"], 3.0, atol=0.5)


def test_spread_trades_the_floor_for_the_noise():
    data = jnp.zeros((4000, 2))
    stats = [
        dp_sample_and_aggregate(mean, data, **settings(spread=spread)).stats
        for spread in (1e-6, 1e-2, 8.0)
    ]
    assert stats[0]["least_stddev"] < stats[1]["least_stddev"] < 8.0
    multipliers = [s["noise_multiplier"] for s in stats]
    assert multipliers == sorted(multipliers, reverse=True)
    # With a spread as wide as the diameter, the noise is near the plain Gaussian's.
    plain = accounting.gaussian_stddev(2.0, 1e-5, sensitivity=1.0)
    assert plain < multipliers[-1] < 1.5 * plain


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [1, 4])
def test_the_smallest_number_of_subsets_is_named(overlap):
    def fit(subset):
        raise AssertionError("the data were touched")

    center = np.zeros(10, np.float32)
    arguments = settings(epsilon=1.0, vectorize=False, center=center)
    arguments |= {"overlap": overlap, "num_subsets": 20}
    with pytest.raises(ValueError, match="num_subsets must be at least") as error:
        dp_sample_and_aggregate(fit, np.zeros((3000, 2)), **arguments)
    least = int(str(error.value).split("at least ")[1].split()[0])
    arguments["num_subsets"] = least - 1
    with pytest.raises(ValueError, match=f"at least {least} for epsilon = 1"):
        dp_sample_and_aggregate(fit, np.zeros((3000, 2)), **arguments)
    arguments["num_subsets"] = least
    solution = dp_sample_and_aggregate(
        fit, np.zeros((3000, 2)), **(arguments | {"key": jax.random.key(2)})
    )
    assert solution.stats["least_stddev"] < arguments["diameter"]


test_bad_arguments = refused(
    lambda changes: dp_sample_and_aggregate(
        mean, jnp.zeros((800, 2)), **settings(**changes)
    ),
    ({"num_subsets": 900}, "num_subsets must be at most overlap times the 800"),
    ({"num_subsets": 1}, "num_subsets must be at least .* got 1"),
    ({"center": jnp.zeros(3)}, r"center must be shaped as .*\(2,\).* got \(3,\)"),
    ({"vectorize": False}, "center must be given if vectorize is false"),
)


def test_bad_results():
    for result in (jnp.zeros(2, "complex64"), jnp.zeros(0)):
        with pytest.raises(ValueError, match="the result of fit_fn must be a pytree"):
            dp_sample_and_aggregate(
                lambda subset, result=result: result, jnp.zeros(800), **settings()
            )
