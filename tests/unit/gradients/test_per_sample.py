"""Per-sample gradients against one gradient after the other."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.gradients import per_sample_grad


def loss_fn(params, example):
    return jnp.square(example["x"] @ params["w"] + params["b"] - example["y"])


PARAMS = {"w": jnp.array([0.3, -0.2, 0.5]), "b": jnp.float32(0.1)}


@pytest.fixture
def batch(key):
    features, targets = jax.random.split(key)
    return {
        "x": jax.random.normal(features, (7, 3)),
        "y": jax.random.normal(targets, (7,)),
    }


def test_gradients_are_those_of_single_examples(batch):
    grads = per_sample_grad(loss_fn)(PARAMS, batch)
    singles = [
        jax.grad(loss_fn)(PARAMS, {name: leaf[i] for name, leaf in batch.items()})
        for i in range(7)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *singles)
    chex.assert_trees_all_close(grads, stacked, rtol=1e-6)
    chex.assert_trees_all_close(
        jax.jit(per_sample_grad(loss_fn))(PARAMS, batch), grads, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("length", [129, 200, 300])
def test_an_index_of_8_bits_finds_its_row(length):
    def loss_fn(w, index):
        return jnp.take(w, index, axis=0).sum()

    w, batch = jnp.zeros((length, 2)), jnp.asarray([5], jnp.int8)
    grads = jax.jit(per_sample_grad(loss_fn))(w, batch)
    np.testing.assert_array_equal(grads[0], w.at[5].set(1.0))


def test_aux_is_stacked(batch):
    def with_aux(params, example):
        return loss_fn(params, example), {"y": example["y"], "one": 1}

    grads, aux = per_sample_grad(with_aux, has_aux=True)(PARAMS, batch)
    chex.assert_trees_all_close(grads, per_sample_grad(loss_fn)(PARAMS, batch))
    np.testing.assert_array_equal(aux["y"], batch["y"])
    np.testing.assert_array_equal(aux["one"], np.ones(7))


def test_half_precision_parameters_keep_their_dtype(batch):
    halved = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (PARAMS, batch))
    grads = per_sample_grad(loss_fn)(*halved)
    assert {g.dtype for g in jax.tree.leaves(grads)} == {jnp.dtype(jnp.bfloat16)}
    assert jax.tree.map(jnp.shape, grads) == {"w": (7, 3), "b": (7,)}


@pytest.mark.parametrize(
    "bad", [(), {"x": jnp.ones((3, 3)), "y": jnp.ones(2)}, {"x": 1.0, "y": 2.0}]
)
def test_bad_batches_are_named(bad):
    with pytest.raises(ValueError, match="batch must be"):
        per_sample_grad(loss_fn)(PARAMS, bad)
