"""The synthetic problems of papers 001 and 004."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax import datasets, losses
from dpjax.datasets._heavy_tailed import l1_ball_params

models = pytest.mark.parametrize(
    "model", [datasets.linear_model, datasets.logistic_model]
)
FALSE_ALARM = 1e-4  # of each Kolmogorov-Smirnov test, over fresh keys


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


def test_no_noise_gives_the_linear_predictor(key):
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
    right, wrong = (
        loss_fn(x * problem.true_params, problem.data).mean() for x in (sign, -sign)
    )
    assert right < wrong


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
