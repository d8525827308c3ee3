"""Solvers: derivatives, memory of many repetitions, and states that others take up."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import solvers
from dpjax.batching import Disjoint, Full, Poisson
from dpjax.constraints import L1Ball
from dpjax.estimators import SmoothedTruncation
from dpjax.losses import squared
from dpjax.solvers import Checkpoint
from tests.unit.solvers import test_checkpoint
from tests.unit.solvers.test_checkpoint import KilledError, T, kill_at, make_data
from tests.unit.solvers.test_gradient_descent import descend


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def temporary_bytes(run, *shapes):
    return jax.jit(run).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


def descent(key, data, **changes):
    settings = {"params": jnp.zeros(data[0].shape[1]), "num_steps": 3} | changes
    return descend(squared, key=key, data=data, **settings).params


# Each repetition copies its batch, a twentieth of the data, and draws its places.
@pytest.mark.parametrize(
    ("batching", "copies"), [(Full(), 0.0), (Disjoint(), 1.0), (Poisson(5_000), 1.5)]
)
def test_twenty_repetitions_need_little_more_memory_than_one(batching, copies):
    def repetition(key, data):
        return descent(key, data, num_steps=20, batching=batching)

    n, d = 100_000, 50
    shapes = floats(n, d), floats(n)
    keys = jax.random.split(jax.random.key(0), 20)
    size = 4 * n * (d + 1)
    single = temporary_bytes(repetition, keys[0], shapes)
    run = lambda keys, x: jax.lax.map(lambda key: repetition(key, x), keys)  # noqa: E731
    in_turn = temporary_bytes(run, keys, shapes)
    together = temporary_bytes(jax.vmap(repetition, in_axes=(0, None)), keys, shapes)
    assert size + in_turn < 1.1 * (size + single)
    assert size + together < 1.6 * (size + single) + copies * size


def test_memory_of_reverse_mode_does_not_grow_with_the_folds():
    def total(rate, data):
        return jnp.sum(descent(jax.random.key(0), data, learning_rate=rate))

    data = [(floats(n, 8), floats(n)) for n in (2**13, 2**17)]
    small, large = (temporary_bytes(jax.grad(total), 0.1, x) for x in data)
    # All gradients of one step would take 4 MB more.
    assert large - small < 2**20


def test_frank_wolfe_stores_no_gradient_of_every_sample():
    # n d = 1e7 floats; the program needs a few vectors of d beside the data.
    n, d = 1000, 10_000

    def run(data):
        options = {"epsilon": 1.0, "delta": 1e-6, "num_steps": 4}
        options |= {"key": jax.random.key(0), "constraint": L1Ball(1.0)}
        return solvers.dp_frank_wolfe(squared, jnp.zeros(d), data, **options).params

    assert temporary_bytes(run, (floats(n, d), floats(n))) < 40 * 4 * d


@pytest.mark.parametrize("num_samples", [10_000, 100_000])
def test_a_million_candidates_are_stored_once(num_samples):
    def solve(key, features, targets, candidates):
        options = {"epsilon": 1.0, "truncation": 1.0, "candidates": candidates}
        return solvers.dp_l1_regression(features, targets, key=key, **options).params

    shapes = floats(num_samples, 4), floats(num_samples), floats(10**6, 4)
    # It is mostly a copy of the candidates.
    assert temporary_bytes(solve, jax.random.key(0), *shapes) < 2**26


@pytest.mark.parametrize("is_private", [False, True])
def test_derivatives_against_finite_differences(is_private):
    with jax.enable_x64(True):
        features = jax.random.normal(jax.random.key(3), (30, 2), jnp.float64)
        noise = jax.random.t(jax.random.key(4), 2.0, (30,), jnp.float64)
        optimum = jnp.array([1.0, 2.0])
        data = features, features @ optimum + noise

        @jax.jit
        def fn(hyperparameters):
            rate, scale = hyperparameters
            options = {"learning_rate": rate, "num_steps": 4}
            options["estimator"] = SmoothedTruncation(2.0 if is_private else scale)
            solver = solvers.robust_gradient_descent
            if is_private:
                solver = solvers.dp_gradient_descent
                options |= {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-5}
            params = solver(squared, jnp.zeros(2), data, **options).params
            return jnp.sum((params - optimum) ** 2)

        point, step = jnp.array([0.3, 2.0]), 1e-5
        forward = jax.jit(jax.jacfwd(fn))(point)
        reverse = jax.jit(jax.grad(fn))(point)
        moves = step * jnp.eye(2)
        numeric = [(fn(point + x) - fn(point - x)) / (2 * step) for x in moves]
    np.testing.assert_allclose(forward, reverse, rtol=1e-9)
    # Central differences: an error of step^2 times the third derivative.
    np.testing.assert_allclose(reverse, numeric, rtol=1e-6, atol=1e-9)


def saved_run(folder, **options):
    return test_checkpoint.descent(checkpoint=Checkpoint(folder, 2), **options).params


def test_a_checkpoint_is_of_one_process_at_a_time(tmp_path):
    refused = []

    def second(step, params):
        del params
        with pytest.raises(ValueError, match="that no other process has open"):
            saved_run(tmp_path / "states", data=make_data(seed=1))
        refused.append(step)

    first = saved_run(tmp_path / "states", callback=second)
    assert refused == list(range(1, T + 1))
    # Once it has ended, whoever asks for the same gets it.
    np.testing.assert_array_equal(saved_run(tmp_path / "states"), first)


def test_a_state_of_another_environment_is_refused(tmp_path, monkeypatch):
    with pytest.raises(KilledError):
        saved_run(tmp_path, callback=kill_at(4))
    read = Path.read_text

    def of_another_processor(path, *args, **options):
        text = read(path, *args, **options)
        return text + "flags\t: avx1024\n" if str(path) == "/proc/cpuinfo" else text

    for is_flag in (True, False):
        with monkeypatch.context() as patch:
            if is_flag:
                patch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
            else:
                patch.setattr(Path, "read_text", of_another_processor)
                patch.setattr("platform.processor", lambda: "avx1024")
            with pytest.raises(ValueError, match="it is of another compiler or device"):
                saved_run(tmp_path)
    for setting in (
        partial(jax.enable_x64, True),
        partial(jax.threefry_partitionable, False),
        partial(jax.default_matmul_precision, "highest"),
    ):
        with setting(), pytest.raises(ValueError, match="another program"):
            saved_run(tmp_path)
    resumed, whole = saved_run(tmp_path), saved_run(tmp_path / "to the end")
    np.testing.assert_array_equal(resumed, whole)


def test_a_state_of_another_generator_is_refused(tmp_path):
    # The words of both keys are the same.
    with pytest.raises(KilledError):
        saved_run(tmp_path, impl="rbg", callback=kill_at(4))
    with pytest.raises(ValueError, match="it is of another program"):
        saved_run(tmp_path, impl="unsafe_rbg")
