"""Descent with several parties: arguments that differ, or are bad, are named."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import losses
from dpjax.estimators import (
    Clipping,
    Mean,
    MedianOfMeans,
    Truncation,
    Winsorization,
)
from dpjax.parties import PartyError, run_parties
from dpjax.solvers import Checkpoint, Execution
from tests.unit.solvers.test_multiparty import (
    Recorder,
    descend,
    records,
)


@jax.custom_vjp
def as_logistic(params, example):
    """The logistic loss, with a gradient of its own."""
    return losses.logistic(params, example)


def _forward(params, example):
    return as_logistic(params, example), (params, example)


def _backward(residual, slope):
    grads = jax.grad(losses.logistic, argnums=(0, 1))(*residual)
    return jax.tree.map(lambda x: 2 * slope * x, grads)


as_logistic.defvjp(_forward, _backward)


def scaled_logistic(scale):
    return lambda params, example: scale * losses.logistic(params, example)


BALL = partial(optax.projections.projection_l2_ball, scale=1.0)
LINE = optax.linear_schedule(0.5, 0.1, 5)


@pytest.mark.quick(6)
@pytest.mark.parametrize(
    ("name", "of_all", "of_one"),
    [
        ("epsilon", {}, {"epsilon": 2.1}),
        ("delta", {}, {"delta": 2e-6}),
        ("estimator", {}, {"estimator": Clipping(1.1)}),
        (
            "estimator",
            {"estimator": Truncation(1.0)},
            {"estimator": Winsorization(1.0)},
        ),
        ("num_steps", {}, {"num_steps": 6}),
        ("num_steps", {"num_steps": None}, {"num_steps": 41}),
        ("averaging", {}, {"averaging": True}),
        ("params", {}, {"params": jnp.full(3, 1e-9)}),
        # What the loss is traced for.
        (
            "data, loss_fn",
            {},
            {"data": (np.zeros((30, 3), np.float32), np.zeros(30, np.int32))},
        ),
        ("loss_fn", {}, {"loss_fn": losses.squared}),
        ("loss_fn", {}, {"loss_fn": as_logistic}),
        (
            "loss_fn",
            {"loss_fn": scaled_logistic(2.0)},
            {"loss_fn": scaled_logistic(2.0000002)},
        ),
        ("learning_rate", {}, {"learning_rate": 0.6}),
        ("learning_rate", {}, {"learning_rate": lambda step: 0.5}),
        (
            "learning_rate",
            {"learning_rate": LINE},
            {"learning_rate": optax.linear_schedule(0.5, 0.2, 5)},
        ),
        ("projection_fn", {}, {"projection_fn": BALL}),
        (
            "projection_fn",
            {"projection_fn": BALL},
            {"projection_fn": partial(BALL, scale=2.0)},
        ),
    ],
)
def test_the_argument_that_differs_is_named(name, of_all, of_one):
    sent = []

    def party_fn(transport):
        changes = of_all | (of_one if transport.party == 1 else {})
        changes = {"data": records(30, transport.party)} | changes
        return descend(Recorder(transport, sent), **changes)

    with pytest.raises(PartyError, match=f"party 1: other {name} than party 0"):
        run_parties(party_fn, 2)
    assert len(sent) == 2 * 2  # keys and digests: nothing of any record


def test_functions_made_anew_by_each_party_are_the_same():
    data = [records(30, seed) for seed in range(2)]

    def party_fn(transport):
        table = jnp.arange(200.0)
        return descend(
            transport,
            data[transport.party],
            loss_fn=lambda params, example: losses.logistic(params, example) * table[3],
            projection_fn=lambda params: params / 2,
            execution=Execution(microbatch_size=1 + transport.party),
            learning_rate=lambda step: 1 / (step + 2),
        )

    first, second = run_parties(party_fn, 2)
    np.testing.assert_array_equal(first.params, second.params)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("epsilon", {"epsilon": 0.0}),
        ("delta", {"delta": 1.0}),
        ("loss_fn", {"loss_fn": None}),
        ("estimator", {"estimator": Mean()}),
        ("estimator", {"estimator": None}),
        ("learning_rate", {"learning_rate": -1.0}),
        ("num_steps", {"num_steps": 0}),
        ("secure_sum", {"secure_sum": None}),
        ("projection_fn", {"projection_fn": 3}),
        ("execution", {"execution": print}),
        ("checkpoint", {"execution": Execution(checkpoint=Checkpoint("states"))}),
        ("data", {"data": ()}),
        ("num_groups", {"estimator": MedianOfMeans(Clipping(1.0), 31)}),
        ("at most 2\\^52", {"estimator": Clipping(1e-12), "epsilon": 1e30}),
    ],
)
def test_bad_arguments_are_named(name, change):
    def party_fn(transport):
        changes = {"data": records(30, transport.party)} | change
        return descend(transport, **changes)

    with pytest.raises(ValueError, match=name):
        run_parties(party_fn, 2)
