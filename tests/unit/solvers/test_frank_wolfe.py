"""Private Frank-Wolfe: budgets, figure 1(b) of 004, worst neighbours, bad input."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.figures import printed
from dpjax import datasets, losses
from dpjax.accounting._shared import total_selection_epsilon
from dpjax.constraints import Box, L1Ball, Polytope, Simplex
from dpjax.datasets._heavy_tailed import l1_ball_params
from dpjax.estimators import Clipping, SmoothedTruncation, Truncation, Winsorization
from dpjax.solvers import dp_frank_wolfe
from tests.unit.refusals import refused


def linear(params, example):
    """A loss whose gradient is the example, whatever the parameters are."""
    return jnp.dot(params, example)


def problem(num_samples, num_features, params_fn=l1_ball_params, seed=0):
    """Linear regression with log-normal features, as in figure 1 of paper 004."""
    return datasets.linear_model(
        jax.random.key(seed),
        num_samples=num_samples,
        num_features=num_features,
        feature_law=datasets.LogNormal(scale=0.6**0.5),
        noise_law=datasets.Normal(scale=0.1**0.5),
        params_fn=params_fn,
    )


def three_large(key, num_features):
    del key
    return jnp.zeros(num_features).at[:3].set(jnp.array([0.5, -0.3, 0.2]))


def excess_risk(problem, params):
    """Of the paper's loss, without the half."""
    residuals = [problem.features @ w - problem.targets for w in (params, problem[2])]
    return float(jnp.mean(residuals[0] ** 2) - jnp.mean(residuals[1] ** 2))


def solve(data=None, params=None, loss_fn=linear, fit=dp_frank_wolfe, **changes):
    data = jnp.tile(jnp.array([0.2, -0.9, 0.1]), (60, 1)) if data is None else data
    options = {"key": jax.random.key(1), "epsilon": 1.0, "constraint": L1Ball(1.0)}
    options |= {"estimator": Winsorization(1.0)} | changes
    return fit(loss_fn, jnp.zeros(3) if params is None else params, data, **options)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("constraint", "estimator"),
    [
        (L1Ball(2.0), None),
        (L1Ball(2.0), Clipping(1.0)),
        (L1Ball(2.0), Truncation(1.0)),
        (L1Ball(2.0), SmoothedTruncation(1.0)),
        (L1Ball(2.0), Winsorization(1.0)),
        (Simplex(2.0), Winsorization(1.0)),
        (Polytope(np.array([[0, 0, 0], [0, 2, 0], [3, 0, 1.0]])), Winsorization(1.0)),
    ],
)
def test_great_epsilon_finds_the_best_vertex(constraint, estimator):
    # T steps of 2 / (t + 3) leave 2 / ((T + 1)(T + 2)) of the start.
    start = constraint.vertex(0, jnp.zeros(3))
    solution = solve(
        params=start,
        epsilon=1e7,
        constraint=constraint,
        estimator=estimator,
        num_steps=10,
        delta=1e-6,
    )
    best = constraint.minimize_linear(jnp.array([0.2, -0.9, 0.1]))
    left = 2 / 11 / 12
    np.testing.assert_allclose(
        solution.params, (1 - left) * best + left * start, rtol=1e-4, atol=1e-5
    )


def test_budgets():
    pure = solve(num_steps=5)
    assert (pure.privacy.epsilon, pure.privacy.delta) == (1.0, 0.0)
    assert pure.stats["batch_size"] == 12
    assert pure.stats["selection_epsilon"] == 1.0
    full = solve(num_steps=50, delta=1e-5)
    assert (full.privacy.epsilon, full.privacy.delta) == (1.0, 1e-5)
    assert full.stats["batch_size"] == 60
    assert full.stats["selection_epsilon"] == pytest.approx(0.0699, abs=1e-4)


def test_a_start_at_hand_is_checked_where_the_key_is_traced():
    def run(start):
        return jax.jit(lambda key: solve(params=start, key=key, num_steps=5).params)(
            jax.random.key(0)
        )

    assert L1Ball(1.0).contains(run(jnp.zeros(3)))
    with pytest.raises(ValueError, match="params must be in L1Ball"):
        run(jnp.full(3, 0.5))


def test_printed_choices_cost_what_is_stated():
    # The printed exponent is half of what it says, less the range that is not reached.
    estimator = SmoothedTruncation(1.0, beta=1.0)
    solution = solve(fit=printed.frank_wolfe, estimator=estimator)
    assert solution.privacy.epsilon == pytest.approx(math.erf(0.5**0.5) / 2, 1e-6)
    assert solution.privacy.delta == 0


@pytest.mark.quick(1)
@pytest.mark.parametrize("tie", [1.0, 0.0])
def test_two_candidates_attain_epsilon_and_never_pass_it(tie):
    """One step, two vertices, and a record that decides which of them is ahead.

    2^16 runs on each data set; the bounds hold with probability 1 - 1e-6.
    """
    num_draws, epsilon = 2**16, 1.5
    counts = []
    for sign in (1.0, -1.0):
        data = jnp.zeros((8, 2)).at[0].set(jnp.array([sign, -sign]))
        data = data.at[1].set(jnp.array([tie, -tie]))

        def choose(key, data=data):
            return solve(
                data,
                jnp.array([0.5, 0.5]),
                key=key,
                epsilon=epsilon,
                constraint=Simplex(1.0),
                num_steps=1,
                learning_rate=1.0,
            ).params[0]

        keys = jax.random.split(jax.random.key(7), num_draws)
        counts.append(int((jax.jit(jax.vmap(choose))(keys) > 0.5).sum()))
    p, q = (np.array([c, num_draws - c]) / num_draws for c in counts)
    log_ratio = np.abs(np.log(p / q)).max()
    deviation = math.sqrt((1 / np.concatenate([p, q])).max() * 2 / num_draws)
    assert log_ratio <= epsilon + 5 * deviation
    if tie:
        assert log_ratio >= 0.95 * epsilon


@pytest.mark.slow
@pytest.mark.parametrize("num_features", [200, 800])
def test_figure_1b_at_its_largest_sample(num_features):
    """Paper 004, figure 1(b), n = 9e4, epsilon = 1; the paper reports about 0.03.

    The paper's own setting makes its choices blindly, and ends where a random walk over
    vertices does.
    """
    setting = problem(90_000, num_features)
    start = l1_ball_params(jax.random.key(5), num_features)
    options = {"epsilon": 1.0, "constraint": L1Ball(1.0)}
    # A walk ends anywhere: means of four keys.
    papers, default = (
        np.mean(
            [
                excess_risk(
                    setting,
                    fit(
                        losses.squared,
                        start,
                        setting.data,
                        key=jax.random.key(key),
                        **options,
                    ).params,
                )
                for key in range(6, 10)
            ]
        )
        for fit in (printed.frank_wolfe, dp_frank_wolfe)
    )
    assert 0.01 < papers < 0.4
    assert default < papers / 3

    setting = problem(90_000, num_features, three_large)
    zero = jnp.zeros(num_features)
    solution = dp_frank_wolfe(
        losses.squared, zero, setting.data, key=jax.random.key(8), **options
    )
    assert excess_risk(setting, solution.params) < excess_risk(setting, zero) / 4
    assert solution.stats["is_informative"]


def test_stats_say_when_choices_are_blind():
    solution = solve(estimator=None, num_steps=5, epsilon=0.01)
    assert not solution.stats["is_informative"]


@pytest.mark.slow
def test_selection_error_is_a_high_probability_bound():
    # Gradients are the same at every step: each choice is off by its own error.
    rows = jnp.tile(jnp.linspace(-1, 1, 20), (40, 1))

    def errors(key):
        solution = solve(
            rows, jnp.zeros(20), key=key, num_steps=1, learning_rate=1.0, epsilon=3.0
        )
        return 1 + jnp.dot(solution.params, rows[0]), solution.stats["selection_error"]

    gaps, bounds = jax.jit(jax.vmap(errors))(jax.random.split(jax.random.key(2), 2000))
    assert (gaps > bounds).mean() <= 0.01 + 4 * math.sqrt(0.01 / 2000)
    assert gaps.max() > 0.2 * bounds[0]


@pytest.mark.slow
def test_robust_regression_with_the_biweight_loss():
    # 004, Theorem 3: not convex, fixed steps of 1 / sqrt(T); a tenth are outliers.
    key = jax.random.key(3)
    features = jax.random.normal(key, (20_000, 30))
    true_params = jnp.zeros(30).at[4].set(0.9)
    targets = features @ true_params
    targets = targets.at[::10].set(1e6)
    solution = dp_frank_wolfe(
        losses.biweight(4.685),
        jnp.zeros(30),
        (features, targets),
        key=jax.random.key(4),
        epsilon=2.0,
        constraint=L1Ball(1.0),
        num_steps=25,
        learning_rate=0.2,
    )
    assert jnp.linalg.norm(solution.params - true_params) < 0.4


def test_event_is_read_by_an_accountant():
    from dp_accounting import rdp

    event = solve(num_steps=50, delta=1e-5).privacy.dp_event
    epsilon = rdp.RdpAccountant().compose(event).get_epsilon(1e-5)
    assert 1.0 <= epsilon * 1.0001 <= 1.1
    assert total_selection_epsilon(0.0699, 1e-5, num_selections=50) <= 1


@pytest.mark.slow
def test_no_gradient_of_every_sample_is_stored():
    # n d = 1e7 floats; the program needs a few vectors of d beside the data.
    num_samples, num_features = 1000, 10_000

    def run(features, targets):
        return dp_frank_wolfe(
            losses.squared,
            jnp.zeros(num_features),
            (features, targets),
            key=jax.random.key(0),
            epsilon=1.0,
            constraint=L1Ball(1.0),
            delta=1e-6,
            num_steps=4,
        ).params

    shapes = (
        jax.ShapeDtypeStruct((num_samples, num_features), jnp.float32),
        jax.ShapeDtypeStruct((num_samples,), jnp.float32),
    )
    memory = jax.jit(run).lower(*shapes).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 40 * 4 * num_features


test_bad_arguments_are_named = refused(
    lambda changes: solve(**changes),
    ({"constraint": Box(-1.0, 1.0)}, "constraint must be a set with vertices"),
    ({"params": jnp.full(3, 0.5)}, "params must be in L1Ball"),
    ({"constraint": Polytope(np.eye(3))}, "params must be in Polytope"),
    ({"constraint": Simplex(1.0)}, "params must be in Simplex"),
    ({"num_steps": 61}, "num_steps must be at most the 60"),
    ({"num_steps": 61, "delta": 1e-5}, "num_steps must be at most the 60"),
    ({"learning_rate": 2.0}, "learning_rate must be between 0 and 1"),
)
