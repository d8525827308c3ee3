"""Small models in plain JAX: loss_fn(params, example), parameters and a batch."""

import jax
import jax.numpy as jnp


def cross_entropy(logits, label):
    return -jax.nn.log_softmax(logits)[label]


def mlp(batch_size):
    """784-256-10."""
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "w1": jax.random.normal(keys[0], (784, 256)) * 0.03,
        "b1": jnp.zeros(256),
        "w2": jax.random.normal(keys[1], (256, 10)) * 0.05,
        "b2": jnp.zeros(10),
    }
    features = jax.random.normal(keys[2], (batch_size, 784))
    labels = jax.random.randint(keys[3], (batch_size,), 0, 10)

    def loss_fn(params, example):
        x, label = example
        hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
        return cross_entropy(hidden @ params["w2"] + params["b2"], label)

    return loss_fn, params, (features, labels)


def convolutional(batch_size):
    """28x28x1, two 5x5 convolutions (32, 64 channels) with pooling, dense 128-10."""
    keys = jax.random.split(jax.random.key(0), 6)
    params = {
        "c1": jax.random.normal(keys[0], (5, 5, 1, 32)) * 0.1,
        "c2": jax.random.normal(keys[1], (5, 5, 32, 64)) * 0.03,
        "w1": jax.random.normal(keys[2], (7 * 7 * 64, 128)) * 0.02,
        "b1": jnp.zeros(128),
        "w2": jax.random.normal(keys[3], (128, 10)) * 0.1,
        "b2": jnp.zeros(10),
    }
    features = jax.random.normal(keys[4], (batch_size, 28, 28, 1))
    labels = jax.random.randint(keys[5], (batch_size,), 0, 10)

    def layer(x, kernel):
        x = jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x)
        size = x.shape[1] // 2
        return x.reshape(1, size, 2, size, 2, -1).max(axis=(2, 4))

    def loss_fn(params, example):
        x, label = example
        x = layer(layer(x[None], params["c1"]), params["c2"]).reshape(-1)
        hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
        return cross_entropy(hidden @ params["w2"] + params["b2"], label)

    return loss_fn, params, (features, labels)


def transformer(batch_size, width=128, length=64, vocabulary=1000, num_layers=2):
    """Two layers of width 128 on 64 tokens, next-token loss."""
    keys = iter(jax.random.split(jax.random.key(0), 3 + 6 * num_layers))

    def matrix(rows, columns):
        return jax.random.normal(next(keys), (rows, columns)) / rows**0.5

    params = {
        "embed": matrix(vocabulary, width),
        "place": matrix(length, width),
        "layers": [
            {
                name: matrix(rows, columns)
                for name, rows, columns in (
                    ("q", width, width),
                    ("k", width, width),
                    ("v", width, width),
                    ("o", width, width),
                    ("up", width, 4 * width),
                    ("down", 4 * width, width),
                )
            }
            for _ in range(num_layers)
        ],
    }
    tokens = jax.random.randint(next(keys), (batch_size, length), 0, vocabulary)
    causal = jnp.tril(jnp.ones((length, length), bool))

    def normalized(x):
        return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)

    def heads(x):
        return x.reshape(length, 4, width // 4).transpose(1, 0, 2)

    def loss_fn(params, example):
        x = params["embed"][example] + params["place"]
        for layer in params["layers"]:
            h = normalized(x)
            q, k, v = (heads(h @ layer[name]) for name in "qkv")
            scores = q @ k.transpose(0, 2, 1) / (width // 4) ** 0.5
            weights = jax.nn.softmax(jnp.where(causal, scores, -1e30))
            mixed = (weights @ v).transpose(1, 0, 2).reshape(length, width)
            x = x + mixed @ layer["o"]
            x = x + jax.nn.gelu(normalized(x) @ layer["up"]) @ layer["down"]
        logits = normalized(x)[:-1] @ params["embed"].T
        return jnp.mean(jax.vmap(cross_entropy)(logits, example[1:]))

    return loss_fn, params, tokens


MODELS = {"mlp": mlp, "convolutional": convolutional, "transformer": transformer}
