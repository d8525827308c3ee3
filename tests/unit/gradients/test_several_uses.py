"""Parameters with several uses: tables that are read and multiplied, and transposes."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dpjax.estimators import Clipping
from dpjax.gradients import explain
from tests.privacy.gradients.test_factored_attacks import (
    P,
    attacks,
    each_dtype,
    farthest_move,
)
from tests.unit.gradients.test_factored import assert_same_mean, numbers

pytestmark = pytest.mark.optimized
VOCABULARY, WIDTH, NUM_TOKENS = 300, 40, 5


def tied(p, tokens):
    """A model of the next token whose output layer is its embedding."""
    return jnp.tanh(p[tokens].mean(axis=0)) @ p.T


def tied_by_einsum(p, tokens):
    return jnp.einsum("vd,td->tv", p, jnp.tanh(p[tokens[:2]]))


def stored_transposed(p, tokens):
    return jnp.tanh(p.T[tokens].mean(axis=0)) @ p


def in_half(p, tokens):
    p = p.astype(jnp.bfloat16)
    return jnp.tanh(
        p[tokens].mean(axis=0).astype(jnp.float32) @ p.T.astype(jnp.float32)
    )


def filled(p, tokens):
    """Of places outside, which count for nothing."""
    rows = p.at[tokens + VOCABULARY - 60].get(mode="fill", fill_value=0)
    return rows.mean(axis=0) @ p.T


def two_reads(p, tokens):
    return p[tokens[0]] * p[tokens[1:]].sum(axis=0)


def autoencoder(p, tokens):
    x = jnp.sin(jnp.float32(tokens[0]) * jnp.arange(1.0, WIDTH + 1))
    return jnp.tanh(p[:] @ x) @ p


def in_a_loop(p, tokens):
    def turn(x, _):
        return jnp.tanh(p.T @ (p @ x)), None

    x = jnp.sin(jnp.float32(tokens[0]) * jnp.arange(1.0, WIDTH + 1))
    return lax.scan(turn, x, None, 2)[0]


TABLE = (VOCABULARY, WIDTH)
ONE_HOT = "6 vectors, one-hot where its rows are read: 300 and 40 numbers"
MODELS = {
    tied: (TABLE, "matrix product", ONE_HOT),
    tied_by_einsum: (TABLE, "matrix product", ONE_HOT.replace("6", "4")),
    stored_transposed: (TABLE[::-1], "matrix product", "40 and 300 numbers"),
    in_half: (TABLE, "matrix product", ONE_HOT),
    filled: (TABLE, "matrix product", ONE_HOT),
    two_reads: (TABLE, "table rows", "5 of 300 rows are read"),
    autoencoder: (TABLE, "matrix product", "2 vectors: 300 and 40 numbers"),
    in_a_loop: (TABLE, "matrix product", "4 vectors: 300 and 40 numbers"),
}


def loss_of(function):
    def loss_fn(params, example):
        y = function(params, example).astype(jnp.float32)
        return jnp.sum(jnp.sin(y) * jnp.arange(1.0, y.size + 1).reshape(y.shape))

    return loss_fn


@pytest.mark.parametrize("function", MODELS)
def test_several_uses_have_the_same_mean(function):
    shape, way, why = MODELS[function]
    params, rng = 0.2 * numbers(*shape), np.random.default_rng(1)
    tokens = rng.integers(0, VOCABULARY, (7, NUM_TOKENS)).astype(np.int32)
    tokens[:, 3] = tokens[:, 1]  # a row that is read twice
    (row,) = explain(loss_of(function), params, tokens).rows
    assert row.way == way
    assert why in row.why
    rtol = 0.02 if function is in_half else 1e-4
    estimators = [Clipping(0.3)]
    assert_same_mean(loss_of(function), params, tokens, rtol, estimators)


OTHERS = {
    "used 2 times": lambda p, x: jnp.sum(p[x] @ p.T),  # ten vectors save too little
    "used 3 times": lambda p, x: jnp.sum(p[x] @ p.T) + jnp.sum(p),
    "most of its rows are read": lambda p, x: jnp.sum(
        p[jnp.arange(40)] * p[jnp.arange(40, 80)]
    ),
}


@pytest.mark.parametrize("why", OTHERS)
def test_other_uses_are_written_out(why):
    params, tokens = numbers(VOCABULARY, WIDTH), jnp.ones((7, NUM_TOKENS), jnp.int32)
    (row,) = explain(OTHERS[why], params, tokens).rows
    assert (row.way, row.why) == ("written out", why)
    assert_same_mean(OTHERS[why], params, tokens, 1e-4)


@each_dtype
def test_no_record_moves_the_mean_too_far(dtype, monkeypatch):
    """Rows that are read cancel products, and may be 1e30 beside 1e-30."""
    monkeypatch.setattr("dpjax._sums.samples.SAVING", 0)

    def loss_fn(table, example):
        x, tokens = example
        return (jnp.sum(table @ x.T) - 3 * jnp.sum(table[tokens] @ x[:2].T)).astype(
            "f4"
        )

    table = jnp.zeros((9, P), dtype)
    batches = [
        ((x, tokens % 9), [record[:1] for record in records])
        for x, tokens, _, records in attacks(np.random.default_rng(40), 40, 3)
    ]
    batch = jnp.asarray(batches[0][0][0], dtype), jnp.asarray(batches[0][0][1], "int32")
    (row,) = explain(loss_fn, table, batch).rows
    assert row.way == "matrix product"
    assert farthest_move(loss_fn, table, Clipping(1.0), batches) > 0.9
