"""The training classes of other packages take private means as they are."""

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

import dpjax
from dpjax.estimators import AdaptiveThreshold, Clipping
from dpjax.gradients import streamed_grad
from dpjax.mechanisms import BandedToeplitz
from dpjax.transforms import add_gaussian_noise, peel, privatize

N, WIDTH = 12, 3
FEATURES = jax.random.normal(jax.random.key(0), (N, WIDTH))
BATCH = FEATURES, FEATURES.sum(axis=1)
MASK = jnp.arange(N) >= 9
pytestmark = pytest.mark.usefixtures("their_promotion")


def optimizer():
    private = privatize(Clipping(1.0), noise_multiplier=1.0, key=jax.random.key(1))
    return dpjax.chain(private, optax.adam(0.1))


def by_hand(loss_fn, params, num_steps=2):
    """The parameters after steps without a training class."""
    transform = optimizer()
    state = transform.init(params)
    for _ in range(num_steps):
        stream = streamed_grad(loss_fn)(params, BATCH)
        updates, state = transform.update(
            stream, state, params, is_padding_example=MASK
        )
        params = optax.apply_updates(params, updates)
    return params


def test_linens_train_state_takes_a_stream_with_its_mask():
    nn = pytest.importorskip("flax.linen", reason="needs flax")
    from flax.training.train_state import TrainState

    model = nn.Dense(1)

    def loss_fn(params, example):
        x, y = example
        return (model.apply(params, x)[0] - y) ** 2

    params = model.init(jax.random.key(2), jnp.zeros(WIDTH))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer())

    @jax.jit
    def step(state):
        return state.apply_gradients(
            grads=streamed_grad(loss_fn)(state.params, BATCH, MASK)
        )

    found = step(step(state)).params
    chex.assert_trees_all_close(found, by_hand(loss_fn, params), rtol=1e-5)


def test_nnx_optimizer_takes_a_stream_in_a_variable():
    nnx = pytest.importorskip("flax.nnx", reason="needs flax")

    model = nnx.Sequential(nnx.Linear(WIDTH, 4, rngs=nnx.Rngs(0)), nnx.tanh)
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss_fn(params, example):
        x, y = example
        return (nnx.merge(graph, params, rest)(x).sum() - y) ** 2

    wanted = by_hand(loss_fn, nnx.as_pure(params))
    training = nnx.Optimizer(model, optimizer(), wrt=nnx.Param)

    @nnx.jit
    def step(model, training):
        params = nnx.as_pure(nnx.state(model, nnx.Param))
        stream = streamed_grad(loss_fn)(params, BATCH, MASK)
        training.update(model, {"stream": nnx.Param(stream)})

    for _ in range(2):
        step(model, training)
    found = nnx.as_pure(nnx.state(model, nnx.Param))
    chex.assert_trees_all_close(found, wanted, rtol=1e-5)


def test_a_module_with_functions_in_it_is_refused_by_name():
    eqx = pytest.importorskip("equinox", reason="needs equinox")
    model = eqx.nn.MLP(WIDTH, 1, 4, 1, key=jax.random.key(0))

    def loss_fn(model, example):
        x, y = example
        return (model(x)[0] - y) ** 2

    for refused in (streamed_grad(loss_fn), dpjax.robust_grad(loss_fn, Clipping(1.0))):
        with pytest.raises(
            ValueError, match=r"params\.activation must be a float array"
        ):
            refused(model, BATCH)
    check = dpjax.check_model(loss_fn, model, BATCH)
    assert [row.way for row in check.rows].count("none") == len(check.problems) == 2
    assert "params.activation must be a float array" in check.problems[0]


@pytest.mark.parametrize(
    "leaf", [jax.random.key(0), jnp.arange(3), "text", jnp.ones(2, complex), None]
)
def test_leaves_without_gradients_are_refused_by_name(leaf):
    params = {"w": jnp.zeros(WIDTH), "other": leaf}

    def loss_fn(params, example):
        return (params["w"] @ example[0]) ** 2

    grad_fn, check = streamed_grad(loss_fn), dpjax.check_model(loss_fn, params, BATCH)
    if leaf is None:  # a place without a leaf
        assert check.problems == ()
        grad_fn(params, BATCH)
        return
    with pytest.raises(ValueError, match=r"params\['other'\] must be") as refused:
        grad_fn(params, BATCH)
    assert check.problems == (str(refused.value),)


DONATED = {
    "privatize": lambda key: privatize(Clipping(1.0), noise_multiplier=1.0, key=key),
    "adaptive": lambda key: privatize(
        AdaptiveThreshold(Clipping(1.0), lower=0.1, upper=9.0),
        noise_multiplier=1.0,
        key=key,
    ),
    "correlated": lambda key: privatize(
        Clipping(1.0),
        noise_multiplier=1.0,
        key=key,
        noise=BandedToeplitz(4, (1.0, 0.5)),
    ),
    "noise": lambda key: add_gaussian_noise(stddev=1.0, key=key),
    "peel": lambda key: peel(sparsity=1, rho=1.0, sensitivity=1.0, limit=1.0, key=key),
}


@pytest.mark.parametrize("name", DONATED)
def test_a_donated_state_leaves_the_callers_key(name):
    key = jax.random.key(0)
    transform = DONATED[name](key)
    params = jnp.zeros(WIDTH)
    with jax.debug_key_reuse(False):
        for _ in range(2):  # the optimizer's own key, too
            state = transform.init(params)
            jax.jit(lambda state: state, donate_argnums=0)(state)
    assert jax.random.uniform(key) >= 0
