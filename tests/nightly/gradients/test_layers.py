"""Layers of all kinds, as they are in Flax: gradients as in float64."""

from functools import partial
from itertools import product

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.estimators import Clipping
from tests.unit.gradients import test_check_model

nn = pytest.importorskip("flax.linen", reason="needs flax")
their_promotion = test_check_model.their_promotion
N, CHANNELS, ROW = 4, 6, (5, 6)  # examples, channels, an example of five positions
CELLS = nn.SimpleCell, nn.GRUCell, nn.LSTMCell, nn.OptimizedLSTMCell, nn.MGUCell
NORMS = nn.LayerNorm, nn.RMSNorm, partial(nn.GroupNorm, 3), nn.InstanceNorm
# Layers, made with `param_dtype`, and the shape of an example.
LAYERS = {f"norm {i}": (norm, ROW) for i, norm in enumerate(NORMS)}
for cell in CELLS:
    LAYERS[cell.__name__] = (lambda cell=cell, **how: nn.RNN(cell(7, **how))), ROW
LAYERS |= {
    "dense": (partial(nn.Dense, 5), (CHANNELS,)),
    "dense, of positions": (partial(nn.Dense, 5, use_bias=False), (3, *ROW)),
    "dense, of two axes": (partial(nn.DenseGeneral, (2, 3), (-2, -1)), (4, *ROW)),
    "einsum": (partial(nn.Einsum, (5, 6, 7), "btc,tcd->btd"), ROW),
    "embedding": (partial(nn.Embed, 30, 5), ()),
    "bag of embeddings": (partial(nn.Embed, 30, 5), (8,)),
    "attention": (partial(nn.MultiHeadDotProductAttention, 2), ROW),
    "weight norm": (lambda **how: nn.WeightNorm(nn.Dense(5, **how), **how), (6,)),
    "images": (lambda **how: nn.RNN(nn.ConvLSTMCell(3, (3, 3), **how)), (4, 5, *ROW)),
}
PADDINGS = "SAME", "VALID", "CIRCULAR", 1, 4
for axes in (1, 2, 3):
    image, window = (*[7] * axes, CHANNELS), (3,) * axes
    for stride, dilation, groups, padding in product((1, 2), (1, 2), (1, 3), PADDINGS):
        if axes < 3 or stride + dilation + groups < 5:
            how = stride, padding, 1, dilation, groups
            LAYERS[f"{axes} axes, {how}"] = partial(nn.Conv, 3, window, *how), image
    for stride, padding in product((1, 2, 3), PADDINGS[:3]):
        layer = partial(nn.ConvTranspose, 4, window, (stride,) * axes, padding)
        LAYERS[f"{axes} axes, transposed, {stride}, {padding}"] = layer, image


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_those_in_float64(name):
    make, shape = LAYERS[name]
    is_table = "embedding" in name
    rng = np.random.default_rng(0)
    draw = partial(rng.integers, 0, 30) if is_table else partial(rng.normal, 0, 1)
    batch = draw((N, *shape))

    def loss_fn(layer, params, x):
        return jnp.sum(jnp.sin(layer.apply(params, x[None])) ** 2)

    with jax.enable_x64(True):
        layer = make(param_dtype=jnp.float64)
        wide = layer.init(jax.random.key(0), jnp.asarray(batch)[:1])
        grad_fn = jax.vmap(jax.grad(partial(loss_fn, layer)), (None, 0))
        grads = jax.tree.map(np.asarray, jax.jit(grad_fn)(wide, batch))
    norms = [np.linalg.norm(x.reshape(N, -1), axis=1) for x in jax.tree.leaves(grads)]
    norms = np.linalg.norm(norms, axis=0)
    weights = np.minimum(1, norms.mean() / norms) / N
    clipped = jax.tree.map(lambda x: np.tensordot(weights, x, axes=1), grads)
    own = partial(loss_fn, make(param_dtype=jnp.float32))
    robust = dpjax.robust_grad(own, Clipping(float(norms.mean())))
    params = jax.tree.map(jnp.float32, wide)
    batch = batch.astype("int32" if is_table else "float32")
    for grad_fn, expected in ((dpjax.per_sample_grad(own), grads), (robust, clipped)):
        largest = max(np.abs(x).max() for x in jax.tree.leaves(expected))
        result = jax.jit(grad_fn)(params, batch)
        chex.assert_trees_all_close(result, expected, rtol=0, atol=1e-5 * largest)
