"""Per-sample gradients, their robust mean and their stream: the same estimates."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import estimators
from dpjax.gradients import per_sample_grad, robust_grad, streamed_grad
from dpjax.transforms import privatize

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
CHUNKS = [(name, 3) for name in ("mean", "clipping", "smoothed-9", "median")]
CHUNKS += [("clipping", size) for size in (None, 1, 64, 1000)]


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
    w, batch = jnp.zeros((200, 2)), jnp.asarray([5], jnp.int8)
    grads_fn = per_sample_grad(lambda w, index: jnp.take(w, index, axis=0).sum())
    np.testing.assert_array_equal(jax.jit(grads_fn)(w, batch)[0], w.at[5].set(1.0))


@pytest.mark.parametrize(("name", "size"), CHUNKS)
def test_a_robust_gradient_is_the_estimator_of_per_sample_gradients(name, size):
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
def test_masks_and_divisors_are_those_of_the_estimator(name):
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


def test_arguments_that_do_not_fit_each_other_are_named():
    grad_fn = robust_grad(loss_fn, estimators.Clipping(1.0))
    few = {"x": BATCH["x"], "y": BATCH["y"][:-1]}
    for function in (grad_fn, per_sample_grad(loss_fn)):
        for bad in ((), few, {"x": 1.0, "y": 2.0}):
            with pytest.raises(ValueError, match="batch must be"):
                function(PARAMS, bad)
    medians = estimators.MedianOfMeans(estimators.Mean(), N + 1)
    with pytest.raises(ValueError, match="samples must be at least num_groups"):
        robust_grad(loss_fn, medians)(PARAMS, BATCH)
    many = jax.tree.map(lambda x: jnp.resize(x, (5000, *x.shape[1:])), BATCH)
    with pytest.raises(ValueError, match="normalize_by must be"):
        robust_grad(loss_fn, estimators.Clipping(1.0), normalize_by=10)(PARAMS, many)


# -- A stream --------------------------------------------------------------------------
TRIMMED = estimators.TrimmedMean(0.1, -2.0, 2.0)
WINSORIZATION = ESTIMATORS["winsorization"]


def private(estimator, multiplier=1.0):
    return privatize(estimator, noise_multiplier=multiplier, key=jax.random.key(3))


@pytest.mark.parametrize("estimator", [ESTIMATORS["clipping"], TRIMMED], ids=str)
def test_privatize_takes_a_stream(estimator):
    def update(grad_fn):  # the same key draws the same noise, of the same size
        optimizer = optax.chain(private(estimator, 0.5), optax.sgd(0.1))
        grads = grad_fn(loss_fn)(PARAMS, BATCH)
        return optimizer.update(grads, optimizer.init(PARAMS), PARAMS)[0]

    make_grads = per_sample_grad, streamed_grad
    updates = [jax.jit(update, static_argnums=0)(f) for f in make_grads]
    chex.assert_trees_all_close(*updates, rtol=1e-4, atol=1e-5)


def updated(estimator, stream, **kwargs):
    transform = private(estimator)
    return transform.update(stream, transform.init(PARAMS), PARAMS, **kwargs)[0]


@pytest.mark.parametrize("name", ["mean", "median"])
def test_a_mask_inside_a_stream_is_the_one_beside_it(name):
    # A mask that is dropped without a word would make rows of padding count.
    mask, estimator = jnp.arange(N) >= 50, ESTIMATORS[name]

    @jax.jit
    def of_inside(mask):
        stream = streamed_grad(loss_fn)(PARAMS, BATCH, mask)
        return estimator(stream), name == "mean" or updated(estimator, stream)

    @jax.jit
    def of_beside(mask):
        stream = streamed_grad(loss_fn)(PARAMS, BATCH)
        noisy = name == "mean" or updated(estimator, stream, is_padding_example=mask)
        return estimator(stream, mask), noisy

    # The noise too is that of a batch of varying size.
    chex.assert_trees_all_equal(of_inside(mask), of_beside(mask))
    with pytest.raises(ValueError, match="None for a stream of samples that"):
        estimator(streamed_grad(loss_fn)(PARAMS, BATCH, mask), mask)
    with pytest.raises(ValueError, match="a boolean array of shape"):
        streamed_grad(loss_fn)(PARAMS, BATCH, jnp.ones(N))


def test_a_trimmed_mean_takes_no_mask_inside_a_stream():
    stream = streamed_grad(loss_fn)(PARAMS, BATCH, jnp.arange(N) >= 50)
    for call, message in (
        (TRIMMED, "is_padding_example must be None"),
        (lambda x: TRIMMED.with_smooth_sensitivity(x, 1.0), "is_padding_example must"),
        (lambda x: updated(TRIMMED, x), "one that takes masks"),
    ):
        with pytest.raises(ValueError, match=message):
            call(stream)


def test_values_and_aux_stand_beside_a_stream():
    losses = jax.vmap(loss_fn, (None, 0))(PARAMS, BATCH)
    stream, values = streamed_grad(loss_fn, return_values=True)(PARAMS, BATCH)
    both = {"has_aux": True, "return_values": True, "microbatch_size": 7}
    same, (again, aux) = streamed_grad(loss_with_aux, **both)(PARAMS, BATCH)
    np.testing.assert_allclose([values, again], [losses, losses], rtol=1e-5)
    np.testing.assert_allclose(aux["double"], 2 * BATCH["x"], rtol=1e-5)
    means = map(WINSORIZATION, (stream, same))
    chex.assert_trees_all_close(*means, rtol=1e-5, atol=1e-7)


MAPPED = {
    "norm": optax.tree.norm,
    "scale": lambda x: optax.scale(0.5).update(x, optax.EmptyState()),
    "map": lambda x: jax.tree.map(lambda y: jnp.float32(2) * y, x),
    "NumPy": lambda x: np.sum(np.float32(2) * x),
    "array": jnp.asarray,
    "jit": lambda x: jax.jit(lambda y: y.num_rows)(x),
    "device": jax.device_put,
    "two leaves": lambda x: WINSORIZATION({"a": x, "b": jnp.zeros(4)}),
    "chain": lambda x: optax.chain(optax.scale(0.5), private(WINSORIZATION)).update(
        x, (optax.EmptyState(), private(WINSORIZATION).init(jnp.zeros(2)))
    ),
}


@pytest.mark.parametrize("name", MAPPED)
def test_nothing_maps_over_a_stream(name):
    # Its parameters and records would be scaled, and counted in a norm.
    rows = jnp.full((4, 2), 0.71875)
    stream = streamed_grad(jnp.vdot)(jnp.zeros(2), rows)
    with pytest.raises((ValueError, AttributeError), match=r"s no arithmetic.*mean"):
        MAPPED[name](stream)
    assert "0.71875" not in repr(stream)
    assert "takes no arithmetic" in f"{stream}"
    assert jax.tree.leaves(stream) == [stream]
    np.testing.assert_allclose(WINSORIZATION(stream), rows[0], rtol=1e-6)
