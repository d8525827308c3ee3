"""Linear models of many shapes and losses: what they find, compiled as users do."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import losses, solvers
from dpjax.solvers.linear import _kind
from tests.unit.solvers.linear.test_model import NUM, TRUE, solve, table

BAD = {
    "all NaN": lambda x, y: (np.full_like(x, np.nan), np.full_like(y, np.nan)),
    "huge": lambda x, y: (np.full_like(x, 1e38), np.full_like(y, -1e38)),
    "infinite": lambda x, y: (np.full_like(x, np.inf), np.full_like(y, np.inf)),
    "equal targets": lambda x, y: (x, np.full_like(y, 5.0)),
    "constant columns": lambda x, y: (np.ones_like(x), y),
    "zeros": lambda x, y: (np.zeros_like(x), np.zeros_like(y)),
    "one record": lambda x, y: (x[:1], y[:1]),
    "few records": lambda x, y: (x[:3], y[:3]),
}
HAVE_NO_ERRORS = {"all NaN", "zeros", "constant columns", "one record", "few records"}


def with_intervals(loss="squared", data=None, **changes):
    return solve(loss, data, **{"intervals": True} | changes)


def test_a_constant_alone_has_its_offsets():
    rng = np.random.default_rng(0)
    exposures = rng.uniform(0.2, 1.0, NUM)
    data = np.ones((NUM, 1)), rng.poisson(2 * exposures)
    options = {"intercept": 0, "offsets": np.log(exposures)}
    solution = solve(losses.poisson(10.0), data, **options)
    np.testing.assert_allclose(solution.params, [math.log(2)], atol=0.2)


def test_long_rows_of_no_use_cost_little():
    # The best constant has 0.5004. A center with the noise of long rows left 0.66.
    rng = np.random.default_rng(0)
    features = np.c_[rng.normal(0.7, 0.5, size=(20_000, 150)), np.ones(20_000)]
    labels = np.where(rng.random(20_000) < 0.2, 1.0, -1.0)
    options = {"epsilon": 0.1, "intercept": 150}
    keys = jax.random.split(jax.random.key(0), 4)
    solutions = [solve("logistic", (features, labels), key=k, **options) for k in keys]
    margins = labels[:, None] * (features @ np.transpose([x.params for x in solutions]))
    assert np.mean(np.logaddexp(0, -margins)) < 0.55


def test_the_huber_loss_of_a_constant_alone_and_of_offsets():
    _, _, noise = table()
    noise[:200] = 1e9
    offsets = np.where(np.arange(NUM) % 3 == 0, -1e4, 1.0)
    data = np.ones((NUM, 1)), 7 + noise + offsets
    solution = solve("huber", data, intercept=0, offsets=offsets)
    np.testing.assert_allclose(solution.params, [7], atol=0.3)
    # Half of the records have weight zero: scales are those of the others.
    weights = np.arange(NUM) % 2
    features, means, noise = table()
    targets = np.where(weights, means + noise, 1e12)
    solution = solve("huber", (features, targets), weights=weights)
    np.testing.assert_allclose(solution.params, TRUE, atol=0.4)


@pytest.mark.parametrize("most", [1.0, 0.1])
def test_the_constant_of_counts_is_the_rate_of_a_unit_of_exposure(most):
    rng = np.random.default_rng(0)
    features = np.c_[rng.uniform(-1, 1, (5 * NUM, 2)), np.ones(5 * NUM)]
    exposures = most * rng.uniform(0.05, 1.0, 5 * NUM)
    counts = rng.poisson(exposures * np.exp(features @ [0.8, -0.5, 0.3]))
    options = {"intercept": 2, "offsets": np.log(exposures)}
    solution = solve(losses.poisson(10.0), data=(features, counts), **options)
    rate = np.sum(counts) / np.sum(exposures)
    np.testing.assert_allclose(solution.stats["constant"], np.log(rate), atol=0.3)
    np.testing.assert_allclose(solution.params, [0.8, -0.5, 0.3], atol=0.2)


@pytest.mark.parametrize("intercept", [None, 0])
def test_the_chosen_features_are_those_with_weights(intercept):
    rng = np.random.default_rng(0)
    features = rng.standard_t(5, (5_000, 300))
    features[:, 0] = 1
    targets = features[:, [7, 50, 200]] @ [1.0, -0.7, 0.5] + rng.standard_t(3, 5_000)
    options = {"epsilon": 4.0, "intercept": intercept, "max_features": 4}
    solution = solve(data=(features, targets), **options)
    chosen = set(np.flatnonzero(solution.params).tolist()) - {intercept}
    assert {7, 50, 200} <= chosen
    assert len(chosen) == 4
    assert chosen == set(np.asarray(solution.stats["selected"]).tolist())


def test_a_callback_sees_every_iterate():
    seen = []

    def callback(step, params):
        seen.append((int(step), params))

    solve("logistic", epsilon=0.1, execution=solvers.Execution(callback=callback))
    jax.effects_barrier()
    assert sorted(step for step, _ in seen) == list(range(1, 51))
    assert set(seen[0][1]) == {"weights", "intercept"}


def test_features_of_all_records_are_never_held():
    def program(columns):
        def function(_, x):
            return jnp.tanh(jnp.tile(x, (1, 64)) @ jnp.ones((64, 1), x.dtype))

        return _kind.by_block(function, (), columns, width=64, axis_name=None)

    columns = jax.ShapeDtypeStruct((2**18, 1), "float32")
    memory = jax.jit(program).lower(columns).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 2**18 * 64 * 4 / 4


def test_errors_of_narrow_data_are_narrow_where_wide_ones_are_enabled():
    features, means, _ = table()
    with jax.enable_x64(True):
        data = jnp.asarray(features, jnp.float32), jnp.asarray(means, jnp.float32)
        errors = jax.eval_shape(lambda x: with_intervals(data=x).standard_errors, data)
    assert errors.dtype == jnp.float32


@pytest.mark.parametrize("unit", [1e-4, 1e6])
def test_units_of_targets_are_units_of_errors(unit):
    features, means, noise = table()
    solution = with_intervals(data=(features, unit * (means + noise)))
    # Bounds are powers of 2^(1/8) in any unit.
    expected = with_intervals().standard_errors
    np.testing.assert_allclose(solution.standard_errors / unit, expected, rtol=0.3)


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber"])
@pytest.mark.parametrize("name", BAD)
def test_errors_are_infinite_or_positive_whatever_the_values(name, loss):
    features, means, noise = table(num=200)
    data = BAD[name](features, means + noise)
    solution = with_intervals(loss, data, delta=1e-3)
    assert jnp.all(jnp.isfinite(solution.params))
    assert jnp.all(solution.standard_errors > 0)
    # The Newton step replaces NaN by zeros, so that a fit alone is looked at too.
    alone = solve(loss, data, delta=1e-3)
    assert jnp.all(jnp.isfinite(alone.params))
    assert alone.privacy.epsilon == 8.0
    if name in HAVE_NO_ERRORS:
        assert jnp.all(jnp.isinf(solution.standard_errors[:3]))


@pytest.mark.parametrize("intercept", [3, None])
def test_directions_that_the_noise_hides_have_no_interval(intercept):
    columns, _, noise = table(num=20_000)
    # Two columns that are the same, one of numbers that are none, and one of use.
    features = np.c_[columns[:, [0, 0, 1, 3]], np.full(20_000, np.nan, np.float32)]
    data = features, 2 * columns[:, 1] + columns[:, 0] + 1 + noise
    solution = with_intervals(data=data, intercept=intercept, epsilon=3.0)
    is_hidden = np.isinf(solution.standard_errors)
    assert is_hidden.tolist() == [True, True, False, False, True]
    assert np.all(np.isfinite(solution.correlations))
    assert np.all(solution.correlations[is_hidden] == np.eye(5)[is_hidden])
    assert solution.stats["num_hidden"] == 2
    low, high = np.asarray(solution.interval(0.9999))
    assert np.all((low <= [0, 0, 2, 1, 0]) & (high >= [0, 0, 2, 1, 0]))
