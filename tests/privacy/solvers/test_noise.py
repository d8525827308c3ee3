"""Noise of solvers is what budgets need; certificates hold; an order tells nothing."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax import accounting, losses, solvers
from dpjax.batching import Disjoint, Poisson
from dpjax.estimators import Clipping, MedianOfMeans, Truncation, Winsorization
from tests.unit.solvers import test_sample_and_aggregate as aggregate
from tests.unit.solvers import test_sparse as sparse
from tests.unit.solvers.test_objective_perturbation import (
    LOSSES,
    NORMAL,
    RNG,
    SIGNS,
    computed_minimizer,
    exact_gradient,
    solve,
)

FALSE_ALARM = 1e-6
EPSILON, DELTA, RATE, T = 0.7, 1e-5, 0.3, 4
BUDGET = {"epsilon": EPSILON, "delta": DELTA}


def descent(batching, size):
    multiplier = accounting.noise_multiplier(EPSILON, DELTA, batching.sampling(40, T))
    estimator, sampled = Winsorization(1.0), batching.is_sampled
    bound = estimator.sampled_sensitivity if sampled else estimator.sensitivity
    stddev = multiplier * bound(size, 5, rounded=False).l2
    options = {"estimator": estimator, "learning_rate": RATE, "num_steps": T}
    options |= {"batching": batching} | BUDGET

    def release(key):
        # Without gradients T steps are a sum of T independent noises.
        problem = jnp.dot, jnp.zeros(5), jnp.zeros((40, 5))
        params = solvers.dp_gradient_descent(*problem, key=key, **options).params
        return params / (RATE * math.sqrt(T) * stddev)

    return release


def mean(estimator):
    sensitivity = estimator.sensitivity(20, 4, rounded=False).l2
    stddev = accounting.gaussian_stddev(EPSILON, DELTA, sensitivity=sensitivity)

    def release(key):
        samples = {"a": jnp.zeros((20, 3)), "b": jnp.zeros(20)}
        params = solvers.dp_mean(samples, key=key, estimator=estimator, **BUDGET).params
        return jnp.concatenate([params["a"], params["b"][None]]) / stddev

    return release


def objective(loss):
    def release(key):
        # Zero records leave w = -eta / (N Lambda), and the noise of the output.
        options = {"key": key, "loss": loss, "regularization": 0.01} | BUDGET
        data = jnp.zeros((20, 3)), jnp.ones(20)
        solution = solvers.dp_objective_perturbation(*data, **options)
        stats = solution.stats
        stddev = stats["stddev"] / (20 * stats["regularization"])
        return solution.params / jnp.hypot(stddev, stats["output_stddev"])

    return release


def sample_and_aggregate(key):
    # Equal results leave the floor, which is public: so the noise's scale is known.
    solution = aggregate.solve(jnp.ones((1200, 3)), key=key)
    return (solution.params - 1) / solution.stats["least_stddev"]


def peeled(solve, bound, delta):
    linf = 0.5 * Winsorization(bound).sensitivity(10, 3).linf
    scale = 3 * 3 * linf
    if delta:
        scale = linf * math.sqrt(3 / accounting.epsilon_to_rho(1.0, delta))

    def release(key):
        # All entries stay, without a gradient.
        return solve(key=key, sparsity=3, num_steps=1, delta=delta).params / scale

    return release


def thresholded(**options):
    return sparse.threshold(jnp.zeros((10, 3)), **options)


def regressed(**options):
    options |= {"threshold": 2.0, "learning_rate": 0.5, "radius": 1e6}
    return sparse.regress(jnp.zeros((10, 3)), jnp.zeros(10), **options)


PSEUDO_HUBER = losses.MarginLoss(lambda z: (z - 1) / jnp.hypot(1.0, z - 1), 1.0, 1.0)
RELEASES = {
    "descent, disjoint": descent(Disjoint(), 10),
    "descent, poisson": descent(Poisson(5.0), 5),
    "mean, clipping": mean(Clipping(1.0)),
    "mean, medians": mean(MedianOfMeans(Truncation(1.0), 4)),
    "objective, logistic": objective(losses.logistic),
    "objective, pseudo-Huber": objective(PSEUDO_HUBER),
    "sample and aggregate": sample_and_aggregate,
    "thresholding": peeled(thresholded, 1.0, 1e-5),
    "thresholding, pure": peeled(thresholded, 1.0, 0.0),
    "sparse regression": peeled(regressed, 4.0, 1e-5),
}


@pytest.mark.parametrize("name", RELEASES)
def test_noise_is_of_the_scale_that_the_budget_needs(name):
    keys = jax.random.split(jax.random.key(5), 1500)
    noise = np.ravel(jax.jit(jax.vmap(RELEASES[name]))(keys)).astype(np.float64)
    law = "laplace" if name.endswith("pure") else "norm"
    assert scipy.stats.kstest(noise, law).pvalue > FALSE_ALARM
    for factor in (2 / 3, 3 / 2):
        assert scipy.stats.kstest(noise * factor, law).pvalue < FALSE_ALARM


def test_the_order_of_chosen_features_says_nothing(key):
    # In the order of peeling's values odd columns came last on one table in 59 of 60
    # runs, and on its neighbor in 1 of 60: epsilon 2.96 at a claimed 0.1.
    labels = np.random.default_rng(0).choice([-1.0, 1.0], 1_000)
    features = np.repeat(labels[:, None], 60, 1)
    labels[0] = 1
    budget = {"epsilon": 0.1, "delta": 1e-5, "max_features": 50}
    for sign in (1e6, -1e6):
        features[0] = sign * np.where(np.arange(60) % 2 == 0, 1, -1)
        data, own_key = (features, labels), jax.random.clone(key)
        solution = solvers.dp_linear_model("logistic", data, key=own_key, **budget)
        assert (np.diff(np.asarray(solution.stats["selected"])) > 0).all()


WILD = (RNG.standard_cauchy(size=(300, 4)) * 1e30).astype(np.float32)
WILD[0], WILD[1, 0], WILD[2] = np.inf, np.nan, -3e38
ONES = np.ones((300, 4), np.float32)
DATA = {
    "normal": (NORMAL, SIGNS),
    "separable": (NORMAL, NORMAL[:, 0]),
    "one record many times": (ONES, ONES[:, 0]),
    "at odds": (ONES, SIGNS),
    "zeros": (0 * ONES, SIGNS),
    "tiny": (NORMAL * np.float32(1e-30), SIGNS),
    "wild": (WILD, SIGNS),
    "one record": (NORMAL[:1], SIGNS[:1]),
    "more features than records": (RNG.normal(size=(5, 30)), SIGNS[:5]),
}
# Every data set with one loss and budget, and every loss on data with many slopes.
CASES = [(name, "logistic", 0.1, 0.01) for name in DATA]
CASES += [("wild", loss, 10.0, 0.0) for loss in LOSSES]


@pytest.mark.parametrize(("name", "loss", "epsilon", "regularization"), CASES)
def test_certificate_holds(name, loss, epsilon, regularization):
    (features, labels), loss = DATA[name], LOSSES[loss]
    options = {"epsilon": epsilon, "regularization": regularization, "loss": loss}
    solution = solve(features, labels, **options)
    assert np.isfinite(np.asarray(solution.params)).all()
    stats = solution.stats
    eta = stats["stddev"] * RNG.normal(size=features.shape[1])
    setting = loss, len(features) * stats["regularization"], eta
    given = features, labels, *setting, stats["gradient_norm"]
    rows, params, _ = computed_minimizer(*given)
    gradient = exact_gradient(rows, params, *setting)
    assert np.linalg.norm(gradient) <= stats["gradient_norm"]
