"""Rows over eight devices: the mean, the noise and the sensitivity of one device."""

import functools
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from dpjax import ADD_OR_REMOVE_ONE
from dpjax.estimators import (
    Clipping,
    Mean,
    MedianOfMeans,
    TrimmedMean,
    Winsorization,
    _estimator,
)
from dpjax.gradients import _per_sample, per_sample_grad, robust_grad
from dpjax.mechanisms import gaussian, laplace, laplace_log_normal
from dpjax.transforms import aggregate, dp_sgd, privatize
from tests import registry

pytestmark = pytest.mark.devices(8)
N = 80
ESTIMATORS = {
    "mean": Mean(),
    **registry.bounded_estimators(0.8),
    "median-3": MedianOfMeans(Winsorization(0.8), 3),  # groups of several devices
    "median-19": MedianOfMeans(Clipping(0.8), 19),  # devices of several groups
    "trimmed": TrimmedMean(0.1, -1.0, 1.0),
}


def mesh_of(count, kind=AxisType.Auto):
    devices = jax.devices()[:count]
    return jax.make_mesh((count,), ("records",), axis_types=(kind,), devices=devices)


def dealt(tree, mesh, spec=None):
    spec = P("records") if spec is None else spec
    return jax.device_put(tree, NamedSharding(mesh, spec))


def auto(function, mesh):
    """A jitted function whose arrays lie on a mesh that knows nothing of their axes."""
    run = jax.jit(partial(function, axis_name="records"))
    return lambda whole, rows: run(whole, dealt(rows, mesh))


def found(function, mesh):
    """Arrays tell by their type how they are dealt out; the function is not told."""
    explicit = jax.make_mesh((mesh.size,), ("records",), devices=mesh.devices.ravel())
    run = jax.jit(function)
    return lambda whole, rows: run(whole, dealt(rows, explicit))


def ambient(function, mesh):
    run = jax.jit(partial(function, axis_name="records"))

    def on_mesh(whole, rows):
        with jax.set_mesh(mesh):
            return run(whole, rows)

    return on_mesh


def manual(function, mesh, check_vma=True):
    run = jax.jit(
        jax.shard_map(
            partial(function, axis_name="records"),
            mesh=mesh,
            in_specs=(P(), P("records")),
            out_specs=P(),
            check_vma=check_vma,
        )
    )
    return lambda whole, rows: run(whole, dealt(rows, mesh))


SETTINGS = {
    "auto": auto,
    "found": found,
    "ambient": ambient,
    "manual": manual,
    "unchecked": partial(manual, check_vma=False),
}
# Compiling takes the time: every estimator in one setting, every setting with one.
PAIRS = [("auto", name) for name in ESTIMATORS]
PAIRS += [(name, "Clipping") for name in SETTINGS if name != "auto"]
PAIRS += [("manual", "median-19"), ("unchecked", "median-3"), ("manual", "trimmed")]
PAIRS += [("manual", "SmoothedTruncation, beta 50")]


def loss_fn(params, example):
    hidden = jnp.tanh(example["x"] @ params["w"])
    return 0.5 * jnp.square(hidden @ params["v"] - example["y"])


def loss_with_aux(params, example):
    return loss_fn(params, example), {"y": example["y"]}


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


PARAMS = {"w": normal(1, 6, 8), "v": normal(2, 8)}
BATCH = {"x": normal(3, N, 6), "y": normal(4, N)}


def grads_of(estimator, **options):
    def grads(params, batch, axis_name=None):
        grad_fn = robust_grad(loss_fn, estimator, axis_name=axis_name, **options)
        return grad_fn(params, batch)

    return grads


def collectives(text):
    """The kind and shapes of everything that travels between devices."""
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    lines = re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", text)
    return [(kind, re.findall(r"\w+\[([\d,]*)\]", shapes)) for shapes, kind in lines]


def sizes(shapes):
    return [int(np.prod([int(n) for n in s.split(",") if n])) for s in shapes]


def assert_close(found, expected, atol=3e-6):
    def check(x, y):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(
            np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=0, atol=atol
        )

    jax.tree.map(check, found, expected)


def assert_equal(found, expected):
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y)),
        found,
        expected,
    )


@functools.cache
def mean_of_one_device(name):
    return jax.jit(robust_grad(loss_fn, ESTIMATORS[name]))(PARAMS, BATCH)


@pytest.mark.parametrize(("setting", "name"), PAIRS)
def test_the_mean_is_that_of_one_device(setting, name):
    run = SETTINGS[setting](grads_of(ESTIMATORS[name]), mesh_of(8))
    assert_close(run(PARAMS, BATCH), mean_of_one_device(name))


@pytest.mark.parametrize(("count", "setting"), [(1, auto), (2, auto), (4, manual)])
def test_any_number_of_devices(count, setting):
    run = setting(grads_of(ESTIMATORS["median-3"]), mesh_of(count))
    assert_close(run(PARAMS, BATCH), mean_of_one_device("median-3"))


def test_over_two_axes():
    mesh = jax.make_mesh((2, 4), ("hosts", "chips"), axis_types=(AxisType.Auto,) * 2)
    batch = dealt(BATCH, mesh, P(("hosts", "chips")))
    # At hand, an array tells; traced, it must be said.
    found = robust_grad(loss_fn, ESTIMATORS["Clipping"])(PARAMS, batch)
    assert_close(found, mean_of_one_device("Clipping"))
    median = ESTIMATORS["median-19"]
    grad_fn = robust_grad(loss_fn, median, axis_name=("hosts", "chips"))
    assert_close(jax.jit(grad_fn)(PARAMS, batch), mean_of_one_device("median-19"))


@pytest.mark.parametrize("name", ["Clipping", "median-19", "trimmed"])
def test_nothing_with_as_many_rows_travels(name):
    estimator = ESTIMATORS[name]
    batch = dealt(BATCH, mesh_of(8))
    grad_fn = jax.jit(robust_grad(loss_fn, estimator, axis_name="records"))
    moved = collectives(grad_fn.lower(PARAMS, batch).compile().as_text())
    assert moved
    assert {kind for kind, _ in moved} == {"all-reduce"}
    groups = getattr(estimator, "num_groups", 1)
    for _, shapes in moved:
        # Digits, two or three of each leaf; or the counts of the trimmed mean.
        assert max(sizes(shapes)) <= 48 * groups
    if not isinstance(estimator, TrimmedMean):
        assert sum(sum(sizes(s)) for _, s in moved) <= 3 * 56 * groups


def test_what_travels_is_seen():
    rows = dealt(normal(17, N, 6), mesh_of(8))
    text = jax.jit(lambda x: jnp.sort(x, axis=0)).lower(rows).compile().as_text()
    moved = collectives(text)
    assert any(kind == "all-gather" and max(sizes(s)) >= 48 for kind, s in moved)


@pytest.mark.parametrize("setting", [found, manual])
def test_masks_divisors_values_and_aux(setting):
    mask = jnp.arange(N) % 3 == 0
    rows = (BATCH, mask)
    options = {"normalize_by": 53, "return_values": True, "has_aux": True}

    def run(params, rows, axis_name=None):
        grad_fn = robust_grad(
            loss_with_aux, Clipping(0.8), axis_name=axis_name, **options
        )
        grads, (values, aux) = grad_fn(params, *rows)
        return grads, values, aux

    expected = jax.jit(run)(PARAMS, rows)
    if setting is manual:
        mapped = jax.shard_map(
            partial(run, axis_name="records"),
            mesh=mesh_of(8),
            in_specs=(P(), P("records")),
            out_specs=(P(), P("records"), P("records")),
        )
        result = jax.jit(mapped)(PARAMS, rows)
    else:
        result = setting(run, mesh_of(8))(PARAMS, rows)
    assert_close(result[0], expected[0])
    # Losses are up to 40, where numbers are 4e-6 apart.
    np.testing.assert_allclose(result[1], expected[1], rtol=5e-7)
    np.testing.assert_array_equal(result[2]["y"], BATCH["y"])
    assert result[1].sharding.is_equivalent_to(dealt(mask, mesh_of(8)).sharding, 1)


def test_uneven_rows_are_padded():
    rows = jax.tree.map(lambda x: x[:75], BATCH)
    expected = robust_grad(loss_fn, Clipping(0.8))(PARAMS, rows)
    padded = jax.tree.map(
        lambda x: np.concatenate([x, np.full((5, *x.shape[1:]), np.nan)]), rows
    )
    padded = jax.tree.map(lambda x: x.astype(np.float32), padded)
    is_padding = np.arange(N) >= 75
    grad_fn = robust_grad(loss_fn, Clipping(0.8), normalize_by=75)
    batch, mask = dealt((padded, is_padding), mesh_of(8))
    assert_close(grad_fn(PARAMS, batch, mask), expected)
    with (
        jax.set_mesh(mesh_of(8)),
        pytest.raises(ValueError, match="75 rows fall evenly, not 8 devices"),
    ):
        robust_grad(loss_fn, Clipping(0.8), axis_name="records")(PARAMS, rows)


def test_half_precision():
    rows = normal(5, N, 7).astype(jnp.bfloat16)
    mesh = mesh_of(8)
    estimator = Clipping(0.8)
    assert_close(estimator(dealt(rows, mesh)), estimator(rows), atol=1e-6)
    params, batch = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (PARAMS, BATCH))
    grads = auto(grads_of(estimator), mesh)(params, batch)
    # Two programs may round single gradients differently, by 2^-8 of themselves.
    expected = jax.jit(robust_grad(loss_fn, estimator))(params, batch)
    assert_close(grads, expected, atol=2e-2)


@pytest.mark.parametrize("setting", [found, manual])
def test_gradients_are_those_of_one_record(setting):
    # Inside shard_map the gradient of parameters that devices share is summed over
    # them: of one record of each device, before any influence.
    expected = per_sample_grad(loss_fn)(PARAMS, BATCH)
    mean = jax.tree.map(lambda x: Winsorization(0.3)(x), expected)

    def run(params, batch, axis_name=None):
        grads = per_sample_grad(loss_fn)(params, batch)
        return jax.tree.map(lambda x: Winsorization(0.3)(x, axis_name=axis_name), grads)

    assert_close(setting(run, mesh_of(8))(PARAMS, BATCH), mean)
    streamed = setting(grads_of(Winsorization(0.3)), mesh_of(8))(PARAMS, BATCH)
    assert_close(streamed, mean)


def test_gradients_of_several_records_would_be_seen(monkeypatch):
    for module in (_estimator, _per_sample):
        monkeypatch.setattr(module, "varying", lambda tree, axes: tree)
    expected = robust_grad(loss_fn, Winsorization(0.3))(PARAMS, BATCH)
    wrong = manual(grads_of(Winsorization(0.3)), mesh_of(8))(PARAMS, BATCH)
    assert np.abs(wrong["w"] - expected["w"]).max() > 0.01


def test_sums_are_exact_on_all_devices_together():
    # Blocks are of one device, and add exactly: their order changes no bit.
    rows = normal(6, 64 * 80, 5) * 10.0 ** normal(7, 64 * 80, 1)
    mesh = mesh_of(8)
    for estimator in (Winsorization(3.0), Clipping(1.0)):
        mean = jax.jit(partial(estimator, axis_name="records"))
        first = mean(dealt(rows, mesh))
        for shift in (1, 3, 4):
            moved = jnp.roll(rows, shift * 64 * 10, axis=0)
            assert_equal(mean(dealt(moved, mesh)), first)


# ---------------------------------------------------------------- sensitivity

ROBUST = registry.bounded_estimators(1.2)


def changes(first, second):
    gap = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    assert np.isfinite(gap).all()
    flat = np.abs(gap).reshape(-1, gap.shape[-1])
    return flat.sum(axis=1).max(), np.sqrt((flat**2).sum(axis=1)).max(), flat.max()


@pytest.mark.parametrize("name", ROBUST)
def test_a_replaced_record_on_any_device_stays_within_the_sensitivity(name):
    estimator, n, d = ROBUST[name], 72, 3
    limit = np.float32(estimator.limit)
    above, below = np.nextafter(limit, np.float32([np.inf, 0]))
    values = [limit, -limit, below, -above, 0, 1e-45, 1e15, -1e15, -1e19, 3e19, 1e38]
    values = np.float32([*values, -np.inf, np.nan])
    rows = np.repeat(values[:, None], d, axis=1)
    rows = np.concatenate([rows, rows * np.float32([1, -1, -1])])
    groups = np.array_split(np.arange(n), getattr(estimator, "num_groups", 1))
    signs = [np.full(len(g), (-1) ** i) for i, g in enumerate(groups)]
    signs = np.concatenate(signs).astype(np.float32)[:, None]
    mesh = mesh_of(8)

    def mean(samples, mask):
        if name != "Clipping":
            return estimator(samples, mask, axis_name="records")
        mapped = jax.shard_map(
            partial(estimator, axis_name="records"),
            mesh=mesh,
            in_specs=(P("records"), P("records")),
            out_specs=P(),
        )
        return mapped(samples, mask)

    @jax.jit
    def attack(base, where):
        samples = jnp.asarray(signs) * base[None]
        none = jnp.zeros(n, bool)
        replaced = jax.vmap(lambda row: mean(samples.at[where].set(row), none))(rows)
        return mean(samples, none), mean(samples, jnp.arange(n) == where), replaced

    stated = np.asarray(estimator.sensitivity(n, d))
    masked = np.asarray(estimator.sensitivity(n, d, ADD_OR_REMOVE_ONE))
    largest = np.zeros(3)
    with jax.set_mesh(mesh):
        for where in (0, 8, 40, n - 1):
            for base in rows[[0, 1, 8, 9]]:
                kept, removed, replaced = attack(base, where)
                gaps = np.asarray(replaced)[:, None] - np.asarray(replaced)
                found = changes(gaps, np.zeros(d))
                assert (found <= stated).all()
                assert (changes(kept, removed) <= masked).all()
                largest = np.maximum(largest, found)
    # The attack means something: a sensitivity that is halved would be seen.
    if len(groups) % 2:  # else the mean of two middle groups moves by half of one's
        assert (largest[1:] > 0.51 * stated[1:]).all()


@pytest.mark.parametrize("value", [(1, -1, 1), (0.125, -1, -1 / 32)])
def test_a_million_rows(value):
    n, half = 2**20, 2**19
    estimator = Winsorization(1.0)
    up, down, tail = value
    base = np.full((n, 1), tail, np.float32)
    base[:half] = 1
    mean = jax.jit(partial(estimator, axis_name="records"))
    stated = estimator.sensitivity(n, 1).linf
    for where in (half, n - 1):
        first, second = base.copy(), base.copy()
        first[where], second[where] = up, down
        pair = (mean(dealt(x, mesh_of(8))) for x in (first, second))
        assert changes(*pair)[2] <= stated


# ---------------------------------------------------------------- noise


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

    with pytest.raises(ValueError, match="want those as axis_name"):
        manual(forgotten, mesh_of(8))(jax.random.key(4), jnp.zeros((N, 2)))
    for mechanism in (
        lambda key, x: gaussian(key, x, stddev=1.0),
        lambda key, x: laplace(key, x, scale=1.0),
        lambda key, x: laplace_log_normal(key, x, scale=1.0, sigma=0.5),
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


# ---------------------------------------------------------------- sharded models


def mesh_over_two_axes(kind):
    kinds = kind, AxisType.Auto
    return jax.make_mesh((4, 2), ("records", "model"), axis_types=kinds)


WIDE = {"w": normal(13, 6, 512) / 10, "v": normal(14, 512)}
MODEL = {"w": P(None, "model"), "v": P("model")}


def over_model(tree, mesh):
    return {name: dealt(x, mesh, MODEL[name]) for name, x in tree.items()}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Clipping", AxisType.Auto),
        ("Clipping", AxisType.Explicit),
        ("median-3", AxisType.Auto),
        ("trimmed", AxisType.Auto),
    ],
)
def test_rows_and_parameters_over_two_axes(name, kind):
    estimator, mesh_2d = ESTIMATORS[name], mesh_over_two_axes(kind)
    expected = jax.jit(robust_grad(loss_fn, estimator))(WIDE, BATCH)
    inputs = over_model(WIDE, mesh_2d), dealt(BATCH, mesh_2d)
    run = jax.jit(robust_grad(loss_fn, estimator, axis_name="records"))
    found = run(*inputs)
    assert_close(found, expected)
    for name, x in found.items():
        assert x.sharding.is_equivalent_to(inputs[0][name].sharding, x.ndim)
    moved = collectives(run.lower(*inputs).compile().as_text())
    assert {kind for kind, _ in moved} == {"all-reduce"}
    groups = getattr(estimator, "num_groups", 1)
    # A device's half of the model, its digits of every group.
    assert max(max(sizes(s)) for _, s in moved) <= 6 * 256 * groups


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gaussian", AxisType.Auto),
        ("gaussian", AxisType.Explicit),
        ("laplace_log_normal", AxisType.Explicit),
    ],
)
@pytest.mark.parametrize("rows", [96, 2048])
def test_noise_is_made_where_it_is_added(name, kind, rows):
    mesh = jax.make_mesh((4, 2), ("records", "model"), axis_types=(kind,) * 2)
    add = {
        "gaussian": partial(gaussian, stddev=1.0),
        "laplace_log_normal": partial(laplace_log_normal, scale=1.0, sigma=0.4),
    }[name]
    value = {"w": jnp.ones((rows, 514)), "v": jnp.ones(514, jnp.bfloat16)}
    split = over_model(value, mesh)
    expected = jax.jit(add)(jax.random.key(15), value)
    assert_equal(add(jax.random.key(15), split), expected)
    found = add(dealt(jax.random.key(15), mesh, P()), split)
    assert_equal(found, expected)
    for leaf, x in found.items():
        assert x.sharding.is_equivalent_to(split[leaf].sharding, x.ndim)
    key = dealt(jax.random.key(15), mesh, P())
    text = jax.jit(add).lower(key, split).compile().as_text()
    assert not collectives(text)
    if rows == 2048:  # drawn alone: no device makes the whole
        every_size = sizes(re.findall(r"= \(?\w+\[([\d,]+)\]", text))
        assert max(every_size) == rows * 257


def test_private_steps_of_a_sharded_model():
    mesh_2d = mesh_over_two_axes(AxisType.Explicit)
    zeros = {"w": jnp.zeros((N, 6, 512)), "v": jnp.zeros((N, 512))}
    specs = {"w": P("records", None, "model"), "v": P("records", "model")}
    split = {name: dealt(x, mesh_2d, specs[name]) for name, x in zeros.items()}

    def run(grads, axis_name=None):
        transform = privatize(
            Clipping(1.0),
            noise_multiplier=1.0,
            key=jax.random.key(16),
            axis_name=axis_name,
        )
        return transform.update(grads, transform.init(None))[0]

    private = jax.jit(partial(run, axis_name="records"))
    assert_equal(private(split), jax.jit(run)(zeros))
    moved = collectives(private.lower(split).compile().as_text())
    assert {kind for kind, _ in moved} == {"all-reduce"}
    # Clipped by the norm over the whole model.
    rows = jax.tree.map(lambda x: x + 3.0, zeros)
    split = {name: dealt(x, mesh_2d, specs[name]) for name, x in rows.items()}
    transform = aggregate(Clipping(1.0))
    assert_close(transform.update(split, None)[0], transform.update(rows, None)[0])


def test_explicit_axes_of_the_model_are_refused():
    mesh = jax.make_mesh((4, 2), ("records", "model"))
    with pytest.raises(ValueError, match=r"with \['model'\] of jax.sharding.AxisType"):
        robust_grad(loss_fn, Clipping(1.0))(over_model(WIDE, mesh), dealt(BATCH, mesh))
