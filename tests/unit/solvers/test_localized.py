"""Localized optimization: theory, phases, groups, one pass, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

from dpjax import losses, solvers
from dpjax.solvers.papers import _localized_descent as descent
from dpjax.solvers.papers import _one_pass as one_pass
from tests.unit.refusals import refused


def solve(data=None, loss_fn=jnp.dot, **changes):
    options = {"data": jnp.ones((4_000, 2)) if data is None else data}
    options |= {"params": jnp.zeros(2), "key": jax.random.key(1)}
    options |= {"epsilon": 1.0, "delta": 1e-5, "smoothness": 0.1}
    options |= {"moment_bound": 2.0, "diameter": 2.0} | changes
    return solvers.dp_localized_sco(loss_fn, **options)


def pass_once(**changes):
    x = jax.random.normal(jax.random.key(0), (50_000, 2))
    options = {"params": jnp.zeros(2), "data": (x, x @ jnp.array([1.0, -1.0]))}
    options |= {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-5}
    options |= {"moment_bound": 32.0, "diameter": 4.0} | changes
    return solvers.dp_one_pass_sco(losses.squared, **options)


def theory(order):
    return descent.Theory(3.0, order, 2.0, 5, 4.0)


def excess_over(norm, given):
    """The largest mean excess over C of a law whose k-th moment is G^k: two points."""
    order = given.order
    return given.bound**order * (norm * order / (order - 1)) ** (1 - order) / order


@pytest.mark.parametrize("order", [2.0, 2.5, 4.0, 40.0])
def test_clip_norms_and_step_sizes_are_the_best_ones(order):
    given, m = theory(order), 1_000

    def variance(log_norm):
        norm = np.exp(log_norm)
        noise = 16 / 3 * given.dimension * (given.noise_multiplier * norm / m) ** 2
        return given.bound**2 / m + excess_over(norm, given) ** 2 + noise

    best = minimize_scalar(variance, bounds=(-3, 8), method="bounded")
    assert descent.variance(given, m) == pytest.approx(best.fun, rel=1e-6)
    assert descent.clip_norm(given, m) == pytest.approx(np.exp(best.x), rel=1e-3)

    def risk(logs):
        norm, rate = np.exp(logs)
        noise = 32 * given.dimension * (given.noise_multiplier * norm) ** 2 / m
        spread = rate * (2 / 3 * given.bound**2 + noise)
        bias = given.radius * excess_over(norm, given)
        return given.radius**2 / (2 * rate * m) + spread + bias

    chosen = np.log([one_pass.clip_norm(given, m), one_pass.learning_rate(given, m)])
    best = minimize(risk, chosen + 0.3, method="Nelder-Mead", tol=1e-9)
    # The clip norm ignores how the two roots add up.
    assert risk(chosen) <= 1.01 * best.fun
    assert one_pass.risk(given, m) == pytest.approx(risk(chosen), rel=1e-6)


@pytest.mark.parametrize("num_groups", [1, 3])
@pytest.mark.parametrize("num_samples", [20_000, 99_991])
def test_phases_take_every_record_once_and_halve(num_samples, num_groups):
    size = num_samples // num_groups
    phases = descent.phases_of(theory(2.0), size, 1.0, None)
    sizes, numbers = one_pass.phases_of(theory(2.0), size)
    for counts in ([phase.num_samples for phase in phases], sizes):
        rest = 2 * len(counts) * num_groups
        assert num_samples - rest <= num_groups * sum(counts) <= num_samples
        assert len(counts) > 1
        for i, num_used in enumerate(counts):
            # All that is left goes to the last phase.
            assert num_used == size // 2 ** min(i + 1, len(counts) - 1)
    for i, phase in enumerate(phases):
        assert phase.penalty == pytest.approx(phases[0].penalty * 8**i)
    for i, learning_rate in enumerate(numbers[:, 1]):
        assert learning_rate == pytest.approx(numbers[0, 1] / 4**i)


def test_it_goes_to_the_edge_of_the_ball_against_a_slope():
    params = solve().params  # the gradient is (1, 1) everywhere
    np.testing.assert_allclose(params, [-(0.5**0.5)] * 2, atol=0.15)
    assert jnp.linalg.norm(params) <= 1 + 1e-5


def test_parameters_may_be_a_tree_around_any_center():
    def loss_fn(params, example):
        features, target = example
        return (params["w"] @ features + params["b"] - target) ** 2 / 2

    x = np.random.default_rng(0).standard_normal((20_000, 2)).astype("float32")
    y = x @ np.array([1.0, -1.0], "float32") + 3
    options = {"params": {"w": jnp.array([1.0, -1.0]), "b": jnp.array(2.5)}}
    options |= {"moment_bound": 30.0, "diameter": 2.0, "smoothness": 1.0}
    found = solve((x, y), loss_fn, **options).params
    assert found["b"] > 2.7
    np.testing.assert_allclose(found["w"], [1, -1], atol=0.15)


def test_the_middle_is_near_a_majority_whatever_the_others_are():
    points = [jnp.full(3, x) for x in (0.0, 0.1, 1e9, 0.2, -1e9, 0.15, 1e9)]
    assert 0 <= descent._middle([{"w": x} for x in points])["w"][0] <= 0.2
    data = jax.random.normal(jax.random.key(2), (30_000, 2)) + 0.5
    assert (solve(data, num_groups=3).params < -0.3).all()


def test_groups_have_records_of_their_own():
    # One record moves one group's iterate alone: the majority stays.
    data = jnp.tile(jnp.array([1.0, 0.0]), (60_000, 1))
    far = data.at[0].set(jnp.array([-1e9, 1e9]))
    one, other = (solve(x, num_groups=5).params for x in (data, far))
    np.testing.assert_allclose(one, other, atol=0.05)


def test_one_pass_finds_the_optimum_around_another_center_and_with_pure_epsilon():
    np.testing.assert_allclose(pass_once().params, [1, -1], atol=0.15)
    around = pass_once(params=jnp.array([1.0, -1.0]), diameter=0.5, moment_bound=1.0)
    np.testing.assert_allclose(around.params, [1, -1], atol=0.02)
    assert pass_once(params=jnp.zeros(2, "bfloat16")).params.dtype == jnp.bfloat16
    pure = pass_once(delta=0.0)
    np.testing.assert_allclose(pure.params, [1, -1], atol=0.25)
    assert (pure.privacy.epsilon, pure.privacy.delta) == (1.0, 0.0)
    # Of noise of the density exp(-epsilon ||z|| / sensitivity), in two dimensions.
    sensitivity = 2 * pure.stats["learning_rate"] * pure.stats["l2_clip_norm"]
    assert pure.stats["stddev"] == pytest.approx(3**0.5 * sensitivity, rel=1e-3)


SAVED = solvers.Execution(checkpoint=solvers.Checkpoint("there", every=1))
test_bad_input_is_named = refused(
    lambda changes: solve(**changes),
    ({"moment_bound": 1e300}, "moment_bound must be such that moment"),
    ({"moment_bound": 1e-300}, "moment_bound must be such that moment"),
    ({"smoothness": 1e12}, "num_steps must be given"),
    ({"diameter": 1e31}, "diameter must be between 1e-20 and 1e.30"),
    ({"data": jnp.ones((50, 2))}, "data must have about "),
    ({"num_groups": 1_000}, "data must have about "),
    ({"execution": SAVED}, "execution.checkpoint must be None"),
)
test_bad_input_of_one_pass_is_named = refused(
    lambda changes: pass_once(**changes),
    ({"data": jnp.ones((9, 2))}, "data must be a pair"),
    ({"data": (jnp.ones((9, 2)), jnp.ones(8))}, "targets must be of shape"),
    ({"data": (jnp.ones((20, 2)), jnp.ones(20))}, "data must have about "),
    ({"epsilon": 1e-300, "delta": 0.0}, "epsilon must be between 1e-20"),
)
