"""Models of other packages: factored, with dropout; and their training classes."""

import re
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.estimators import Clipping
from dpjax.gradients import check_model, streamed_grad
from dpjax.transforms import privatize
from tests.factored import FAST_TO_COMPILE
from tests.unit.gradients import test_check_model

N, LENGTH, WIDTH = 6, 5, 24
RNG = np.random.default_rng(0)
TOKENS = jnp.asarray(RNG.integers(0, 100, (N, LENGTH)), jnp.int8)
FEATURES = jax.random.normal(jax.random.key(0), (12, 3))
BATCH = FEATURES, FEATURES.sum(axis=1)
MASK = jnp.arange(12) >= 9
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
their_promotion = test_check_model.their_promotion
# How the two parameters of layers go: bias, kernel. `mix` is of five tokens.
WAYS = {"mix": ["written out"] * 2, "hidden": ["outer product", "written out"]}
WAYS |= {"out": WAYS["hidden"], "embed": ["table rows"]}


def linen_text():
    nn = pytest.importorskip("flax.linen", reason="needs flax")

    class Text(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(200, WIDTH, name="embed")(tokens)  # 200 is no int8
            x = (x + nn.Dense(WIDTH, name="mix")(x)).mean(axis=0)
            x = nn.gelu(nn.Dense(WIDTH, name="hidden")(nn.LayerNorm()(x)))
            x = nn.Dropout(0.5, deterministic=False)(x)
            return nn.Dense(10, name="out")(x)

    model = Text()
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    params = jax.jit(model.init)(keys, TOKENS[0])
    return params, lambda p, x, key: model.apply(p, x, rngs={"dropout": key})


def nnx_text():
    nnx = pytest.importorskip("flax.nnx", reason="needs flax")

    class Text(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(200, WIDTH, rngs=rngs)
            self.mix = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
            self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
            self.hidden = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
            self.low_rank = nnx.LoRA(WIDTH, 8, WIDTH, rngs=rngs)
            self.dropout = nnx.Dropout(0.5)
            self.out = nnx.Linear(WIDTH, 10, rngs=rngs)

        def __call__(self, tokens, rngs):
            x = self.embed(tokens)
            x = self.norm(x + self.mix(x)).mean(axis=0)
            x = jax.nn.gelu(self.hidden(x) + self.low_rank(x))
            return self.out(self.dropout(x, rngs=rngs))

    model = nnx.eval_shape(lambda: Text(nnx.Rngs(0)))  # computes nothing
    graph, shapes, rest = nnx.split(model, nnx.Param, ...)
    draw = lambda x: jnp.asarray(0.2 * RNG.standard_normal(x.shape), x.dtype)  # noqa: E731
    params = jax.tree.map(draw, shapes)
    return params, lambda p, x, key: nnx.merge(graph, p, rest)(x, nnx.Rngs(dropout=key))


def equinox_text():
    eqx = pytest.importorskip("equinox", reason="needs equinox")
    keys = jax.random.split(jax.random.key(0), 4)
    model = {
        "embed": eqx.nn.Embedding(200, WIDTH, key=keys[0]),
        "mix": eqx.nn.Linear(WIDTH, WIDTH, key=keys[1]),
        "hidden": eqx.nn.Linear(WIDTH, WIDTH, key=keys[2]),
        "norm": eqx.nn.LayerNorm(WIDTH),
        "dropout": eqx.nn.Dropout(0.5),
        "out": eqx.nn.Linear(WIDTH, 10, key=keys[3]),
    }
    params, rest = eqx.partition(model, eqx.is_inexact_array)

    def apply(params, x, key):
        model = eqx.combine(params, rest)
        x = jax.vmap(model["embed"])(x)
        x = (x + jax.vmap(model["mix"])(x)).mean(axis=0)
        x = jax.nn.gelu(model["norm"](model["hidden"](x)))
        return model["out"](model["dropout"](x, key=key))

    return params, apply


@pytest.mark.parametrize("make", [linen_text, nnx_text, equinox_text])
def test_models_are_factored_with_a_key_for_each_example(make):
    params, apply = make()

    def loss_fn(params, example):
        return -jax.nn.log_softmax(apply(params, *example))[3]

    batch = TOKENS, jax.random.split(jax.random.key(7), N)
    check = check_model(loss_fn, params, batch)
    assert check.problems == ()
    for layer, expected in WAYS.items():
        assert sorted([row.way for row in check.rows if layer in row.name]) == expected
    estimator = Clipping(0.1)

    @partial(jax.jit, compiler_options=FAST_TO_COMPILE)
    def both(params, batch):
        grads = dpjax.per_sample_grad(loss_fn)(params, batch)
        few = dpjax.robust_grad(loss_fn, estimator, microbatch_size=2)
        same = jnp.broadcast_to(batch[0][:1], batch[0].shape), batch[1]
        values = jax.vmap(loss_fn, (None, 0))(params, same)
        return few(params, batch), estimator(grads), values

    mean, expected, values = both(params, batch)
    chex.assert_trees_all_close(mean, expected, rtol=0, atol=1e-6)
    assert len(np.unique(values)) > 3  # of equal examples, by other keys


def nnx_batch_norm():
    nnx = pytest.importorskip("flax.nnx", reason="needs flax")
    model = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    graph, all_of_it = nnx.split(model)
    _, params, rest = nnx.split(model, nnx.Param, ...)

    def fixed(params, x):
        return nnx.merge(graph, params, rest)(x, use_running_average=True).sum()

    return all_of_it, params, fixed


def linen_batch_norm():
    nn = pytest.importorskip("flax.linen", reason="needs flax")
    model = nn.BatchNorm(use_running_average=True)
    variables = jax.jit(model.init)(jax.random.key(0), jnp.ones(3))
    statistics = {"batch_stats": variables["batch_stats"]}

    def fixed(params, x):
        return model.apply({"params": params, **statistics}, x).sum()

    return {"inner": variables}, variables["params"], fixed


def equinox_batch_norm():
    eqx = pytest.importorskip("equinox", reason="needs equinox")
    make = eqx.nn.make_with_state(lambda: eqx.nn.BatchNorm(3, "rows", mode="batch"))
    model, state = make()
    params, rest = eqx.partition(model, eqx.is_inexact_array)

    def fixed(params, x):
        return eqx.nn.inference_mode(eqx.combine(params, rest))(x, state)[0].sum()

    return (params, state), params, fixed


BATCH_NORMS = {
    "nnx.BatchStat": nnx_batch_norm,
    "batch_stats": linen_batch_norm,
    "equinox.nn.State": equinox_batch_norm,
}


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_running_statistics_are_refused(name):
    def loss_fn(params, x):
        raise AssertionError("nothing is computed before the check")

    all_of_it, params, fixed = BATCH_NORMS[name]()
    message, rows = rf"params .*{name}.* BatchNorm.*Group", jnp.ones((4, 3))
    robust = partial(dpjax.robust_grad, estimator=Clipping(1.0))
    for grad_of in (dpjax.per_sample_grad, robust, streamed_grad):
        with pytest.raises(ValueError, match=message):
            grad_of(loss_fn)(all_of_it, rows)
    problem, *_ = check_model(loss_fn, all_of_it, rows).problems
    assert re.match(message, problem)
    # The recipe: statistics that stay fixed, outside of the parameters.
    (problem,) = check_model(fixed, params, rows).problems
    message = rf"loss_fn closes over .*{name}.* must be fixed and public"
    assert re.match(message, problem)
    jax.eval_shape(dpjax.robust_grad(fixed, Clipping(1.0)), params, rows)


@pytest.mark.parametrize("names", [("mean", "var"), ("average", "counter", "hidden")])
def test_statistics_that_a_loss_closes_over_are_told(names):
    statistics = {"layer": dict.fromkeys(names, jnp.ones(3))}

    def loss_fn(params, x):  # as BatchNorm does in training: it does not use them
        assert statistics
        return (params * x).sum()

    (problem,) = check_model(loss_fn, jnp.ones(3), jnp.ones((4, 3))).problems
    assert re.match("loss_fn closes over statistics, which holds .*BatchNorm", problem)


def optimizer():
    private = privatize(Clipping(1.0), noise_multiplier=1.0, key=jax.random.key(1))
    return dpjax.chain(private, optax.adam(0.1))


def by_hand(loss_fn, params):
    transform = optimizer()
    state = transform.init(params)
    for _ in range(2):
        args = streamed_grad(loss_fn)(params, BATCH), state, params
        updates, state = transform.update(*args, is_padding_example=MASK)
        params = optax.apply_updates(params, updates)
    return params


def test_linens_train_state_takes_a_stream_with_its_mask():
    nn = pytest.importorskip("flax.linen", reason="needs flax")
    from flax.training.train_state import TrainState

    model = nn.Dense(1)

    def loss_fn(params, example):
        x, y = example
        return (model.apply(params, x)[0] - y) ** 2

    params = model.init(jax.random.key(2), jnp.zeros(3))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer())

    @jax.jit
    def step(state):
        grads = streamed_grad(loss_fn)(state.params, BATCH, MASK)
        return state.apply_gradients(grads=grads)

    trained = step(step(state)).params
    chex.assert_trees_all_close(trained, by_hand(loss_fn, params), rtol=1e-5)


def test_nnx_optimizer_takes_a_stream_in_a_variable():
    nnx = pytest.importorskip("flax.nnx", reason="needs flax")
    model = nnx.Sequential(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.tanh)
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss_fn(params, example):
        x, y = example
        return (nnx.merge(graph, params, rest)(x).sum() - y) ** 2

    expected = by_hand(loss_fn, nnx.as_pure(params))
    training = nnx.Optimizer(model, optimizer(), wrt=nnx.Param)

    @nnx.jit
    def step(model, training):
        params = nnx.as_pure(nnx.state(model, nnx.Param))
        stream = streamed_grad(loss_fn)(params, BATCH, MASK)
        training.update(model, {"stream": nnx.Param(stream)})

    for _ in range(2):
        step(model, training)
    trained = nnx.as_pure(nnx.state(model, nnx.Param))
    chex.assert_trees_all_close(trained, expected, rtol=1e-5)


def test_a_module_with_functions_in_it_is_refused_by_name():
    eqx = pytest.importorskip("equinox", reason="needs equinox")
    model = eqx.nn.MLP(3, 1, 4, 1, key=jax.random.key(0))

    def loss_fn(model, example):
        x, y = example
        return (model(x)[0] - y) ** 2

    message = "params.activation must be a float array"
    for refuses in (streamed_grad(loss_fn), dpjax.robust_grad(loss_fn, Clipping(1.0))):
        with pytest.raises(ValueError, match=message):
            refuses(model, BATCH)
    check = check_model(loss_fn, model, BATCH)
    assert [row.way for row in check.rows].count("none") == len(check.problems) == 2
    assert message in check.problems[0]
