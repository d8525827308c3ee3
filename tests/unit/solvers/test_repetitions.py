"""Repetitions share the memory of one."""

import jax
import jax.numpy as jnp
import pytest

from dpjax import solvers
from dpjax.batching import Disjoint, Poisson
from dpjax.estimators import Winsorization
from dpjax.losses import squared


# Each repetition copies its batch, a twentieth of the data, and draws its places.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("batching", "copies"),
    [(None, 0.0), (Disjoint(), 1.0), (Poisson(5_000), 1.5)],
    ids=["full", "disjoint", "poisson"],
)
def test_twenty_repetitions_need_little_more_memory_than_one(batching, copies):
    n, d = 100_000, 50
    shapes = (
        jax.ShapeDtypeStruct((n, d), jnp.float32),
        jax.ShapeDtypeStruct((n,), jnp.float32),
    )

    def repetition(key, data):
        return solvers.dp_gradient_descent(
            squared,
            jnp.zeros(d),
            data,
            key=key,
            epsilon=1.0,
            delta=1e-5,
            estimator=Winsorization(1.0),
            learning_rate=0.1,
            num_steps=20,
            **({} if batching is None else {"batching": batching}),
        ).params

    keys = jax.random.split(jax.random.key(0), 20)

    def temporary_bytes(run, keys):
        compiled = jax.jit(run).lower(keys, shapes).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    size = 4 * n * (d + 1)
    one = temporary_bytes(repetition, keys[0])
    in_turn = temporary_bytes(
        lambda keys, data: jax.lax.map(lambda key: repetition(key, data), keys), keys
    )
    together = temporary_bytes(jax.vmap(repetition, in_axes=(0, None)), keys)
    assert size + in_turn < 1.1 * (size + one)
    assert size + together < 1.6 * (size + one) + copies * size
