"""Synthetic problems, and every law against SciPy: wrong parameters are rejected.

Kolmogorov-Smirnov with 20,000 samples and a fixed key. A right law is rejected where
p < 1e-4, so a fresh key would fail one test in ten thousand; a wrong one must reach
p < 1e-9.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax import datasets, losses
from dpjax.datasets._heavy_tailed import l1_ball_params

NUM_SAMPLES = 20_000
FALSE_ALARM = 1e-4

# Law, its oracle, and an oracle with a wrong parameter.
LOG_NORMAL, ROOT = datasets.LogNormal(location=1.0, scale=1.0), 5**0.5
CASES = [
    (datasets.Normal(1.0, ROOT), stats.norm(1, ROOT), stats.norm(1, 1.2 * ROOT)),
    (LOG_NORMAL, stats.lognorm(1, scale=math.e), stats.lognorm(1, scale=1.2 * math.e)),
    (datasets.StudentT(3.0), stats.t(3), stats.t(3, scale=1.2)),
    (datasets.StudentT(0.3), stats.t(0.3), stats.t(0.3, scale=1.4)),  # without a mean
    (datasets.StudentT(1e4), stats.norm(), stats.norm(scale=1.2)),
    (datasets.Pareto(1.5, 2.0), stats.pareto(1.5, scale=2), stats.pareto(1.8, scale=2)),
    (
        LOG_NORMAL.centered(),
        *(stats.lognorm(1, shift - math.exp(1.5), math.e) for shift in (0, 0.5)),
    ),
]


@pytest.mark.parametrize(("law", "oracle", "wrong"), CASES, ids=lambda x: repr(x)[:30])
def test_samples_follow_the_law(law, oracle, wrong, key):
    samples = law.sample(key, (NUM_SAMPLES,))
    assert samples.dtype == jnp.float32
    again = law.sample(jax.random.clone(key), (NUM_SAMPLES,))
    np.testing.assert_array_equal(samples, again)
    samples = np.asarray(samples, np.float64)
    assert stats.kstest(samples, oracle.cdf).pvalue > FALSE_ALARM
    assert stats.kstest(samples, wrong.cdf).pvalue < 1e-9
    expected = oracle.mean() if math.isfinite(law.mean) else law.mean
    assert law.mean == pytest.approx(expected, abs=1e-9, nan_ok=True)
    twin = eval(repr(law), vars(datasets).copy())
    assert (twin, hash(twin)) == (law, hash(law))


def test_samples_are_finite_where_the_law_leaves_float32(key):
    samples = datasets.LogNormal(scale=100.0).sample(key, (200_000,))
    assert bool(jnp.all(jnp.isfinite(samples)))
    assert float(samples.max()) == float(jnp.finfo(jnp.float32).max)


def test_laws_are_compared_and_centered():
    assert datasets.Normal() not in (datasets.LogNormal(), datasets.Normal(scale=2.0))
    infinite = datasets.Pareto(tail_index=1.0), datasets.LogNormal(scale=100.0)
    student = datasets.StudentT(degrees_of_freedom=1.0)
    for law, mean in (*((law, math.inf) for law in infinite), (student, math.nan)):
        assert law.mean == pytest.approx(mean, nan_ok=True)
        with pytest.raises(ValueError, match="law must be"):
            law.centered()


models = pytest.mark.parametrize(
    "model", [datasets.linear_model, datasets.logistic_model]
)


@models
def test_repetitions_are_one_vmap(model, key):
    problem = model(key, num_samples=50, num_features=7)
    again = model(jax.random.clone(key), num_samples=50, num_features=7)
    assert all(leaf.dtype == jnp.float32 for leaf in problem)
    assert all(np.array_equal(*pair) for pair in zip(problem, again, strict=True))
    assert problem.data == (problem.features, problem.targets)
    repeated = jax.vmap(lambda key: model(key, num_samples=50, num_features=7))
    problems = repeated(jax.random.split(jax.random.clone(key), 3))
    assert [leaf.shape for leaf in problems] == [(3, 50, 7), (3, 50), (3, 7)]
    assert not np.array_equal(problems.targets[0], problems.targets[1])


def test_linear_model_is_that_of_paper_001(key):
    problem = datasets.linear_model(key, num_samples=20_000, num_features=10)
    features, targets, true_params = (np.asarray(leaf, np.float64) for leaf in problem)
    noise = targets - features @ true_params
    law = stats.lognorm(1, loc=-math.exp(1.5), scale=math.e)
    assert stats.kstest(noise, law.cdf).pvalue > FALSE_ALARM
    assert stats.kstest(features.ravel(), stats.norm.cdf).pvalue > FALSE_ALARM
    assert abs(true_params).sum() <= 1
    key = jax.random.clone(key)
    problem = datasets.linear_model(key, num_samples=50, num_features=7, noise_law=None)
    expected = np.asarray(problem.features) @ np.asarray(problem.true_params)
    np.testing.assert_allclose(problem.targets, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_logistic_model_has_the_sign_of_each_paper(sign, key):
    """That of paper 004 by default, and of 001."""
    changes = {} if sign == 1 else {"sign": sign}
    problem = datasets.logistic_model(key, num_samples=2_000, num_features=7, **changes)
    latent = np.asarray(problem.features) @ np.asarray(problem.true_params)
    assert np.array_equal(problem.targets, np.sign(sign * latent))
    loss_fn = jax.vmap(losses.logistic, in_axes=(None, 0))
    params, data = sign * problem.true_params, problem.data
    assert loss_fn(params, data).mean() < loss_fn(-params, data).mean()


def test_l1_ball_params_are_uniform(key):
    draw = jax.jit(jax.vmap(lambda key: l1_ball_params(key, 4)))
    draws = draw(jax.random.split(key, 5_000))
    # The l1 norm of a uniform point of the ball in d dimensions has the law r^d.
    norms = np.abs(np.asarray(draws, np.float64)).sum(axis=1)
    assert stats.kstest(norms, stats.beta(4, 1).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(norms, stats.beta(5, 1).cdf).pvalue < 1e-9
    assert abs(np.sign(draws).mean()) < 4 / math.sqrt(20_000)


def test_sparse_params_are_sparse_unit_vectors(key):
    draw = jax.jit(jax.vmap(lambda key: datasets.sparse_params(5)(key, 30)))
    draws = draw(jax.random.split(key, 500))
    assert np.all((np.asarray(draws) != 0).sum(axis=1) == 5)
    np.testing.assert_allclose(np.linalg.norm(draws, axis=1), 1.0, rtol=1e-5)
    assert np.all((np.asarray(draws) != 0).any(axis=0))


@models
def test_a_sparsity_beyond_the_features_is_refused(model, key):
    with pytest.raises(ValueError, match="sparsity must be"):
        model(key, num_samples=3, num_features=5, params_fn=datasets.sparse_params(6))
