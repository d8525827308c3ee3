"""One pass: its sensitivity under attack, its theory, what it reaches, bad input."""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from dpjax import losses
from dpjax.solvers import dp_one_pass_sco
from dpjax.solvers.localized._one_pass import (
    _one_pass,
    clip_norm,
    learning_rate,
    phases_of,
    risk,
)
from dpjax.solvers.localized._theory import Theory
from tests.unit.refusals import refused

LOSSES = {
    "squared": losses.squared,
    "logistic": losses.logistic,
    "huber": losses.huber(1.0),
    "poisson": losses.poisson(4.0),
    "gamma": losses.gamma(min_mean=0.2, max_target=6.0),
    "tweedie": losses.tweedie(1.5, min_mean=0.2, max_mean=3.0, max_target=6.0),
    "log link": losses.log_link(1.2),
    "smoothed hinge": losses.MarginLoss.smoothed_hinge(),
}


def solve(data=None, params=None, loss=losses.squared, **changes):
    if data is None:
        x = jax.random.normal(jax.random.key(0), (50_000, 2))
        data = x, x @ jnp.array([1.0, -1.0])
    options = {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-5}
    options |= {"moment_bound": 32.0, "diameter": 4.0} | changes
    return dp_one_pass_sco(
        loss, jnp.zeros(2) if params is None else params, data, **options
    )


@partial(jax.jit, static_argnums=0)
def mean_of_iterates(loss, rows, centre, radius, clipped, rate):
    start = jnp.zeros_like(centre)
    return _one_pass(loss, rows, centre, start, radius, clipped, rate)


sizes = st.sampled_from([0.0, 1e-200, 1e-30, 1e-3, 1.0, 30.0, 1e8, 1e30, 1e200, np.inf])


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    length=sizes,
    far=sizes,
    shift=st.sampled_from([0.0, 1.0, 1e6]),
    rate=st.sampled_from([1e-3, 1.0, 100.0]),
    place=st.integers(0, 39),
)
def test_a_record_moves_the_mean_by_no_more_than_is_said(
    name, seed, length, far, shift, rate, place
):
    rng = np.random.default_rng(seed)
    radius, clipped = 2.0, 1.0
    with jax.enable_x64(True), np.errstate(all="ignore"):
        x = rng.standard_normal((40, 3)) * rng.choice([1.0, length, 1e3], (40, 1))
        y = rng.standard_normal(40) * rng.choice([1.0, far], 40)
        other = x.copy(), y.copy()
        other[0][place] = rng.standard_normal(3) * far
        other[1][place] = rng.choice([-1.0, 1.0, np.nan]) * length
        centre = jnp.full(3, shift)
        means = [
            mean_of_iterates(
                LOSSES[name],
                tuple(map(jnp.asarray, rows)),
                centre,
                radius,
                clipped,
                rate,
            )
            for rows in ((x, y), other)
        ]
        moved = float(jnp.linalg.norm(means[0] - means[1]))
    reach = radius + 3**0.5 * shift + rate * clipped
    rounding = 2.0**-42 * (1 + 3 / 64) * 40 * reach
    assert moved <= 2 * rate * clipped + rounding


def test_the_sensitivity_is_attained():
    # The record's step is as long as a step can be, both ways, and nothing undoes it.
    x = np.zeros((40, 1))
    x[0] = 1.0
    with jax.enable_x64(True):
        means = [
            mean_of_iterates(
                losses.huber(1.0),
                (jnp.asarray(x), jnp.full(40, y)),
                jnp.zeros(1),
                9.0,
                1.0,
                0.5,
            )
            for y in (-1e12, 1e12)
        ]
    assert float(abs(means[0] - means[1])[0]) == pytest.approx(2 * 0.5 * 1.0)


@pytest.mark.parametrize("name", LOSSES)
def test_targets_beyond_the_range_move_the_mean_by_no_more(name):
    # Were the derivative to fall anywhere, steps of one record would drive apart what
    # the first one moved.
    targets = [0.0, 1e300, np.inf, *(-np.logspace(-3, 6, 10)), -1e300, -np.inf, np.nan]
    with jax.enable_x64(True):
        grid = jnp.meshgrid(
            jnp.array(targets),
            jnp.array([0.1, 1.0, 3.0]),  # the feature of all records
            jnp.array([0.1, 1.0, 10.0]),  # the step size
            jnp.array([-1.0, 1.0]),  # the first record's direction
            indexing="ij",
        )

        @jax.jit
        @partial(jnp.vectorize, signature="(),(),(),()->()")
        def mean(target, feature, rate, sign):
            x = jnp.full((200, 1), feature).at[0].multiply(sign)
            y = jnp.full(200, target).at[0].set(1e9)
            rows = x, y
            start = jnp.zeros(1)
            return _one_pass(LOSSES[name], rows, start, start, 1e3, 1.0, rate)[0]

        moved = jnp.abs(jnp.diff(mean(*grid), axis=-1))[..., 0]
        claimed = 2 * grid[2][..., 0]
        assert float(jnp.max(moved / claimed)) <= 1 + 1e-9


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
    ({"loss": losses.absolute}, "loss must be a convex LinearLoss"),
    ({"loss": losses.biweight(1.0)}, "loss must be a convex LinearLoss"),
    ({"loss": losses.poisson}, "loss must be a convex LinearLoss"),
    ({"loss": losses.softmax(3)}, "loss must be a convex LinearLoss"),
    ({"params": jnp.zeros(3)}, "params must be floats of shape"),
    ({"data": jnp.ones((9, 2))}, "data must be a pair"),
    ({"data": (jnp.ones((9, 2)), jnp.ones(8))}, "data must be features of shape"),
    ({"data": (jnp.ones((20, 2)), jnp.ones(20))}, "data must have enough records"),
    ({"epsilon": 1e-300, "delta": 0.0}, "epsilon must be between 1e-20"),
)
