"""Standard errors of a linear model: their shape, what they cost, what has none."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax import accounting, losses, solvers
from dpjax.gradients import by_user
from dpjax.solvers.linear import _intervals
from dpjax.solvers.statistics import _noisy_quantile
from dpjax.solvers.statistics._noisy_quantile import noisy_bound, noisy_excess
from tests.unit.refusals import refused
from tests.unit.solvers.linear import test_model as model

NUM = 20_000
WEIGHTS = np.array([0.5, -0.4, 0.2, 0.3], np.float32)
ROOT = np.array([[1.0, 0.0, 0.0], [0.9, 0.2, 0.0], [-0.5, 1.0, 2.0]])  # of a covariance
ERRORS = np.sqrt(np.sum(ROOT**2, axis=1))
CORRELATIONS = jnp.float32(ROOT @ ROOT.T / np.outer(ERRORS, ERRORS))
PRIVACY, PARAMS = accounting.PrivacyGuarantee.non_private(), jnp.array([1.0, 2.0, -3.0])
NORMAL = solvers.Solution(PARAMS, PRIVACY, {}, jnp.float32(ERRORS), CORRELATIONS)


def solve(loss="squared", data=None, **changes):
    if data is None:
        features, noise = bounded()
        data = features, features @ WEIGHTS + noise
    return model.solve(loss, data, **{"intervals": True} | changes)


def bounded():
    features, _, noise = model.table(num=NUM)
    return np.clip(features, -2, 2), noise


def of_poisson():
    features, _ = bounded()
    return features, np.random.default_rng(3).poisson(np.exp(features @ WEIGHTS))


@pytest.mark.parametrize(
    ("loss", "draw"), [("squared", lambda: None), (losses.poisson(20.0), of_poisson)]
)
def test_errors_are_those_of_the_estimate(loss, draw):
    solution = solve(loss, draw())
    errors = solution.standard_errors
    assert errors.shape == solution.params.shape == (4,)
    assert jnp.all(errors < 0.1)
    assert jnp.all(jnp.abs(solution.params - WEIGHTS) < 4 * errors)
    assert solution.stats["num_hidden"] == 0
    noise = solution.stats["noise_errors"]
    assert jnp.all((0.01 * errors < noise) & (noise < 0.9 * errors))
    np.testing.assert_allclose(sum(solution.stats["shares"].values()), 1, rtol=1e-12)
    low, high = solution.interval()
    np.testing.assert_allclose((low + high) / 2, solution.params, rtol=1e-5)
    np.testing.assert_allclose((high - low) / 2, 1.959964 * errors, rtol=1e-4)
    wide = solution.interval(0.99)
    assert jnp.all((wide[0] < low) & (wide[1] > high))


def test_errors_are_correlated_as_those_of_least_squares():
    rng = np.random.default_rng(2)
    features = rng.normal(size=(NUM, 3)) @ [[1, 0, 0.9], [0, 1, 0], [0, 0, 0.4]]
    features[:, 1] += 2
    targets = features.sum(axis=1) + rng.normal(size=NUM)
    solution = solve(data=(features, targets), intercept=None, epsilon=50.0)
    covariance = np.linalg.inv(features.T @ features)
    roots = np.sqrt(np.diag(covariance))
    expected = covariance / np.outer(roots, roots)
    np.testing.assert_allclose(solution.correlations, expected, atol=0.1)
    assert np.abs(expected[0, -1]) > 0.8
    noisy = solve(data=(features, targets), intercept=None, epsilon=0.5)
    # Without the part of the noise, errors are those of least squares.
    for each in (solution, noisy):
        squares = each.standard_errors**2 - each.stats["noise_errors"] ** 2
        np.testing.assert_allclose(jnp.sqrt(squares), roots, rtol=0.1)
    assert np.all(noisy.standard_errors > 1.1 * roots)


def test_four_equal_records_of_a_user_say_as_much_as_one():
    features, noise = bounded()
    data = features[:5_000], features[:5_000] @ WEIGHTS + np.clip(noise[:5_000], -1, 1)
    again = tuple(np.repeat(x, 4, axis=0) for x in data)
    places = np.random.default_rng(0).permutation(20_000)
    shuffled = [x[places] for x in again]
    users = by_user(shuffled, places // 4, num_users=5_000, records_per_user=4)
    one, four, apart = (solve(data=x, epsilon=50.0) for x in (data, users, again))
    assert "any one of the 5,000 users" in four.privacy.description
    assert four.privacy.dp_event == one.privacy.dp_event
    assert four.stats["noise_multiplier"] == 4 * one.stats["noise_multiplier"]
    by_sampling = [
        np.sqrt(x.standard_errors**2 - x.stats["noise_errors"] ** 2)
        for x in (one, four, apart)
    ]
    np.testing.assert_allclose(by_sampling[1], by_sampling[0], rtol=0.1)
    np.testing.assert_allclose(by_sampling[2], by_sampling[0] / 2, rtol=0.1)


@pytest.mark.parametrize(("num", "level"), [(1, 0.5), (2, 0.9), (4, 0.9), (200, 0.9)])
def test_intervals_of_sums_hold_them_alone_and_together(num, level):
    rng = np.random.default_rng(num)
    matrix = rng.normal(size=(num, 3))
    errors = np.abs(matrix @ ROOT @ rng.normal(size=(3, 100_000)))
    low, high = NORMAL.interval_of(matrix, level)
    np.testing.assert_allclose((low + high) / 2, matrix @ PARAMS, atol=1e-5)
    is_in = errors < np.asarray(high - low)[:, None] / 2
    np.testing.assert_allclose(np.mean(is_in, axis=1), level, atol=0.01)
    wide = jax.jit(lambda x: x.interval_of(matrix, level, simultaneous=True))(NORMAL)
    is_in = errors < np.asarray(wide[1] - wide[0])[:, None] / 2
    assert level - 0.005 < np.mean(np.all(is_in, axis=0)) < level + 0.08


def test_intervals_of_single_coefficients_are_those_of_sums():
    for how in ({}, {"simultaneous": True}):
        low, high = ends = NORMAL.interval(0.9, **how)
        of_each = NORMAL.interval_of(np.eye(3), 0.9, **how)
        np.testing.assert_allclose(of_each, ends, 1e-6)
        half = stats.norm.isf(0.05 / (3 if how else 1)) * ERRORS
        np.testing.assert_allclose((high - low) / 2, half, rtol=1e-5)
    unknown = dataclasses.replace(NORMAL, standard_errors=jnp.array([1, 1, jnp.inf]))
    low, high = unknown.interval_of([[1, -1, 0], [0, 0, 1e-9], [0, 0, 0]])
    assert 0.1 < high[0] - low[0] < 2
    assert low[1] == -jnp.inf < high[1] == jnp.inf
    assert low[2] == high[2] == 0


MEANS = dataclasses.replace(NORMAL, correlations=None)
test_sums_that_do_not_fit_are_named = refused(
    lambda call: call(),
    (lambda: NORMAL.interval_of([1.0, 2.0, 3.0]), "matrix must be of shape .n, 3"),
    (lambda: NORMAL.interval_of([["a secret"] * 3]), "matrix must be numbers, got str"),
    (lambda: NORMAL.interval_of(np.eye(3), 1.0), "level must be strictly between"),
    (lambda: MEANS.interval_of(np.eye(3)), "params must be those of a linear model"),
)


def test_the_price_is_that_of_the_call():
    data = bounded()
    solution, plain = (solve(data=data, intervals=x) for x in (True, False))
    assert solution.privacy == plain.privacy
    assert plain.standard_errors is None
    assert plain.correlations is None
    with pytest.raises(
        ValueError, match="standard_errors must be given for an interval"
    ):
        plain.interval()
    with pytest.raises(ValueError, match="standard_errors must be given"):
        plain.interval_of(np.eye(4))
    for level in (0.0, 1.0, 95, np.nan):
        with pytest.raises(ValueError, match="level must be strictly between 0 and 1"):
            solution.interval(level)
    # More noise has wider errors.
    assert jnp.all(solve(epsilon=0.3).standard_errors > 1.5 * solve().standard_errors)
    # A tail too heavy for an excess, and few records, have no interval.
    cauchy = np.asarray(jax.random.cauchy(jax.random.key(7), (NUM,)))
    assert jnp.all(jnp.isinf(solve(data=(data[0], cauchy)).standard_errors))
    few = solve(data=(data[0][:150], data[1][:150]))
    assert jnp.all(jnp.isinf(few.standard_errors))
    assert jnp.all(jnp.isinf(few.stats["noise_errors"]))


@pytest.mark.parametrize("num", [2_000, 20_000])
def test_few_records_and_rare_outcomes_have_intervals(num):
    is_few, rng = num == 2_000, np.random.default_rng(0)
    features = np.c_[rng.normal(size=(num, 3)), np.ones(num)]
    truth = WEIGHTS if is_few else WEIGHTS - [0, 0, 0, 4]
    targets = features @ truth + rng.logistic(size=num)
    if not is_few:  # 3 percent of positives
        targets = np.sign(targets)
    loss = "squared" if is_few else "logistic"
    solution = solve(loss, (features, targets), epsilon=1.0)
    errors, stats = solution.standard_errors, solution.stats
    assert jnp.all(errors < 0.5)
    assert jnp.all(jnp.abs(solution.params - truth) < 4 * errors)
    assert stats["num_hidden"] == 0
    assert bool(stats["is_asymptotic"]) == (
        not is_few and stats["tail_share"] <= 0.25 and stats["curvature_error"] <= 0.5
    )
    # Errors grow on the way to hidden directions, and more budget makes them smaller.
    rich = solve(loss, (features, targets), epsilon=3.0)
    assert rich.stats["curvature_error"] < stats["curvature_error"]
    assert jnp.all(rich.standard_errors < errors)


test_what_has_no_intervals_is_named = refused(
    lambda changes: solve(**changes),
    ({"loss": losses.log_link(1.5)}, "loss must be squared, logistic, Huber, Pois"),
    ({"data": (np.ones((9, 1)), np.ones(9)), "intercept": 0}, "features must be"),
)


def test_a_bound_is_exceeded_by_about_as_many_as_it_says(key):
    sizes = jnp.exp(jax.random.normal(key, 20_000))
    above = [
        float(jnp.sum(sizes > noisy_bound(one, sizes, noise_multiplier=10.0)))
        for one in jax.random.split(jax.random.key(0), 20)
    ]
    # The noise of a count is a third of the number, and a size is one of eight.
    assert _noisy_quantile.num_above(10.0) == 90
    assert 60 < np.mean(above) < 140
    assert max(above) < 250
    nothing = noisy_bound(key, jnp.full(5, jnp.nan), noise_multiplier=1.0)
    assert 2.0**-20 <= nothing < 2.0**-19.8
    lower = noisy_bound(key, sizes, noise_multiplier=10.0, least=1_000)
    assert 900 < float(jnp.sum(sizes > lower)) < 1_500


def test_every_step_of_a_bisection_has_its_own_noise(key, monkeypatch):
    seen = []

    def spy(key, value, stddev):
        seen.append(tuple(jax.random.key_data(key).tolist()))
        return value

    monkeypatch.setattr(_noisy_quantile, "gaussian", spy)
    with jax.disable_jit():
        noisy_bound(key, jnp.ones(3), noise_multiplier=1.0)
    assert len(set(seen)) == len(seen) > 1


@pytest.mark.parametrize("noise_multiplier", [1e-3, 1.0, 4.0, 1e6])
def test_shares_add_up_and_leave_scores_more_of_many_records(noise_multiplier):
    for d in (1, 10, 1_000):
        scores = []
        for n in (2, 10**4, 10**6, 10**9):
            shares = _intervals._shares((n, d), noise_multiplier)
            assert math.isclose(math.fsum(shares.values()), 1.0, rel_tol=1e-15)
            assert min(shares.values()) > 0
            scores.append(shares["scores"])
        assert 0.359 < scores[0] <= scores[1] <= scores[2] <= scores[3] < 1


@pytest.mark.parametrize(("index", "ratio"), [(2.0, 1.0), (6.0, 1 / 31)])
def test_an_excess_is_that_of_a_pareto_tail(index, ratio, key):
    sizes = (1 - (np.arange(100_000) + 0.5) / 100_000) ** (-1 / index)
    bound = np.float32(200 ** (1 / index))  # 500 are above it
    beyond = np.maximum(sizes - bound, 0).sum()
    below = np.clip(sizes - bound / 2, 0, bound / 2).sum()
    assert beyond == pytest.approx(ratio * below, rel=0.06)
    sizes, options = jnp.float32(sizes), {"noise_multiplier": 20.0, "usual": 0.15}
    excesses = jax.vmap(lambda key: noisy_excess(key, sizes, bound, **options))(
        jax.random.split(key, 200)
    )
    assert np.mean(excesses.ratio) == pytest.approx(ratio, rel=0.1)
    # The error also counts the sampling of magnitudes, which are fixed here.
    error = float(np.mean(excesses.error))
    assert 0.6 * error < np.std(excesses.ratio) < 1.1 * error
    assert jnp.all(excesses.share < _noisy_quantile.MOST_SHARE)
    key, few = jax.random.key(0), jnp.zeros(5)
    nothing = noisy_excess(key, few, jnp.float32(1), noise_multiplier=1.0, usual=0.15)
    assert 0 <= nothing.ratio <= 2
    assert nothing.share == 1  # there may be a gap below the bound
