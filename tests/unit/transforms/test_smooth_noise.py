"""`privatize` by smooth sensitivity: its size, its split over coordinates, refusals."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax import ADD_OR_REMOVE_ONE
from dpjax.accounting._smooth import calibrate_smooth_noise, smooth_noise_rho
from dpjax.estimators import TrimmedMean
from dpjax.mechanisms import BinaryTree
from dpjax.transforms import privatize

FALSE_ALARM = 1e-6
ESTIMATOR = TrimmedMean(0.1, -1.0, 1.0)


def privatized(estimator, *, rho, key):
    return privatize(estimator, noise_multiplier=(2 * rho) ** -0.5, key=key)


def updated(transform, updates, **kwargs):
    params = jax.tree.map(lambda x: x[0], updates)
    return transform.update(updates, transform.init(params), params, **kwargs)[0]


def samples_of(num_rows, num_columns):
    """Columns of very different spread, each many times."""
    samples = np.random.default_rng(0).standard_t(2, (num_rows, num_columns))
    spreads = np.tile([0.0, 1e-2, 1.0, 1e2], num_columns // 4)
    return jnp.asarray(samples * spreads, jnp.float32)


def test_noise_is_the_multiplier_times_the_smooth_sensitivity(key):
    rho, n, d = 40.0, 50, 20_000
    grads = {"a": samples_of(n, d // 2), "b": jnp.zeros((n, d // 2))}
    transform = privatized(ESTIMATOR, rho=rho, key=key)
    released = updated(transform, grads)
    # Each of d coordinates gets a d-th of the budget.
    noise = calibrate_smooth_noise(rho / d, num_samples=n, trim_count=5)
    spent = smooth_noise_rho(
        noise.multiplier, smoothness=noise.smoothness, sigma=noise.sigma
    )
    assert d * spent <= rho
    assert d * spent > 0.999 * rho
    mean, sensitivity = jax.jit(
        lambda x: ESTIMATOR.with_smooth_sensitivity(x, noise.smoothness)
    )(grads)
    units = [
        (x - y) / (noise.multiplier * s)
        for x, y, s in zip(
            *map(jax.tree.leaves, (released, mean, sensitivity)), strict=True
        )
    ]
    units = np.concatenate([np.ravel(x) for x in units]).astype(np.float64)
    assert units.size == d
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    weights /= weights.sum()

    def distance(scale):
        def cdf(z):  # of Laplace noise of every spread, averaged
            tails = [
                np.exp(-np.abs(z) / scale * math.exp(-noise.sigma * y)) for y in nodes
            ]
            return 0.5 + 0.5 * np.sign(z) * (1 - weights @ np.array(tails))

        return scipy.stats.kstest(units, cdf).statistic

    # Massart: Pr[distance > t] <= 2 exp(-2 n t^2).
    bound = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * d))
    assert distance(1.0) <= bound
    for wrong in (2 / 3, 3 / 2):
        assert distance(wrong) > 2 * bound


def test_the_guess_of_the_spread_changes_the_split_alone(key):
    grads = jax.random.normal(key, (200, 4))
    estimator = dataclasses.replace(ESTIMATOR, relative_spread=1e4)
    transform = privatized(estimator, rho=1e6, key=jax.random.key(0))
    noise = calibrate_smooth_noise(
        1e6 / 4, num_samples=200, trim_count=20, relative_spread=1e4
    )
    mean, sensitivity = jax.jit(
        lambda x: ESTIMATOR.with_smooth_sensitivity(x, noise.smoothness)
    )(grads)
    # Laplace beyond 45 scales, normal beyond 9.4: never drawn.
    largest = 45 * math.exp(9.4 * noise.sigma) * noise.multiplier * sensitivity
    assert (jnp.abs(updated(transform, grads) - mean) <= largest).all()


def test_bad_updates(key):
    rows = jnp.zeros((10, 2))

    def traced(multiplier):
        return updated(privatize(ESTIMATOR, noise_multiplier=multiplier, key=key), rows)

    with pytest.raises(ValueError, match="noise_multiplier must be a concrete number"):
        jax.jit(traced)(1.0)
    transform = privatized(ESTIMATOR, rho=1.0, key=key)
    mask = jnp.zeros(10, bool)
    with pytest.raises(ValueError, match="estimator must be one that takes masks"):
        updated(transform, rows, is_padding_example=mask)
    fixed = privatize(ESTIMATOR, noise_multiplier=1.0, key=key, sampled=False)
    with pytest.raises(ValueError, match="is_padding_example must be None"):
        updated(fixed, rows, is_padding_example=mask)
    with pytest.raises(ValueError, match="estimator must be one that takes masks"):
        privatize(ESTIMATOR, noise_multiplier=1.0, key=key, relation=ADD_OR_REMOVE_ONE)
    with pytest.raises(ValueError, match="noise must be a strategy of dpjax"):
        privatize(ESTIMATOR, noise_multiplier=1.0, key=key, noise=BinaryTree(4))
    with pytest.raises(ValueError, match="num_samples must be more than the 2"):
        updated(transform, rows[:2])
    with pytest.raises(ValueError, match="must be arrays that share"):
        transform.update({"a": rows, "b": rows[:5]}, transform.init(rows))
