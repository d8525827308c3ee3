"""Rows over eight devices: the mean and the sensitivity of one; little travels."""

import os
import re
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from dpjax.estimators import (
    AdaptiveThreshold,
    Clipping,
    Grouped,
    Scaled,
    TrimmedMean,
    Winsorization,
)
from dpjax.gradients import by_user, per_sample_grad, robust_grad
from dpjax.transforms import privatize
from tests.any_precision import check_moves_of_program
from tests.factored import GROUPS
from tests.nightly.sharding._devices import (
    BATCH,
    ESTIMATORS,
    PARAMS,
    N,
    ambient,
    assert_close,
    assert_equal,
    auto,
    collectives,
    dealt,
    explicit,
    grads_of,
    loss_fn,
    manual,
    mean_of_one_device,
    mesh_of,
    normal,
    sizes,
)

SETTINGS = {
    "auto": auto,
    "ambient": ambient,
    "manual": manual,
    "unchecked": partial(manual, check_vma=False),
}
# Every estimator in one setting: `test_neighbors` has every setting.
PAIRS = [("auto", name) for name in ESTIMATORS] + [("ambient", "Clipping")]
PAIRS += [("manual", "median-19"), ("unchecked", "median-3"), ("manual", "trimmed")]
PAIRS += [("manual", "SmoothedTruncation, beta 50")]


def loss_with_aux(params, example):
    return loss_fn(params, example), {"y": example["y"]}


@pytest.mark.parametrize(("setting", "name"), PAIRS)
def test_the_mean_is_that_of_one_device(setting, name):
    run = SETTINGS[setting](grads_of(ESTIMATORS[name]), mesh_of(8))
    assert_close(run(PARAMS, BATCH), mean_of_one_device(name))


def test_over_two_axes():
    mesh = jax.make_mesh((2, 4), ("hosts", "chips"), axis_types=(AxisType.Auto,) * 2)
    batch = dealt(BATCH, mesh, P(("hosts", "chips")))
    # At hand, an array tells; traced, it must be said.
    mean = robust_grad(loss_fn, ESTIMATORS["Clipping"])(PARAMS, batch)
    assert_close(mean, mean_of_one_device("Clipping"))
    median = ESTIMATORS["median-19"]
    grad_fn = robust_grad(loss_fn, median, axis_name=("hosts", "chips"))
    assert_close(jax.jit(grad_fn)(PARAMS, batch), mean_of_one_device("median-19"))


@pytest.mark.parametrize("name", ["Clipping", "median-19", "trimmed"])
def test_nothing_with_as_many_rows_travels(name):
    estimator = ESTIMATORS[name]
    batch = dealt(BATCH, mesh_of(8))
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
    moved = collectives(text)
    assert any(kind == "all-gather" and max(sizes(s)) >= 48 for kind, s in moved)


@pytest.mark.parametrize("setting", [explicit, manual])
def test_masks_divisors_values_and_aux(setting):
    mask = jnp.arange(N) % 3 == 0
    rows = (BATCH, mask)
    options = {"normalize_by": 53, "return_values": True, "has_aux": True}

    def run(params, rows, axis_name=None):
        options["axis_name"] = axis_name
        grad_fn = robust_grad(loss_with_aux, Clipping(0.8), **options)
        grads, (values, aux) = grad_fn(params, *rows)
        return grads, values, aux

    expected = jax.jit(run)(PARAMS, rows)
    if setting is manual:
        out = P(), P("records"), P("records")
        specs = {"in_specs": (P(), P("records")), "out_specs": out}
        run = partial(run, axis_name="records")
        result = jax.jit(jax.shard_map(run, mesh=mesh_of(8), **specs))(PARAMS, rows)
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
    padded = jax.tree.map(lambda x: x.at[75:].set(jnp.nan), BATCH)
    is_padding = np.arange(N) >= 75
    grad_fn = robust_grad(loss_fn, Clipping(0.8), normalize_by=75)
    batch, mask = dealt((padded, is_padding), mesh_of(8))
    assert_close(grad_fn(PARAMS, batch, mask), expected)
    with (
        jax.set_mesh(mesh_of(8)),
        pytest.raises(ValueError, match="75 rows fall evenly, not 8 devices"),
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


USES = [("loops", "dense"), ("loops", "recurrent"), ("rules", "of the matrix")]
USES += [("branches", name) for name in ("chosen", "in a loop", "of rows")]


@pytest.mark.parametrize(("group", "name"), USES)
def test_factored_gradients(group, name):
    uses, batch = GROUPS[group]
    grad_fn = jax.jit(robust_grad(uses[name].loss_fn, Clipping(0.5)))
    params, spread = uses[name].params(), dealt(batch, mesh_of(2))
    assert_close(grad_fn(params, spread), grad_fn(params, batch), 1e-6)


def test_rows_of_users():
    ids = jnp.arange(N) % 10
    users = by_user(BATCH, ids, num_users=10, records_per_user=8)
    run = grads_of(Clipping(0.7))
    spread = explicit(run, mesh_of(2))(PARAMS, users)
    assert_close(spread, jax.jit(run)(PARAMS, users), 1e-6)
    of_ids = robust_grad(loss_fn, Clipping(0.7), user_ids=ids, num_users=10)
    with pytest.raises(ValueError, match="user_ids must be of a batch on one device"):
        of_ids(PARAMS, dealt(BATCH, mesh_of(2)))


@pytest.mark.parametrize("value", [(1, -1, 1), (0.125, -1, -1 / 32)])
def test_a_million_rows(value):
    n, half = 2**20, 2**19
    estimator = Winsorization(1.0)
    up, down, tail = value
    rows = np.full((n, 1), tail, np.float32)
    rows[:half] = 1
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
    transform = privatize(
        Winsorization(2.0**18), noise_multiplier=1e-4, key=key, axis_name="records"
    )

    @jax.jit
    def released(rows):
        return transform.update(rows, transform.init(None))[0]

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
    inner = Grouped(Clipping(14.0), ("first", "last"))
    counting = AdaptiveThreshold(inner, lower=0.01, upper=100.0).counting
    grad_fn = robust_grad(network, counting)
    expected, rows = grad_fn(params, batch), dealt(batch, mesh_of(8))
    samples = counting(per_sample_grad(network)(params, rows))
    for counted in (grad_fn(params, rows), samples):
        chex.assert_trees_all_close(counted, expected, rtol=1e-5, atol=1e-6)


def test_scales_over_two_axes():
    where = {"axis_types": (AxisType.Explicit, AxisType.Auto)}
    where["devices"] = jax.devices()[:4]
    mesh = jax.make_mesh((2, 2), ("records", "model"), **where)
    rng = np.random.default_rng(3)
    grads = jnp.float32(rng.standard_t(2, (8, 4, 3)))
    scales = jnp.float32(rng.exponential(size=(4, 3)))
    expected = Scaled(Winsorization(1.0), scales).measured(grads)
    for place in (P("records"), P("records", "model")):
        with jax.set_mesh(mesh):
            rows, here = dealt(grads, mesh, place), dealt(scales, mesh, P())
            measured = Scaled(Winsorization(1.0), here).measured
            ratios = measured(rows, axis_name="records")
        np.testing.assert_allclose(ratios, expected, rtol=1e-6)


def test_only_counts_of_order_statistics_travel():
    estimator = TrimmedMean(0.05, -1.0, 1.0)
    seed = int.from_bytes(os.urandom(3), "little")
    x = jax.random.t(jax.random.key(seed), 2.0, (20_000, 40))
    split = dealt(x, mesh_of(4))
    both = jax.jit(lambda x: estimator.with_smooth_sensitivity(x, 0.1))
    for run in (jax.jit(lambda x: estimator(x)), both):
        text = run.lower(split).compile().as_text()
        moved = re.findall(r"(\w+)\[([\d,]*)\]\S* all-gather", text)
        assert moved or "all-reduce" in text
        for dtype, shape in moved:
            size = np.prod([int(k) for k in shape.split(",")])
            # Counts; for the ends also which samples: bits, and counts by word.
            is_small = dtype == "pred" or 32 * size <= x.size
            assert size <= 1000 or (run is both and is_small)
        leaves = (jax.tree.leaves(run(samples)) for samples in (split, x))
        for actual, expected in zip(*leaves, strict=True):
            np.testing.assert_array_equal(actual, expected, f"seed {seed}")
