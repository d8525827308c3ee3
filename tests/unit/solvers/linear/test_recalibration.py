"""Scale and level of a predictor: found without noise, held where there is much."""

import itertools
import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import losses
from dpjax.solvers.linear import _constant, _fit
from dpjax.solvers.linear._columns import cleaned
from dpjax.solvers.linear._fit import Predictor, recalibration
from dpjax.solvers.linear._kind import Examples, ModelKind
from tests.unit.solvers.test_diameter import check_set

NUM = 50_000
ODD = [-3e38, -2.0, -1.0, -0.3, 0.0, 0.3, 1.0, 2.0, 3e38, np.nan, np.inf]


def predictor(loss, scale, level):
    """Scores that should be multiplied by a scale, and a level that is off."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=NUM)
    best = scale * scores + level
    if loss is losses.squared:
        targets = best + rng.exponential(size=NUM) - 1
    elif loss.has_log_link:
        targets = np.exp(best) * rng.exponential(size=NUM)
    else:
        targets = np.where(rng.logistic(size=NUM) < best, 1.0, -1.0)
    arrays = scores, targets, np.zeros(NUM), np.ones(NUM)
    scores, targets, offsets, weights = (jnp.asarray(x, "float32") for x in arrays)
    return Predictor(scores, jnp.zeros(()), targets, offsets, weights)


def solve(loss, given, *, multiplier=1e-3, **changes):
    options = {"has_level": True, "is_at_mean": False, "key": jax.random.key(0)}
    options |= {"size_multiplier": multiplier, "multiplier": multiplier}
    options |= {"axis_name": None} | changes
    return recalibration(loss, given, jnp.zeros(()), **options)


@pytest.mark.parametrize(
    ("loss", "scale", "level"),
    [
        *((losses.squared, x, 0.3) for x in (0.5, 1.4)),
        *((losses.logistic, 1.2, 0.1), (losses.log_link(2.0), 1.1, 0.1)),
    ],
)
def test_newton_finds_scale_and_level(loss, scale, level):
    given = predictor(loss, scale, level)
    np.testing.assert_allclose(solve(loss, given), (scale, level), atol=0.05)
    # What noise hides changes nothing.
    np.testing.assert_allclose(solve(loss, given, multiplier=1e6), (1, 0), atol=0.05)


def test_a_level_that_is_the_mean_is_freed_of_the_scores():
    given = predictor(losses.squared, 1.3, 0.0)

    def at_mean(change, error):
        scores, targets = given.scores + change, given.targets + 1.3 * change
        level = jnp.mean(targets) - error
        moved = given._replace(scores=scores, targets=targets, level=level)
        return solve(losses.squared, moved, is_at_mean=True)

    scale, shift = at_mean(0.2, 0.0)
    np.testing.assert_allclose(scale, 1.3, atol=0.05)
    np.testing.assert_allclose(shift, -scale * 0.2, atol=0.03)
    # Scores off zero times a level that is off: the scale was 1.7 for 1.3 then.
    np.testing.assert_allclose(at_mean(-2.0, 0.5)[0], 1.3, atol=0.05)


def test_without_an_intercept_the_level_stays():
    given = predictor(losses.squared, 1.4, 0.0)
    scale, shift = solve(losses.squared, given, has_level=False)
    np.testing.assert_allclose(scale, 1.4, atol=0.05)
    assert shift == 0


def every(*values):
    """All combinations, each a float32 array."""
    return [np.ravel(x).astype(np.float32) for x in np.meshgrid(*values)]


@pytest.mark.parametrize(
    "loss", [losses.squared, losses.logistic, losses.huber(1.0), losses.poisson(5.0)]
)
def test_no_two_records_are_further_apart_than_the_noise_is_for(loss):
    scores, targets, offsets, weights = every(ODD, ODD[::2], ODD[1::2], [0, 0.4, 1])
    given = Predictor(scores, jnp.zeros(()), targets, offsets, weights)
    bounds = list(jnp.float32([1.0, 0.6, 0.7]))
    examples = jax.jit(_fit._records, static_argnums=0)(loss, given, bounds)
    check_set(examples, _fit._RECORDS, 0.99 if loss == losses.huber(1.0) else 0.5)


@pytest.mark.parametrize(
    ("loss", "has_exposures"),
    [
        (losses.softmax(3), False),
        # Targets of the second are zero or above.
        *itertools.product((losses.squared, losses.poisson(5.0)), (False, True)),
    ],
)
def test_no_two_records_of_a_constant_are_further_apart(loss, has_exposures):
    kind = ModelKind(loss, True, has_exposures, None)
    targets, offsets, weights = every(ODD, [*ODD, -30.0], [0, 0.3, 0.999, 7])
    features = np.zeros((len(targets), 1), np.float32)
    examples = cleaned(loss, None, Examples(features, targets, offsets, weights), 1.0)
    samples, estimator = _constant._samples(kind, examples, jnp.float32(0.9))
    check_set(samples, estimator, 0.99)


def test_releases_have_the_noise_that_is_paid(monkeypatch):
    names = "noisy_quantile", "gaussian_of_padded"
    spies = [mock.Mock(wraps=getattr(_fit, name)) for name in names]
    for name, spy in zip(names, spies, strict=True):
        monkeypatch.setattr(_fit, name, spy)
    solve(losses.squared, predictor(losses.squared, 1.0, 0.0), multiplier=2.0)
    of_sizes, of_means = (spy.call_args_list for spy in spies)
    multipliers = [call.kwargs["noise_multiplier"] for call in of_sizes]
    assert len(multipliers) == 2
    np.testing.assert_allclose(sum(x**-2.0 for x in multipliers), 2.0**-2, rtol=1e-6)
    (call,) = of_means
    _, vector, stddevs = call.args
    assert not np.any(vector[5:])
    assert 1 <= float(stddevs.min()) / (2 * math.sqrt(11) / NUM) <= 1.01
