"""Solvers and batches over eight devices: what they give on one."""

import dataclasses
from functools import cache, partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from dpjax import constraints, losses, solvers
from dpjax.batching import Disjoint, Full, Poisson, WithoutReplacement
from dpjax.estimators import MedianOfMeans, TrimmedMean, Truncation, Winsorization
from tests import registry
from tests.nightly.sharding import test_means
from tests.unit.solvers.test_gradient_descent import descend

N, D = 480, 6


def key():
    return jax.random.key(5)


def budget():
    return {"epsilon": 2.0, "delta": 1e-3, "key": key()}


RNG = np.random.default_rng(0)
FEATURES = RNG.standard_t(3, (N, D))
X = jnp.asarray(FEATURES, jnp.float32)
Y = jnp.asarray(FEATURES @ np.linspace(0, 1, D) + RNG.normal(size=N), jnp.float32)


def descent(estimator, num_steps=5, **options):
    options |= {"params": jnp.zeros(D), "estimator": estimator, "num_steps": num_steps}
    return lambda x, y: descend(losses.squared, data=(x, y), **budget(), **options)


@cache
def net():
    return constraints.grid_net(constraints.Box(-1.0, 1.0), D, radius=1.23)


def l1_regression(x, y, candidates=None):
    options = {"key": key(), "epsilon": 2.0, "chunk_size": 32}
    options |= {"moment_order": 2.0, "residual_moment_bound": 3.0}
    options["candidates"] = net() if candidates is None else candidates
    return solvers.dp_l1_regression(x, y, **options)


MEDIANS, TRIMMED = MedianOfMeans(Truncation(1.0), 7), TrimmedMean(0.05, -10.0, 10.0)
RUNS = {
    **{
        name: lambda x, y, solver=solver: solver((x, y), key(), 3)
        for name, solver in registry.SOLVERS.items()
    },
    "poisson": descent(Winsorization(1.0), batching=Poisson(40.0)),
    "of fixed size": descent(Winsorization(1.0), batching=WithoutReplacement(30)),
    "medians": descent(MEDIANS),
    "medians, disjoint": descent(MEDIANS, batching=Disjoint()),
    "trimmed": descent(TRIMMED),
    "trimmed mean": lambda x, y: solvers.dp_mean(x, estimator=TRIMMED, **budget()),
    "net": l1_regression,
}
MESHES = {"candidates": (8,), "records": (8,), "both": (4, 2)}
BATCHINGS = Full(), Disjoint(), Poisson(40.0), WithoutReplacement(30)


@cache
def on_one_device(name):
    return RUNS[name](X, Y)


def dealt(tree, count=8, kind=AxisType.Auto):
    return test_means.dealt(tree, test_means.mesh_of(count, kind))


def check_same(many, one, atol=1e-6):
    assert many.privacy == one.privacy
    chex.assert_trees_all_close(many.params, one.params, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("name", RUNS)
def test_solvers_take_dealt_out_data(name, kind):
    many = RUNS[name](*dealt((X, Y), kind=kind))
    check_same(many, on_one_device(name))
    for leaf in jax.tree.leaves(many.params):
        assert kind is AxisType.Explicit or leaf.sharding.is_fully_replicated


def test_noise_of_each_device_would_be_seen():
    # The same run with the key that another device would have drawn from.
    x, y = dealt((X, Y))
    name = "dp_gradient_descent"
    other = registry.SOLVERS[name]((x, y), jax.random.fold_in(key(), 1), 3)
    with pytest.raises(AssertionError):
        check_same(other, on_one_device(name))


def test_uneven_disjoint_batches_and_order_statistics_are_refused():
    # 480 records in 7 batches: 68 each, which eight devices cannot share evenly.
    for estimator in (TRIMMED, MEDIANS):
        run = descent(estimator, num_steps=7, batching=Disjoint())
        with pytest.raises(ValueError, match=r"batching|normalize_by"):
            run(*dealt((X, Y)))


@pytest.mark.parametrize("what", MESHES)
def test_candidates_of_l1_regression_may_be_dealt_out(what):
    axes = ("records", "candidates") if what == "both" else (what,)
    mesh = jax.make_mesh(MESHES[what], axes, axis_types=(AxisType.Auto,) * len(axes))

    def put(x, axis):
        return jax.device_put(x, NamedSharding(mesh, P(axis) if axis in axes else P()))

    many = l1_regression(put(X, "records"), put(Y, "records"), put(net(), "candidates"))
    check_same(many, on_one_device("net"), atol=0)


def test_coordinates_of_frank_wolfe_may_be_dealt_out():
    mesh = jax.make_mesh((2,), ("features",), axis_types=(AxisType.Auto,))
    specs = (X, P(None, "features")), (jnp.zeros(D), P("features"))
    split = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in specs]

    def solve(x, start):
        options = {"key": key(), "epsilon": 2.0, "constraint": constraints.L1Ball(1.0)}
        return solvers.dp_frank_wolfe(losses.squared, start, (x, Y), **options)

    check_same(solve(*split), solve(X, jnp.zeros(D)))


@pytest.mark.parametrize("batching", BATCHINGS, ids=lambda x: type(x).__name__)
def test_batches_hold_the_same_records_and_gather_nothing(batching):
    data = {"x": X.at[3].set(jnp.nan), "i": jnp.arange(N), "odd": jnp.arange(N) % 2 > 0}

    def draw(data, axis_name=None):
        state = batching.init(key(), N, 7, epsilon=1.0, delta=1e-5)
        state = dataclasses.replace(state, step=jnp.asarray(2, jnp.int32))
        return batching.draw(state, data, axis_name=axis_name)[:2]

    one, one_mask = draw(data)
    run = jax.jit(lambda data: draw(data, "records"))
    many, mask = run(dealt(data))
    size = len(one["i"])
    chex.assert_trees_all_equal(jax.tree.map(lambda x: np.asarray(x)[:size], many), one)
    assert len(many["i"]) % 8 == 0
    assert {x.sharding.spec[0] for x in jax.tree.leaves(many)} == {"records"}
    np.testing.assert_array_equal(mask[:size], one_mask)
    assert bool(mask[size:].all())
    assert not jnp.any(many["x"][size:])
    program = run.lower(dealt(data)).compile().as_text()
    # The batch's rows come by reduce-scatter.
    assert {kind for kind, _ in test_means.collectives(program)} <= {"reduce-scatter"}


def test_a_training_run_over_devices_is_that_of_one():
    options = {"num_samples": N, "epsilon": 8.0, "delta": 1e-5, "num_steps": 3}
    options |= {"batching": Poisson(40.0), "monitor": 0.1}
    run = solvers.PrivateTraining(losses.squared, **options)

    def trained(step, data):
        state = run.init(jnp.zeros(D), key())
        for _ in range(3):
            state, metrics = step(state, data)
        return state.params, metrics

    one, many = trained(run.step, (X, Y)), dealt((X, Y))
    of_rows = partial(run.step, axis_name="records")
    for step in (run.step, test_means.mapped(of_rows, many[0].sharding.mesh)):
        chex.assert_trees_all_close(trained(step, many), one, rtol=1e-4, atol=1e-5)
