"""Private scores: their noise is what they say, and how far a record moves them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from dp_accounting import LaplaceDpEvent

from dpjax import losses, tuning
from dpjax.accounting import gaussian_stddev, tuning_epsilon

DATA = jnp.ones((50, 2)), jnp.full(50, 3.0)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_the_noise_of_a_score_is_there_and_has_its_scale(delta):
    score = tuning.clipped_loss(
        losses.squared, DATA, limit=2.0, epsilon=0.5, delta=delta
    )
    keys = jax.random.split(jax.random.key(0), 4_000)
    found = jax.vmap(score.fn, (None, 0))(jnp.ones(2), keys)
    sensitivity = 2.0 / 50
    if delta == 0:
        law = scipy.stats.laplace(-0.5, sensitivity / 0.5)
        assert score.privacy.dp_event == LaplaceDpEvent(2.0)
    else:
        law = scipy.stats.norm(
            -0.5, gaussian_stddev(0.5, delta, sensitivity=sensitivity)
        )
        assert tuning_epsilon(score.privacy, delta, mean_trials=1) <= 0.5 * (1 + 1e-6)
    noise = np.asarray(found) + 0.5
    for factor in (1, 2 / 3, 3 / 2, 0):  # another scale, or none, is found out
        pvalue = scipy.stats.kstest(factor * noise - 0.5, law.cdf).pvalue
        assert (pvalue > 1e-6) == (factor == 1)


def test_no_record_moves_a_score_by_more():

    def loss(params, example):
        return example

    def score(values):
        found = tuning.clipped_loss(loss, values, limit=2.0, epsilon=1e9, delta=0.0)
        return float(found.fn(None, jax.random.key(1)))

    values = jnp.linspace(0.0, 3.0, 21)
    for bad in (jnp.nan, jnp.inf, -jnp.inf, 1e38, -1.0, 0.0):
        moved = abs(score(values.at[0].set(bad)) - score(values.at[0].set(2.0)))
        assert moved <= 2.0 / 21 * (1 + 1e-5)
    worst = score(jnp.full(21, jnp.nan))
    assert worst == pytest.approx(-2.0, abs=1e-5)
