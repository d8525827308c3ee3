"""`add_gaussian_noise`, `project`, `average_iterates`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from dpjax import transforms
from dpjax.transforms import average_iterates, average_params

BALL = partial(optax.projections.projection_l2_ball, scale=1.0)


def test_noise_scale(key):
    transform = transforms.add_gaussian_noise(stddev=0.3, key=key)
    zeros = jnp.zeros(10_000)
    noise, _ = transform.update(zeros, transform.init(zeros))
    law = scipy.stats.chi2(noise.size)  # false alarms: 1e-6
    total = np.sum(np.square(noise, dtype=np.float64)) / 0.3**2
    assert law.ppf(5e-7) < total < law.isf(5e-7)


def normal_like(params, key, step):
    key = jax.random.fold_in(jax.random.clone(key), step)
    return optax.tree.random_like(key, params)


def test_average_is_the_mean_of_the_iterates(key):
    optimizer = optax.chain(optax.sgd(0.1, momentum=0.9), average_iterates())
    params = {"a": jnp.ones(3), "b": jnp.zeros(())}
    state, iterates = optimizer.init(params), []
    for step in range(50):
        grads = normal_like(params, key, step)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        iterates.append(params)
    mean = jax.tree.map(lambda *x: np.mean(x, axis=0, dtype=np.float64), *iterates)
    for name in params:
        np.testing.assert_allclose(average_params(state)[name], mean[name], rtol=1e-5)


def test_average_of_half_precision_iterates():
    # In bfloat16 itself the mean of 1, 2, ..., 1000 would stop far from 500.5.
    transform = average_iterates()
    params = jnp.zeros((), jnp.bfloat16)
    state = transform.init(params)
    with jax.numpy_dtype_promotion("standard"):

        def step(state, i):
            iterate = i.astype(jnp.bfloat16)
            return transform.update(jnp.zeros_like(iterate), state, iterate)[1], iterate

        state, iterates = jax.lax.scan(step, state, jnp.arange(1, 1001))
    mean = np.mean(np.asarray(iterates, np.float64))
    assert average_params(state).dtype == jnp.float32
    np.testing.assert_allclose(average_params(state), mean, rtol=1e-5)


def test_moving_average_of_the_iterates():
    # The plain mean until the tenth iterate, then of fixed weights.
    iterates = np.random.default_rng(0).normal(size=(40, 3))
    transform = average_iterates(decay=0.9)

    def step(state, iterate):
        return transform.update(jnp.zeros(3), state, iterate)[1], None

    start = transform.init(jnp.zeros(3))
    state, _ = jax.lax.scan(step, start, jnp.float32(iterates))
    mean = iterates[:10].mean(axis=0)
    for iterate in iterates[10:]:
        mean = 0.9 * mean + 0.1 * iterate
    np.testing.assert_allclose(average_params(state), mean, atol=1e-6)


def test_average_state_must_be_there_once():
    twice = optax.chain(average_iterates(), average_iterates())
    for optimizer in (optax.sgd(0.1), twice):
        with pytest.raises(ValueError, match="state must be the state of an optimizer"):
            average_params(optimizer.init(jnp.zeros(2)))


def test_projection_keeps_the_ball(key):
    optimizer = optax.chain(optax.sgd(1.0), transforms.project(BALL))
    params = {"a": jnp.zeros(3), "b": jnp.zeros((2, 2))}
    state = optimizer.init(params)
    for step in range(20):
        grads = jax.tree.map(lambda x: 10 * x, normal_like(params, key, step))
        updates, state = optimizer.update(grads, state, params)
        moved = jax.tree.map(jnp.subtract, params, grads)
        params = optax.apply_updates(params, updates)
        # params + (projection - params) is rounded a few times.
        assert optax.tree.norm(params) <= 1 + 1e-5
        np.testing.assert_allclose(params["a"], BALL(moved)["a"], atol=1e-5)
