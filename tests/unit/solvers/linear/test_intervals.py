"""Standard errors of a linear model: their shape, what they cost, what has none."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import losses
from dpjax.accounting import PrivacyGuarantee
from dpjax.solvers import Solution, dp_linear_model
from dpjax.solvers.linear import _intervals
from dpjax.solvers.linear._noisy_bound import noisy_bound, noisy_excess, num_above
from tests.unit.refusals import refused
from tests.unit.solvers.linear.test_model import BAD, table


def solve(loss="squared", data=None, **changes):
    if data is None:
        features, means, noise = table()
        data = features, means + noise
    options = {"key": jax.random.key(1), "epsilon": 8.0, "delta": 1e-5, "intercept": 3}
    return dp_linear_model(loss, data, **(options | {"intervals": True} | changes))


def targets_of(loss, predictions, noise):
    """Targets of which the predictions are the best, of a loss."""
    rng = np.random.default_rng(3)
    if loss == "logistic":
        return np.where(rng.random(len(noise)) < 1 / (1 + np.exp(-predictions)), 1, -1)
    if isinstance(loss, losses.LinearLoss) and loss.has_log_link:
        means = np.exp(predictions)
        return (
            rng.poisson(means)
            if loss.power == 1
            else means * rng.gamma(2, 0.5, len(means))
        )
    return predictions + noise


LOSSES = {
    "squared": "squared",
    "logistic": "logistic",
    "huber": "huber",
    "huber of a threshold": losses.huber(1.5),
    "poisson": losses.poisson(20.0),
    "gamma": losses.gamma(min_mean=0.02, max_target=100.0),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", LOSSES)
def test_errors_are_those_of_the_estimate(name):
    loss = LOSSES[name]
    features, _, noise = table(num=20_000)
    features[:, :3] = np.clip(features[:, :3], -2, 2)
    weights = np.array([0.5, -0.4, 0.2, 0.3], np.float32)
    data = features, targets_of(loss, features @ weights, noise)
    solution = solve(loss, data)
    errors = solution.standard_errors
    assert errors.shape == solution.params.shape == (4,)
    assert jnp.all(errors < 0.1)
    assert jnp.all(jnp.abs(solution.params - weights) < 4 * errors)
    assert solution.stats["num_hidden"] == 0
    np.testing.assert_allclose(sum(solution.stats["shares"].values()), 1, rtol=1e-12)


@pytest.mark.parametrize("intercept", [1, None])
def test_errors_are_correlated_as_those_of_least_squares(intercept):
    rng = np.random.default_rng(2)
    features = rng.normal(size=(20_000, 3)) @ [[1, 0, 0.9], [0, 1, 0], [0, 0, 0.4]]
    features[:, 1] += 2
    if intercept is not None:
        features = np.insert(features, intercept, 1.0, axis=1)
    targets = features.sum(axis=1) + rng.normal(size=20_000)
    solution = solve(data=(features, targets), intercept=intercept, epsilon=50.0)
    covariance = np.linalg.inv(features.T @ features)
    roots = np.sqrt(np.diag(covariance))
    expected = covariance / np.outer(roots, roots)
    np.testing.assert_allclose(solution.correlations, expected, atol=0.1)
    assert np.abs(expected[0, -1]) > 0.8
    assert solve(intervals=False).correlations is None


def test_an_interval_is_wider_at_a_higher_level():
    solution = solve()
    low, high = solution.interval()
    np.testing.assert_allclose((low + high) / 2, solution.params, rtol=1e-5)
    np.testing.assert_allclose(
        (high - low) / 2, 1.959964 * solution.standard_errors, rtol=1e-4
    )
    wide = solution.interval(0.99)
    assert jnp.all((wide[0] < low) & (wide[1] > high))


def test_the_price_is_that_of_the_call():
    solution, plain = solve(), solve(intervals=False)
    assert solution.privacy == plain.privacy
    assert plain.standard_errors is None
    with pytest.raises(ValueError, match="standard_errors is None; it must be those"):
        plain.interval()


def test_narrow_data_have_narrow_errors_where_wide_ones_are_enabled():
    features, means, _ = table()
    with jax.enable_x64(True):
        data = jnp.asarray(features, jnp.float32), jnp.asarray(means, jnp.float32)
        errors = jax.eval_shape(lambda data: solve(data=data).standard_errors, data)
    assert errors.dtype == jnp.float32


@pytest.mark.parametrize("level", [0.0, 1.0, 95, np.nan])
def test_a_level_is_a_probability(level):
    errors = jnp.ones(2)
    solution = Solution(errors, PrivacyGuarantee.non_private(), {}, errors)
    with pytest.raises(ValueError, match="level must be strictly between 0 and 1"):
        solution.interval(level)


test_what_has_no_intervals_is_named = refused(
    lambda changes: solve(**changes),
    ({"loss": losses.softmax(3)}, "loss must be squared, logistic, Huber, Poisson"),
    ({"loss": losses.log_link(1.5)}, "loss must be squared, logistic, Huber, Pois"),
    ({"data": (np.ones((9, 1)), np.ones(9)), "intercept": 0}, "features must be"),
    ({"max_features": 2}, "max_features must be None if there are to be intervals"),
)


def test_repetitions_are_one_program():
    keys = jax.random.split(jax.random.key(0), 2)

    @jax.jit
    @jax.vmap
    def errors(key):
        return solve(key=key).standard_errors

    found = errors(jax.random.clone(keys))
    one = solve(key=keys[1]).standard_errors
    np.testing.assert_allclose(found[1], one, rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("unit", [1e-4, 1e6])
def test_units_of_targets_are_units_of_errors(unit):
    features, means, noise = table()
    solution = solve(data=(features, unit * (means + noise)))
    # Bounds are powers of 2^(1/8) in any unit.
    np.testing.assert_allclose(
        solution.standard_errors / unit, solve().standard_errors, rtol=0.3
    )


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["squared", "logistic", "huber"])
@pytest.mark.parametrize("name", BAD)
def test_errors_are_infinite_or_positive_whatever_the_values(name, loss):
    features, means, noise = table(num=200)
    data = BAD[name](features, means + noise)
    solution = solve(loss, data, delta=1e-3)
    assert jnp.all(jnp.isfinite(solution.params))
    assert jnp.all(solution.standard_errors > 0)
    # The Newton step replaces NaN by zeros, so that a fit alone is looked at too.
    alone = solve(loss, data, epsilon=8.0, delta=1e-3, intervals=False)
    assert jnp.all(jnp.isfinite(alone.params))
    assert alone.privacy.epsilon == 8.0
    if name in {"all NaN", "zeros", "constant columns", "one record", "few records"}:
        assert jnp.all(jnp.isinf(solution.standard_errors[:3]))


@pytest.mark.slow
@pytest.mark.parametrize("intercept", [3, None])
def test_directions_that_the_noise_hides_have_no_interval(intercept):
    features, _, noise = table(num=20_000)
    # Two columns that are the same, one of numbers that are none, and one of use.
    same, other, ones = features[:, :1], features[:, 1:2], features[:, 3:]
    nothing = np.full_like(same, np.nan)
    features = np.hstack([same, same, other, ones, nothing])
    targets = 2 * other[:, 0] + same[:, 0] + 1 + noise
    solution = solve(data=(features, targets), intercept=intercept, epsilon=3.0)
    is_hidden = np.isinf(solution.standard_errors)
    assert is_hidden.tolist() == [True, True, False, False, True]
    assert np.all(np.isfinite(solution.correlations))
    assert np.all(solution.correlations[is_hidden] == np.eye(5)[is_hidden])
    assert solution.stats["num_hidden"] == 2
    low, high = np.asarray(solution.interval(0.9999))
    assert np.all((low <= [0, 0, 2, 1, 0]) & (high >= [0, 0, 2, 1, 0]))


def test_a_bound_is_exceeded_by_about_as_many_as_it_says(key):
    sizes = jnp.exp(jax.random.normal(key, 20_000))
    above = [
        float(jnp.sum(sizes > noisy_bound(one, sizes, noise_multiplier=10.0)))
        for one in jax.random.split(jax.random.key(0), 20)
    ]
    # The noise of a count is a third of the number, and a size is one of eight.
    assert num_above(10.0) == 90
    assert 60 < np.mean(above) < 140
    assert max(above) < 250
    nothing = noisy_bound(key, jnp.full(5, jnp.nan), noise_multiplier=1.0)
    assert 2.0**-20 <= nothing < 2.0**-19.8
    lower = noisy_bound(key, sizes, noise_multiplier=10.0, least=1_000)
    assert 900 < float(jnp.sum(sizes > lower)) < 1_500


@pytest.mark.parametrize("noise_multiplier", [1e-3, 1.0, 4.0, 1e6])
def test_shares_add_up_and_leave_scores_more_of_many_records(noise_multiplier):
    for d in (1, 10, 1_000):
        found = [
            _intervals._shares((n, d), noise_multiplier)
            for n in (2, 10**4, 10**6, 10**9)
        ]
        for shares in found:
            assert math.isclose(math.fsum(shares.values()), 1.0, rel_tol=1e-15)
            assert min(shares.values()) > 0
        assert [x["scores"] for x in found] == sorted(x["scores"] for x in found)
        assert 0.459 < found[0]["scores"] <= found[-1]["scores"] < 1


@pytest.mark.quick(1)
@pytest.mark.parametrize(("index", "ratio"), [(2.0, 1.0), (3.0, 1 / 3), (6.0, 1 / 31)])
def test_an_excess_is_that_of_a_pareto_tail(index, ratio, key):
    sizes = (1 - (np.arange(100_000) + 0.5) / 100_000) ** (-1 / index)
    bound = np.float32(200 ** (1 / index))  # 500 are above it
    beyond = np.maximum(sizes - bound, 0).sum()
    assert beyond == pytest.approx(
        ratio * np.clip(sizes - bound / 2, 0, bound / 2).sum(), rel=0.06
    )
    found = jax.vmap(
        lambda key: noisy_excess(
            key, jnp.asarray(sizes, "float32"), bound, noise_multiplier=20.0
        )
    )(jax.random.split(key, 200))
    assert np.mean(found.ratio) == pytest.approx(ratio, rel=0.1)
    assert np.std(found.ratio) == pytest.approx(float(np.mean(found.error)), rel=0.3)
    assert not jnp.any(found.is_heavy)


def test_a_tail_too_heavy_for_an_excess_has_no_interval():
    features, means, _ = table(num=20_000)
    noise = jax.random.cauchy(jax.random.key(7), (20_000,))
    assert jnp.all(jnp.isinf(solve(data=(features, means + noise)).standard_errors))
    nothing = noisy_excess(
        jax.random.key(0), jnp.zeros(5), jnp.float32(1), noise_multiplier=1.0
    )
    assert 0 <= nothing.ratio <= 2
    assert not nothing.is_heavy


@pytest.mark.parametrize("has_intercept", [True, False])
def test_curvatures_are_ones_in_their_directions(has_intercept):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 4)) @ np.diag([3.0, 1.0, 0.3, 0.001])
    rows = np.c_[rows + 2, np.ones(50)] if has_intercept else rows
    moments = jnp.asarray(rows.T @ rows / 50, "float32")
    found = _intervals._curvatures(has_intercept, moments, 1e-3)
    assert found.num_hidden == 1
    inner = found.root.T @ moments @ found.root
    np.testing.assert_allclose(
        jnp.sort(jnp.diag(inner)), [0] + [1] * (len(inner) - 1), atol=1e-3
    )
    np.testing.assert_allclose(inner, jnp.diag(jnp.diag(inner)), atol=1e-4)
    assert jnp.sum(found.hidden**2) >= 1
