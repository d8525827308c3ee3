"""Solvers on the papers' settings: better than zero and than the printed constants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.figures import printed
from dpjax import PrivateTraining, accounting, constraints, datasets, losses, solvers
from dpjax.estimators import SmoothedTruncation

LOG_NORMAL = datasets.LogNormal(scale=0.6**0.5)


def three_large(key, num_features):
    del key
    return jnp.zeros(num_features).at[:3].set(jnp.array([0.5, -0.3, 0.2]))


def regression(num_samples, num_features, seed=0, **options):
    """Linear regression with heavy-tailed features, as in figures 1 and 5 of 004."""
    laws = {"feature_law": LOG_NORMAL, "noise_law": datasets.Normal(scale=0.1**0.5)}
    sizes = {"num_samples": num_samples, "num_features": num_features}
    return datasets.linear_model(jax.random.key(seed), **sizes, **laws | options)


def sparse_problem(num_samples=50_000, num_features=1000, seed=0, sparsity=20):
    """Sparse regression, as in figure 7 of paper 004."""
    laws = {"feature_law": datasets.Normal(scale=5**0.5)}
    laws |= {"noise_law": datasets.LogNormal(scale=0.5**0.5)}

    def params_fn(key, num_features):
        value_key, place_key = jax.random.split(key)
        values = jax.random.normal(value_key, (sparsity,))
        places = jax.random.permutation(place_key, num_features)[:sparsity]
        return jnp.zeros(num_features).at[places].set(values / jnp.linalg.norm(values))

    params = {"params_fn": params_fn}
    return regression(num_samples, num_features, seed, **laws, **params)


def risk(problem, params):
    return float(jnp.mean((problem.features @ params - problem.targets) ** 2))


def distance(solution, problem):
    return float(jnp.linalg.norm(solution.params - problem.true_params))


def test_figure_1b_at_its_largest_sample():
    """Paper 004, figure 1(b), n = 9e4, epsilon = 1: its choices are blind, a walk."""

    def solve(fit, start, key):
        options = {"epsilon": 1.0, "constraint": constraints.L1Ball(1.0)}
        key = jax.random.key(key)
        return fit(losses.squared, start, problem.data, key=key, **options)

    def excess(params):
        return risk(problem, params) - risk(problem, problem.true_params)

    problem = regression(90_000, 200)
    # The paper's parameters at another key: a start of the same law.
    sizes = {"num_samples": 1, "num_features": 200}
    start = datasets.linear_model(jax.random.key(5), **sizes).true_params
    papers, default = (  # a walk ends anywhere: means of four keys
        np.mean([excess(solve(fit, start, key).params) for key in range(6, 10)])
        for fit in (printed.frank_wolfe, solvers.dp_frank_wolfe)
    )
    assert 0.01 < papers < 0.4
    assert default < papers / 3
    problem = regression(90_000, 200, params_fn=three_large)
    zero = jnp.zeros(200)
    solution = solve(solvers.dp_frank_wolfe, zero, 8)
    assert excess(solution.params) < excess(zero) / 4
    assert solution.stats["is_informative"]


@pytest.mark.parametrize("law", [LOG_NORMAL, datasets.StudentT(10.0)])
def test_lasso_beats_zero_and_the_printed_constants(law):
    problem = regression(20_000, 100, feature_law=law, params_fn=three_large)
    options = {"epsilon": 2.0, "delta": 1e-6}
    tight = solvers.dp_lasso(*problem.data, key=jax.random.key(2), **options)
    papers = printed.lasso(*problem.data, key=jax.random.key(3), **options)
    assert risk(problem, tight.params) < 0.6 * risk(problem, jnp.zeros(100))
    assert risk(problem, tight.params) < 0.6 * risk(problem, papers.params)
    assert float(jnp.abs(tight.params).sum()) <= 1.001
    assert tight.stats["is_informative"]


def test_sparse_solvers_beat_zero_and_the_dense_solver():
    # The truth lies on the unit sphere: the zero vector is at distance 1.
    problem = sparse_problem()
    options = {"epsilon": 2.0, "delta": 50_000**-1.1}
    by_regression, papers = (
        solve(*problem.data, key=jax.random.key(2), sparsity=20, **options)
        for solve in (solvers.dp_sparse_linear_regression, printed.sparse_regression)
    )
    descent = {"estimator": SmoothedTruncation(10.0), "learning_rate": 2 / 3 / 5}
    start = losses.squared, jnp.zeros(1000), problem.data
    by_thresholding, dense = (
        solve(*start, key=jax.random.key(1), **descent, **options, **others)
        for solve, others in (
            (solvers.dp_iterative_hard_thresholding, {"sparsity": 20}),
            (solvers.dp_gradient_descent, {"num_steps": 10}),
        )
    )
    assert distance(by_thresholding, problem) < 0.2
    assert distance(by_regression, problem) < 0.5
    assert distance(by_thresholding, problem) < distance(dense, problem) / 2
    assert by_regression.stats["is_informative"]
    assert int((by_regression.params != 0).sum()) <= 20
    # The printed constants drown it: their noise exceeds the whole ball.
    assert distance(papers, problem) > 1
    assert papers.stats["noise_norm"] > 1
    assert papers.privacy.epsilon <= 2.0


@pytest.mark.parametrize(
    ("num_samples", "sparsity", "epsilon", "dearer"),
    [(40_000, 20, 1.0, 2), (50_000, 5, 4.0, 1)],
)
def test_steps_are_taken_where_they_pay(num_samples, sparsity, epsilon, dearer):
    """A step too many, or too few, is worse, by more than chance."""
    options = {"sparsity": sparsity, "epsilon": epsilon, "delta": 1e-6}
    options["fourth_moment_bound"] = 75.0
    distances = {None: [], dearer: []}
    for seed in range(2):
        problem = sparse_problem(num_samples, 400, seed, sparsity)
        for num_steps in distances:
            key = jax.random.key(seed)
            solution = solvers.dp_sparse_linear_regression(
                *problem.data, key=key, num_steps=num_steps, **options
            )
            distances[num_steps].append(distance(solution, problem))
    assert max(distances[None]) < min(distances[dearer])


def test_the_mean_square_of_a_sparse_regression_is_paid_for_and_close():
    features = 3 * np.random.default_rng(0).normal(size=(20_000, 3))
    features = features.astype(np.float32)
    options = {"epsilon": 1.0, "delta": 1e-5, "sparsity": 2, "threshold": 9.0}
    data, solve = (features, features[:, 0]), solvers.dp_sparse_linear_regression
    released, given = (
        solve(*data, key=jax.random.key(1), learning_rate=x, **options)
        for x in (None, 0.1)
    )
    assert float(released.stats["learning_rate"]) == pytest.approx(2 / 3 / 9, rel=0.1)
    rho = accounting.epsilon_to_rho(1.0, 1e-5)
    multipliers = []
    for solution in (released, given):
        assert solution.privacy.dp_event.rho == pytest.approx(rho)
        stats = solution.stats
        multipliers.append(float(stats["noise_scale"] / stats["linf_sensitivity"]))
    # The cost of the step size is gone from the peeling.
    assert multipliers[0] / multipliers[1] == pytest.approx(0.98**-0.5, rel=1e-5)


def test_the_recipe_learns_in_any_unit():
    x = jax.random.normal(jax.random.key(4), (4_000, 3))
    options = {"num_samples": 4_000, "epsilon": 4.0, "delta": 1e-5}
    # At first the error is 2.3. In small units that of 24 keys was 0.31 in the median
    # and 0.68 at most, as of a normal law of 0.2 in each of three coordinates: it
    # passes 1.15 once in a million keys.
    run = PrivateTraining(lambda w, xy: (xy[0] @ w - xy[1]) ** 2, **options)
    weights = jnp.array([1.0, -2.0, 0.5])
    for unit, most in ((0.01, 1.15), (100.0, 0.2)):
        state = run.init(jnp.zeros(3), jax.random.key(0))
        for _ in range(run.num_steps):
            state, _ = run.step(state, (x, unit * (x @ weights)))
        assert jnp.linalg.norm(state.params / unit - weights) < most, unit
