"""Models whose layers are drawn: their factored means are those written out."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

import dpjax
from dpjax.estimators import Clipping, MedianOfMeans, Truncation, Winsorization
from tests.factored import (
    BRANCHES,
    FAST_TO_COMPILE,
    LOOPS,
    assert_same_mean,
    convolved,
    numbers,
)

WIDTH, VOCABULARY = 40, 60


# Layers of a vector or of a sequence of vectors: (shapes, f(parameters, x)).
def attention(p, x):
    q, k, v = (x @ p[name] for name in "qkv")
    return x + jax.nn.softmax(q @ k.T / WIDTH**0.5) @ v


def normalized(p, x):
    x = x - x.mean(axis=-1, keepdims=True)
    x = x * lax.rsqrt((x**2).mean(axis=-1, keepdims=True) + 1e-3)
    scale, shift = (jnp.broadcast_to(p[name], x.shape) for name in "sb")
    return x * scale + shift


def checkpoints(p, x):
    @jax.checkpoint
    def layer(x, w):
        return x + jnp.tanh(x @ w.T), None

    return lax.scan(layer, x, p["w"])[0]


LAYERS = {
    "dense": ({"w": (WIDTH, WIDTH)}, lambda p, x: x @ p["w"]),
    "bias": ({"b": (WIDTH,)}, lambda p, x: x + jnp.broadcast_to(p["b"], x.shape)),
    "scale and shift": ({"s": (WIDTH,), "b": (WIDTH,)}, normalized),
    "low rank": (
        {"a": (WIDTH, 8), "b": (8, WIDTH)},
        lambda p, x: x + x @ p["a"] @ p["b"],
    ),
    "checkpoints": ({"w": (2, WIDTH, WIDTH)}, checkpoints),
    "relu": ({}, lambda p, x: jax.nn.relu(jax.nn.gelu(x))),
}
OF_SEQUENCES = {
    "attention": ({name: (WIDTH, WIDTH) for name in "qkv"}, attention),
    "convolution": (
        {"k": (3, WIDTH, WIDTH)},
        lambda p, x: convolved(x[None], p["k"])[0],
    ),
    **{name: (x.shapes, x.function) for name, x in LOOPS.items() if name != "several"},
}
OF_VECTORS = {name: (x.shapes, x.function) for name, x in BRANCHES.items()}
# Names of layers before and after a sequence's mean; tokens or not; its length: of two
# positions matrices are held, of five they are not.
ARCHITECTURES = st.tuples(
    st.lists(st.sampled_from([*LAYERS, *OF_SEQUENCES]), max_size=2),
    st.lists(st.sampled_from([*LAYERS, *OF_VECTORS]), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([2, 5]),
)


def model(architecture, num_rows):
    """The loss of an architecture, parameters and a batch."""
    before, after, has_tokens, length = architecture
    layers = [(LAYERS | OF_SEQUENCES)[name] for name in before]
    layers += [(LAYERS | OF_VECTORS)[name] for name in after]
    shapes = [shapes for shapes, _ in layers] + [{"embed": (VOCABULARY, WIDTH)}]
    flat, tree = jax.tree.flatten(shapes, is_leaf=lambda x: isinstance(x, tuple))
    params = jax.tree.unflatten(
        tree, [0.2 * numbers(*shape, seed=i) for i, shape in enumerate(flat)]
    )
    rng = np.random.default_rng(5)
    tokens = jnp.asarray(rng.integers(0, VOCABULARY, (num_rows, length)), jnp.int32)
    vectors = numbers(num_rows, length, WIDTH, seed=6)

    def loss_fn(params, example):
        tokens, x = example
        if has_tokens:
            x = params[-1]["embed"][tokens]
        for i, (_, layer) in enumerate(layers):
            if i == len(before):
                x = x.mean(axis=0)
            x = layer(params[i], x)
        return jnp.sum(jnp.sin(x) * jnp.arange(1.0, WIDTH + 1) / WIDTH)

    return loss_fn, params, (tokens, vectors)


def test_models_of_a_family(search):
    def check(architecture, num_rows):
        loss_fn, params, batch = model(architecture, num_rows)
        estimators = Clipping(0.5), Winsorization(0.02)
        assert_same_mean(loss_fn, params, batch, 2e-4, estimators)

    search(check, ARCHITECTURES, st.sampled_from([1, 2, 17, 33]), few=1, many=30)


def dense_model(num_rows):
    """Two dense layers and a table, all of them factored; a bias."""
    return model(([], ["dense", "bias", "relu", "dense"], True, 5), num_rows)


def test_blocks_of_a_large_slab():
    loss_fn, params, batch = dense_model(600)
    estimators = Clipping(0.5), Truncation(0.02), MedianOfMeans(Clipping(0.5), 3)

    @jax.jit
    def means(params, batch):
        return [dpjax.robust_grad(loss_fn, x)(params, batch) for x in estimators]

    grads_fn = jax.jit(dpjax.per_sample_grad(loss_fn), compiler_options=FAST_TO_COMPILE)
    grads = grads_fn(params, batch)
    for estimator, mean in zip(estimators, means(params, batch), strict=True):
        atol = 1e-5 * float(estimator.limit)
        chex.assert_trees_all_close(mean, estimator(grads), rtol=0, atol=atol)
