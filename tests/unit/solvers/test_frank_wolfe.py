"""Private Frank-Wolfe: optimum, budgets, choices; and the Lasso's sensitivity."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import rdp

from dpjax.constraints import L1Ball, Polytope, Simplex
from dpjax.estimators import Clipping, Winsorization
from dpjax.solvers import dp_frank_wolfe, dp_lasso
from dpjax.solvers.papers._frank_wolfe import _scaled_squared


def solve(data=None, params=None, fit=dp_frank_wolfe, **changes):
    """Of a loss whose gradient is the example, whatever the parameters are."""
    data = jnp.tile(jnp.array([0.2, -0.9, 0.1]), (60, 1)) if data is None else data
    options = {"key": jax.random.key(1), "epsilon": 1.0, "constraint": L1Ball(1.0)}
    options |= {"estimator": Winsorization(1.0)} | changes
    return fit(jnp.dot, jnp.zeros(3) if params is None else params, data, **options)


@pytest.mark.parametrize(
    ("constraint", "estimator"),
    [
        (L1Ball(2.0), None),
        (Simplex(2.0), Clipping(1.0)),
        (Polytope(np.array([[0, 0, 0], [0, 2, 0], [3, 0, 1.0]])), Winsorization(1.0)),
    ],
)
def test_great_epsilon_finds_the_best_vertex(constraint, estimator):
    # T steps of 2 / (t + 3) leave 2 / ((T + 1)(T + 2)) of the start.
    start = constraint.vertex(0, jnp.zeros(3))
    options = {"constraint": constraint, "estimator": estimator, "num_steps": 10}
    params = solve(params=start, epsilon=1e7, delta=1e-6, **options).params
    best = constraint.minimize_linear(jnp.array([0.2, -0.9, 0.1]))
    left = 2 / 11 / 12
    expected = (1 - left) * best + left * start
    np.testing.assert_allclose(params, expected, rtol=1e-4, atol=1e-5)


def test_budgets():
    pure = solve(num_steps=5)
    assert (pure.privacy.epsilon, pure.privacy.delta) == (1.0, 0.0)
    assert (pure.stats["batch_size"], pure.stats["selection_epsilon"]) == (12, 1.0)
    full = solve(num_steps=50, delta=1e-5)
    assert (full.privacy.epsilon, full.privacy.delta) == (1.0, 1e-5)
    assert full.stats["batch_size"] == 60
    assert full.stats["selection_epsilon"] == pytest.approx(0.0699, abs=5e-5)
    accountant = rdp.RdpAccountant().compose(full.privacy.dp_event)
    assert 1.0 <= accountant.get_epsilon(1e-5) * 1.0001 <= 1.1
    assert not solve(num_steps=5, epsilon=0.01).stats["is_informative"]


def test_a_start_at_hand_is_checked_where_the_key_is_traced():
    def run(start):
        traced = jax.jit(lambda key: solve(params=start, key=key, num_steps=5).params)
        return traced(jax.random.key(0))

    assert L1Ball(1.0).contains(run(jnp.zeros(3)))
    for start, constraint in (
        (jnp.full(3, 0.5), L1Ball(1.0)),
        (jnp.zeros(3), Polytope(np.eye(3))),
        (jnp.zeros(3), Simplex(1.0)),
    ):
        name = type(constraint).__name__
        with pytest.raises(ValueError, match=f"params must be a point of {name}"):
            solve(params=start, constraint=constraint)
    with pytest.raises(ValueError, match="params must be a point of L1Ball"):
        run(jnp.full(3, 0.5))


@pytest.mark.parametrize("tie", [1.0, 0.0])
def test_two_candidates_attain_epsilon_and_never_pass_it(tie):
    # A record decides which vertex is ahead; bounds hold with probability 1 - 1e-6.
    num_draws, epsilon = 2**16, 1.5
    options = {"constraint": Simplex(1.0), "num_steps": 1, "learning_rate": 1.0}

    @jax.jit
    @jax.vmap
    def choose(key, sign):
        data = jnp.zeros((8, 2)).at[0].set(jnp.stack([sign, -sign]))
        data, start = data.at[1].set(jnp.array([tie, -tie])), jnp.array([0.5, 0.5])
        return solve(data, start, key=key, epsilon=epsilon, **options).params[0]

    keys = jax.random.split(jax.random.key(7), (2, num_draws))
    counts = [
        int((choose(keys[i], jnp.full(num_draws, sign)) > 0.5).sum())
        for i, sign in enumerate((1.0, -1.0))
    ]
    p, q = (np.array([c, num_draws - c]) / num_draws for c in counts)
    log_ratio = np.abs(np.log(p / q)).max()
    deviation = math.sqrt((1 / np.concatenate([p, q])).max() * 2 / num_draws)
    assert log_ratio <= epsilon + 5 * deviation
    if tie:
        assert log_ratio >= 0.95 * epsilon


def test_selection_error_is_a_high_probability_bound():
    # Gradients are the same at every step: each choice is off by its own error.
    rows = jnp.tile(jnp.linspace(-1, 1, 20), (40, 1))

    def errors(key):
        options = {"num_steps": 1, "learning_rate": 1.0, "epsilon": 3.0}
        solution = solve(rows, jnp.zeros(20), key=key, **options)
        return 1 + jnp.dot(solution.params, rows[0]), solution.stats["selection_error"]

    gaps, bounds = jax.jit(jax.vmap(errors))(jax.random.split(jax.random.key(2), 2000))
    assert (gaps > bounds).mean() <= 0.01 + 4 * math.sqrt(0.01 / 2000)
    assert gaps.max() > 0.2 * bounds[0]


# -- The Lasso: its sensitivity at any radius ------------------------------------------
def lasso(fit=dp_lasso, **changes):
    features = jax.random.normal(jax.random.key(0), (90, 3))
    options = {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-5}
    return fit(features, features[:, 0], **(options | changes))


def test_sensitivity_is_that_of_clipped_records():
    for radius in (0.5, 1.0, 7.0):
        stats = lasso(radius=radius, threshold=2.0, num_steps=5).stats
        # g / (1 + ||w||_1) moves by 2 K^2 / n.
        assert float(stats["linf_sensitivity"]) == pytest.approx(8 / 90, rel=3e-3)
        assert float(stats["linf_sensitivity"]) >= 8 / 90


def test_one_record_beyond_the_threshold_counts_as_one_at_it():
    x, y = np.float32([[1, 0], *[[0, 1]] * 39]), np.ones(40, np.float32)
    options = {"epsilon": 1e6, "delta": 1e-5, "threshold": 1.0, "num_steps": 40}

    def params(size):
        return dp_lasso(size * x, size * y, key=jax.random.key(0), **options).params

    np.testing.assert_array_equal(params(1.0), params(1e9))


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
