"""Single layers in plain JAX, as losses of one example: see `models`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.speed.models import cross_entropy, normal

ORDERS = {1: ("NHC", "HIO"), 2: ("NHWC", "HWIO"), 3: ("NDHWC", "DHWIO")}


def _square(x):
    return jnp.mean(jnp.tanh(x) ** 2)


def _convolve(kernel, x, padding="SAME", spread=1):
    """Returns the convolution of an image (..., C); its entries are `spread` apart."""
    images, kernels = ORDERS[x.ndim - 1]
    ones, apart = (1,) * (x.ndim - 1), (spread,) * (x.ndim - 1)
    how = {"lhs_dilation": apart, "dimension_numbers": (images, kernels, images)}
    return lax.conv_general_dilated(x[None], kernel, ones, padding, **how)[0]


def convolution(axes, size, channels, window, spread, batch_size):
    """Returns a layer on images over some axes; transposed if spread is over one."""
    rng = np.random.default_rng(0)
    kernel = normal(rng, (*[window] * axes, *channels), 0.1)
    batch = normal(rng, (batch_size, *[size] * axes, channels[0]))
    padding = [(window - 1, window - 1)] * axes if spread > 1 else "SAME"
    loss_fn = lambda kernel, x: _square(_convolve(kernel, x, padding, spread))  # noqa: E731
    return loss_fn, kernel, batch


def recurrent(batch_size):
    """Returns six steps of a network whose state is an image, 8 by 8 by 8."""
    rng = np.random.default_rng(0)
    params = {x: normal(rng, (3, 3, n, 32), 0.1) for x, n in (("x", 4), ("h", 8))}
    batch = normal(rng, (batch_size, 6, 8, 8, 4))

    def loss_fn(params, images):
        def step(state, x):
            h, c = state
            gates = _convolve(params["x"], x) + _convolve(params["h"], h)
            i, f, o, g = jnp.split(gates, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        zeros = jnp.zeros((8, 8, 8))
        return _square(lax.scan(step, (zeros, zeros), images)[0][0])

    return loss_fn, params, batch


def tied(batch_size):
    """Returns 1,000 embeddings that are the output layer, too, on 16 tokens."""
    rng = np.random.default_rng(0)
    tokens = jnp.asarray(rng.integers(0, 1000, (batch_size, 16), np.int32))

    def loss_fn(embedding, tokens):
        logits = jnp.tanh(embedding[tokens]) @ embedding.T
        return jnp.mean(jax.vmap(cross_entropy)(logits[:-1], tokens[1:]))

    return loss_fn, normal(rng, (1000, 64), 0.1), tokens


def experts(batch_size):
    """Returns four networks that take at most eight of 16 tokens each."""
    rng = np.random.default_rng(0)
    shapes = {"gate": (32, 4), "up": (4, 32, 64), "down": (4, 64, 32)}
    params = {x: normal(rng, shape, 0.2) for x, shape in shapes.items()}

    def loss_fn(params, x):
        gates = jax.nn.softmax(x @ params["gate"])
        chosen = jax.nn.one_hot(jnp.argmax(gates, axis=-1), 4)
        place = ((jnp.cumsum(chosen, axis=0) - 1) * chosen).sum(axis=-1)
        sent = chosen[:, :, None] * jax.nn.one_hot(place.astype(int), 8)[:, None, :]
        hidden = jnp.einsum("tec,td->ecd", sent, x)
        hidden = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", hidden, params["up"]))
        hidden = jnp.einsum("ecf,efd->ecd", hidden, params["down"])
        weights = sent * (gates * chosen).sum(axis=-1)[:, None, None]
        return _square(jnp.einsum("tec,ecd->td", weights, hidden))

    return loss_fn, params, normal(rng, (batch_size, 16, 32))


def weight_norm(batch_size):
    """Returns two dense layers 32-64-10, each of directions and lengths."""
    rng = np.random.default_rng(0)
    shapes = (32, 64), (64, 10)
    params = [(normal(rng, shape), jnp.ones(shape[1])) for shape in shapes]

    def loss_fn(params, x):
        for directions, lengths in params:
            norms = jnp.sqrt((directions**2).sum(axis=0, keepdims=True) + 1e-12)
            x = jnp.tanh(x @ (directions / norms * lengths[None]))
        return _square(x)

    return loss_fn, params, normal(rng, (batch_size, 32))


def low_rank(is_merged, batch_size):
    """Returns two frozen layers of 64 tokens by 128, each with a product of rank 8."""
    rng = np.random.default_rng(0)
    frozen = [normal(rng, (128, 128), 128**-0.5) for _ in range(2)]
    params = [[normal(rng, x, 0.1) for x in ((128, 8), (8, 128))] for _ in frozen]

    def loss_fn(params, x):
        for w, (down, up) in zip(frozen, params, strict=True):
            x = x @ (w + down @ up) if is_merged else x @ w + x @ down @ up
            x = jnp.tanh(x)
        return _square(x)

    return loss_fn, params, normal(rng, (batch_size, 64, 128))


_CONVOLUTIONS = {
    "conv-1": ("convolution over one axis", (1, 64, (8, 16), 3, 1), 64),
    "conv-2": ("convolution over two axes", (2, 16, (8, 16), 3, 1), 64),
    "conv-3": ("convolution over three axes", (3, 8, (4, 8), 3, 1), 32),
    "transposed-1": ("transposed, over one axis", (1, 64, (8, 16), 4, 2), 64),
    "transposed-2": ("transposed, over two axes", (2, 12, (8, 16), 4, 2), 64),
    "transposed-3": ("transposed, over three axes", (3, 6, (4, 8), 3, 2), 32),
}
# name: (title, a function from the batch size to loss, params and batch, batch size)
LAYERS = {
    **{
        k: (x, partial(convolution, *how), n)
        for k, (x, how, n) in _CONVOLUTIONS.items()
    },
    "recurrent": ("recurrent network of images", recurrent, 32),
    "tied": ("embedding that is the output layer", tied, 64),
    "experts": ("experts with dispatch", experts, 64),
    "weight-norm": ("weight norm", weight_norm, 64),
    "low-rank": ("low rank, beside", partial(low_rank, False), 32),
    "low-rank-merged": ("low rank, merged", partial(low_rank, True), 32),
}
