"""Private means: without settings, and trimmed; their errors, hostile samples."""

import math

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting, solvers
from dpjax.batching import Disjoint, Poisson, WithoutReplacement
from dpjax.estimators import Clipping, MedianOfMeans, TrimmedMean, Truncation
from dpjax.solvers.statistics._mean import Shares
from tests.unit.refusals import refused
from tests.unit.solvers import test_gradient_descent

BUDGET = {"epsilon": 1.0, "delta": 1e-5}
PLACES, UNITS = np.array([1e6, -3.0, 0.0, 2e-3]), np.array([10.0, 1e3, 1.0, 1e-3])


def solve(samples, seed=0, **changes):
    return solvers.dp_mean(samples, key=jax.random.key(seed), **BUDGET | changes)


def laws(rng, name, shape):
    """Returns draws, with their mean and their standard deviation."""
    if name == "normal":
        return rng.standard_normal(shape), 0.0, 1.0
    if name == "student":
        return rng.standard_t(2.5, shape), 0.0, 5**0.5
    return rng.lognormal(0.0, 1.0, shape), np.exp(0.5), (np.e * (np.e - 1)) ** 0.5


@pytest.mark.parametrize(
    ("law", "num_columns"), [("normal", 1), ("student", 4), ("lognormal", 4)]
)
def test_units_and_places_do_not_matter(law, num_columns):
    num_samples = 8_000
    z, mean, stddev = laws(np.random.default_rng(0), law, (num_samples, num_columns))
    places, units = PLACES[:num_columns], UNITS[:num_columns]
    released = solve(places + units * z)
    off = (np.asarray(released.params) - places) / units - mean
    # Noise, bias of clipping, and float32's steps of 1e6.
    assert np.all(np.abs(off) < 5 * stddev / num_samples**0.5 + 0.15 * stddev)
    errors = np.asarray(released.standard_errors) / units
    least = stddev / num_samples**0.5
    assert np.all(errors > (0.3 if law == "student" else 0.8) * least)
    assert np.all(errors < 8 * least)


def test_a_pytree_is_a_row():
    rows = np.random.default_rng(3).standard_normal((8_000, 5)) + np.arange(5)
    tree = {"a": rows[:, 0].astype("float16"), "b": rows[:, 1:].reshape(-1, 2, 2)}
    released = solve(tree)
    assert (released.params["a"].shape, released.params["b"].shape) == ((), (2, 2))
    assert released.params["a"].dtype == jnp.float32
    low, high = np.asarray(released.interval(0.999)["b"])
    means = np.array([[1, 2], [3, 4]])
    assert np.all((low < means) & (means < high))
    flat = solve(np.concatenate([np.float32(tree["a"])[:, None], rows[:, 1:]], axis=1))
    np.testing.assert_array_equal(np.ravel(released.params["b"]), flat.params[1:])


@pytest.mark.parametrize("x", [7.0, np.nan, np.inf, np.arange(300.0)[:, None], 1e300])
def test_an_interval_is_never_a_point(x):
    solution = solve(x * np.ones((300, 2)))
    assert np.all(np.isfinite(solution.params))
    assert np.all(np.asarray(solution.standard_errors) > 0)
    low, high = solution.interval(0.5)
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
    z[:, 1] += 2 * z[:, 0]  # an ellipse
    samples = PLACES + UNITS * z
    if law == "normal":
        samples = {"a": samples[:, :3].reshape(n, 3, 1), "b": samples[:, 3]}
    released = solve(samples, method="geometric_median")
    leaves = jax.tree.leaves(released.params)
    assert [x.shape for x in leaves] == ([(3, 1), ()] if law == "normal" else [(4,)])
    off = (np.concatenate([np.ravel(x) for x in leaves]) - PLACES) / UNITS
    assert np.all(np.abs(off) < 0.1)
    assert released.standard_errors is None


def test_the_shares_of_the_budget_add_up_to_it():
    for shape in ((1_000, 3), (50, 1), (10**6, 40)):
        assert math.fsum(share for share in Shares.of(shape, 1.0) if share) <= 1 + 1e-9


# -- Trimmed means: with noise by their smooth sensitivity ----------------------------
TRIMMED = TrimmedMean(0.05, lower=-5.0, upper=5.0)


def samples(num_samples=20_000):
    noise = np.random.default_rng(0).standard_t(2.5, (num_samples, 2))
    return jnp.asarray(noise + np.array([1.0, -2.0]), jnp.float32)


def descend(**changes):
    options = {"data": samples(200), "estimator": TRIMMED, "learning_rate": 0.5}
    return test_gradient_descent.descend(**options | changes)


def test_trimmed_means_are_found_with_little_noise():
    # Noise for the whole range would be seen: 3.7 (upper - lower) sqrt(2).
    params = solve(samples(), estimator=TRIMMED).params
    np.testing.assert_allclose(params, [1.0, -2.0], atol=0.1)
    params = descend(data=samples(), num_steps=6).params
    np.testing.assert_allclose(params, [1.0, -2.0], atol=0.2)


def test_budgets_of_trimmed_means():
    rho = accounting.epsilon_to_rho(1.0, 1e-5)
    full = descend()
    assert full.stats["rho"] == pytest.approx(rho / 4)
    assert (full.stats["batch_size"], full.privacy.epsilon) == (200, 1.0)
    assert full.privacy.dp_event.count == 4
    accountant = dp_accounting.rdp.RdpAccountant().compose(full.privacy.dp_event)
    assert 1.0 <= accountant.get_epsilon(1e-5) <= 1.1
    # One release takes the whole budget.
    disjoint = descend(batching=Disjoint())
    assert disjoint.stats["rho"] == pytest.approx(rho)
    assert disjoint.stats["batch_size"] == 50
    single = solve(samples(200), estimator=TRIMMED)
    assert single.stats["rho"] == pytest.approx(rho)
    assert single.stats["noise_multiplier"] == pytest.approx((2 * rho) ** -0.5)


test_batches_that_do_not_fit_a_trimmed_mean_are_named = refused(
    lambda changes: descend(**changes),
    ({"batching": Poisson(20.0)}, r"batching must be Full\(\) or Disjoint\(\)"),
    ({"batching": WithoutReplacement(20)}, r"batching must be Full\(\) or Disjoint"),
    (
        {"batching": Disjoint(), "num_steps": 100},
        "num_samples must be more than the 2 samples that are trimmed",
    ),
    ({"estimator": MedianOfMeans(Truncation(1.0), 201)}, "at least num_groups = 201"),
)
test_methods_that_do_not_fit_are_named = refused(
    lambda options: solve(np.ones((9, 1)), method="geometric_median", **options),
    ({}, r"of two or more numbers .* got \(\d+, 1\)"),
    ({"estimator": Clipping(1.0)}, "method must be 'clipped', the default"),
)
