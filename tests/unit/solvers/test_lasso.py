"""Private LASSO: any radius, its sensitivity, its budget, bad input."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.figures import printed
from dpjax import datasets
from dpjax.accounting._shared import total_selection_epsilon
from dpjax.solvers import dp_lasso
from tests.unit.refusals import refused


def problem(num_samples=20_000, num_features=100, feature_law=None, seed=0):
    """Three large weights, l1 norm 1; heavy-tailed features as in 004, figure 5."""
    return datasets.linear_model(
        jax.random.key(seed),
        num_samples=num_samples,
        num_features=num_features,
        feature_law=feature_law or datasets.LogNormal(scale=0.6**0.5),
        noise_law=datasets.Normal(scale=0.1**0.5),
        params_fn=three_large,
    )


def three_large(key, num_features):
    del key
    return jnp.zeros(num_features).at[:3].set(jnp.array([0.5, -0.3, 0.2]))


def risk(setting, params):
    return float(jnp.mean((setting.features @ params - setting.targets) ** 2))


def solve(features=None, targets=None, fit=dp_lasso, **changes):
    features = jax.random.normal(jax.random.key(0), (90, 3))
    options = {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-5}
    targets = features[:, 0] if targets is None else targets
    return fit(features, targets, **(options | changes))


@pytest.mark.slow
@pytest.mark.parametrize(
    "law", [datasets.LogNormal(scale=0.6**0.5), datasets.StudentT(10.0)]
)
def test_default_beats_zero_and_the_printed_constants(law):
    setting = problem(feature_law=law)
    options = {"epsilon": 2.0, "delta": 1e-6}
    tight = dp_lasso(*setting.data, key=jax.random.key(2), **options)
    papers = printed.lasso(*setting.data, key=jax.random.key(3), **options)
    zero = risk(setting, jnp.zeros(100))
    assert risk(setting, tight.params) < 0.6 * zero
    assert risk(setting, tight.params) < 0.6 * risk(setting, papers.params)
    assert float(jnp.abs(tight.params).sum()) <= 1.001
    assert tight.stats["is_informative"]


@pytest.mark.slow
def test_weights_of_a_larger_ball():
    setting = problem()
    targets = 4 * setting.targets
    solution = dp_lasso(
        setting.features / 4,
        targets / 4,
        key=jax.random.key(4),
        epsilon=50.0,
        delta=1e-6,
        radius=4.0,
        fourth_moment_bound=1.0,
        num_steps=60,
    )
    assert 1.5 < float(jnp.abs(solution.params).sum()) <= 4.001
    np.testing.assert_array_equal(jnp.sign(solution.params[:3]), [1, -1, 1])
    residuals = setting.targets - setting.features @ solution.params / 4
    assert float(jnp.mean(residuals**2)) < 0.5 * risk(setting, jnp.zeros(100))


def test_sensitivity_is_that_of_clipped_records():
    for radius in (0.5, 1.0, 7.0):
        stats = solve(radius=radius, threshold=2.0, num_steps=5).stats
        # g / (1 + ||w||_1) moves by 2 K^2 / n.
        assert float(stats["linf_sensitivity"]) == pytest.approx(8 / 90, rel=3e-3)
        assert float(stats["linf_sensitivity"]) >= 8 / 90


def test_the_scaled_gradient_keeps_its_bound_wherever_the_weights_are():
    from dpjax.solvers._lasso import _scaled_squared

    rng = np.random.default_rng(0)
    for norm in (0.0, 0.3, 1.0, 50.0):
        x = rng.choice([-2.0, 2.0], (500, 4)).astype(np.float32)
        y = rng.choice([-2.0, 2.0], 500).astype(np.float32)
        w = norm * rng.dirichlet(np.ones(4)).astype(np.float32)
        w *= rng.choice([-1, 1], 4).astype(np.float32)
        x[0] = 2 * np.sign(w + 1e-9)
        y[0] = -2.0
        grads = jax.vmap(jax.grad(_scaled_squared), (None, 0))(w, (x, y))
        largest = float(jnp.abs(grads).max())
        assert largest == pytest.approx(4.0, rel=1e-5)


def test_budgets():
    solution = solve(num_steps=50)
    assert (solution.privacy.epsilon, solution.privacy.delta) == (1.0, 1e-5)
    assert solution.stats["selection_epsilon"] == pytest.approx(0.0699, abs=1e-4)
    pure = solve(num_steps=4, delta=0.0)
    assert (pure.privacy.epsilon, pure.privacy.delta) == (1.0, 0.0)
    assert pure.stats["selection_epsilon"] == 0.25


@pytest.mark.quick(1)
@pytest.mark.parametrize("radius", [0.5, 1.0, 9.0])
def test_printed_choices_cost_what_is_stated(radius):
    # Its exponent is for the unit ball: a large one is less private than it says.
    solution = solve(num_steps=50, fit=printed.lasso, radius=radius)
    each = 1 / (2 * math.sqrt(100 * math.log(1e5))) * (1 + radius) / 4
    assert solution.stats["selection_epsilon"] == pytest.approx(each)
    total = total_selection_epsilon(each, 1e-5, num_selections=50)
    assert solution.privacy.epsilon == total


def test_integers():
    features = np.arange(270).reshape(90, 3) % 5
    options = {"epsilon": 1.0, "delta": 1e-5, "num_steps": 3}
    solution = dp_lasso(features, features[:, 0], key=jax.random.key(0), **options)
    assert solution.params.dtype == jnp.float32


test_bad_arguments_are_named = refused(
    lambda changes: solve(**changes),
    ({"num_steps": 91}, "num_steps must be at most the 90 samples"),
)
