"""A private transformer on characters, after the example of jax_privacy.

python -m benchmarks.language_model

The model is that of its `dp_sgd_transformer.py`: 128 characters, width 128, two layers
of four heads. A record is a window of the text, windows do not overlap.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax

LENGTH, WIDTH, NUM_HEADS, NUM_LAYERS = 128, 128, 4, 2
EPSILON, DELTA, L2_CLIP_NORM = 3.0, 1e-5, 1.0
BATCH_SIZE, NUM_STEPS, LEARNING_RATE = 64, 500, 1e-3


def windows() -> tuple[jax.Array, str]:
    """The manual that Python carries, cut into windows, and its alphabet."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    alphabet = "".join(sorted(set(text)))
    codes = np.searchsorted(list(alphabet), list(text)).astype(np.int32)
    count = len(codes) // (LENGTH + 1)
    return jnp.asarray(codes[: count * (LENGTH + 1)].reshape(count, -1)), alphabet


def init(key: jax.Array, num_characters: int) -> dict:
    """Matrices of standard deviation 0.1, as the example has them."""
    sizes = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH)}
    sizes |= {
        "mix": (WIDTH, WIDTH),
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    }
    outer = {"embed": (num_characters, WIDTH), "place": (LENGTH, WIDTH)}
    outer |= {"head": (WIDTH, num_characters)}

    def drawn(key, shapes):
        keys = jax.random.split(key, len(shapes))
        pairs = zip(shapes.items(), keys, strict=True)
        return {name: 0.1 * jax.random.normal(k, shape) for (name, shape), k in pairs}

    def norm():
        return {"scale": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)}

    first, *keys = jax.random.split(key, NUM_LAYERS + 1)
    layers = [{**drawn(k, sizes), "norm1": norm(), "norm2": norm()} for k in keys]
    return {**drawn(first, outer), "layers": layers, "norm": norm()}


def logits(params: dict, codes: jax.Array) -> jax.Array:
    """Scores of the next character at each place of one window."""

    def normalized(x, norm):
        return jax.nn.standardize(x, epsilon=1e-5) * norm["scale"] + norm["bias"]

    def heads(x):
        return x.reshape(len(codes), NUM_HEADS, -1)

    x = params["embed"][codes] + params["place"][: len(codes)]
    for layer in params["layers"]:
        q, k, v = (heads(x @ layer[name]) for name in "qkv")
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = normalized(x + mixed.reshape(x.shape) @ layer["mix"], layer["norm1"])
        hidden = jax.nn.gelu(x @ layer["up"])
        x = normalized(x + hidden @ layer["down"], layer["norm2"])
    return normalized(x, params["norm"]) @ params["head"]


def loss_fn(params: dict, window: jax.Array) -> jax.Array:
    """The mean cross-entropy of the next character."""
    return optax.softmax_cross_entropy_with_integer_labels(
        logits(params, window[:-1]), window[1:]
    ).mean()


def train(num_steps: int = NUM_STEPS) -> None:
    """Trains by Poisson batches, prints losses of held-out windows, and a sample."""
    data, alphabet = windows()
    data, tests = data[:-64], data[-64:]
    batching = dpjax.batching.Poisson(BATCH_SIZE)
    noise_multiplier = dpjax.accounting.noise_multiplier(
        EPSILON, DELTA, **batching.accounting(len(data), num_steps)
    )
    key, init_key, noise_key = jax.random.split(jax.random.key(0), 3)
    private_mean = dpjax.transforms.privatize(
        dpjax.estimators.Clipping(L2_CLIP_NORM),
        noise_multiplier=noise_multiplier,
        normalize_by=BATCH_SIZE,
        key=noise_key,
    )
    optimizer = dpjax.chain(private_mean, optax.adam(LEARNING_RATE))

    @jax.jit
    def step(params, state, batches):
        batch, is_padding, batches = batching.draw(batches, data)
        grads = dpjax.gradients.streamed_grad(loss_fn)(params, batch)
        updates, state = optimizer.update(
            grads, state, params, is_padding_example=is_padding
        )
        return optax.apply_updates(params, updates), state, batches

    mean_loss = jax.jit(
        lambda params: jax.vmap(loss_fn, (None, 0))(params, tests).mean()
    )
    params = init(init_key, len(alphabet))
    state = optimizer.init(params)
    batches = batching.init(key, len(data), num_steps, epsilon=EPSILON, delta=DELTA)
    print(f"{len(data):,} windows, epsilon {EPSILON:g}, noise {noise_multiplier:.3f}")
    for index in range(num_steps):
        if index % 100 == 0:
            print(f"step {index}: loss {mean_loss(params):.3f}", flush=True)
        params, state, batches = step(params, state, batches)
    print(f"step {num_steps}: loss {mean_loss(params):.3f}")
    print(repr(sample(params, alphabet, "The ")))


def sample(params: dict, alphabet: str, text: str) -> str:
    """Goes on with a text, up to a window, by the likeliest characters."""
    codes = jnp.zeros(LENGTH, jnp.int32)
    codes = codes.at[: len(text)].set(jnp.array([alphabet.index(c) for c in text]))

    def add(place, codes):
        return codes.at[place].set(jnp.argmax(logits(params, codes)[place - 1]))

    codes = jax.jit(lambda c: jax.lax.fori_loop(len(text), LENGTH, add, c))(codes)
    return "".join(alphabet[code] for code in codes)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    train(parser.parse_args().steps)


if __name__ == "__main__":
    main()
