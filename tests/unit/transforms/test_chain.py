"""`chain`: a private mean first; in half precision, what comes after is in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import transforms
from dpjax.estimators import Clipping
from dpjax.transforms import dp_sgd, privatize


def private(seed=0):
    return privatize(Clipping(1.0), noise_multiplier=1.0, key=jax.random.key(seed))


def test_it_is_the_chain_of_optax():
    # float32 parameters: state and updates are those of optax, to the bit.
    params = {"w": jnp.ones((2, 3)), "b": jnp.zeros(())}
    grads = jax.tree.map(lambda x: jnp.ones((4, *x.shape)), params)
    mask = jnp.arange(4) == 2
    results = []
    for chain in (dpjax.chain, optax.chain):
        optimizer = chain(private(), optax.adam(0.1), optax.add_decayed_weights(0.1))
        with jax.numpy_dtype_promotion("standard"):
            state = optimizer.init(params)
            results.append(
                optimizer.update(grads, state, params, is_padding_example=mask)
            )
    (ours, state), (theirs, their_state) = results
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert jax.tree.structure(state) == jax.tree.structure(their_state)


BAD = {
    "mixed before": lambda: [optax.clip_by_global_norm(1.0), private()],
    "blocks before": lambda: [optax.clip_by_block_rms(1.0), private()],
    "harmless before": lambda: [optax.scale(2.0), private()],
    "none": lambda: [optax.sgd(0.1)],
    "nothing": lambda: [],
    "not private": lambda: [transforms.aggregate(Clipping(1.0)), optax.sgd(0.1)],
    "noise alone": lambda: [
        transforms.add_gaussian_noise(stddev=1.0, key=jax.random.key(0))
    ],
    "unchecked": lambda: [optax.chain(private(), optax.sgd(0.1))],
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_private_first_is_refused(name):
    with pytest.raises(ValueError, match=r"transforms\[0\] must be privatize, dp_sgd"):
        dpjax.chain(*BAD[name]())
    for part, message in ((private(1), "post-processing"), (Clipping(1.0), "an optax")):
        with pytest.raises(ValueError, match=rf"transforms\[1\] must be {message}"):
            dpjax.chain(private(), part)


def test_chains_nest():
    inner = dpjax.chain(private(), optax.trace(0.9))
    outer = dpjax.chain(inner, optax.scale(-0.1))
    sgd = dpjax.chain(
        dp_sgd(0.1, Clipping(1.0), noise_multiplier=1.0, key=jax.random.key(0)),
        optax.clip_by_global_norm(8.0),
    )
    params = jnp.zeros(2)
    results = [
        optimizer.update(jnp.ones((8, 2)), optimizer.init(params), params)[0]
        for optimizer in (outer, sgd)
    ]
    np.testing.assert_allclose(*results, rtol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.adamw(1e-2),
        lambda: optax.contrib.schedule_free(
            optax.chain(transforms.scale_by_dp_adam(b1=0.0), optax.scale(-0.1)), 0.1
        ),
    ],
    ids=["adam", "schedule-free"],
)
def test_half_precision_in_a_scan(make):
    dtype = jnp.bfloat16
    params = {"w": jnp.ones((3,), dtype), "b": jnp.zeros((), jnp.float32)}
    optimizer = dpjax.chain(private(), make())

    def step(carry, x):
        params, state = carry
        grads = dpjax.per_sample_grad(lambda p, x: (p["w"] * x).sum() + p["b"])(
            params, x
        )
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), updates

    with jax.numpy_dtype_promotion("standard"):
        start = params, optimizer.init(params)
        rows = jnp.ones((5, 4, 3), dtype)
        run = jax.jit(lambda x: jax.lax.scan(step, start, x))
        (trained, state), updates = run(rows)
    assert trained["w"].dtype == dtype
    assert (trained["w"] != params["w"]).all()
    floats = [x for x in jax.tree.leaves(state[1]) if jnp.issubdtype(x.dtype, float)]
    for x in [*floats, *jax.tree.leaves(updates)]:
        assert x.dtype == jnp.float32
