"""Rows at once from a device's memory; a million samples, and thousands of leaves."""

import math
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.speed.models import GPT2, transformer
from benchmarks.speed.peers import plain
from dpjax._sums import fold
from dpjax._sums.samples import FactoredSamples
from dpjax._sums.stream import DEFAULT, rows_at_once
from dpjax.estimators import Clipping, SmoothedTruncation, Truncation
from dpjax.gradients import robust_grad
from tests.unit.sums.test_fold import many_leaves
from tests.unit.sums.test_order_statistics import check


def test_rows_at_once_fit_the_smallest_memory(monkeypatch):
    assert rows_at_once(2**20, 2**30, 0) == (DEFAULT - 2**33) // 2**21
    told = {"bytes_limit": 20_000}, None, {"bytes_limit": 10_000}
    devices = [SimpleNamespace(memory_stats=lambda x=x: x) for x in told]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert rows_at_once(100, 200, 400) == (10_000 - 400 - 8 * 200) // 200
    assert rows_at_once(100, 2000, 0) == 1  # it does not fit: try
    assert rows_at_once(0, 0, 0) == 5000
    # Several processes must have the same blocks, whatever memory each of them has.
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert rows_at_once(1, 0, 0) == DEFAULT // 2


@pytest.mark.parametrize("plan", ["parallel"], indirect=True)
@pytest.mark.parametrize("estimator", [Clipping(1.0), SmoothedTruncation(1.0)])
def test_the_compiled_program_holds_no_more(plan, estimator, monkeypatch):
    def loss_fn(params, x):
        return jnp.sum(jnp.tanh(jnp.tanh(x @ params) @ params))

    needed, held = [], []
    monkeypatch.setattr(
        fold, "rows_at_once", lambda row_bytes, *_: needed.append(row_bytes) or 16
    )
    params = jnp.full((64, 64), 0.1)
    batch = jax.ShapeDtypeStruct((96, 32, 64), jnp.float32)
    for size in (None, 32):
        grad_fn = jax.jit(robust_grad(loss_fn, estimator, microbatch_size=size))
        compiled = grad_fn.lower(params, batch).compile()
        held.append(compiled.memory_analysis().temp_size_in_bytes)
    assert 0 < held[1] - held[0] <= 16 * needed[0]


@pytest.mark.parametrize(
    "estimator", [Clipping(1.0), SmoothedTruncation(1.0)], ids=["clipping", "smoothed"]
)
def test_memory_does_not_grow_with_the_batch(estimator):
    def network(params, example):
        features, label = example
        return -jax.nn.log_softmax(jnp.tanh(features @ params[0]) @ params[1])[label]

    params = [jax.ShapeDtypeStruct(x, "float32") for x in ((784, 256), (256, 10))]

    def temporary_bytes(n):
        features = jax.ShapeDtypeStruct((n, 784), jnp.float32)
        batch = features, jax.ShapeDtypeStruct((n,), jnp.int32)
        compiled = jax.jit(robust_grad(network, estimator)).lower(params, batch)
        return compiled.compile().memory_analysis().temp_size_in_bytes

    # Samples are never written out, however costly the influence is. One block, as up
    # to 64 rows are, needs its sum, activations and finite inputs; several need digits
    # too, one more only for 16 times as many.
    one_gradient = 4 * (784 * 256 + 256 * 10)
    few, block, several, many, most = map(temporary_bytes, (16, 64, 4096, 8192, 16384))
    assert few < 0.2 * one_gradient
    assert block < 1.8 * one_gradient
    assert several < 4.5 * one_gradient
    assert max(many, most) < 1.1 * several


def test_a_decoder_of_124_million_parameters_exported_for_cuda():
    loss_fn, params, batch = transformer(64, GPT2, is_abstract=True)
    clipped = jax.jit(robust_grad(loss_fn, Clipping(1.0)))
    texts = [
        jax.export.export(f, platforms=["cuda"])(params, batch).mlir_module()
        for f in (clipped, plain(loss_fn, params, batch)[0])
    ]
    most = []
    for text in texts:
        arrays = set(re.findall(r"tensor<((?:\d+x)+)[a-z]+(\d+)>", text))
        sizes = [[*map(int, x[:-1].split("x")), int(bits)] for x, bits in arrays]
        most.append(max(map(math.prod, sizes)) // 8)
    assert most[0] <= most[1] + 2**30
    # Tokens are read from the batch as many rows at once: 8 at least, of 64.
    sizes = set(map(int, re.findall(r"tensor<(\d+)x512xi32>", texts[0])))
    assert min(sizes) >= 8


def test_order_statistics_of_a_million_samples_are_exact():
    # Four digits in the sum, and a search of many words.
    samples = np.random.default_rng(0).standard_t(2, (2**20 + 3, 1)).astype(np.float32)
    with jax.enable_x64(True):
        check(samples, 5000)
        check(np.abs(samples), 2**19)


def test_the_norm_of_many_leaves_errs_by_few_roundings():
    # One after the other, each small square is rounded away beside the first: the norm
    # errs by 2.4e-4. (Not as one program: it would take minutes to compile.)
    small = np.float32(2.0**-12.01)
    leaves = [jnp.float32(1.0), *[jnp.float32(small)] * 7999]
    exact = 1 + 7999 * float(small) ** 2
    assert exact**0.5 - 1 > 2.0**-13  # what sensitivity() allows for
    squares = FactoredSamples(leaves).squared_norm(jnp.float32(1))
    assert abs(float(squares) / exact - 1) < 14 * 2**-24


def test_many_shapes_are_summed_without_a_loop():
    # A loop that carries a sum for each of 2,000 leaves would compile for minutes.
    samples = many_leaves(16, range(1, 71))
    assert "while" not in jax.jit(Truncation(0.5)).lower(samples).as_text()
