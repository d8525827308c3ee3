"""The private mean: its noise, and that of trimmed means in other solvers."""

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax import accounting
from dpjax.batching import Disjoint, Poisson, WithoutReplacement
from dpjax.estimators import Clipping, MedianOfMeans, TrimmedMean, Truncation
from dpjax.solvers import dp_gradient_descent, dp_mean
from tests.unit.refusals import refused

TRIMMED = TrimmedMean(0.05, lower=-5.0, upper=5.0)


def mean(samples, **changes):
    options = {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-5}
    return dp_mean(samples, **options | changes)


@pytest.mark.parametrize(
    "estimator", [Clipping(1.0), MedianOfMeans(Truncation(1.0), 4)]
)
def test_noise_has_the_stated_scale(estimator):
    samples = {"a": jnp.zeros((20, 3)), "b": jnp.zeros(20)}

    def solve(key):
        return mean(samples, key=key, estimator=estimator, epsilon=0.7)

    solutions = jax.jit(jax.vmap(solve))(jax.random.split(jax.random.key(5), 1_000))
    stats = jax.tree.map(lambda x: float(x[0]), solutions.stats)
    draws = np.concatenate([np.ravel(x) for x in jax.tree.leaves(solutions.params)])
    total = np.sum(np.square(draws, dtype=np.float64)) / stats["stddev"] ** 2
    law = scipy.stats.chi2(draws.size)  # false alarms: 1e-6
    assert law.ppf(5e-7) < total < law.isf(5e-7)
    assert total / 4 < law.ppf(5e-7)  # half the noise
    sensitivity = estimator.sensitivity(20, 4, rounded=False).l2
    np.testing.assert_allclose(stats["l2_sensitivity"], sensitivity, rtol=1e-5)
    stddev = accounting.gaussian_stddev(0.7, 1e-5, sensitivity=1.0)
    np.testing.assert_allclose(stats["noise_multiplier"], stddev, rtol=1e-6)


def samples(num_samples=20_000):
    noise = np.random.default_rng(0).standard_t(2.5, (num_samples, 2))
    return jnp.asarray(noise + np.array([1.0, -2.0]), jnp.float32)


def descend(data=None, **changes):
    options = {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-5}
    options |= {"estimator": TRIMMED, "learning_rate": 0.5, "num_steps": 4}
    return dp_gradient_descent(
        lambda params, example: 0.5 * jnp.sum((params - example) ** 2),
        jnp.zeros(2),
        samples(200) if data is None else data,
        **(options | changes),
    )


def test_trimmed_means_are_found_with_little_noise():
    # Noise for the whole range would be seen: 3.7 (upper - lower) sqrt(2).
    params = mean(samples(), estimator=TRIMMED).params
    np.testing.assert_allclose(params, [1.0, -2.0], atol=0.1)
    params = descend(samples(), num_steps=6).params
    np.testing.assert_allclose(params, [1.0, -2.0], atol=0.2)


def test_budgets_of_trimmed_means():
    rho = accounting.epsilon_to_rho(1.0, 1e-5)
    full = descend()
    assert full.stats["rho"] == pytest.approx(rho / 4)
    assert full.stats["batch_size"] == 200
    assert full.privacy.epsilon == 1.0
    assert full.privacy.dp_event.count == 4
    accountant = dp_accounting.rdp.RdpAccountant().compose(full.privacy.dp_event)
    assert 1.0 <= accountant.get_epsilon(1e-5) <= 1.1
    # One release takes the whole budget.
    disjoint = descend(batching=Disjoint())
    assert disjoint.stats["rho"] == pytest.approx(rho)
    assert disjoint.stats["batch_size"] == 50
    single = mean(samples(200), estimator=TRIMMED)
    assert single.stats["rho"] == pytest.approx(rho)
    assert single.stats["noise_multiplier"] == pytest.approx((2 * rho) ** -0.5)


def test_noise_of_trimmed_means_grows_with_outliers_that_are_not_trimmed():
    # All records equal: only e^(-mt) (upper - lower) is left of the sensitivity.
    @jax.jit
    @jax.vmap
    def released(key, data):
        return mean(data, key=key, estimator=TRIMMED).params

    def spread(data):
        keys = jax.random.split(jax.random.key(3), 300)
        low, high = np.percentile(released(keys, jnp.tile(data, (300, 1, 1))), [25, 75])
        return high - low

    outliers = jnp.linspace(-100, 100, 1_000)[:, None]
    assert spread(jnp.zeros((1_000, 1))) < spread(outliers) / 10


test_bad_arguments_are_named = refused(
    lambda changes: descend(**changes),
    ({"batching": Poisson(20.0)}, r"batching must be Full\(\) or Disjoint\(\)"),
    ({"batching": WithoutReplacement(20)}, r"batching must be Full\(\) or Disjoint"),
    (
        {"batching": Disjoint(), "num_steps": 100},
        "num_samples must be more than the 2 samples that are trimmed",
    ),
    (
        {"estimator": MedianOfMeans(Truncation(1.0), 201)},
        "at least num_groups = 201",
    ),
)
