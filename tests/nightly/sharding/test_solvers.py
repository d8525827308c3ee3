"""Solvers and batches over eight devices: what they give on one."""

import dataclasses
import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from dpjax import losses, solvers
from dpjax.batching import Disjoint, Full, Poisson, WithoutReplacement
from dpjax.constraints import Box, L1Ball, halton_net
from dpjax.estimators import MedianOfMeans, TrimmedMean, Truncation, Winsorization
from dpjax.mechanisms import exponential, permute_and_flip
from tests import registry

N, D = 480, 6


def key():
    return jax.random.key(5)


def budget():
    return {"epsilon": 2.0, "delta": 1e-3, "key": key()}


RNG = np.random.default_rng(0)
FEATURES = RNG.standard_t(3, (N, D))
X = jnp.asarray(FEATURES, jnp.float32)
Y = jnp.asarray(FEATURES @ np.linspace(0, 1, D) + RNG.normal(size=N), jnp.float32)


def descent(estimator, **options):
    return lambda x, y: solvers.dp_gradient_descent(
        losses.squared,
        jnp.zeros(D),
        (x, y),
        estimator=estimator,
        learning_rate=0.1,
        num_steps=5,
        **budget(),
        **options,
    )


@cache
def net():
    return halton_net(Box(-1.0, 1.0), D, num_candidates=256)


def l1_regression(x, y, candidates=None):
    return solvers.dp_l1_regression(
        x,
        y,
        key=key(),
        epsilon=2.0,
        candidates=net() if candidates is None else candidates,
        chunk_size=32,
        moment_order=2.0,
        residual_moment_bound=3.0,
    )


def frank_wolfe(x, y, params=None):
    return solvers.dp_frank_wolfe(
        losses.squared,
        jnp.zeros(D) if params is None else params,
        (x, y),
        key=key(),
        epsilon=2.0,
        constraint=L1Ball(1.0),
    )


def registered(name):
    return lambda x, y: registry.SOLVERS[name]((x, y), key(), 3)


RUNS = {
    **{name: registered(name) for name in registry.SOLVERS},
    "poisson": descent(Winsorization(1.0), batching=Poisson(40.0)),
    "of fixed size": descent(Winsorization(1.0), batching=WithoutReplacement(30)),
    "medians": descent(MedianOfMeans(Truncation(1.0), 7)),
    "medians, disjoint": descent(
        MedianOfMeans(Truncation(1.0), 7), batching=Disjoint()
    ),
    "trimmed": descent(TrimmedMean(0.05, -10.0, 10.0)),
    "trimmed mean": lambda x, y: solvers.dp_mean(
        x, estimator=TrimmedMean(0.05, -10.0, 10.0), **budget()
    ),
    "net": l1_regression,
}


@cache
def on_one_device(name):
    return RUNS[name](X, Y)


def dealt(tree, count=8, kind=AxisType.Auto):
    mesh = jax.make_mesh(
        (count,), ("records",), axis_types=(kind,), devices=jax.devices()[:count]
    )
    return jax.device_put(tree, NamedSharding(mesh, P("records")))


def check_same(many, one, atol=1e-6):
    assert many.privacy == one.privacy
    for x, y in zip(*map(jax.tree.leaves, (many.params, one.params)), strict=True):
        np.testing.assert_allclose(np.asarray(x), y, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("name", RUNS)
def test_solvers_take_dealt_out_data(name, kind):
    many = RUNS[name](*dealt((X, Y), kind=kind))
    check_same(many, on_one_device(name))
    for leaf in jax.tree.leaves(many.params):
        assert kind is AxisType.Explicit or leaf.sharding.is_fully_replicated


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("name", ["dp_gradient_descent", "poisson"])
def test_on_any_number_of_devices(name, count):
    check_same(RUNS[name](*dealt((X, Y), count)), on_one_device(name))


def test_noise_of_each_device_would_be_seen():
    # The same run with the key that another device would have drawn from.
    x, y = dealt((X, Y))
    name = "dp_gradient_descent"
    other = registry.SOLVERS[name]((x, y), jax.random.fold_in(key(), 1), 3)
    with pytest.raises(AssertionError):
        check_same(other, on_one_device(name))


def test_uneven_disjoint_batches_and_order_statistics_are_refused():
    # 480 records in 7 batches: 68 each, which eight devices cannot share evenly.
    for estimator in (
        TrimmedMean(0.05, -10.0, 10.0),
        MedianOfMeans(Truncation(1.0), 7),
    ):
        with pytest.raises(ValueError, match=r"batching|normalize_by"):
            solvers.dp_gradient_descent(
                losses.squared,
                jnp.zeros(D),
                dealt((X, Y)),
                estimator=estimator,
                learning_rate=0.1,
                num_steps=7,
                batching=Disjoint(),
                **budget(),
            )


def test_a_run_is_taken_up_again(tmp_path):
    def run(**options):
        execution = solvers.Execution(**options)
        return descent(Winsorization(1.0), execution=execution)(*dealt((X, Y)))

    class KilledError(Exception):
        pass

    def kill(step, params):
        if step == 4:
            raise KilledError

    whole = run(checkpoint=solvers.Checkpoint(tmp_path / "whole", 2))
    again = solvers.Checkpoint(tmp_path / "killed", 2)
    with pytest.raises(KilledError):
        run(checkpoint=again, callback=kill)
    np.testing.assert_array_equal(run(checkpoint=again).params, whole.params)
    with pytest.raises(ValueError, match="another program"):
        descent(Winsorization(1.0), execution=solvers.Execution(checkpoint=again))(
            *dealt((X, Y), 4)
        )


MESHES = {"candidates": (8,), "records": (8,), "both": (4, 2)}


@pytest.mark.parametrize("what", MESHES)
def test_candidates_of_l1_regression(what):
    axes = ("records", "candidates") if what == "both" else (what,)
    mesh = jax.make_mesh(MESHES[what], axes, axis_types=(AxisType.Auto,) * len(axes))

    def put(x, axis):
        spec = P(axis) if axis in axes else P()
        return jax.device_put(x, NamedSharding(mesh, spec))

    many = l1_regression(
        put(X, "records"), put(Y, "records"), candidates=put(net(), "candidates")
    )
    check_same(many, on_one_device("net"), atol=0)


@pytest.mark.parametrize("select", [exponential, permute_and_flip])
@pytest.mark.parametrize("num_chunks", [8, 64])
def test_choices_among_dealt_out_candidates(select, num_chunks):
    scores = 3 * jax.random.normal(jax.random.key(2), (64,))
    options = {"epsilon": 1.0, "sensitivity_range": 1.0}
    size = 64 // num_chunks

    def on_device(key, mine):
        chunks = mine.reshape(-1, size)
        return select(
            key,
            lambda i: chunks[i],
            num_chunks=len(chunks),
            axis_name="records",
            **options,
        )

    values = dealt(scores)
    mesh = values.sharding.mesh
    dealt_out = jax.jit(
        jax.shard_map(on_device, mesh=mesh, in_specs=(P(), P("records")), out_specs=P())
    )
    chunks = scores.reshape(-1, size)
    alone = jax.jit(
        lambda key: select(key, lambda i: chunks[i], num_chunks=num_chunks, **options)
    )
    pairs = {
        (int(dealt_out(jax.random.key(i), values)), int(alone(jax.random.key(i))))
        for i in range(25)
    }
    assert all(mine == theirs for mine, theirs in pairs)
    assert len(pairs) > 3


def test_coordinates_of_frank_wolfe():
    mesh = jax.make_mesh((2,), ("features",), axis_types=(AxisType.Auto,))
    x = jax.device_put(X, NamedSharding(mesh, P(None, "features")))
    params = jax.device_put(jnp.zeros(D), NamedSharding(mesh, P("features")))
    many = frank_wolfe(x, Y, params)
    check_same(many, frank_wolfe(X, Y))


BATCHINGS = {
    "full": Full(),
    "disjoint": Disjoint(),
    "poisson": Poisson(40.0),
    "fixed": WithoutReplacement(30),
}


@pytest.mark.parametrize("name", BATCHINGS)
def test_batches_hold_the_same_records_and_gather_nothing(name):
    batching = BATCHINGS[name]
    data = {"x": X.at[3].set(jnp.nan), "i": jnp.arange(N), "odd": jnp.arange(N) % 2 > 0}

    def draw(data, axis_name=None):
        state = batching.init(key(), N, 7, epsilon=1.0, delta=1e-5)
        state = dataclasses.replace(state, step=jnp.asarray(2, jnp.int32))
        return batching.draw(state, data, axis_name=axis_name)[:2]

    one, one_mask = draw(data)
    run = jax.jit(lambda data: draw(data, "records"))
    many, mask = run(dealt(data))
    size = len(one["i"])
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(np.asarray(x)[:size], y), many, one
    )
    assert len(many["i"]) % 8 == 0
    assert {x.sharding.spec[0] for x in jax.tree.leaves(many)} == {"records"}
    np.testing.assert_array_equal(mask[:size], one_mask)
    assert bool(mask[size:].all())
    assert not jnp.any(many["x"][size:])
    program = run.lower(dealt(data)).compile().as_text()
    travels = re.findall(
        r"= (\S+) (all-gather|all-to-all|collective-permute|all-reduce)", program
    )
    assert not travels  # the batch's rows come by reduce-scatter


def test_a_training_run():
    run = solvers.PrivateTraining(
        losses.squared,
        num_samples=N,
        epsilon=8.0,
        delta=1e-5,
        batching=Poisson(40.0),
        num_steps=3,
        monitor=0.1,
    )

    def trained(step, data):
        state = run.init(jnp.zeros(D), key())
        for _ in range(3):
            state, metrics = step(state, data)
        return state.params, metrics

    one, many = trained(run.step, (X, Y)), dealt((X, Y))
    mapped = jax.shard_map(
        lambda state, data: run.step(state, data, axis_name="records"),
        mesh=many[0].sharding.mesh,
        in_specs=(P(), P("records")),
        out_specs=P(),
    )
    for step in (run.step, jax.jit(mapped)):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
            trained(step, many),
            one,
        )
