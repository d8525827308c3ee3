"""Rows, and models, over eight devices: one draw of noise, order statistics."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from dpjax.estimators import Clipping, TrimmedMean, Winsorization
from dpjax.gradients import robust_grad
from dpjax.mechanisms import (
    BandedToeplitz,
    BinaryTree,
    BufferedToeplitz,
    gaussian,
    laplace_log_normal,
)
from dpjax.transforms import aggregate, privatize
from tests import registry
from tests.nightly.sharding._devices import (
    BATCH,
    ESTIMATORS,
    N,
    assert_close,
    assert_equal,
    auto,
    collectives,
    dealt,
    explicit,
    loss_fn,
    manual,
    mesh_of,
    normal,
    sizes,
)


def mesh_over_two_axes(kind, of_model=AxisType.Auto):
    return jax.make_mesh((4, 2), ("records", "model"), axis_types=(kind, of_model))


def private_mean(key, rows, axis_name=None):
    options = {"noise_multiplier": 2.0, "key": key, "axis_name": axis_name}
    transform = privatize(Clipping(1.0), **options)
    return transform.update(rows, transform.init(None))[0]


@pytest.mark.parametrize("setting", [auto, explicit, manual])
def test_noise_is_drawn_once_and_the_same_everywhere(setting):
    # Of zeros the mean is zero on any number of devices: what comes out is the noise.
    grads = {"w": jnp.zeros((N, 6, 8)), "b": jnp.zeros(N, jnp.bfloat16)}
    expected = jax.jit(private_mean)(jax.random.key(1), grads)
    stated = Clipping(1.0).sensitivity(N, 49).l2
    assert 0.7 < expected["w"].std() / (2 * stated) < 1.3
    noise = setting(private_mean, mesh_of(8))(jax.random.key(1), grads)
    assert_equal(noise, expected)
    shards = [np.asarray(s.data) for s in noise["w"].addressable_shards]
    assert len(shards) == 8
    for shard in shards[1:]:
        np.testing.assert_array_equal(shard, shards[0])


def by_device(key, rows, axis_name=None):
    key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
    return private_mean(key, rows, axis_name)


def test_noise_drawn_by_device_has_another_variance():
    # The classic mistake, where JAX is told to look away: eight draws are averaged.
    rows, mesh, d = jnp.zeros((16, 20_000)), mesh_of(8), 20_000
    stddev = 2 * Clipping(1.0).sensitivity(16, d).l2

    def averaged(key, rows, axis_name=None):
        return jax.lax.pmean(by_device(key, rows, axis_name), axis_name)

    right = manual(private_mean, mesh, False)(jax.random.key(2), rows)
    wrong = manual(averaged, mesh, False)(jax.random.key(2), rows)
    # The standard error of a standard deviation is 0.5 % here.
    assert 0.975 < right.std() / stddev < 1.025
    assert 0.34 < wrong.std() / stddev < 0.37


def test_keys_that_do_not_vary_as_values_do_are_refused():
    # A key of each device; rows of each device under the noise that others have too.
    def forgotten(key, rows, axis_name=None):
        return private_mean(key, rows)

    for mean, message in (
        (by_device, "key must be one that varies over the axes"),
        (forgotten, "or give those as axis_name"),
    ):
        with pytest.raises(ValueError, match=message):
            manual(mean, mesh_of(8))(jax.random.key(4), jnp.zeros((N, 2)))
    for name in registry.names(registry.MECHANISMS) - {"discrete_gaussian"}:

        def mechanism(key, x, name=name):
            return jnp.atleast_1d(registry.MECHANISMS[name](key, x))

        specs = {"in_specs": (P(), P("records")), "out_specs": P("records")}
        run = jax.shard_map(mechanism, mesh=mesh_of(8), **specs)
        with pytest.raises(ValueError, match="key must be one that varies"):
            run(jax.random.key(5), jnp.zeros(8))


def test_runs_of_their_own_on_each_device_are_not_refused():
    # Eight repetitions, each with its data and its key: nothing is shared.
    def repetition(keys, rows):
        return private_mean(keys[0], rows)[None]

    keys = jax.random.split(jax.random.key(6), 8)
    specs = {"in_specs": (P("records"),) * 2, "out_specs": P("records")}
    run = jax.shard_map(repetition, mesh=mesh_of(8), **specs)
    released = jax.jit(run)(keys, jnp.zeros((N, 2)))
    assert len(np.unique(np.asarray(released))) == 16


@pytest.mark.parametrize(("setting", "fraction"), [(auto, 0.05), (manual, 0.45)])
def test_order_statistics_are_those_of_one_device_in_every_bit(setting, fraction):
    estimator = TrimmedMean(fraction, -3.0, 3.0)

    def run(unused, rows, axis_name=None):
        both = estimator.with_smooth_sensitivity(rows, 0.1, axis_name=axis_name)
        return estimator(rows, axis_name=axis_name), both

    rows = np.array(jax.random.t(jax.random.key(8), 2.0, (N, 3, 4)))
    rows[:, 0] = np.round(rows[:, 0])
    rows[[0, 30, 79], 1, 1] = [np.nan, np.inf, -np.inf]
    rows = np.float32(rows)
    assert_equal(setting(run, mesh_of(8))(0.0, rows), jax.jit(run)(0.0, rows))


def test_derivatives():
    rows = normal(11, N, 3)
    params = normal(12, 3)

    def gradient(axis_name=None):
        def total(norm, params, rows):
            grad_fn = robust_grad(
                lambda w, x: jnp.square(w @ x), Clipping(norm), axis_name=axis_name
            )
            return (grad_fn(params, rows) ** 2).sum()

        return jax.jit(jax.grad(total, argnums=(0, 1, 2)))

    expected = gradient()(0.8, params, rows)
    split = dealt(rows, mesh_of(8))
    assert_close(gradient("records")(0.8, params, split), expected, 1e-5)
    estimator = TrimmedMean(0.2, -3.0, 3.0)

    def sensitivity(rows, axis_name=None):
        smooth = estimator.smooth_sensitivity(rows, 0.1, axis_name=axis_name)
        return (smooth**2).sum()

    expected = jax.grad(sensitivity)(rows)
    split = jax.jit(jax.grad(partial(sensitivity, axis_name="records")))
    assert_close(split(dealt(rows, mesh_of(8))), expected, 1e-5)


STRATEGIES = {
    "bands": BandedToeplitz.square_root(6, 3),
    "buffers": BufferedToeplitz(6, decays=(0.9, 0.25), scales=(0.3, 0.2)),
    "tree": BinaryTree(6),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_correlated_noise(name):
    """Of parameters over one axis of a mesh, and of rows over another one."""
    mesh = mesh_over_two_axes(AxisType.Explicit)

    def released(params, grads, axis_name=None):
        transform = privatize(
            Winsorization(1.0),
            **{"noise_multiplier": 3.0, "noise": STRATEGIES[name]},
            **{"key": jax.random.key(3), "axis_name": axis_name},
        )

        def step(state, _):
            updates, state = transform.update(grads, state, params)
            return state, updates

        return jax.lax.scan(step, transform.init(params), length=6)[1]

    params, grads = jnp.zeros((4, 3)), normal(18, 8, 4, 3)
    alone = jax.jit(released)(params, grads)
    with jax.set_mesh(mesh):
        spread = jax.jit(released)(dealt(params, mesh, P("model")), grads)
        np.testing.assert_allclose(spread, alone, rtol=1e-6, atol=1e-6)
        specs = {"in_specs": (P(), P("records")), "out_specs": P()}
        of_rows = partial(released, axis_name="records")
        mapped = jax.shard_map(of_rows, mesh=mesh, axis_names={"records"}, **specs)
        spread = jax.jit(mapped)(params, grads)
        np.testing.assert_allclose(spread, alone, rtol=1e-5, atol=1e-6)


WIDE = {"w": normal(13, 6, 512) / 10, "v": normal(14, 512)}
MODEL = {"w": P(None, "model"), "v": P("model")}


def over_model(tree, mesh):
    return {name: dealt(x, mesh, MODEL[name]) for name, x in tree.items()}


MEANS = [(name, AxisType.Auto) for name in ("Clipping", "median-3", "trimmed")]


@pytest.mark.parametrize(("name", "kind"), [*MEANS, ("Clipping", AxisType.Explicit)])
def test_rows_and_parameters_over_two_axes(name, kind):
    estimator, mesh_2d = ESTIMATORS[name], mesh_over_two_axes(kind)
    expected = jax.jit(robust_grad(loss_fn, estimator))(WIDE, BATCH)
    inputs = over_model(WIDE, mesh_2d), dealt(BATCH, mesh_2d)
    run = jax.jit(robust_grad(loss_fn, estimator, axis_name="records"))
    mean = run(*inputs)
    assert_close(mean, expected)
    for name, x in mean.items():
        assert x.sharding.is_equivalent_to(inputs[0][name].sharding, x.ndim)
    moved = collectives(run.lower(*inputs).compile().as_text())
    assert {kind for kind, _ in moved} == {"all-reduce"}
    groups = getattr(estimator, "num_groups", 1)
    # A device's half of the model, its digits of every group.
    assert max(max(sizes(s)) for _, s in moved) <= 6 * 256 * groups


GAUSSIAN = partial(gaussian, stddev=1.0)
SMOOTH = partial(laplace_log_normal, scale=1.0, sigma=0.4)


@pytest.mark.parametrize(
    ("add", "kind"),
    [(GAUSSIAN, AxisType.Auto), *((x, AxisType.Explicit) for x in (GAUSSIAN, SMOOTH))],
)
def test_noise_is_made_where_it_is_added(add, kind):
    rows = 2048
    mesh = mesh_over_two_axes(kind, kind)
    value = {"w": jnp.ones((rows, 514)), "v": jnp.ones(514, jnp.bfloat16)}
    split = over_model(value, mesh)
    expected = jax.jit(add)(jax.random.key(15), value)
    assert_equal(add(jax.random.key(15), split), expected)
    noisy = add(dealt(jax.random.key(15), mesh, P()), split)
    assert_equal(noisy, expected)
    for leaf, x in noisy.items():
        assert x.sharding.is_equivalent_to(split[leaf].sharding, x.ndim)
    key = dealt(jax.random.key(15), mesh, P())
    text = jax.jit(add).lower(key, split).compile().as_text()
    assert not collectives(text)
    # Drawn alone: no device makes the whole.
    every_size = sizes(re.findall(r"= \(?\w+\[([\d,]+)\]", text))
    assert max(every_size) == rows * 257


def test_private_steps_of_a_sharded_model():
    mesh_2d = mesh_over_two_axes(AxisType.Explicit)
    zeros = {"w": jnp.zeros((N, 6, 512)), "v": jnp.zeros((N, 512))}

    def split_up(rows):
        specs = {"w": P("records", None, "model"), "v": P("records", "model")}
        return {name: dealt(x, mesh_2d, specs[name]) for name, x in rows.items()}

    def run(grads, axis_name=None):
        return private_mean(jax.random.key(16), grads, axis_name)

    private, split = jax.jit(partial(run, axis_name="records")), split_up(zeros)
    assert_equal(private(split), jax.jit(run)(zeros))
    moved = collectives(private.lower(split).compile().as_text())
    assert {kind for kind, _ in moved} == {"all-reduce"}
    # Clipped by the norm over the whole model.
    rows = jax.tree.map(lambda x: x + 3.0, zeros)
    transform = aggregate(Clipping(1.0))
    means = (transform.update(x, None)[0] for x in (split_up(rows), rows))
    assert_close(*means)


def test_explicit_axes_of_the_model_are_refused():
    mesh = mesh_over_two_axes(AxisType.Explicit, AxisType.Explicit)
    with pytest.raises(ValueError, match=r"with \['model'\] of jax.sharding.AxisType"):
        robust_grad(loss_fn, Clipping(1.0))(over_model(WIDE, mesh), dealt(BATCH, mesh))
