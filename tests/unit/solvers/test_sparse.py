"""Sparse solvers: recovery on the papers' settings, noise, budgets, bad input."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from benchmarks.figures import printed
from dpjax import accounting, datasets, losses
from dpjax.estimators import SmoothedTruncation, Truncation, Winsorization
from dpjax.solvers import (
    Execution,
    dp_gradient_descent,
    dp_iterative_hard_thresholding,
    dp_sparse_linear_regression,
)
from tests.unit.refusals import refused


def linear(params, example):
    """A loss whose gradient is the example, whatever the parameters are."""
    return jnp.dot(params, example)


def problem(num_samples=50_000, num_features=1000, seed=0, sparsity=20):
    """Sparse regression, as in figure 7 of paper 004."""
    return datasets.linear_model(
        jax.random.key(seed),
        num_samples=num_samples,
        num_features=num_features,
        feature_law=datasets.Normal(scale=5**0.5),
        noise_law=datasets.LogNormal(scale=0.5**0.5),
        params_fn=datasets.sparse_params(sparsity),
    )


def threshold(data=None, params=None, solve=dp_iterative_hard_thresholding, **changes):
    """Hard thresholding along a constant gradient (-0.5, 0.9, 0.1)."""
    data = jnp.tile(jnp.array([-0.5, 0.9, 0.1]), (60, 1)) if data is None else data
    options = {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-5, "sparsity": 2}
    options |= {"estimator": Winsorization(1.0), "learning_rate": 0.5, "num_steps": 3}
    return solve(
        changes.pop("loss_fn", linear),
        jnp.zeros(3) if params is None else params,
        data,
        **(options | changes),
    )


def regress(features=None, targets=None, **changes):
    if features is None:
        features = jax.random.normal(jax.random.key(0), (100, 3))
    options = {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-5, "sparsity": 2}
    return dp_sparse_linear_regression(
        features, features[:, 0] if targets is None else targets, **(options | changes)
    )


def distance(solution, setting):
    return float(jnp.linalg.norm(solution.params - setting.true_params))


@pytest.mark.slow
def test_both_beat_zero_and_the_dense_solver():
    # The truth lies on the unit sphere: the zero vector is at distance 1.
    setting = problem()
    options = {"epsilon": 2.0, "delta": 50_000**-1.1}
    estimator = SmoothedTruncation(10.0)
    zero = jnp.zeros(1000)
    by_thresholding = dp_iterative_hard_thresholding(
        losses.squared,
        zero,
        setting.data,
        key=jax.random.key(1),
        sparsity=20,
        estimator=estimator,
        learning_rate=2 / 3 / 5,
        **options,
    )
    by_regression = dp_sparse_linear_regression(
        *setting.data, key=jax.random.key(2), sparsity=20, **options
    )
    dense = dp_gradient_descent(
        losses.squared,
        zero,
        setting.data,
        key=jax.random.key(3),
        estimator=estimator,
        learning_rate=2 / 3 / 5,
        num_steps=10,
        **options,
    )
    assert distance(by_thresholding, setting) < 0.2
    assert distance(by_regression, setting) < 0.5
    assert distance(by_thresholding, setting) < distance(dense, setting) / 2
    assert by_regression.stats["is_informative"]
    assert int((by_regression.params != 0).sum()) <= 20
    # The printed constants drown it: their noise exceeds the whole ball.
    papers = printed.sparse_regression(
        *setting.data, key=jax.random.key(2), sparsity=20, **options
    )
    assert distance(papers, setting) > 1
    assert papers.stats["noise_norm"] > 1
    assert papers.privacy.epsilon <= 2.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["thresholding", "regression"])
def test_recovery_improves_with_n_and_epsilon(name):
    def median_distance(num_samples, epsilon):
        distances = []
        for seed in range(3):
            setting = problem(num_samples, 300, seed)
            options = {"key": jax.random.key(20 + seed), "epsilon": epsilon}
            options |= {"delta": 1e-6, "sparsity": 20}
            if name == "regression":
                solution = dp_sparse_linear_regression(*setting.data, **options)
            else:
                solution = dp_iterative_hard_thresholding(
                    losses.squared,
                    jnp.zeros(300),
                    setting.data,
                    estimator=SmoothedTruncation(10.0),
                    learning_rate=2 / 3 / 5,
                    num_steps=5,
                    **options,
                )
            distances.append(distance(solution, setting))
        return np.median(distances)

    few, many = median_distance(4000, 1.0), median_distance(32_000, 1.0)
    assert many < few
    assert median_distance(4000, 8.0) < few


def test_the_support_and_a_pytree():
    solution = threshold(epsilon=1e6)
    np.testing.assert_allclose(solution.params, [0.75, -1.35, 0.0], atol=1e-3)
    assert solution.params[2] == 0

    def loss_fn(params, example):
        return jnp.dot(params["w"], example[:2]) + params["b"] * example[2]

    params = {"w": jnp.zeros(2), "b": jnp.zeros(())}
    tree = threshold(params=params, loss_fn=loss_fn, epsilon=1e6)
    assert tree.params["b"] == 0
    np.testing.assert_allclose(tree.params["w"], [0.75, -1.35], atol=1e-3)


def thresholded_noise(**options):
    return threshold(jnp.zeros((10, 3)), **options)


def regression_noise(**options):
    options |= {"threshold": 2.0, "learning_rate": 0.5, "radius": 1e6}
    return regress(jnp.zeros((10, 3)), jnp.zeros(10), **options)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("run", "bound", "delta"),
    [
        (thresholded_noise, 1.0, 0.0),
        (thresholded_noise, 1.0, 1e-5),
        (regression_noise, 4.0, 1e-5),
    ],
)
def test_noise_of_a_step(run, bound, delta):
    """All entries stay, no gradient: what is released is noise of the stated scale.

    Two-sided test with false alarm 1e-6 at the right scale; it rejects 2/3 and 3/2.
    """
    keys = jax.random.split(jax.random.key(5), 1500)

    def release(key):
        solution = run(key=key, sparsity=3, num_steps=1, delta=delta)
        return solution.params, solution.stats["noise_scale"]

    noise, scale = jax.jit(jax.vmap(release))(keys)
    linf = 0.5 * Winsorization(bound).sensitivity(10, 3).linf
    if delta == 0:
        law = scipy.stats.laplace(scale=3 * 3 * linf)
    else:
        rho = accounting.epsilon_to_rho(1.0, delta)
        law = scipy.stats.norm(scale=linf * math.sqrt(3 / rho))
    assert float(scale[0]) == pytest.approx(law.kwds["scale"], rel=1e-5)
    for factor, is_right in ((1, True), (2 / 3, False), (3 / 2, False)):
        pvalue = scipy.stats.kstest(np.ravel(noise) * factor, law.cdf).pvalue
        assert (pvalue > 1e-6) == is_right


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [1, 4])
def test_per_step_noise_follows_the_weights(num_steps):
    """The stated noise is that of the last step, from the weights before it."""
    norms = {0: 0.0}

    def show(step, params):
        norms[int(step)] = float(jnp.abs(params).sum())

    solution = regress(
        threshold=2.0,
        learning_rate=0.1,
        num_steps=num_steps,
        epsilon=1e6,
        execution=Execution(callback=show),
    )
    batch_size = 100 // num_steps
    exact = 0.1 * 2 * 4 * (1 + norms[num_steps - 1]) / batch_size
    assert norms[num_steps] > norms[num_steps - 1] + 0.03  # far beyond the slack
    assert float(solution.stats["linf_sensitivity"]) == pytest.approx(exact, rel=5e-3)
    assert solution.stats["linf_sensitivity"] >= exact


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_samples", "sparsity", "epsilon", "dearer"),
    [(40_000, 20, 1.0, 2), (50_000, 5, 4.0, 1)],
)
def test_steps_are_taken_where_they_pay(num_samples, sparsity, epsilon, dearer):
    """A step too many, or too few, is worse, by more than chance."""
    options = {"epsilon": epsilon, "delta": 1e-6, "fourth_moment_bound": 75.0}
    distances = {None: [], dearer: []}
    for seed in range(2):
        setting = problem(num_samples, 400, seed, sparsity)
        for num_steps, found in distances.items():
            solution = dp_sparse_linear_regression(
                *setting.data,
                key=jax.random.key(seed),
                sparsity=sparsity,
                num_steps=num_steps,
                **options,
            )
            found.append(distance(solution, setting))
    assert max(distances[None]) < min(distances[dearer])


def test_gradients_on_clipped_data_keep_the_stated_sensitivity():
    """One adversarial record replaced: the step moves by at most the stated amount."""
    rng = np.random.default_rng(0)
    features = rng.standard_t(1.5, (50, 4)).astype(np.float32)
    targets = rng.standard_t(1.5, 50).astype(np.float32)
    worst, stated = 0.0, None
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


@pytest.mark.slow
def test_mean_square_is_paid_for_and_close():
    features = 3 * np.random.default_rng(0).normal(size=(20_000, 3))
    features = features.astype(np.float32)
    options = {"epsilon": 1.0, "delta": 1e-5, "sparsity": 2, "threshold": 9.0}
    data = (features, features[:, 0])
    taken = dp_sparse_linear_regression(*data, key=jax.random.key(1), **options)
    given = dp_sparse_linear_regression(
        *data, key=jax.random.key(2), learning_rate=0.1, **options
    )
    assert float(taken.stats["learning_rate"]) == pytest.approx(2 / 3 / 9, rel=0.1)
    rho = accounting.epsilon_to_rho(1.0, 1e-5)
    multipliers = []
    for solution in (taken, given):
        assert solution.privacy.dp_event.rho == pytest.approx(rho)
        stats = solution.stats
        multipliers.append(float(stats["noise_scale"] / stats["linf_sensitivity"]))
    # What the step size has cost is gone from the peeling.
    assert multipliers[0] / multipliers[1] == pytest.approx(0.98**-0.5, rel=1e-5)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("estimator", "excess"), [(SmoothedTruncation(1.0), 3 / 0.6827), (Truncation(1), 1)]
)
def test_printed_peeling(estimator, excess):
    # 004: b = 2 lam sqrt(3 s L) / epsilon, lam three times too large.
    # 003: b = 4 lam sqrt(2 s L) / epsilon.
    solution = threshold(estimator=estimator, solve=printed.hard_thresholding)
    log_inverse = math.log(1e5)
    factor = 2 * math.sqrt(3) if excess > 1 else 4 * math.sqrt(2)
    sensitivity = float(solution.stats["linf_sensitivity"])
    scale = excess * sensitivity * factor * math.sqrt(2 * log_inverse)
    assert float(solution.stats["noise_scale"]) == pytest.approx(scale, rel=1e-3)
    rho = 2.5 * 2 * (sensitivity / scale) ** 2
    epsilon = min(6 * sensitivity / scale, accounting.rho_to_epsilon(rho, 1e-5))
    assert solution.privacy.epsilon == pytest.approx(epsilon, rel=1e-3)
    assert solution.privacy.epsilon < 1


BAD = [
    ({"sparsity": 4}, "sparsity must be at most the 3 entries"),
    ({"num_steps": 101}, "num_steps must be at most the"),
]

test_bad_arguments_of_thresholding_are_named = refused(
    lambda changes: threshold(**changes),
    *BAD,
)
test_bad_arguments_of_a_regression_are_named = refused(
    lambda changes: regress(**changes),
    *BAD,
)
