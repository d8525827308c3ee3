"""Gradient descent: its optimum, its noise, its steps, its derivatives."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import accounting, losses
from dpjax.batching import Disjoint, Full, Poisson, WithoutReplacement
from dpjax.estimators import Mean, SmoothedTruncation, Winsorization
from dpjax.solvers import Execution, dp_gradient_descent, robust_gradient_descent


def location(params, example):
    return 0.5 * jnp.sum((params - example) ** 2)


def descend(loss_fn=location, **changes):
    options = {"params": jnp.zeros(2), "data": jnp.ones((30, 2)), "num_steps": 4}
    options |= {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-5}
    options |= {"estimator": Winsorization(1.0), "learning_rate": 0.1} | changes
    return dp_gradient_descent(loss_fn, **options)


@pytest.mark.parametrize("batching", [Full(), Disjoint(), Poisson(5.0)], ids=str)
def test_the_noise_spends_the_budget(batching):
    for epsilon in (1.0,) if batching.is_sampled else (0.1, 1.0, 20.0):
        options = {"data": jnp.zeros((40, 2)), "batching": batching}
        solution = descend(jnp.dot, epsilon=epsilon, **options)
        multiplier = solution.stats["noise_multiplier"]
        sampling = batching.sampling(40, 4)
        spent = accounting.noise_multiplier_to_epsilon(multiplier, 1e-5, sampling)
        assert 0.98 * epsilon < spent <= epsilon
        assert (solution.privacy.epsilon, solution.privacy.delta) == (epsilon, 1e-5)


def collect(every, **changes):
    """Runs a descent; returns the parameters that were shown by step, and it."""
    shown = {}
    execution = Execution(
        callback=lambda step, params: shown.update({int(step): params}),
        callback_every=every,
    )
    solution = descend(execution=execution, **changes)
    jax.effects_barrier()
    return shown, solution


def test_disjoint_steps_see_their_own_records():
    # A record moves no iterate before the step of its batch (parallel composition).
    options = {"loss_fn": jnp.dot, "batching": Disjoint(), "num_steps": 5}
    first, second = (
        collect(1, data=jnp.ones((11, 2)).at[7].set(value), **options)[0]
        for value in (1.0, -1.0)
    )
    for step in range(1, 6):
        same = np.array_equal(first[step], second[step])
        assert same == (step < 4)  # record 7 is in batch 3, hence in step 4


@pytest.mark.parametrize(
    ("estimator", "batching"),
    [(SmoothedTruncation(100.0), None), (Mean(), Poisson(5.0)), (Mean(), Disjoint())],
)
def test_reaches_the_optimum_without_noise(estimator, batching):
    features = jax.random.normal(jax.random.key(3), (400, 2))
    targets = features @ jnp.array([1.0, 2.0])
    options = {"learning_rate": 0.2, "batching": batching, "key": jax.random.key(0)}
    if not batching:
        targets = targets + jax.random.normal(jax.random.key(4), targets.shape)
        options = {"learning_rate": 0.8}
    problem = losses.squared, jnp.zeros(2), (features, targets)
    options |= {"estimator": estimator, "num_steps": 80}
    solution = robust_gradient_descent(*problem, **options)
    optimum = np.linalg.lstsq(features, targets)[0]
    # The smoothed truncation moves a gradient of size 3 by 3^3 / 100^2 at most.
    atol = 0.05 if batching else 1e-5
    np.testing.assert_allclose(solution.params, optimum, atol=atol, rtol=5e-3)
    assert solution.privacy.epsilon == math.inf


def test_what_is_left_out_of_the_baseline():
    options = {"estimator": Mean(), "learning_rate": 1.0}
    data = jnp.zeros((40, 2))
    solution = robust_gradient_descent(jnp.dot, jnp.zeros(2), data, **options)
    assert solution.stats["num_steps"] == math.ceil(10 * math.log(40))
    for batching in (Poisson(4.0), WithoutReplacement(4)):
        options["batching"] = batching
        with pytest.raises(ValueError, match="key must be given with "):
            robust_gradient_descent(location, jnp.zeros(2), data, **options)


def test_averaging_projection_and_callback():
    ball = functools.partial(optax.projections.projection_l2_ball, scale=0.5)
    options = {"averaging": True, "projection_fn": ball, "learning_rate": 3.0}
    shown, solution = collect(1, num_steps=8, **options)
    iterates = np.stack([shown[step] for step in range(1, 9)])
    assert 0.49 < np.linalg.norm(iterates, axis=1).max() <= 0.5 * (1 + 1e-5)
    np.testing.assert_allclose(solution.params, iterates.mean(axis=0), rtol=1e-5)
    for every, steps in ((3, [3, 6, 8]), (4, [4, 8]), (20, [8])):
        shown, solution = collect(every, num_steps=8)
        assert sorted(shown) == steps
        np.testing.assert_array_equal(shown[8], solution.params)


def test_schedules_and_their_traced_numbers():
    traces = []

    def falling(first, step):
        traces.append(first)
        return first / (1 + step.astype(jnp.float32))

    def solve(schedule):
        return descend(learning_rate=schedule).params

    constant = solve(optax.constant_schedule(0.1))
    np.testing.assert_allclose(solve(0.1), constant, rtol=1e-6)
    params = [solve(jax.tree_util.Partial(falling, first)) for first in (0.1, 0.2)]
    assert len(traces) == 1
    assert (params[0] != params[1]).all()
    static = solve(functools.partial(falling, 0.2))
    np.testing.assert_allclose(params[1], static, rtol=1e-6)
