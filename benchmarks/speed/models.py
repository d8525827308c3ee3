"""Small models in plain JAX: loss_fn(params, example), parameters and a batch.

Numbers come from NumPy, which compiles nothing for them.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


def normal(rng, shape, scale=1.0):
    """Normal numbers, in float32; without a generator their shape alone."""
    if rng is None:
        return jax.ShapeDtypeStruct(shape, np.float32)
    return jnp.asarray(scale * rng.standard_normal(shape, np.float32))


def _images(rng, shape):
    labels = rng.integers(0, 10, shape[0], np.int32)
    return normal(rng, shape), jnp.asarray(labels)


def cross_entropy(logits, label):
    return -jax.nn.log_softmax(logits)[label]


def _dense(rng, size, width, scale, head_scale):
    """A hidden layer of a width on inputs of a size, and the logits of ten classes."""
    return {
        "w1": normal(rng, (size, width), scale),
        "b1": jnp.zeros(width),
        "w2": normal(rng, (width, 10), head_scale),
        "b2": jnp.zeros(10),
    }


def _classified(params, x, label):
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    return cross_entropy(hidden @ params["w2"] + params["b2"], label)


def mlp(batch_size, width=256):
    """784-256-10, or another width."""
    rng = np.random.default_rng(0)
    params = _dense(rng, 784, width, 0.03, 0.05)
    batch = _images(rng, (batch_size, 784))
    return lambda params, example: _classified(params, *example), params, batch


def convolutional(batch_size):
    """28x28x1, two 5x5 convolutions (32, 64 channels) with pooling, dense 128-10."""
    rng = np.random.default_rng(0)
    params = {
        "c1": normal(rng, (5, 5, 1, 32), 0.1),
        "c2": normal(rng, (5, 5, 32, 64), 0.03),
        **_dense(rng, 7 * 7 * 64, 128, 0.02, 0.1),
    }
    batch = _images(rng, (batch_size, 28, 28, 1))

    def layer(x, kernel):
        layout = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", **layout)
        x, size = jax.nn.relu(x), x.shape[1] // 2
        return x.reshape(1, size, 2, size, 2, -1).max(axis=(2, 4))

    def loss_fn(params, example):
        x, label = example
        x = layer(layer(x[None], params["c1"]), params["c2"])
        return _classified(params, x.reshape(-1), label)

    return loss_fn, params, batch


class Transformer(NamedTuple):
    """The sizes of a decoder."""

    length: int = 64
    width: int = 128
    num_layers: int = 2
    num_heads: int = 4
    vocabulary: int = 1000


SMALL = Transformer()
TEN_MILLION = Transformer(64, 256, 8, 4, 16_000)  # 10.4 million parameters
GPT2 = Transformer(512, 768, 12, 12, 50_257)  # 124 million: the shape of GPT-2 small


def transformer(batch_size, size=SMALL, *, rank=None, is_abstract=False):
    """A decoder with tied embeddings, next-token loss; abstract: of shapes alone.

    With a rank it is frozen, and trained are products of that rank beside its layers.
    """
    length, width, num_layers, num_heads, vocabulary = size
    rng = None if is_abstract else np.random.default_rng(0)

    def matrix(rows, columns):
        return normal(rng, (rows, columns), rows**-0.5)

    params = {
        "embed": matrix(vocabulary, width),
        "place": matrix(length, width),
        "layers": [
            {name: matrix(width, width) for name in "qkvo"}
            | {"up": matrix(width, 4 * width), "down": matrix(4 * width, width)}
            for _ in range(num_layers)
        ],
    }
    tokens = jax.ShapeDtypeStruct((batch_size, length), np.int32)
    if not is_abstract:
        tokens = jnp.asarray(rng.integers(0, vocabulary, tokens.shape, np.int32))
    causal = jnp.tril(jnp.ones((length, length), bool))

    def normalized(x):
        return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)

    def heads(x):
        return x.reshape(length, num_heads, width // num_heads).transpose(1, 0, 2)

    def dense(x, layer):
        if not isinstance(layer, tuple):
            return x @ layer
        frozen, down, up = layer
        return x @ frozen + x @ down @ up

    def loss_fn(params, example):
        x = params["embed"][example] + params["place"]
        for layer in params["layers"]:
            h = normalized(x)
            q, k, v = (heads(dense(h, layer[name])) for name in "qkv")
            scores = q @ k.transpose(0, 2, 1) / (width // num_heads) ** 0.5
            weights = jax.nn.softmax(jnp.where(causal, scores, -1e30))
            mixed = (weights @ v).transpose(1, 0, 2).reshape(length, width)
            x = x + dense(mixed, layer["o"])
            hidden = jax.nn.gelu(dense(normalized(x), layer["up"]))
            x = x + dense(hidden, layer["down"])
        logits = normalized(x)[:-1] @ params["embed"].T
        return jnp.mean(jax.vmap(cross_entropy)(logits, example[1:]))

    if rank is None:
        return loss_fn, params, tokens

    def adapter(layer):
        return matrix(len(layer), rank), normal(rng, (rank, layer.shape[1]), 0.1)

    def loss_of_adapters(adapters, example):
        layers = jax.tree.map(lambda w, pair: (w, *pair), params["layers"], adapters)
        return loss_fn(params | {"layers": layers}, example)

    return loss_of_adapters, jax.tree.map(adapter, params["layers"]), tokens


def text_classifier(batch_size):
    """The mean of 64 tokens' embeddings, of 5,000 by 64, and a dense layer of 2."""
    rng, vocabulary, width, length = np.random.default_rng(0), 5_000, 64, 64
    params = {
        "embed": normal(rng, (vocabulary, width)),
        "w": normal(rng, (width, 2), 0.1),
        "b": jnp.zeros(2),
    }
    tokens = rng.integers(0, vocabulary, (batch_size, length), np.int32)
    labels = rng.integers(0, 2, batch_size, np.int32)

    def loss_fn(params, example):
        tokens, label = example
        x = params["embed"][tokens].mean(axis=0)
        return cross_entropy(x @ params["w"] + params["b"], label)

    return loss_fn, params, (jnp.asarray(tokens), jnp.asarray(labels))


MODELS = {
    "mlp": mlp,
    "convolutional": convolutional,
    "transformer": transformer,
    "low_rank_tokens": partial(transformer, rank=8),
    "decoder": partial(transformer, size=TEN_MILLION),
    "text_classifier": text_classifier,
}
