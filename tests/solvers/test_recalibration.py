"""Scale and level of a predictor: found without noise, held where there is much."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import losses
from dpjax.solvers import _recalibration
from dpjax.solvers._noisy_quantile import noisy_quantile
from dpjax.solvers._recalibration import Predictor, recalibration

NUM = 50_000


def predictor(loss, scale, level):
    """Scores that should be multiplied by a scale, and a level that is off."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=NUM)
    best = scale * scores + level
    if loss is losses.squared:
        targets = best + rng.exponential(size=NUM) - 1
    else:
        targets = np.where(rng.logistic(size=NUM) < best, 1.0, -1.0)
    arrays = scores, targets, np.zeros(NUM), np.ones(NUM)
    scores, targets, offsets, weights = (jnp.asarray(x, "float32") for x in arrays)
    return Predictor(scores, jnp.zeros(()), targets, offsets, weights)


def solve(loss, given, *, multiplier=1e-3, **changes):
    options = {"has_level": True, "is_at_mean": False} | changes
    return recalibration(
        loss,
        given,
        key=jax.random.key(0),
        size_multiplier=multiplier,
        multiplier=multiplier,
        axis_name=None,
        **options,
    )


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.4])
def test_newton_finds_scale_and_level(scale):
    found = solve(losses.squared, predictor(losses.squared, scale, 0.3))
    np.testing.assert_allclose(found, (scale, 0.3), atol=0.05)


def test_a_level_that_is_the_mean_is_freed_of_the_scores():
    given = predictor(losses.squared, 1.3, 0.0)
    given = given._replace(scores=given.scores + 0.2, targets=given.targets + 0.26)
    level = jnp.mean(given.targets)
    scale, shift = solve(losses.squared, given._replace(level=level), is_at_mean=True)
    np.testing.assert_allclose(scale, 1.3, atol=0.05)
    np.testing.assert_allclose(shift, -scale * 0.2, atol=0.03)


def test_labels():
    found = solve(losses.logistic, predictor(losses.logistic, 1.2, 0.1))
    np.testing.assert_allclose(found, (1.2, 0.1), atol=0.05)


def test_without_an_intercept_the_level_stays():
    given = predictor(losses.squared, 1.4, 0.0)
    scale, shift = solve(losses.squared, given, has_level=False)
    np.testing.assert_allclose(scale, 1.4, atol=0.05)
    assert shift == 0


def test_what_noise_hides_changes_nothing():
    given = predictor(losses.squared, 1.4, 0.3)
    scale, shift = solve(losses.squared, given, multiplier=1e6)
    np.testing.assert_allclose((scale, shift), (1, 0), atol=0.05)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38, 0.0])
def test_finite_whatever_the_values(value):
    given = Predictor(
        *(
            jnp.full(NUM if x.ndim else (), value)
            for x in predictor(losses.squared, 1.0, 0.0)
        )
    )
    given = given._replace(level=jnp.zeros(()), weights=jnp.ones(NUM))
    scale, shift = solve(losses.squared, given, multiplier=1.0)
    assert 0 <= scale <= 3
    assert jnp.isfinite(shift)


def test_releases_have_the_noise_that_is_paid(monkeypatch):
    of_sizes, of_means = [], []

    def quantile(key, sizes, *, noise_multiplier, **options):
        of_sizes.append(noise_multiplier)
        return noisy_quantile(key, sizes, noise_multiplier=noise_multiplier, **options)

    class Spy:
        def __init__(self, estimator, *, noise_multiplier, **options):
            del options
            self.estimator = estimator
            of_means.append(float(noise_multiplier))

        def init(self, samples):
            del samples

        def update(self, samples, state):
            # Each of five numbers is within 1: sqrt(5) is counted by the estimator.
            assert samples.shape == (NUM, 5)
            assert self.estimator.sensitivity(NUM, 5).l2 >= 2 * math.sqrt(5) / NUM
            return self.estimator(samples), state

    monkeypatch.setattr(_recalibration, "noisy_quantile", quantile)
    monkeypatch.setattr(_recalibration, "privatize", Spy)
    step = _recalibration._newton_step.__wrapped__  # not traced, nor from a cache
    monkeypatch.setattr(_recalibration, "_newton_step", step)
    solve(losses.squared, predictor(losses.squared, 1.0, 0.0), multiplier=2.0)
    assert len(of_sizes) == 3
    np.testing.assert_allclose(sum(x**-2.0 for x in of_sizes), 2.0**-2, rtol=1e-6)
    assert of_means == [2.0]
