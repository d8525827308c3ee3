"""One pass: its theory, what it reaches, bad input."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from dpjax import losses
from dpjax.solvers import dp_one_pass_sco
from dpjax.solvers.papers._localized_descent import Theory
from dpjax.solvers.papers._one_pass import clip_norm, learning_rate, phases_of, risk
from tests.unit.refusals import refused


def solve(**changes):
    x = jax.random.normal(jax.random.key(0), (50_000, 2))
    options = {"params": jnp.zeros(2), "data": (x, x @ jnp.array([1.0, -1.0]))}
    options |= {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-5}
    options |= {"moment_bound": 32.0, "diameter": 4.0} | changes
    return dp_one_pass_sco(losses.squared, **options)


@pytest.mark.parametrize("order", [2.0, 4.0, 30.0])
def test_clip_norm_and_step_size_are_the_best_ones(order):
    theory, m = Theory(3.0, order, 2.0, 5, 4.0), 1_000

    def bound(logs):
        clipped, rate = np.exp(logs)
        noise = 32 * theory.dimension * (theory.noise_multiplier * clipped) ** 2 / m
        spread = rate * (2 / 3 * theory.bound**2 + noise)
        excess = theory.bound**order * (clipped * order / (order - 1)) ** (1 - order)
        return (
            theory.radius**2 / (2 * rate * m) + spread + theory.radius * excess / order
        )

    taken = clip_norm(theory, m), learning_rate(theory, m)
    best = minimize(bound, np.log(taken) + 0.3, method="Nelder-Mead", tol=1e-9)
    # The clip norm ignores how the two roots add up.
    assert bound(np.log(taken)) <= 1.01 * best.fun
    assert risk(theory, m) == pytest.approx(bound(np.log(taken)), rel=1e-6)


def test_phases_halve_and_steps_shrink():
    phases = phases_of(Theory(3.0, 8.0, 2.0, 50, 8.0), 10**6)
    assert len(phases) > 1
    assert sum(phase.num_samples for phase in phases) <= 10**6
    for one, following in pairwise(phases):
        assert following.learning_rate == pytest.approx(one.learning_rate / 4)


def test_it_finds_the_optimum_around_another_centre():
    np.testing.assert_allclose(solve().params, [1, -1], atol=0.15)
    around = solve(params=jnp.array([1.0, -1.0]), diameter=0.5, moment_bound=1.0)
    np.testing.assert_allclose(around.params, [1, -1], atol=0.02)
    assert solve(params=jnp.zeros(2, "bfloat16")).params.dtype == jnp.bfloat16


def test_pure_epsilon():
    found = solve(delta=0.0)
    np.testing.assert_allclose(found.params, [1, -1], atol=0.25)
    assert (found.privacy.epsilon, found.privacy.delta) == (1.0, 0.0)
    # Of noise of the density exp(-epsilon ||z|| / sensitivity), in two dimensions.
    sensitivity = 2 * found.stats["learning_rate"] * found.stats["l2_clip_norm"]
    assert found.stats["stddev"] == pytest.approx(3**0.5 * sensitivity, rel=1e-3)


test_bad_input_is_named = refused(
    lambda changes: solve(**changes),
    ({"data": jnp.ones((9, 2))}, "data must be a pair"),
    ({"data": (jnp.ones((9, 2)), jnp.ones(8))}, "data must be features of shape"),
    ({"data": (jnp.ones((20, 2)), jnp.ones(20))}, "data must have enough records"),
    ({"epsilon": 1e-300, "delta": 0.0}, "epsilon must be between 1e-20"),
)
