"""Per-sample gradients, and the streaming robust mean against the estimator of them."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import estimators
from dpjax.gradients import per_sample_grad, robust_grad

N = 70  # more than one block of 64, no multiple of anything
ESTIMATORS = {
    "mean": estimators.Mean(),
    "clipping": estimators.Clipping(0.8),
    "truncation": estimators.Truncation(0.8),
    "winsorization": estimators.Winsorization(0.8),
    "smoothed-9": estimators.SmoothedTruncation(0.8, 9.21),
    "smoothed-50": estimators.SmoothedTruncation(0.8, 50.0),
    "median": estimators.MedianOfMeans(estimators.Winsorization(0.8), 4),
}
PARAMS = {"w": jnp.array([0.3, -0.2, 0.5]), "b": jnp.float32(0.1)}
RNG = np.random.default_rng(20261120)
X, Y = RNG.normal(size=(N, 3)), RNG.normal(size=N)
BATCH = {"x": jnp.float32(X), "y": jnp.float32(Y)}


def loss_fn(params, example):
    return 0.5 * jnp.square(example["x"] @ params["w"] + params["b"] - example["y"])


def loss_with_aux(params, example):
    return loss_fn(params, example), {"y": example["y"], "double": 2 * example["x"]}


@jax.jit
def applied(estimator, params, batch, *mask):
    """The estimator of all per-sample gradients: a program for each type."""
    return estimator(per_sample_grad(loss_fn)(params, batch), *mask)


def assert_close(mean, expected, atol=2e-6):
    # Gradients in chunks of another size round differently, by some 2^-24 of 10.
    chex.assert_trees_all_close(mean, expected, rtol=0, atol=atol)


def test_gradients_are_those_of_single_examples():
    grads, aux = per_sample_grad(loss_with_aux, has_aux=True)(PARAMS, BATCH)
    for i in range(7):
        example, first = jax.tree.map(lambda x, i=i: x[i], (BATCH, grads))
        single = jax.grad(loss_fn)(PARAMS, example)
        chex.assert_trees_all_close(first, single, rtol=1e-6)
    np.testing.assert_array_equal(aux["double"], 2 * BATCH["x"])
    halved = jax.tree.map(jnp.bfloat16, (PARAMS, BATCH))
    for leaf in jax.tree.leaves(per_sample_grad(loss_fn)(*halved)):
        assert leaf.dtype == jnp.bfloat16


def test_an_index_of_8_bits_finds_its_row():
    def loss_fn(w, index):
        return jnp.take(w, index, axis=0).sum()

    w, batch = jnp.zeros((200, 2)), jnp.asarray([5], jnp.int8)
    grads = jax.jit(per_sample_grad(loss_fn))(w, batch)
    np.testing.assert_array_equal(grads[0], w.at[5].set(1.0))


CHUNKS = [(name, 3) for name in ("mean", "clipping", "smoothed-9", "median")]
CHUNKS += [("clipping", size) for size in (None, 1, 64, 1000)]


@pytest.mark.parametrize(("name", "size"), CHUNKS)
def test_it_is_the_estimator_of_per_sample_gradients(name, size):
    """In chunks; with values and aux of samples in order."""
    options = {"has_aux": True, "return_values": True, "microbatch_size": size}
    grad_fn = robust_grad(loss_with_aux, ESTIMATORS[name], **options)
    mean, (losses, aux) = jax.jit(grad_fn)(PARAMS, BATCH)
    assert_close(mean, applied(ESTIMATORS[name], PARAMS, BATCH))
    assert jax.tree.map(jnp.shape, mean) == {"w": (3,), "b": ()}
    values = jax.vmap(loss_fn, (None, 0))(PARAMS, BATCH)
    np.testing.assert_allclose(losses, values, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(aux["y"], BATCH["y"])
    np.testing.assert_array_equal(aux["double"], 2 * BATCH["x"])


@pytest.mark.parametrize("name", ["clipping", "median"])
def test_masks_and_divisors(name):
    estimator, mask = ESTIMATORS[name], jnp.arange(N) % 3 == 0
    same = jax.jit(robust_grad(loss_fn, estimator, microbatch_size=3))
    masked = same(PARAMS, BATCH, mask)
    assert_close(masked, applied(estimator, PARAMS, BATCH, mask))
    # Whatever padding holds counts for nothing.
    spoiled = jax.tree.map(
        lambda x: jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)), jnp.nan, x), BATCH
    )
    chex.assert_trees_all_equal(same(PARAMS, spoiled, mask), masked)
    if name == "median":
        with pytest.raises(ValueError, match="normalize_by must be"):
            robust_grad(loss_fn, estimator, normalize_by=35)(PARAMS, BATCH)
        return
    halves = jax.jit(robust_grad(loss_fn, estimator, normalize_by=2 * N))
    expected = jax.tree.map(lambda x: x / 2, applied(estimator, PARAMS, BATCH))
    assert_close(halves(PARAMS, BATCH), expected)


def test_bad_arguments_are_named():
    """Those that are bad beside others."""
    grad_fn = robust_grad(loss_fn, estimators.Clipping(1.0))
    few = {"x": BATCH["x"], "y": BATCH["y"][:-1]}
    for function in (grad_fn, per_sample_grad(loss_fn)):
        for bad in ((), few, {"x": 1.0, "y": 2.0}):
            with pytest.raises(ValueError, match="batch must be"):
                function(PARAMS, bad)
    with pytest.raises(ValueError, match="samples must be at least num_groups"):
        robust_grad(loss_fn, estimators.MedianOfMeans(estimators.Mean(), N + 1))(
            PARAMS, BATCH
        )
    many = jax.tree.map(lambda x: jnp.resize(x, (5000, *x.shape[1:])), BATCH)
    with pytest.raises(ValueError, match="normalize_by must be"):
        robust_grad(loss_fn, estimators.Clipping(1.0), normalize_by=10)(PARAMS, many)
