"""Sparse solvers: their support, their noise, their sensitivity."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import solvers
from dpjax.estimators import Winsorization
from dpjax.solvers import Execution


def threshold(data=None, solve=solvers.dp_iterative_hard_thresholding, **changes):
    """Hard thresholding along a constant gradient (-0.5, 0.9, 0.1)."""
    data = jnp.tile(jnp.array([-0.5, 0.9, 0.1]), (60, 1)) if data is None else data
    options = {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-5, "sparsity": 2}
    options |= {"estimator": Winsorization(1.0), "learning_rate": 0.5, "num_steps": 3}
    options |= {"loss_fn": jnp.dot, "params": jnp.zeros(3), "data": data}
    return solve(**options | changes)


def regress(features=None, targets=None, **changes):
    if features is None:
        features = jax.random.normal(jax.random.key(0), (100, 3))
    options = {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-5, "sparsity": 2}
    targets = features[:, 0] if targets is None else targets
    return solvers.dp_sparse_linear_regression(features, targets, **options | changes)


def test_the_largest_weights_are_kept_in_a_pytree_too():
    def loss_fn(params, example):
        return jnp.dot(params["w"], example[:2]) + params["b"] * example[2]

    solution = threshold(epsilon=1e6)
    np.testing.assert_allclose(solution.params, [0.75, -1.35, 0.0], atol=1e-3)
    assert solution.params[2] == 0
    params = {"w": jnp.zeros(2), "b": jnp.zeros(())}
    tree = threshold(params=params, loss_fn=loss_fn, epsilon=1e6)
    assert tree.params["b"] == 0
    np.testing.assert_allclose(tree.params["w"], [0.75, -1.35], atol=1e-3)


@pytest.mark.parametrize("num_steps", [1, 4])
def test_per_step_noise_follows_the_weights(num_steps):
    """The stated noise is that of the last step, from the weights before it."""
    norms = {0: 0.0}

    def show(step, params):
        norms[int(step)] = float(jnp.abs(params).sum())

    options = {"threshold": 2.0, "learning_rate": 0.1, "num_steps": num_steps}
    solution = regress(epsilon=1e6, execution=Execution(callback=show), **options)
    exact = 0.1 * 2 * 4 * (1 + norms[num_steps - 1]) / (100 // num_steps)
    assert norms[num_steps] > norms[num_steps - 1] + 0.03  # far beyond the slack
    assert float(solution.stats["linf_sensitivity"]) == pytest.approx(exact, rel=5e-3)
    assert solution.stats["linf_sensitivity"] >= exact


def test_gradients_on_clipped_data_keep_the_stated_sensitivity():
    """One adversarial record replaced: the step moves by at most the stated amount."""
    rng = np.random.default_rng(0)
    features = rng.standard_t(1.5, (50, 4)).astype(np.float32)
    targets = rng.standard_t(1.5, 50).astype(np.float32)
    worst = 0.0
    for value in (3e38, -3e38, np.inf, np.nan, 0.0):
        steps = []
        for sign in (1, -1):
            x, y = features.copy(), targets.copy()
            x[7], y[7] = 1e30, sign * value
            options = {"epsilon": 1e9, "delta": 0.9, "sparsity": 4, "num_steps": 1}
            solution = regress(x, y, threshold=1.0, learning_rate=0.01, **options)
            steps.append(np.asarray(solution.params, np.float64))
        assert np.isfinite(steps).all()
        worst = max(worst, np.abs(steps[0] - steps[1]).max())
    stated = 0.01 * Winsorization(1.0).sensitivity(50, 4).linf
    assert 0.99 * stated < worst < stated * 1.01  # noise of epsilon = 1e9 is left
