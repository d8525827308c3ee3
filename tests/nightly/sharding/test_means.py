"""Rows and models over eight devices: the mean of one, little travels, one noise."""

import functools
import re
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from dpjax import estimators, mechanisms, transforms
from dpjax.estimators import Clipping, MedianOfMeans, TrimmedMean, Winsorization
from dpjax.gradients import per_sample_grad, robust_grad
from tests import registry
from tests.factored import GROUPS
from tests.privacy.estimators.test_any_precision import check_moves_of_program
from tests.unit.transforms.test_privatize import STRATEGIES

N = 80
ESTIMATORS = {
    "mean": estimators.Mean(),
    **registry.bounded_estimators(0.8),
    "median-3": MedianOfMeans(Winsorization(0.8), 3),  # groups of several devices
    "median-19": MedianOfMeans(Clipping(0.8), 19),  # devices of several groups
    "trimmed": TrimmedMean(0.1, -1.0, 1.0),
}
WHOLE, ROWS = P(), P("records")


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


def explicit(function, mesh):
    typed = jax.make_mesh((mesh.size,), ("records",), devices=mesh.devices.ravel())
    run = jax.jit(function)
    return lambda whole, rows: run(whole, dealt(rows, typed))


def mapped(function, mesh, outputs=WHOLE, inputs=(WHOLE, ROWS), **options):
    """A jitted function of what each device has, by default of all and of its rows."""
    options |= {"in_specs": inputs, "out_specs": outputs}
    return jax.jit(jax.shard_map(function, mesh=mesh, **options))


def manual(function, mesh, check_vma=True, **options):
    function = partial(function, axis_name="records")
    run = mapped(function, mesh, check_vma=check_vma, **options)
    return lambda whole, rows: run(whole, dealt(rows, mesh))


def loss_fn(params, example):
    hidden = jnp.tanh(example["x"] @ params["w"])
    return 0.5 * jnp.square(hidden @ params["v"] - example["y"])


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


def assert_close(result, expected, atol=3e-6):
    def check(x, y):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(*map(np.float64, (x, y)), rtol=0, atol=atol)

    jax.tree.map(check, result, expected)


assert_equal = partial(assert_close, atol=0)
# Every estimator in one setting: `test_neighbors` has every setting.
PAIRS = [(auto, name) for name in ESTIMATORS] + [(manual, "median-19")]
USES = [("loops", "dense"), ("loops", "recurrent")]
USES += [("branches", name) for name in ("chosen", "in a loop", "of rows")]
WIDE = {"w": normal(13, 6, 512) / 10, "v": normal(14, 512)}
MODEL = {"w": P(None, "model"), "v": P("model")}
MEANS = [(name, AxisType.Auto) for name in ("Clipping", "median-3", "trimmed")]
GAUSSIAN = partial(mechanisms.gaussian, stddev=1.0)
SMOOTH = partial(mechanisms.laplace_log_normal, scale=1.0, sigma=0.4)


@functools.cache
def mean_of_one_device(name):
    return jax.jit(robust_grad(loss_fn, ESTIMATORS[name]))(PARAMS, BATCH)


@pytest.mark.parametrize(("setting", "name"), PAIRS)
def test_the_mean_is_that_of_one_device(setting, name):
    run = setting(grads_of(ESTIMATORS[name]), mesh_of(8))
    assert_close(run(PARAMS, BATCH), mean_of_one_device(name))


def test_the_mean_on_a_mesh_that_is_set_is_that_of_one_device():
    grad_fn = jax.jit(partial(grads_of(Clipping(0.8)), axis_name="records"))
    with jax.set_mesh(mesh_of(8)):
        assert_close(grad_fn(PARAMS, BATCH), mean_of_one_device("Clipping"))


def test_a_mean_over_two_mesh_axes_is_that_of_one_device():
    axes = "hosts", "chips"
    mesh = jax.make_mesh((2, 4), axes, axis_types=(AxisType.Auto,) * 2)
    batch = dealt(BATCH, mesh, P(axes))
    # At hand, an array tells; traced, it must be said.
    cases = ("Clipping", None, lambda f: f), ("median-19", axes, jax.jit)
    for name, axis_name, run in cases:
        grad_fn = run(robust_grad(loss_fn, ESTIMATORS[name], axis_name=axis_name))
        assert_close(grad_fn(PARAMS, batch), mean_of_one_device(name))


@pytest.mark.parametrize("name", ["Clipping", "median-19", "trimmed"])
def test_nothing_with_as_many_rows_travels(name):
    estimator, batch = ESTIMATORS[name], dealt(BATCH, mesh_of(8))
    grad_fn = jax.jit(robust_grad(loss_fn, estimator, axis_name="records"))
    moved = collectives(grad_fn.lower(PARAMS, batch).compile().as_text())
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
    assert any(k == "all-gather" and max(sizes(s)) >= 48 for k, s in collectives(text))


@pytest.mark.parametrize(
    ("setting", "places"), [(explicit, {}), (manual, {"outputs": (WHOLE, ROWS, ROWS)})]
)
def test_masks_divisors_values_and_aux(setting, places):
    rows = BATCH, jnp.arange(N) % 3 == 0
    options = {"normalize_by": 53, "return_values": True, "has_aux": True}

    def with_aux(params, example):
        return loss_fn(params, example), {"y": example["y"]}

    def run(params, rows, axis_name=None):
        grad_fn = robust_grad(with_aux, Clipping(0.8), axis_name=axis_name, **options)
        grads, (values, aux) = grad_fn(params, *rows)
        return grads, values, aux

    expected = jax.jit(run)(PARAMS, rows)
    result = setting(run, mesh_of(8), **places)(PARAMS, rows)
    assert_close(result[0], expected[0])
    # Losses are up to 40, where numbers are 4e-6 apart.
    np.testing.assert_allclose(result[1], expected[1], rtol=5e-7)
    np.testing.assert_array_equal(result[2]["y"], BATCH["y"])
    assert result[1].sharding.is_equivalent_to(dealt(rows[1], mesh_of(8)).sharding, 1)


def test_uneven_rows_are_padded():
    rows = jax.tree.map(lambda x: x[:75], BATCH)
    expected = robust_grad(loss_fn, Clipping(0.8))(PARAMS, rows)
    padded = jax.tree.map(lambda x: x.at[75:].set(jnp.nan), BATCH)
    is_padding = np.arange(N) >= 75
    grad_fn = robust_grad(loss_fn, Clipping(0.8), normalize_by=75)
    batch, mask = dealt((padded, is_padding), mesh_of(8))
    assert_close(grad_fn(PARAMS, batch, mask), expected)
    with (
        jax.set_mesh(mesh_of(8)),
        pytest.raises(ValueError, match="8 devices divide 75 rows evenly: add"),
    ):
        robust_grad(loss_fn, Clipping(0.8), axis_name="records")(PARAMS, rows)


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


@pytest.mark.parametrize(("group", "name"), USES)
def test_factored_gradients_over_devices_have_the_mean_of_one(group, name):
    uses, batch = GROUPS[group]
    grad_fn = jax.jit(robust_grad(uses[name].loss_fn, Clipping(0.5)))
    params, spread = uses[name].params(), dealt(batch, mesh_of(2))
    assert_close(grad_fn(params, spread), grad_fn(params, batch), 1e-6)


@pytest.mark.parametrize(("up", "down", "tail"), [(1, -1, 1), (0.125, -1, -1 / 32)])
def test_one_of_a_million_rows_moves_the_mean_by_the_sensitivity_at_most(
    up, down, tail
):
    n, half, estimator = 2**20, 2**19, Winsorization(1.0)
    rows = np.where(np.arange(n) < half, 1, tail)[:, None].astype(np.float32)
    mean = jax.jit(partial(estimator, axis_name="records"))
    for where in (half, n - 1):
        means = []
        for rows[where] in (up, down):
            means.append(np.float64(mean(dealt(rows.copy(), mesh_of(8)))))
        assert abs(means[0] - means[1]).max() <= estimator.sensitivity(n, 1).linf


@pytest.mark.parametrize("seed", range(24))
def test_no_record_moves_a_mean_beyond_its_sensitivity(seed):
    check_moves_of_program(seed, num_devices=8)


def test_noise_is_added_to_the_exact_mean(key):
    # Whole numbers, of which blocks add exactly: their sums have 32 bits.
    rows = np.float32(np.random.default_rng(0).integers(0, 2**18, (2**14, 300)))
    options = {"noise_multiplier": 1e-4, "key": key, "axis_name": "records"}
    transform = transforms.privatize(Winsorization(2.0**18), **options)
    released = jax.jit(lambda rows: transform.update(rows, transform.init(None))[0])
    with jax.debug_key_reuse(False):
        releases = [released(dealt(rows, mesh_of(count))) for count in (1, 4)]
    np.testing.assert_array_equal(*releases)


def test_counts_of_short_samples_add_up():
    def network(params, x):
        hidden = jnp.tanh(x @ params["first"]["kernel"] + params["first"]["bias"])
        return (hidden @ params["last"]["kernel"]).sum()

    rng = np.random.default_rng(4)
    first = {"kernel": normal(4, 6, 40), "bias": normal(5, 40)}
    params = {"first": first, "last": {"kernel": normal(8, 40, 3)}}
    batch = jnp.float32(rng.standard_t(2, (24, 6))).at[3].set(jnp.nan).at[4].set(1e12)
    inner = estimators.Grouped(Clipping(14.0), ("first", "last"))
    counting = estimators.AdaptiveThreshold(inner, lower=0.01, upper=100.0).counting
    grad_fn = robust_grad(network, counting)
    expected, rows = grad_fn(params, batch), dealt(batch, mesh_of(8))
    samples = counting(per_sample_grad(network)(params, rows))
    for counted in (grad_fn(params, rows), samples):
        chex.assert_trees_all_close(counted, expected, rtol=1e-5, atol=1e-6)


def test_scales_over_two_axes():
    mesh, rng = mesh_over_two_axes(AxisType.Explicit), np.random.default_rng(3)
    grads = jnp.float32(rng.standard_t(2, (8, 4, 3)))
    scales = jnp.float32(rng.exponential(size=(4, 3)))
    expected = estimators.Scaled(Winsorization(1.0), scales).measured(grads)
    for place in (P("records"), P("records", "model")):
        with jax.set_mesh(mesh):
            rows, here = dealt(grads, mesh, place), dealt(scales, mesh, P())
            measured = estimators.Scaled(Winsorization(1.0), here).measured
            ratios = measured(rows, axis_name="records")
        np.testing.assert_allclose(ratios, expected, rtol=1e-6)


def test_only_counts_of_order_statistics_travel():
    estimator = TrimmedMean(0.05, -1.0, 1.0)
    split = dealt(jnp.zeros((20_000, 40)), mesh_of(4))
    both = jax.jit(lambda x: estimator.with_smooth_sensitivity(x, 0.1))
    for run in (jax.jit(lambda x: estimator(x)), both):
        text = run.lower(split).compile().as_text()
        moved = re.findall(r"(\w+)\[([\d,]*)\]\S* all-gather", text)
        assert moved or "all-reduce" in text
        for dtype, shape in moved:
            size = np.prod([int(k) for k in shape.split(",")])
            # Counts; for the ends also which samples: bits, and counts by word.
            is_small = dtype == "pred" or 32 * size <= split.size
            assert size <= 1000 or (run is both and is_small)


def mesh_over_two_axes(kind, of_model=AxisType.Auto):
    return jax.make_mesh((4, 2), ("records", "model"), axis_types=(kind, of_model))


def private_mean(key, rows, axis_name=None):
    options = {"noise_multiplier": 2.0, "key": key, "axis_name": axis_name}
    transform = transforms.privatize(Clipping(1.0), **options)
    return transform.update(rows, transform.init(None))[0]


@pytest.mark.parametrize("setting", [auto, explicit, manual])
def test_noise_is_drawn_once_and_the_same_everywhere(setting):
    # Of zeros the mean is zero on any number of devices: what comes out is the noise.
    grads = {"w": jnp.zeros((N, 6, 8)), "b": jnp.zeros(N, jnp.bfloat16)}
    expected = jax.jit(private_mean)(jax.random.key(1), grads)
    assert 0.7 < expected["w"].std() / (2 * Clipping(1.0).sensitivity(N, 49).l2) < 1.3
    noise = setting(private_mean, mesh_of(8))(jax.random.key(1), grads)
    assert_equal(noise, expected)
    shards = [np.asarray(s.data) for s in noise["w"].addressable_shards]
    assert len(shards) == 8
    for shard in shards[1:]:
        np.testing.assert_array_equal(shard, shards[0])


def by_device(key, rows, axis_name=None):
    own = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
    return private_mean(own, rows, axis_name)


def test_noise_drawn_by_device_has_another_variance():
    # The classic mistake, where JAX is told to look away: eight draws are averaged.
    rows, mesh = jnp.zeros((16, 20_000)), mesh_of(8)
    stddev = 2 * Clipping(1.0).sensitivity(*rows.shape).l2

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

    rule = "key must be one that varies over the mesh"
    for mean, message in ((by_device, rule), (forgotten, "Or give axis_name: these")):
        with pytest.raises(ValueError, match=message):
            manual(mean, mesh_of(8))(jax.random.key(4), jnp.zeros((N, 2)))
    for name in registry.names(registry.MECHANISMS) - {"discrete_gaussian"}:

        def mechanism(key, x, name=name):
            return jnp.atleast_1d(registry.MECHANISMS[name](key, x))

        run = mapped(mechanism, mesh_of(8), ROWS)
        with pytest.raises(ValueError, match=rule):
            run(jax.random.key(5), jnp.zeros(8))


def test_runs_of_their_own_on_each_device_are_not_refused():
    # Eight repetitions, each with its data and its key: nothing is shared.
    def repetition(keys, rows):
        return private_mean(keys[0], rows)[None]

    keys = jax.random.split(jax.random.key(6), 8)
    run = mapped(repetition, mesh_of(8), ROWS, ROWS)
    assert len(np.unique(np.asarray(run(keys, jnp.zeros((N, 2)))))) == 16

    def choice(keys, scores):
        options = {"epsilon": 1.0, "sensitivity_range": 1.0}
        return mechanisms.exponential(keys[0], scores, **options)[None]

    run, keys = mapped(choice, mesh_of(8), ROWS, (ROWS, ROWS)), jax.random.clone(keys)
    assert len(np.unique(np.asarray(run(keys, jnp.zeros(N))))) > 3


@pytest.mark.parametrize(("setting", "fraction"), [(auto, 0.05), (manual, 0.45)])
def test_order_statistics_are_those_of_one_device_in_every_bit(setting, fraction):
    estimator = TrimmedMean(fraction, -3.0, 3.0)

    def run(unused, rows, axis_name=None):
        both = estimator.with_smooth_sensitivity(rows, 0.1, axis_name=axis_name)
        return estimator(rows, axis_name=axis_name), both

    rows = np.array(jax.random.t(jax.random.key(8), 2.0, (N, 3, 4)), np.float32)
    rows[:, 0] = np.round(rows[:, 0])
    rows[[0, 30, 79], 1, 1] = [np.nan, np.inf, -np.inf]
    assert_equal(setting(run, mesh_of(8))(0.0, rows), jax.jit(run)(0.0, rows))


def test_derivatives_over_devices_are_those_of_one():
    rows, params = normal(11, N, 3), normal(12, 3)

    def gradient(axis_name=None):
        def total(norm, params, rows):
            grad_fn = robust_grad(
                lambda w, x: jnp.square(w @ x), Clipping(norm), axis_name=axis_name
            )
            return (grad_fn(params, rows) ** 2).sum()

        return jax.jit(jax.grad(total, argnums=(0, 1, 2)))

    expected, split = gradient()(0.8, params, rows), dealt(rows, mesh_of(8))
    assert_close(gradient("records")(0.8, params, split), expected, 1e-5)
    estimator = TrimmedMean(0.2, -3.0, 3.0)

    def sensitivity(rows, axis_name=None):
        return (estimator.smooth_sensitivity(rows, 0.1, axis_name=axis_name) ** 2).sum()

    run = jax.jit(jax.grad(partial(sensitivity, axis_name="records")))
    assert_close(run(split), jax.grad(sensitivity)(rows), 1e-5)


@pytest.mark.parametrize("name", STRATEGIES)
def test_correlated_noise(name):
    def released(params, grads, axis_name=None):
        options = {"noise_multiplier": 3.0, "noise": STRATEGIES[name]}
        options |= {"key": jax.random.key(3), "axis_name": axis_name}
        transform = transforms.privatize(Winsorization(1.0), **options)

        def step(state, _):
            updates, state = transform.update(grads, state, params)
            return state, updates

        return jax.lax.scan(step, transform.init(params), length=6)[1]

    mesh = mesh_over_two_axes(AxisType.Explicit)
    params, grads = jnp.zeros((4, 3)), normal(18, 8, 4, 3)
    alone = jax.jit(released)(params, grads)
    with jax.set_mesh(mesh):
        spread = jax.jit(released)(dealt(params, mesh, P("model")), grads)
        np.testing.assert_allclose(spread, alone, rtol=1e-6, atol=1e-6)
        of_rows = partial(released, axis_name="records")
        spread = mapped(of_rows, mesh, axis_names={"records"})(params, grads)
        np.testing.assert_allclose(spread, alone, rtol=1e-5, atol=1e-6)


def over_model(tree, mesh):
    return {name: dealt(x, mesh, MODEL[name]) for name, x in tree.items()}


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


@pytest.mark.parametrize(
    ("add", "kind"),
    [(GAUSSIAN, AxisType.Auto), *((x, AxisType.Explicit) for x in (GAUSSIAN, SMOOTH))],
)
def test_noise_is_made_where_it_is_added(add, kind):
    rows, mesh = 2048, mesh_over_two_axes(kind, kind)
    value = {"w": jnp.ones((rows, 514)), "v": jnp.ones(514, jnp.bfloat16)}
    split = over_model(value, mesh)
    expected = jax.jit(add)(jax.random.key(15), value)
    assert_equal(add(jax.random.key(15), split), expected)
    key = dealt(jax.random.key(15), mesh, P())
    noisy = add(key, split)
    assert_equal(noisy, expected)
    for leaf, x in noisy.items():
        assert x.sharding.is_equivalent_to(split[leaf].sharding, x.ndim)
    text = jax.jit(add).lower(key, split).compile().as_text()
    assert not collectives(text)
    # Drawn alone: no device makes the whole.
    assert max(sizes(re.findall(r"= \(?\w+\[([\d,]+)\]", text))) == rows * 257


def test_explicit_axes_of_the_model_are_refused():
    mesh = mesh_over_two_axes(AxisType.Explicit, AxisType.Explicit)
    rule = r"make the axes \['model'\] jax.sharding.AxisType.Auto"
    with pytest.raises(ValueError, match=rule):
        robust_grad(loss_fn, Clipping(1.0))(over_model(WIDE, mesh), dealt(BATCH, mesh))
