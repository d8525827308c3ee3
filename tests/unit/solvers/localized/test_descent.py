"""Localized optimization: its theory, phases, groups, rate, and bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from dpjax import losses
from dpjax.solvers import Checkpoint, Execution, dp_localized_sco
from dpjax.solvers.papers._localized_descent import (
    Theory,
    _middle,
    clip_norm,
    phases_of,
    variance,
)
from tests.unit.refusals import refused


def solve(data=None, loss_fn=jnp.dot, **changes):
    options = {"data": jnp.ones((4_000, 2)) if data is None else data}
    options |= {"params": jnp.zeros(2), "key": jax.random.key(1)}
    options |= {"epsilon": 1.0, "delta": 1e-5, "smoothness": 0.1}
    options |= {"moment_bound": 2.0, "diameter": 2.0} | changes
    return dp_localized_sco(loss_fn, **options)


def theory(order, dimension=5, bound=3.0):
    return Theory(bound, order, 2.0, dimension, 4.0)


@pytest.mark.parametrize("order", [2.0, 2.5, 4.0, 40.0])
def test_the_clip_norm_is_the_best_one(order):
    one, m = theory(order), 1_000

    def at(log_norm):
        norm = np.exp(log_norm)
        # The largest mean excess over C of a law whose k-th moment is G^k: two points.
        excess = one.bound**order * (norm * order / (order - 1)) ** (1 - order) / order
        noise = 16 / 3 * one.dimension * (one.noise_multiplier * norm / m) ** 2
        return one.bound**2 / m + excess**2 + noise

    best = minimize_scalar(at, bounds=(-3, 8), method="bounded")
    assert variance(one, m) == pytest.approx(best.fun, rel=1e-6)
    assert clip_norm(one, m) == pytest.approx(np.exp(best.x), rel=1e-3)


@pytest.mark.parametrize("num_groups", [1, 3])
@pytest.mark.parametrize("num_samples", [20_000, 99_991])
def test_phases_take_every_record_once_and_halve(num_samples, num_groups):
    phases = phases_of(theory(2.0), num_samples // num_groups, 1.0, None)
    sizes = [phase.num_samples * num_groups for phase in phases]
    assert num_samples - len(phases) * num_groups * 2 <= sum(sizes) <= num_samples
    assert len(phases) > 1
    for i, phase in enumerate(phases):
        # All that is left goes to the last phase.
        share = 2 ** min(i + 1, len(phases) - 1)
        assert phase.num_samples == num_samples // num_groups // share
        assert phase.penalty == pytest.approx(phases[0].penalty * 8**i)


def test_the_rate_is_that_of_the_theorem():
    # Noise dominates in many dimensions: (1 / n)^(1 - 1/k).
    for order in (2.0, 4.0):
        one = theory(order, dimension=10**6)
        scales = [np.sqrt(variance(one, n)) for n in (10**5, 10**7)]
        slope = np.log(scales[1] / scales[0]) / np.log(100)
        assert slope == pytest.approx(1 / order - 1, abs=0.02)


def test_it_goes_to_the_edge_of_the_ball_against_a_slope():
    found = solve().params  # the gradient is (1, 1) everywhere
    np.testing.assert_allclose(found, [-(0.5**0.5)] * 2, atol=0.15)
    assert jnp.linalg.norm(found) <= 1 + 1e-5


def test_trees_and_their_centre():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20_000, 2)).astype("float32")
    y = x @ np.array([1.0, -1.0], "float32") + 3

    def loss_fn(params, example):
        features, target = example
        return (params["w"] @ features + params["b"] - target) ** 2 / 2

    options = {"params": {"w": jnp.array([1.0, -1.0]), "b": jnp.array(2.5)}}
    options |= {"moment_bound": 30.0, "diameter": 2.0, "smoothness": 1.0}
    found = solve((x, y), loss_fn, **options).params
    assert found["b"] > 2.7
    np.testing.assert_allclose(found["w"], [1, -1], atol=0.15)


def test_the_middle_is_near_a_majority_whatever_the_others_are():
    points = [jnp.full(3, x) for x in (0.0, 0.1, 1e9, 0.2, -1e9, 0.15, 1e9)]
    assert 0 <= _middle([{"w": x} for x in points])["w"][0] <= 0.2
    data = jax.random.normal(jax.random.key(2), (30_000, 2)) + 0.5
    found = solve(data, num_groups=3)
    assert (found.params < -0.3).all()


def test_groups_have_records_of_their_own():
    # One record moves one group's iterate alone: the majority stays.
    data = jnp.tile(jnp.array([1.0, 0.0]), (60_000, 1))
    far = data.at[0].set(jnp.array([-1e9, 1e9]))
    one, other = (solve(x, num_groups=5).params for x in (data, far))
    np.testing.assert_allclose(one, other, atol=0.05)


def test_its_numbers_are_told():
    x = jax.random.normal(jax.random.key(0), (20_000, 2))
    options = {"moment_bound": 300.0, "diameter": 6.0, "smoothness": 1.0}
    found = solve((x, x @ jnp.array([1.0, 2.0])), losses.squared, **options)
    stats = found.stats
    assert stats["risk_scale"] == pytest.approx(9 * stats["penalty"])
    assert stats["num_phases"] == 3
    assert found.privacy.epsilon == 1.0
    assert "20,000" in str(found.privacy)


SAVED = Execution(checkpoint=Checkpoint("there", every=1))
test_bad_input_is_named = refused(
    lambda changes: solve(**changes),
    ({"moment_bound": 1e300}, "moment_bound must be such that its root"),
    ({"moment_bound": 1e-300}, "moment_bound must be such that its root"),
    ({"smoothness": 1e12}, "num_steps must be given"),
    ({"diameter": 1e31}, "diameter must be between 1e-20 and 1e.30"),
    ({"data": jnp.ones((50, 2))}, "data must have enough records"),
    ({"num_groups": 1_000}, "data must have enough records"),
    ({"execution": SAVED}, "execution.checkpoint must be None"),
)
