"""Correlated noise in privatize: its covariance, its state, and who may use it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.estimators import Clipping, TrimmedMean, Winsorization
from dpjax.mechanisms import BandedToeplitz, BinaryTree, BufferedToeplitz
from dpjax.transforms import dp_sgd, privatize

T = 6
STRATEGIES = {
    "bands": BandedToeplitz.square_root(T, 3),
    "buffers": BufferedToeplitz(T, decays=(0.9, 0.25), scales=(0.3, 0.2)),
    "tree": BinaryTree(T),
}
each = pytest.mark.parametrize("name", STRATEGIES)


def released(strategy, key, params, grads=None, num_steps=T):
    """All updates of a run, leaves (T, ...)."""
    transform = privatize(
        Winsorization(1.0), noise_multiplier=3.0, key=key, noise=strategy
    )
    grads = jax.tree.map(lambda x: jnp.stack([x] * 4), params)

    def step(state, _):
        updates, state = transform.update(grads, state, params)
        return state, updates

    return jax.lax.scan(step, transform.init(params), length=num_steps)[1]


@each
def test_it_is_independent_noise_of_the_same_keys(name):
    # What a run adds with C is C^-1 times what it adds without.
    params = {"w": jnp.zeros((2, 3)), "b": jnp.zeros(())}
    run = jax.jit(released, static_argnums=0)
    correlated = run(STRATEGIES[name], jax.random.key(1), params)
    independent = run(None, jax.random.key(1), params)
    matrix = STRATEGIES[name].matrix()
    for x, z in zip(*map(jax.tree.leaves, (correlated, independent)), strict=True):
        assert np.abs(z).min() > 0
        np.testing.assert_allclose(
            matrix @ np.asarray(x, np.float64).reshape(T, -1),
            z.reshape(T, -1),
            rtol=1e-5,
            atol=1e-5,
        )


def test_dp_sgd_takes_it(key):
    options = {"noise_multiplier": 1.0, "noise": STRATEGIES["bands"]}
    mean = privatize(Clipping(1.0), key=key, **options)
    sgd = dp_sgd(0.5, Clipping(1.0), key=jax.random.clone(key), **options)
    state, sgd_state = mean.init(jnp.zeros(2)), sgd.init(jnp.zeros(2))
    for _ in range(2):
        expected, state = mean.update(jnp.ones((4, 2)), state)
        update, sgd_state = sgd.update(jnp.ones((4, 2)), sgd_state)
        np.testing.assert_allclose(update, -0.5 * expected, rtol=1e-6)
    assert sgd_state[0].step == 2


@pytest.mark.parametrize(
    ("estimator", "noise"),
    [
        (Clipping(1.0), "tree"),
        (Clipping(1.0), BinaryTree),
        (TrimmedMean(0.2, -1.0, 1.0), BinaryTree(4)),
    ],
)
def test_bad_noise_is_named(estimator, noise, key):
    with pytest.raises(ValueError, match="noise must be a strategy of dpjax"):
        privatize(estimator, noise_multiplier=1.0, key=key, noise=noise)
