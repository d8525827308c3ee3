"""Rows over eight devices: one draw of noise, and order statistics to the bit."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from dpjax.estimators import (
    Clipping,
    TrimmedMean,
    Winsorization,
)
from dpjax.gradients import per_sample_grad, robust_grad
from dpjax.mechanisms import (
    exponential,
    gaussian,
    laplace,
    laplace_log_normal,
    peeling,
    permute_and_flip,
)
from dpjax.transforms import dp_sgd, privatize
from tests.nightly.sharding._devices import (
    BATCH,
    PARAMS,
    N,
    assert_close,
    assert_equal,
    auto,
    dealt,
    found,
    loss_fn,
    manual,
    mesh_of,
    normal,
)


@pytest.mark.parametrize("setting", [auto, found, manual])
def test_noise_is_drawn_once_and_the_same_everywhere(setting):
    # Of zeros the mean is zero on any number of devices: what comes out is the noise.
    grads = {"w": jnp.zeros((N, 6, 8)), "b": jnp.zeros(N, jnp.bfloat16)}

    def run(key, grads, axis_name=None):
        transform = privatize(
            Clipping(1.0), noise_multiplier=2.0, key=key, axis_name=axis_name
        )
        return transform.update(grads, transform.init(None))[0]

    expected = jax.jit(run)(jax.random.key(1), grads)
    stated = Clipping(1.0).sensitivity(N, 49).l2
    assert 0.7 < expected["w"].std() / (2 * stated) < 1.3
    found = setting(run, mesh_of(8))(jax.random.key(1), grads)
    assert_equal(found, expected)
    shards = [np.asarray(s.data) for s in found["w"].addressable_shards]
    assert len(shards) == 8
    for shard in shards[1:]:
        np.testing.assert_array_equal(shard, shards[0])


def dp_mean(key, rows, axis_name=None):
    transform = privatize(
        Winsorization(1.0), noise_multiplier=1.0, key=key, axis_name=axis_name
    )
    return transform.update(rows, transform.init(None))[0]


def test_noise_drawn_by_device_has_another_variance():
    # The classic mistake, where JAX is told to look away: eight draws are averaged.
    rows, mesh, d = jnp.zeros((16, 20_000)), mesh_of(8), 20_000
    stddev = Winsorization(1.0).sensitivity(16, d).l2

    def by_device(key, rows, axis_name=None):
        key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
        return jax.lax.pmean(dp_mean(key, rows, axis_name), axis_name)

    right = manual(dp_mean, mesh, False)(jax.random.key(2), rows)
    wrong = manual(by_device, mesh, False)(jax.random.key(2), rows)
    # The standard error of a standard deviation is 0.5 % here.
    assert 0.975 < right.std() / stddev < 1.025
    assert 0.34 < wrong.std() / stddev < 0.37


def test_a_key_of_its_own_is_refused():
    def by_device(key, rows, axis_name=None):
        key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
        return dp_mean(key, rows, axis_name)

    with pytest.raises(ValueError, match="key must be one that varies over the axes"):
        manual(by_device, mesh_of(8))(jax.random.key(3), jnp.zeros((N, 2)))


def test_one_noise_for_different_values_is_refused():
    # Rows of each device, their mean under the noise that the other devices have too.
    def forgotten(key, rows, axis_name=None):
        return dp_mean(key, rows)

    with pytest.raises(ValueError, match="or give those as axis_name"):
        manual(forgotten, mesh_of(8))(jax.random.key(4), jnp.zeros((N, 2)))
    for mechanism in (
        lambda key, x: gaussian(key, x, stddev=1.0),
        lambda key, x: laplace(key, x, scale=1.0),
        lambda key, x: laplace_log_normal(key, x, scale=1.0, sigma=0.5),
        lambda key, x: peeling(
            key, x, sparsity=1, selection_scale=1.0, release_stddev=1.0
        ),
        lambda key, x: permute_and_flip(key, x, epsilon=1.0, sensitivity_range=1.0)[
            None
        ],
        lambda key, x: exponential(key, x, epsilon=1.0, sensitivity_range=1.0)[None],
    ):
        with pytest.raises(ValueError, match="key must be one that varies"):
            jax.shard_map(
                mechanism,
                mesh=mesh_of(8),
                in_specs=(P(), P("records")),
                out_specs=P("records"),
            )(jax.random.key(5), jnp.zeros(8))


def test_runs_of_their_own_on_each_device_are_not_refused():
    # Eight repetitions, each with its data and its key: nothing is shared.
    def repetition(keys, rows):
        return dp_mean(keys[0], rows)[None]

    keys = jax.random.split(jax.random.key(6), 8)
    run = jax.shard_map(
        repetition,
        mesh=mesh_of(8),
        in_specs=(P("records"), P("records")),
        out_specs=P("records"),
    )
    released = jax.jit(run)(keys, jnp.zeros((N, 2)))
    assert len(np.unique(np.asarray(released))) == 16


def test_rows_that_all_devices_share_are_refused():
    run = jax.shard_map(
        lambda rows: Winsorization(1.0)(rows, axis_name="records"),
        mesh=mesh_of(8),
        in_specs=P(),
        out_specs=P(),
    )
    with pytest.raises(ValueError, match="would count several times"):
        run(jnp.zeros((N, 2)))


def test_dp_sgd_steps():
    def train(params, batch, axis_name=None):
        optimizer = optax.chain(
            dp_sgd(
                0.1,
                Clipping(1.0),
                noise_multiplier=0.5,
                key=jax.random.key(7),
                axis_name=axis_name,
            ),
            optax.trace(0.9),
        )

        def step(carry, _):
            params, state = carry
            grads = per_sample_grad(loss_fn)(params, batch)
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, optimizer.init(params)), None, 3)[0][0]

    expected = jax.jit(train)(PARAMS, BATCH)
    assert_close(auto(train, mesh_of(8))(PARAMS, BATCH), expected, 1e-5)


# ---------------------------------------------------------------- order statistics


def heavy_rows():
    rows = np.array(jax.random.t(jax.random.key(8), 2.0, (N, 3, 4)))
    rows[:, 0] = np.round(rows[:, 0])
    rows[[0, 30, 79], 1, 1] = [np.nan, np.inf, -np.inf]
    return rows.astype(np.float32)


@pytest.mark.parametrize(("setting", "fraction"), [(auto, 0.05), (manual, 0.45)])
def test_order_statistics_are_those_of_one_device_in_every_bit(setting, fraction):
    estimator = TrimmedMean(fraction, -3.0, 3.0)

    def run(unused, rows, axis_name=None):
        return (
            estimator(rows, axis_name=axis_name),
            estimator.with_smooth_sensitivity(rows, 0.1, axis_name=axis_name),
        )

    rows = heavy_rows()
    found = setting(run, mesh_of(8))(0.0, rows)
    assert_equal(found, jax.jit(run)(0.0, rows))


def test_private_trimmed_mean():
    rows = normal(9, N, 5)

    def run(key, rows, axis_name=None):
        estimator = TrimmedMean(0.2, -3.0, 3.0)
        transform = privatize(
            estimator, noise_multiplier=0.7, key=key, axis_name=axis_name
        )
        return transform.update(rows, transform.init(None))[0]

    expected = jax.jit(run)(jax.random.key(10), rows)
    found = manual(run, mesh_of(8))(jax.random.key(10), rows)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


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
        found = estimator.smooth_sensitivity(rows, 0.1, axis_name=axis_name)
        return (found**2).sum()

    expected = jax.grad(sensitivity)(rows)
    split = jax.jit(jax.grad(partial(sensitivity, axis_name="records")))
    assert_close(split(dealt(rows, mesh_of(8))), expected, 1e-5)
