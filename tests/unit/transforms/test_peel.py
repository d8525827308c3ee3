"""Peeling steps: which entries stay, how much noise, rounding, bad input."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from dpjax.transforms import peel

each = pytest.mark.parametrize("noise", ["gumbel", "laplace"])


def transform(noise="gumbel", sparsity=2, **changes):
    options = {"rho": 0.5, "sensitivity": 1e-4, "limit": 10.0, "key": jax.random.key(0)}
    return peel(sparsity, noise=noise, **(options | changes))


@each
def test_the_largest_entries_stay(noise):
    step = transform(noise, sensitivity=1e-6, limit=1.0)
    params = {"w": jnp.array([0.3, 0.0, -2.0]), "b": jnp.array(0.1)}
    updates = {"w": jnp.array([-0.1, 0.9, 0.5]), "b": jnp.array(0.0)}
    update, _ = jax.jit(step.update)(updates, step.init(params), params)
    moved = optax.apply_updates(params, update)
    np.testing.assert_allclose(moved["w"], [0, 0.9, -1.5], atol=1e-3)
    assert moved["w"][0] == 0
    assert moved["b"] == 0


@each
def test_noise_of_released_entries(noise):
    # Two-sided test with false alarm 1e-6 at the right scale; it rejects 2/3 and 3/2.
    sparsity, rho, sensitivity, num_draws = 2, 0.02, 0.01, 4000
    laws = {"gumbel": (scipy.stats.norm, 1), "laplace": (scipy.stats.laplace, 2.5)}
    kind, rounds = laws[noise]
    law = kind(scale=sensitivity * math.sqrt(rounds * sparsity / rho))
    params = jnp.array([50.0, -50.0, 0.0])

    def release(key):
        step = transform(
            noise, sparsity, rho=rho, sensitivity=sensitivity, limit=1e-6, key=key
        )
        return step.update(jnp.zeros(3), step.init(params), params)[0][:2]

    keys = jax.random.split(jax.random.key(3), num_draws)
    drawn = np.asarray(jax.jit(jax.vmap(release))(keys)).ravel()
    for factor, is_right in ((1, True), (2 / 3, False), (3 / 2, False)):
        pvalue = scipy.stats.kstest(drawn * factor, law.cdf).pvalue
        assert (pvalue > 1e-6) == is_right


@each
def test_rounding_of_a_large_start_is_paid_for(noise):
    # params + update has spacing 2^-4 here, far above the sensitivity of the update.
    num_draws = 2000
    params = jnp.array([2.0**20, 0.0])

    def release(key):
        step = transform(noise, 1, rho=0.5, sensitivity=1e-6, limit=1e-3, key=key)
        return step.update(jnp.zeros(2), step.init(params), params)[0][0]

    keys = jax.random.split(jax.random.key(4), num_draws)
    drawn = np.asarray(jax.jit(jax.vmap(release))(keys))
    rounds = 1 if noise == "gumbel" else 2.5
    scale = 2.0**-22 * 2**20 * math.sqrt(rounds / 0.5)
    deviation = scale * (1 if noise == "gumbel" else math.sqrt(2))
    assert drawn.std() > 0.9 * deviation


def test_half_precision_is_summed_in_float32():
    step = transform(sparsity=1, sensitivity=1e-6, limit=1.0)
    params = jnp.array([1.0, 0.0], jnp.bfloat16)
    updates = jnp.array([0.0, 2.0**-12], jnp.bfloat16)
    update, _ = step.update(updates, step.init(params), params)
    assert update.dtype == jnp.bfloat16
    assert float(jnp.abs(update[0])) < 0.01
    assert update[1] == 0


def test_params_must_be_large_enough():
    with pytest.raises(ValueError, match="sparsity must be at most the 1 entries"):
        transform().init(jnp.zeros(1))
