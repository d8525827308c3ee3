"""Trimmed means in solvers: noise by smooth sensitivity, budgets, refusals."""

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting
from dpjax.batching import Disjoint, Poisson, WithoutReplacement
from dpjax.estimators import TrimmedMean
from dpjax.solvers import dp_gradient_descent, dp_mean
from tests.unit.refusals import refused

ESTIMATOR = TrimmedMean(0.05, lower=-5.0, upper=5.0)


def location(params, example):
    return 0.5 * jnp.sum((params - example) ** 2)


def samples(num_samples=20_000, num_features=2):
    noise = np.random.default_rng(0).standard_t(2.5, (num_samples, num_features))
    return jnp.asarray(noise + np.array([1.0, -2.0]), jnp.float32)


def descend(data=None, **changes):
    options = {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-5}
    options |= {"estimator": ESTIMATOR, "learning_rate": 0.5, "num_steps": 4}
    data = samples(200) if data is None else data
    return dp_gradient_descent(location, jnp.zeros(2), data, **(options | changes))


def test_the_mean_is_found_with_little_noise():
    data = samples()
    solution = dp_mean(
        data, key=jax.random.key(1), epsilon=1.0, delta=1e-5, estimator=ESTIMATOR
    )
    np.testing.assert_allclose(solution.params, [1.0, -2.0], atol=0.1)
    # Noise for the whole range would be seen: 3.7 (upper - lower) sqrt(2).


@pytest.mark.slow
def test_descent_finds_the_mean():
    descent = descend(samples(), num_steps=6)
    np.testing.assert_allclose(descent.params, [1.0, -2.0], atol=0.2)


def test_budgets():
    rho = accounting.epsilon_to_rho(1.0, 1e-5)
    full = descend()
    assert full.stats["rho"] == pytest.approx(rho / 4)
    assert full.stats["batch_size"] == 200
    assert full.privacy.epsilon == 1.0
    assert full.privacy.dp_event.count == 4
    accountant = dp_accounting.rdp.RdpAccountant().compose(full.privacy.dp_event)
    assert 1.0 <= accountant.get_epsilon(1e-5) <= 1.1


@pytest.mark.quick(1)
@pytest.mark.parametrize("solver", ["dp_mean", "dp_gradient_descent"])
def test_one_release_takes_the_whole_budget(solver):
    rho = accounting.epsilon_to_rho(1.0, 1e-5)
    if solver == "dp_gradient_descent":
        disjoint = descend(batching=Disjoint())
        assert disjoint.stats["rho"] == pytest.approx(rho)
        assert disjoint.stats["batch_size"] == 50
        return
    mean = dp_mean(
        samples(200),
        key=jax.random.key(2),
        epsilon=1.0,
        delta=1e-5,
        estimator=ESTIMATOR,
    )
    assert mean.stats["rho"] == pytest.approx(rho)
    assert mean.stats["noise_multiplier"] == pytest.approx((2 * rho) ** -0.5)


@pytest.mark.slow
def test_noise_grows_with_outliers_that_are_not_trimmed():
    # All records equal: only e^(-mt) (upper - lower) is left of the sensitivity.
    def spread(data):
        keys = jax.random.split(jax.random.key(3), 300)

        def release(key):
            return dp_mean(
                data, key=key, epsilon=1.0, delta=1e-5, estimator=ESTIMATOR
            ).params

        released = jax.jit(jax.vmap(release))(keys)
        low, high = np.percentile(released, [25, 75])
        return high - low

    equal = jnp.zeros((5_000, 1))
    spread_out = jnp.linspace(-100, 100, 5_000)[:, None]
    assert spread(equal) < spread(spread_out) / 10


test_bad_arguments_are_named = refused(
    lambda changes: descend(**changes),
    ({"batching": Poisson(20.0)}, r"batching must be Full\(\) or Disjoint\(\)"),
    ({"batching": WithoutReplacement(20)}, r"batching must be Full\(\) or Disjoint"),
    (
        {"batching": Disjoint(), "num_steps": 100},
        "num_samples must be more than the 2 samples that are trimmed",
    ),
)
