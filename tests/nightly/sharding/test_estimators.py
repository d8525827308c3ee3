"""Estimators on several devices: the same as on one, and little that travels."""

import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import dpjax
from dpjax.estimators import (
    AdaptiveThreshold,
    Clipping,
    Grouped,
    Scaled,
    TrimmedMean,
    Winsorization,
)
from dpjax.transforms import privatize
from tests.any_precision import check_moves_of_program
from tests.nightly.sharding._devices import dealt, mesh_of


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
    first = {"kernel": rng.normal(size=(6, 40)), "bias": rng.normal(size=40)}
    params = {"first": first, "last": {"kernel": rng.normal(size=(40, 3))}}
    params = jax.tree.map(jnp.float32, params)
    batch = jnp.float32(rng.standard_t(2, (24, 6))).at[3].set(jnp.nan).at[4].set(1e12)
    inner = Grouped(Clipping(14.0), ("first", "last"))
    counting = AdaptiveThreshold(inner, lower=0.01, upper=100.0).counting
    grad_fn = dpjax.robust_grad(network, counting)
    expected, rows = grad_fn(params, batch), dealt(batch, mesh_of(8))
    samples = counting(dpjax.per_sample_grad(network)(params, rows))
    for counted in (grad_fn(params, rows), samples):
        for x, y in zip(*map(jax.tree.leaves, (counted, expected)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_scales_over_two_axes():
    kinds = AxisType.Explicit, AxisType.Auto
    mesh = jax.make_mesh(
        (2, 2), ("records", "model"), axis_types=kinds, devices=jax.devices()[:4]
    )
    rng = np.random.default_rng(3)
    grads = jnp.float32(rng.standard_t(2, (8, 4, 3)))
    scales = jnp.float32(rng.exponential(size=(4, 3)))
    expected = Scaled(Winsorization(1.0), scales).measured(grads)
    for place in (P("records"), P("records", "model")):
        with jax.set_mesh(mesh):
            rows, here = dealt(grads, mesh, place), dealt(scales, mesh, P())
            ratios = Scaled(Winsorization(1.0), here).measured(
                rows, axis_name="records"
            )
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
