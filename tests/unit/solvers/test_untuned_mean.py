"""The private mean without settings: its error, its interval, hostile samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.estimators import Clipping
from dpjax.solvers import dp_mean
from tests.unit.refusals import refused

BUDGET = {"epsilon": 1.0, "delta": 1e-5}


def solve(samples, seed=0, **changes):
    return dp_mean(samples, key=jax.random.key(seed), **BUDGET | changes)


def laws(rng, name, shape):
    """Draws, with their mean and their standard deviation."""
    if name == "normal":
        return rng.standard_normal(shape), 0.0, 1.0
    if name == "student":
        return rng.standard_t(2.5, shape), 0.0, 5**0.5
    return rng.lognormal(0.0, 1.0, shape), np.exp(0.5), (np.e * (np.e - 1)) ** 0.5


@pytest.mark.parametrize("law", ["normal", "student", "lognormal"])
@pytest.mark.parametrize("num_columns", [1, 4])
def test_units_and_places_do_not_matter(law, num_columns):
    num_samples = 8_000
    z, mean, stddev = laws(np.random.default_rng(0), law, (num_samples, num_columns))
    places = np.array([1e6, -3.0, 0.0, 2e-3])[:num_columns]
    units = np.array([10.0, 1e3, 1.0, 1e-3])[:num_columns]
    released = solve(places + units * z)
    off = (np.asarray(released.params) - places) / units - mean
    # Noise, bias of clipping, and float32's steps of 1e6.
    assert np.all(np.abs(off) < 5 * stddev / num_samples**0.5 + 0.15 * stddev)
    errors = np.asarray(released.standard_errors) / units
    least = stddev / num_samples**0.5
    assert np.all(errors > (0.3 if law == "student" else 0.8) * least)
    assert np.all(errors < 8 * least)


def test_many_records():
    samples = np.random.default_rng(5).standard_normal(100_000) + 3
    low, high = solve(samples).interval(0.999)
    assert low < 3 < high < low + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("law", ["normal", "student", "lognormal"])
def test_intervals_cover(law):
    num_runs, num_samples = 400, 20_000
    rng = np.random.default_rng(1)
    z, mean, _ = laws(rng, law, (num_runs, num_samples))
    keys = jax.random.split(jax.random.key(2), num_runs)

    @jax.jit
    def intervals(keys, samples):
        def one(key, x):
            return dp_mean(x, key=key, **BUDGET).interval()

        return jax.lax.map(lambda each: one(*each), (keys, samples))

    low, high = np.asarray(intervals(keys, z.astype(np.float32))).T
    covered = np.mean((low < mean) & (mean < high))
    assert covered > 0.9  # 93 per cent less what 400 runs may miss: 1 in 100


@pytest.mark.slow
def test_an_interval_counts_the_noise():
    num_runs = 200
    keys = jax.random.split(jax.random.key(3), num_runs)
    samples = np.random.default_rng(2).standard_normal(4_000)

    def one(key):
        found = dp_mean(samples, key=key, epsilon=0.1, delta=1e-5)
        return found.params, found.standard_errors

    means, errors = jax.jit(jax.vmap(one))(keys)
    # The samples are the same: all that moves is noise, most of the width.
    noise = np.std(np.asarray(means))
    assert noise > 2 / 4_000**0.5
    assert noise < 1.2 * np.median(np.asarray(errors))


def test_an_interval_counts_records_beyond_empty_lengths():
    samples = np.random.default_rng(0).standard_normal(10_000)
    samples[:50] = 25.0  # no other number is beyond 5

    @jax.jit
    @jax.vmap
    def interval(key):
        return dp_mean(samples, key=key, epsilon=1.0, delta=4e-5).interval()

    low, high = np.asarray(interval(jax.random.split(jax.random.key(0), 20))).T
    assert np.sum((low < samples.mean()) & (samples.mean() < high)) >= 18


def test_a_pytree_is_one_row():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((8_000, 5)) + np.arange(5)
    tree = {
        "a": rows[:, 0].astype("float16"),
        "b": rows[:, 1:].reshape(-1, 2, 2),
    }
    released = solve(tree)
    assert released.params["a"].shape == ()
    assert released.params["b"].shape == (2, 2)
    assert released.params["a"].dtype == jnp.float32
    low, high = np.asarray(released.interval(0.999)["b"])
    means = np.array([[1, 2], [3, 4]])
    assert np.all((low < means) & (means < high))
    alone = solve(np.concatenate([np.float32(tree["a"])[:, None], rows[:, 1:]], axis=1))
    np.testing.assert_array_equal(np.ravel(released.params["b"]), alone.params[1:])


HOSTILE = {
    "one record": np.array([[3.0, 1.0]]),
    "constant": np.full((300, 2), 7.0),
    "zeros": np.zeros((300, 2)),
    "NaN": np.full((300, 2), np.nan),
    "infinities": np.full((300, 2), np.inf),
    "collinear": np.arange(300.0)[:, None] * np.ones(2),
    "far": np.full((300, 2), 1e300),
    "integers": np.arange(600).reshape(300, 2),
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", HOSTILE)
def test_an_interval_is_never_a_point(name):
    found = solve(HOSTILE[name])
    assert np.all(np.isfinite(found.params))
    assert np.all(np.asarray(found.standard_errors) > 0)
    low, high = found.interval(0.5)
    assert np.all(low < high)


def test_a_record_beyond_all_counts_as_the_center():
    samples = np.random.default_rng(4).standard_normal((8_000, 4)) + 5
    plain = solve(samples)
    for far in (np.nan, np.inf, 1e300):
        moved = solve(np.concatenate([samples[1:], [[far, 1.0, 1.0, 1.0]]]))
        np.testing.assert_allclose(moved.params, plain.params, atol=0.03)


@pytest.mark.parametrize("law", ["normal", "student", "cauchy"])
def test_the_geometric_median_is_the_mean_of_symmetric_laws_of_any_tail(law):
    rng, n = np.random.default_rng(4), 20_000
    z = rng.standard_normal((n, 4))
    tail = {"normal": 1.0, "student": rng.chisquare(2.5, (n, 1)) / 2.5}
    z /= np.sqrt(tail.get(law, rng.chisquare(1, (n, 1))))
    places, units = np.array([1e6, -3.0, 0.0, 2e-3]), np.array([10.0, 1e3, 1.0, 1e-3])
    z[:, 1] += 2 * z[:, 0]  # an ellipse
    released = solve(places + units * z, method="geometric_median")
    off = (np.asarray(released.params) - places) / units
    assert np.all(np.abs(off) < 0.1)
    assert released.standard_errors is None


def test_the_geometric_median_of_a_tree_and_of_one_number():
    rng = np.random.default_rng(6)
    tree = {"a": rng.standard_normal((20_000, 3, 1)), "b": rng.standard_normal(20_000)}
    params = solve(tree, method="geometric_median").params
    assert params["a"].shape == (3, 1)
    assert params["b"].shape == ()
    with pytest.raises(ValueError, match="at least two numbers"):
        solve(tree["b"], method="geometric_median")


test_bad_methods = refused(
    lambda changes: solve(np.ones((100, 2)), **changes),
    (
        {"method": "geometric_median", "estimator": Clipping(1.0)},
        "method must be left out with an estimator",
    ),
)
