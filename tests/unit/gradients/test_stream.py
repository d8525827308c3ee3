"""Gradients as a stream: what takes gradients takes it, and gives the same."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.estimators import Clipping, Mean, MedianOfMeans, TrimmedMean, Winsorization
from dpjax.gradients import streamed_grad
from dpjax.transforms import privatize

ESTIMATORS = {
    "mean": Mean(),
    "clipping": Clipping(1.0),
    "medians": MedianOfMeans(Winsorization(0.5), 3),
    "trimmed": TrimmedMean(0.1, -2.0, 2.0),
}
N = 60


def loss_fn(params, example):
    x, y = example
    return (x @ params["w"] + params["b"] - y) ** 2


@pytest.fixture
def problem():
    features = np.random.default_rng(0).standard_t(3, (N, 4))
    features = jnp.asarray(features, jnp.float32)
    return {"w": jnp.ones(4), "b": jnp.float32(0.5)}, (features, features[:, 0])


@pytest.mark.parametrize("name", ["clipping", "trimmed"])
def test_privatize_takes_a_stream(name, problem):
    def update(grad_fn):  # the same key draws the same noise, of the same size
        private = privatize(
            ESTIMATORS[name], noise_multiplier=0.5, key=jax.random.key(3)
        )
        optimizer, (params, _) = optax.chain(private, optax.sgd(0.1)), problem
        grads = grad_fn(loss_fn)(*problem)
        return optimizer.update(grads, optimizer.init(params), params)[0]

    make_grads = dpjax.per_sample_grad, streamed_grad
    updates = [jax.jit(update, static_argnums=0)(f) for f in make_grads]
    chex.assert_trees_all_close(*updates, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["mean", "medians", "trimmed"])
def test_a_mask_inside_a_stream_is_the_one_beside_it(problem, name):
    # A mask that is dropped without a word would make rows of padding count.
    mask = jnp.arange(N) >= 50
    params, batch = problem
    inside = streamed_grad(loss_fn)(params, batch, mask)
    estimator = ESTIMATORS[name]

    def update(stream, **kwargs):
        private = privatize(estimator, noise_multiplier=1.0, key=jax.random.key(0))
        return private.update(stream, private.init(params), params, **kwargs)[0]

    if name == "trimmed":
        with pytest.raises(ValueError, match="is_padding_example must be None"):
            estimator(inside)
        with pytest.raises(ValueError, match="is_padding_example must be None"):
            estimator.with_smooth_sensitivity(inside, 1.0)
        with pytest.raises(ValueError, match="one that takes masks"):
            update(inside)
        return

    @jax.jit
    def of_inside(mask):
        stream = streamed_grad(loss_fn)(params, batch, mask)
        return estimator(stream), None if name == "mean" else update(stream)

    @jax.jit
    def of_beside(mask):
        stream = streamed_grad(loss_fn)(params, batch)
        noisy = None if name == "mean" else update(stream, is_padding_example=mask)
        return estimator(stream, mask), noisy

    # The noise too is that of a batch of varying size.
    chex.assert_trees_all_equal(of_inside(mask), of_beside(mask))
    with pytest.raises(ValueError, match="None for a stream of samples that"):
        estimator(inside, mask)
    with pytest.raises(ValueError, match="a boolean array of shape"):
        streamed_grad(loss_fn)(params, batch, jnp.ones(N))


def test_values_and_aux_beside_a_stream(problem):
    params, batch = problem

    def with_aux(params, example):
        loss = loss_fn(params, example)
        return loss, {"twice": 2 * loss}

    losses = jax.vmap(loss_fn, (None, 0))(params, batch)
    stream, values = streamed_grad(loss_fn, return_values=True)(params, batch)
    np.testing.assert_allclose(values, losses, rtol=1e-5)
    both = {"has_aux": True, "return_values": True, "microbatch_size": 7}
    same, (values, aux) = streamed_grad(with_aux, **both)(params, batch)
    np.testing.assert_allclose(values, losses, rtol=1e-5)
    np.testing.assert_allclose(aux["twice"], 2 * losses, rtol=1e-5)
    mean = Winsorization(0.5)
    chex.assert_trees_all_close(mean(stream), mean(same), rtol=1e-5, atol=1e-7)


MAPPED = {
    "norm": optax.tree.norm,
    "scale": lambda x: optax.scale(0.5).update(x, optax.EmptyState()),
    "map": lambda x: jax.tree.map(lambda y: jnp.float32(2) * y, x),
    "NumPy": lambda x: np.sum(np.float32(2) * x),
    "array": jnp.asarray,
    "jit": lambda x: jax.jit(lambda y: y.num_rows)(x),
    "device": jax.device_put,
    "two leaves": lambda x: Winsorization(1.0)({"a": x, "b": jnp.zeros(4)}),
    "chain": lambda x: optax.chain(optax.scale(0.5), private()).update(
        x, optax.chain(optax.scale(0.5), private()).init(jnp.zeros(2))
    ),
}


def private():
    return privatize(Winsorization(1.0), noise_multiplier=1.0, key=jax.random.key(0))


@pytest.mark.parametrize("name", MAPPED)
def test_nothing_maps_over_a_stream(name):
    # Its parameters and records would be scaled, and counted in a norm.
    rows = jnp.full((4, 2), 0.71875)
    stream = streamed_grad(jnp.vdot)(jnp.zeros(2), rows)
    with pytest.raises(
        (ValueError, AttributeError), match=r"takes no arithmetic.*mean"
    ):
        MAPPED[name](stream)
    assert "0.71875" not in repr(stream)
    assert "takes no arithmetic" in f"{stream}"
    assert jax.tree.leaves(stream) == [stream]
    np.testing.assert_allclose(Winsorization(1.0)(stream), rows[0], rtol=1e-6)
