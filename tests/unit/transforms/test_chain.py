"""`chain`: a private mean first, the rest in float32; Adam that is told its noise."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import mechanisms, transforms
from dpjax.estimators import AdaptiveThreshold, Clipping, TrimmedMean, Winsorization
from dpjax.transforms import dp_sgd, privatize, scale_by_dp_adam
from tests.unit.transforms import test_contract

CLIPPING, SIZE = Clipping(1.0), 40_000
standard_promotion = test_contract.standard_promotion


def private(estimator=CLIPPING, multiplier=1.0, seed=0, **options):
    options["key"] = jax.random.key(seed)
    return privatize(estimator, noise_multiplier=multiplier, **options)


def test_it_is_the_chain_of_optax_for_float32_parameters():
    params = {"w": jnp.ones((2, 3)), "b": jnp.zeros(())}
    grads = jax.tree.map(lambda x: jnp.ones((4, *x.shape)), params)
    mask = {"is_padding_example": jnp.arange(4) == 2}
    results = []
    for chain in (dpjax.chain, optax.chain):
        optimizer = chain(private(), optax.adam(0.1), optax.add_decayed_weights(0.1))
        results.append(optimizer.update(grads, optimizer.init(params), params, **mask))
    (ours, state), (theirs, their_state) = results
    chex.assert_trees_all_equal(ours, theirs)
    assert jax.tree.structure(state) == jax.tree.structure(their_state)


def test_a_transformation_gets_the_keywords_that_it_names():
    def of(part):
        optimizer, params = dpjax.chain(private(), part), jnp.ones(3)
        mask = {"is_padding_example": jnp.arange(4) == 2}
        state = optimizer.init(params)
        return optimizer.update(jnp.ones((4, 3)), state, params, **mask)[0]

    # The first step of sam is that of its adversarial optimizer, turned round.
    sam = optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.3), sync_period=2)
    chex.assert_trees_all_close(of(sam), -of(optax.sgd(0.3)))


BAD = {
    "mixed before": lambda: [optax.clip_by_global_norm(1.0), private()],
    "none": lambda: [optax.sgd(0.1)],
    "nothing": lambda: [],
    "not private": lambda: [transforms.aggregate(CLIPPING), optax.sgd(0.1)],
    "noise": lambda: [transforms.add_gaussian_noise(stddev=1.0, key=jax.random.key(0))],
    "unchecked": lambda: [optax.chain(private(), optax.sgd(0.1))],
}
ESTIMATORS = {
    "fixed": Winsorization(1.0),
    # The first threshold is far too large: the noise falls by a third.
    "adaptive": AdaptiveThreshold(Clipping(900.0), lower=1.0, upper=1e3),
}
REFUSED = {
    "optax.chain": lambda adam: optax.chain(private(), adam),
    "after momentum": lambda adam: dpjax.chain(private(), optax.trace(0.9), adam),
    "nested": lambda adam: dpjax.chain(dpjax.chain(private(), optax.trace(0.9)), adam),
    "correlated": lambda adam: dpjax.chain(
        private(noise=mechanisms.BandedToeplitz(4, (1.0,))), adam
    ),
    "smooth": lambda adam: dpjax.chain(private(TrimmedMean(0.4, -1.0, 1.0), 2.0), adam),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_private_first_is_refused(name):
    with pytest.raises(ValueError, match=r"transforms\[0\] must be privatize, dp_sgd"):
        dpjax.chain(*BAD[name]())
    for part, message in ((private(seed=1), "neither"), (CLIPPING, "an optax")):
        with pytest.raises(ValueError, match=rf"transforms\[1\] must be {message}"):
            dpjax.chain(private(), part)


def test_a_chain_may_begin_with_a_chain_or_with_dp_sgd():
    outer = dpjax.chain(dpjax.chain(private(), optax.trace(0.9)), optax.scale(-0.1))
    sgd = dp_sgd(0.1, CLIPPING, noise_multiplier=1.0, key=jax.random.key(0))
    sgd = dpjax.chain(sgd, optax.clip_by_global_norm(8.0))
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
            optax.chain(scale_by_dp_adam(b1=0.0), optax.scale(-0.1)), 0.1
        ),
    ],
    ids=["adam", "schedule-free"],
)
def test_after_half_precision_all_is_in_float32(make):
    dtype = jnp.bfloat16
    params = {"w": jnp.ones((3,), dtype), "b": jnp.zeros((), jnp.float32)}
    optimizer = dpjax.chain(private(), make())

    def step(carry, x):
        params, state = carry
        grad_fn = dpjax.per_sample_grad(lambda p, x: (p["w"] * x).sum() + p["b"])
        updates, state = optimizer.update(grad_fn(params, x), state, params)
        return (optax.apply_updates(params, updates), state), updates

    start = params, optimizer.init(params)
    run = jax.jit(lambda rows: jax.lax.scan(step, start, rows))
    (trained, state), updates = run(jnp.ones((5, 4, 3), dtype))
    assert trained["w"].dtype == dtype
    assert (trained["w"] != params["w"]).all()
    floats = [x for x in jax.tree.leaves(state[1]) if jnp.issubdtype(x.dtype, float)]
    for x in [*floats, *jax.tree.leaves(updates)]:
        assert x.dtype == jnp.float32


# -- Adam --------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["number", "prefix"])
def test_dp_adam_is_its_formula(kind):
    def split(x):
        return {"a": jnp.float32(x[:2]), "b": (jnp.float32(x[2:4]), jnp.float32(x[4]))}

    grads = np.random.default_rng(1).normal(size=(6, 5)) * np.logspace(-3, 3, 5)
    scales = {"number": 0.7, "prefix": np.array([0.7, 0.7, 0.1, 0.1, 0.1])}[kind]
    stddevs = np.outer(np.arange(1, 7), scales * np.ones(5))
    adam = scale_by_dp_adam(b1=0.8, b2=0.9, eps=1e-3, floor=0.2)
    m = v = 0.0
    state = adam.init(split(np.zeros(5)))
    for t, (g, s) in enumerate(zip(grads, stddevs, strict=True), start=1):
        stated = {"number": s[0], "prefix": {"a": jnp.float32(s[:2]), "b": s[2]}}[kind]
        update, state = adam.update(split(g), state, noise_stddev=stated)
        m = 0.8 * m + 0.2 * g
        v = 0.9 * v + 0.1 * (g**2 - s**2)
        root = np.sqrt(np.maximum(v / (1 - 0.9**t), 0.2 * s**2))
        expected = split(m / (1 - 0.8**t) / (root + 1e-3))
        chex.assert_trees_all_close(update, expected, rtol=1e-4)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_second_moment_is_that_of_the_gradient(name):
    # Of 40,000 coordinates, all with one gradient: the mean of v is its square within
    # six standard errors, where with the noise it is off by a hundred and more.
    optimizer = dpjax.chain(private(ESTIMATORS[name], seed=3), scale_by_dp_adam())
    grads, params = jnp.full((4, SIZE), 0.5), jnp.zeros(SIZE)

    @jax.jit
    def run(params):
        def step(state, _):
            return optimizer.update(grads, state, params)[1], None

        return jax.lax.scan(step, optimizer.init(params), length=5)[0]

    _, adam = run(params)
    v = np.asarray(adam.nu, np.float64) / (1 - 0.999**5)
    error = v.std() / SIZE**0.5
    assert abs(v.mean() - 0.25) < 6 * error
    noise = 2 / 4 * (SIZE**0.5 if name == "fixed" else 900.0 * 0.6)
    assert noise**2 > 100 * error


@pytest.mark.parametrize("name", REFUSED)
def test_noise_that_is_not_known_is_refused(name):
    optimizer = REFUSED[name](scale_by_dp_adam())
    grads, params = jax.ShapeDtypeStruct((8, 2), jnp.float32), jnp.zeros(2)
    state = optimizer.init(params)
    with pytest.raises(ValueError, match="noise_stddev must be given: put scale_by"):
        jax.eval_shape(optimizer.update, grads, state, params)
    adam, grads = scale_by_dp_adam(), {"w": jnp.ones(2)}
    with pytest.raises(ValueError, match="noise_stddev must be one leaf, or a pytree"):
        adam.update(grads, adam.init(grads), noise_stddev={"v": 1.0})
