"""Trimmed means: found with noise by their smooth sensitivity, at the budget."""

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting
from dpjax.batching import Disjoint, Poisson, WithoutReplacement
from dpjax.estimators import MedianOfMeans, TrimmedMean, Truncation
from dpjax.solvers import dp_gradient_descent, dp_mean
from tests.unit.refusals import refused

TRIMMED = TrimmedMean(0.05, lower=-5.0, upper=5.0)


def mean(samples, **changes):
    options = {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-5}
    return dp_mean(samples, **options | changes)


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


test_bad_arguments_are_named = refused(
    lambda changes: descend(**changes),
    ({"batching": Poisson(20.0)}, r"batching must be Full\(\) or Disjoint\(\)"),
    ({"batching": WithoutReplacement(20)}, r"batching must be Full\(\) or Disjoint"),
    (
        {"batching": Disjoint(), "num_steps": 100},
        "num_samples must be more than the 2 samples that are trimmed",
    ),
    ({"estimator": MedianOfMeans(Truncation(1.0), 201)}, "at least num_groups = 201"),
)
