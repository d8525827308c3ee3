"""Sample and aggregate: its smooth bound, its noise, its subsets, odd results."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting, solvers
from dpjax.solvers.papers import _sample_and_aggregate, _smooth_center


def solve(data, fit_fn=lambda subset: subset.mean(axis=0), **changes):
    options = {"key": jax.random.key(1), "epsilon": 2.0, "delta": 1e-5}
    options |= {"num_subsets": 400, "diameter": 8.0} | changes
    return solvers.dp_sample_and_aggregate(fit_fn, data, **options)


def test_weights_fall_smoothly_and_counts_of_points_are_the_least():
    weights = _smooth_center.smooth_weights(0.3, 200)
    assert (weights[0], weights[-1]) == (1.0, 2.0**-40)
    narrowed = np.float32(weights)
    assert np.all(np.log(narrowed[:-1] / np.float64(narrowed[1:])) < 0.3 - 2.0**-21)
    for overlap in (1, 2, 5, 9):
        for steps in (0, 1, 7):
            least = _smooth_center.least_num_points(steps, overlap)
            assert _smooth_center.majority(least, overlap) <= least
            assert _smooth_center.num_steps(least, overlap) == steps
            assert _smooth_center.num_steps(least - 1, overlap) == steps - 1


@pytest.mark.parametrize(
    ("num_samples", "number", "overlap"), [(103, 10, 1), (103, 10, 3), (50, 7, 7)]
)
def test_a_record_is_in_few_subsets(num_samples, number, overlap, key):
    subsets = _sample_and_aggregate._Subsets(num_samples, number, overlap)
    rows = np.asarray(subsets.rows(key))
    assert rows.shape == (number, num_samples // math.ceil(number / overlap))
    assert np.bincount(rows.ravel(), minlength=num_samples).max() == overlap
    assert all(len(set(row)) == len(row) for row in rows)
    if overlap == 1:
        np.testing.assert_array_equal(rows.ravel(), np.arange(rows.size))


@pytest.mark.parametrize("overlap", [1, 2])
def test_the_mean_of_heavy_tails_and_outliers_is_found(overlap):
    # Student t, 2.5 degrees of freedom, round a mean far from the ball's centre. Means
    # of 200 spread over 0.2; S is a few times that, and the noise 2 to 4 times S. One
    # subset in four holds a record of size 1e30.
    samples = 30.0 + np.random.default_rng(0).standard_t(2.5, 100_000)
    samples[: 25_000 // overlap : 200] = 1e30
    options = {"num_subsets": 500 * overlap, "overlap": overlap, "diameter": 100.0}
    solution = solve(samples.astype(np.float32), **options)
    np.testing.assert_allclose(solution.params, 30.0, atol=4.0)


def test_the_floor_of_the_noise_is_stated():
    stats = solve(jnp.ones((1200, 3))).stats
    steps = _smooth_center.num_steps(400, 1)
    expected = 8.0 * stats["noise_multiplier"] * math.exp(-stats["smoothness"] * steps)
    assert stats["least_stddev"] == pytest.approx(expected, rel=1e-3)
    options = {"smoothness": stats["smoothness"], "num_coordinates": 3}
    multiplier = _sample_and_aggregate.smooth_gaussian_multiplier(2.0, 1e-5, **options)
    assert stats["noise_multiplier"] == pytest.approx(multiplier)
    assert (stats["subset_size"], stats["spread"]) == (3, pytest.approx(0.08))


def test_subsets_whose_fit_raises_or_has_another_shape_count_as_the_center():
    odd = {6: {"a": np.zeros(3), "b": 0.0}, 7: "nothing"}

    def fit(subset):
        if subset[0] == 5:
            raise RuntimeError
        return odd.get(subset[0], {"a": np.ones(2), "b": subset.mean()})

    data = np.ones(800)
    data[[0, 100, 200]] = 5.0, 6.0, 7.0
    center = {"a": np.zeros(2, np.float32), "b": np.float32(0)}
    params = solve(data, fit, vectorize=False, center=center).params
    np.testing.assert_allclose(params["a"], 1.0, atol=0.5)
    np.testing.assert_allclose(params["b"], 1.0, atol=0.5)
    assert params["a"].dtype == jnp.float32


@pytest.mark.parametrize("overlap", [1, 3])
def test_loop_equals_vmap(overlap):
    data = {"x": np.random.default_rng(0).normal(size=(1700, 2)).astype(np.float32)}
    options = {"center": {"w": np.full(2, 0.5, np.float32)}, "num_subsets": 800}
    fit = lambda subset: {"w": subset["x"].mean(axis=0)}  # noqa: E731
    run = functools.partial(solve, data, fit, overlap=overlap, **options)
    one, other = run(vectorize=True), run(vectorize=False)
    np.testing.assert_allclose(one.params["w"], other.params["w"], rtol=1e-5)
    assert one.stats == other.stats


def test_results_are_projected_round_the_center():
    center = jnp.array([30.0, 40.0])
    params = solve(jnp.full((800, 2), 100.0), center=center, diameter=10.0).params
    edge = np.array([70.0, 60.0]) / math.hypot(70, 60) * 5 + np.asarray(center)
    np.testing.assert_allclose(params, edge, atol=0.1)


def test_spread_trades_the_floor_for_the_noise():
    data = jnp.zeros((4000, 2))
    stats = [solve(data, spread=spread).stats for spread in (1e-6, 1e-2, 8.0)]
    assert stats[0]["least_stddev"] < stats[1]["least_stddev"] < 8.0
    multipliers = [s["noise_multiplier"] for s in stats]
    assert multipliers == sorted(multipliers, reverse=True)
    # With a spread as wide as the diameter, the noise is near the plain Gaussian's.
    plain = accounting.gaussian_stddev(2.0, 1e-5, sensitivity=1.0)
    assert plain < multipliers[-1] < 1.5 * plain


def test_results_and_options_that_do_not_fit_are_named():
    data = jnp.zeros((800, 2))
    for result in (jnp.zeros(2, "complex64"), jnp.zeros(0)):
        with pytest.raises(ValueError, match="the result of fit_fn must be a pytree"):
            solve(data, lambda subset, x=result: x)
    with pytest.raises(ValueError, match="center must be given if vectorize is False"):
        solve(data, vectorize=False)
