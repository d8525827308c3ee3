"""Private LASSO: its sensitivity at any radius, and its budget."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.solvers import dp_lasso
from dpjax.solvers.papers._frank_wolfe import _scaled_squared


def solve(fit=dp_lasso, **changes):
    features = jax.random.normal(jax.random.key(0), (90, 3))
    options = {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-5}
    return fit(features, features[:, 0], **(options | changes))


def test_sensitivity_is_that_of_clipped_records():
    for radius in (0.5, 1.0, 7.0):
        stats = solve(radius=radius, threshold=2.0, num_steps=5).stats
        # g / (1 + ||w||_1) moves by 2 K^2 / n.
        assert float(stats["linf_sensitivity"]) == pytest.approx(8 / 90, rel=3e-3)
        assert float(stats["linf_sensitivity"]) >= 8 / 90


def test_one_record_beyond_the_threshold_counts_as_one_at_it():
    x = np.array([[1.0, 0.0], *[[0.0, 1.0]] * 39], np.float32)
    y = np.array([1.0] * 40, np.float32)
    options = {"epsilon": 1e6, "delta": 1e-5, "threshold": 1.0, "num_steps": 40}
    params = [
        dp_lasso(size * x, size * y, key=jax.random.key(0), **options).params
        for size in (1.0, 1e9)
    ]
    np.testing.assert_array_equal(*params)


def test_the_scaled_gradient_keeps_its_bound_wherever_the_weights_are():
    rng = np.random.default_rng(0)
    for norm in (0.0, 0.3, 1.0, 50.0):
        x = rng.choice([-2.0, 2.0], (500, 4)).astype(np.float32)
        y = rng.choice([-2.0, 2.0], 500).astype(np.float32)
        w = norm * rng.dirichlet(np.ones(4)).astype(np.float32)
        w *= rng.choice([-1, 1], 4).astype(np.float32)
        x[0] = 2 * np.sign(w + 1e-9)
        y[0] = -2.0
        grads = jax.vmap(jax.grad(_scaled_squared), (None, 0))(w, (x, y))
        assert float(jnp.abs(grads).max()) == pytest.approx(4.0, rel=1e-5)
