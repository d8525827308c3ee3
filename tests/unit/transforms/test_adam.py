"""`scale_by_dp_adam`: its formula, what noise leaves in it, where it must not stand."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.estimators import AdaptiveThreshold, Clipping, TrimmedMean, Winsorization
from dpjax.mechanisms import BinaryTree
from dpjax.transforms import privatize, scale_by_dp_adam

SIZE = 40_000


def private(estimator, noise_multiplier=1.0, **options):
    return privatize(
        estimator, noise_multiplier=noise_multiplier, key=jax.random.key(3), **options
    )


@pytest.fixture(autouse=True)
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("kind", ["number", "prefix"])
def test_formula(kind):
    rng = np.random.default_rng(1)
    grads = rng.normal(size=(6, 5)) * np.logspace(-3, 3, 5)
    scales = {"number": 0.7, "prefix": np.array([0.7, 0.7, 0.1, 0.1, 0.1])}[kind]
    stddevs = np.outer(np.arange(1, 7), scales * np.ones(5))
    adam = scale_by_dp_adam(b1=0.8, b2=0.9, eps=1e-3, floor=0.2)

    def split(x):
        return {"a": jnp.float32(x[:2]), "b": (jnp.float32(x[2:4]), jnp.float32(x[4]))}

    m = v = 0.0
    state = adam.init(split(np.zeros(5)))
    for t, (g, s) in enumerate(zip(grads, stddevs, strict=True), start=1):
        stated = {"number": s[0], "prefix": {"a": jnp.float32(s[:2]), "b": s[2]}}[kind]
        update, state = adam.update(split(g), state, noise_stddev=stated)
        m = 0.8 * m + 0.2 * g
        v = 0.9 * v + 0.1 * (g**2 - s**2)
        root = np.sqrt(np.maximum(v / (1 - 0.9**t), 0.2 * s**2))
        expected = split(m / (1 - 0.8**t) / (root + 1e-3))
        chex.assert_trees_all_close(update, expected, rtol=1e-4)


ESTIMATORS = {
    "fixed": Winsorization(1.0),
    # The first threshold is far too large: the noise falls by a third.
    "adaptive": AdaptiveThreshold(Clipping(900.0), lower=1.0, upper=1e3),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_second_moment_is_that_of_the_gradient(name):
    # Of 40,000 coordinates, all with one gradient: the mean of v is its square within
    # six standard errors, where with the noise it is off by a hundred and more.
    optimizer = dpjax.chain(private(ESTIMATORS[name]), scale_by_dp_adam())
    grads, params = jnp.full((4, SIZE), 0.5), jnp.zeros(SIZE)

    @jax.jit
    def run(params):
        def step(state, _):
            return optimizer.update(grads, state, params)[1], None

        return jax.lax.scan(step, optimizer.init(params), length=5)[0]

    _, adam = run(params)
    v = np.asarray(adam.nu, np.float64) / (1 - 0.999**5)
    error = v.std() / SIZE**0.5
    assert abs(v.mean() - 0.25) < 6 * error
    noise = 2 / 4 * (SIZE**0.5 if name == "fixed" else 900.0 * 0.6)
    assert noise**2 > 100 * error


REFUSED = {
    "optax.chain": lambda adam: optax.chain(private(Clipping(1.0)), adam),
    "after momentum": lambda adam: dpjax.chain(
        private(Clipping(1.0)), optax.trace(0.9), adam
    ),
    "after a chain": lambda adam: dpjax.chain(
        dpjax.chain(private(Clipping(1.0)), optax.trace(0.9)), adam
    ),
    "correlated": lambda adam: dpjax.chain(
        private(Clipping(1.0), noise=BinaryTree(4)), adam
    ),
    "smooth": lambda adam: dpjax.chain(private(TrimmedMean(0.4, -1.0, 1.0), 2.0), adam),
}


@pytest.mark.parametrize("name", REFUSED)
def test_noise_that_is_not_known_is_refused(name):
    optimizer = REFUSED[name](scale_by_dp_adam())
    grads, params = jax.ShapeDtypeStruct((8, 2), jnp.float32), jnp.zeros(2)
    state = optimizer.init(params)
    with pytest.raises(ValueError, match="noise_stddev must be given: put scale_by"):
        jax.eval_shape(optimizer.update, grads, state, params)
    adam, grads = scale_by_dp_adam(), {"w": jnp.ones(2)}
    with pytest.raises(ValueError, match="noise_stddev must be one leaf, or a pytree"):
        adam.update(grads, adam.init(grads), noise_stddev={"v": 1.0})
