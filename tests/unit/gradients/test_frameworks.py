"""Models of other packages trace to programs in which parameters are recognised."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.estimators import Clipping
from dpjax.gradients import check_model

N = 6
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 100, (N, 5)), jnp.int32)
IMAGES = jnp.asarray(np.random.default_rng(1).standard_normal((N, 8, 8, 1)), np.float32)
WIDTH = 24
FAST_TO_COMPILE = {"xla_backend_optimization_level": 0}
pytestmark = pytest.mark.usefixtures("their_promotion")


def ways(loss_fn, params, batch):
    """The ways of parameters by the last name of their path that is a word."""
    rows = check_model(loss_fn, params, batch).rows
    return {row.name: row.way for row in rows}


def count(found, part, way):
    """How many parameters with this in their name go this way, of how many."""
    named = [x for name, x in found.items() if part in name]
    return named.count(way), len(named)


def assert_same(loss_fn, params, batch):
    estimator = Clipping(0.1)

    def both(params, batch):
        grads = dpjax.per_sample_grad(loss_fn)(params, batch)
        return dpjax.robust_grad(loss_fn, estimator)(params, batch), estimator(grads)

    pair = jax.jit(both, compiler_options=FAST_TO_COMPILE)(params, batch)
    chex.assert_trees_all_close(*pair, rtol=0, atol=1e-6)


def linen_text(nn):
    class Text(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(256, WIDTH)(tokens).mean(axis=0)  # 256 is no uint8
            x = nn.gelu(nn.Dense(WIDTH)(nn.LayerNorm()(x)))
            return nn.Dense(10)(x)

    return Text()


def linen_image(nn):
    class Image(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Conv(4, (3, 3))(x))
            x = nn.Dense(WIDTH)(x.reshape(-1))
            return nn.Dense(10)(nn.relu(x))

    return Image()


@pytest.mark.parametrize(
    ("make", "batch"), [(linen_text, np.uint8(TOKENS)), (linen_image, IMAGES)]
)
def test_linen(make, batch):
    nn = pytest.importorskip("flax.linen", reason="needs flax")
    model = make(nn)
    params = jax.jit(model.init)(jax.random.key(0), batch[0])

    def loss_fn(params, x):
        return -jax.nn.log_softmax(model.apply(params, x))[3]

    found = ways(loss_fn, params, batch)
    assert count(found, "Dense", "outer product") == (2, 4)  # and two biases
    assert count(found, "embedding", "table rows") in ((0, 0), (1, 1))
    assert_same(loss_fn, params, batch)


def test_nnx():
    nnx = pytest.importorskip("flax.nnx", reason="needs flax")

    class Text(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(200, WIDTH, rngs=rngs)  # 200 is no int8
            self.mix = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
            self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
            self.hidden = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
            self.low_rank = nnx.LoRA(WIDTH, 8, WIDTH, rngs=rngs)
            self.logits = nnx.Linear(WIDTH, 10, rngs=rngs)

        def __call__(self, tokens):
            x = self.embed(tokens)
            x = self.norm(x + self.mix(x)).mean(axis=0)
            return self.logits(jax.nn.gelu(self.hidden(x) + self.low_rank(x)))

    model = nnx.eval_shape(lambda: Text(nnx.Rngs(0)))  # computes nothing
    graph, shapes, rest = nnx.split(model, nnx.Param, ...)
    rng = np.random.default_rng(2)
    params = jax.tree.map(
        lambda x: jnp.asarray(0.2 * rng.standard_normal(x.shape), x.dtype), shapes
    )

    def loss_fn(params, tokens):
        logits = nnx.merge(graph, params, rest)(tokens)
        return -jax.nn.log_softmax(logits)[3]

    tokens = TOKENS.astype(jnp.int8)
    found = ways(loss_fn, params, tokens)
    assert count(found, "embed", "table rows") == (1, 1)
    assert count(found, "hidden", "outer product") == (1, 2)
    assert count(found, "logits", "outer product") == (1, 2)
    assert count(found, "mix", "written out") == (2, 2)  # of five tokens
    assert_same(loss_fn, params, tokens)


def test_equinox():
    eqx = pytest.importorskip("equinox", reason="needs equinox")
    keys = jax.random.split(jax.random.key(0), 3)
    model = {
        "embed": eqx.nn.Embedding(100, WIDTH, key=keys[0]),
        "hidden": eqx.nn.Linear(WIDTH, WIDTH, key=keys[1]),
        "norm": eqx.nn.LayerNorm(WIDTH),
        "out": eqx.nn.Linear(WIDTH, 10, key=keys[2]),
    }
    params, rest = eqx.partition(model, eqx.is_inexact_array)

    def loss_fn(params, tokens):
        model = eqx.combine(params, rest)
        x = jax.vmap(model["embed"])(tokens).mean(axis=0)
        x = jax.nn.gelu(model["norm"](model["hidden"](x)))
        return -jax.nn.log_softmax(model["out"](x))[3]

    found = ways(loss_fn, params, TOKENS)
    assert count(found, "embed", "table rows") == (1, 1)
    assert count(found, "hidden", "outer product") == (1, 2)
    assert count(found, "out", "outer product") == (1, 2)
    assert_same(loss_fn, params, TOKENS)
