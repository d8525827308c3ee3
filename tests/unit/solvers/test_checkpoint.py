"""A run that is killed and taken up again releases the same, once."""

import dataclasses
import os
import subprocess
import sys
import textwrap
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import losses, solvers
from dpjax.batching import Poisson
from dpjax.estimators import SmoothedTruncation, TrimmedMean, Winsorization
from dpjax.solvers import Checkpoint, Execution
from tests import registry
from tests.unit.refusals import refused

N, D, T = 60, 3, 5


def make_data(seed=0):
    features = np.random.default_rng(seed).standard_t(3, (N, D))
    features = jnp.asarray(features, jnp.float32)
    return features, features[:, 0]


def descent(loss_fn=losses.squared, data=None, seed=1, **options):
    settings = {
        "epsilon": 1.0,
        "delta": 1e-3,
        "estimator": Winsorization(1.0),
        "learning_rate": 0.3,
        "num_steps": T,
    }
    return solvers.dp_gradient_descent(
        loss_fn,
        jnp.zeros(D),
        make_data() if data is None else data,
        key=jax.random.key(seed),
        **(settings | executed(options)),
    )


def executed(options):
    """Returns options of a solver, those of how it runs as one of them."""
    names = {field.name for field in dataclasses.fields(Execution)}
    how = {name: x for name, x in options.items() if name in names}
    others = {name: x for name, x in options.items() if name not in names}
    return others | {"execution": Execution(**how)}


def registered(name, **options):
    """A solver as it is registered, but for options, for data of three features."""
    return registry.released(
        name, make_data(), jax.random.key(1), 0, **executed(options)
    )


RUNS = {
    "dp_gradient_descent": descent,
    "smoothed truncation": partial(descent, estimator=SmoothedTruncation(1.0)),
    "averaging, Poisson": partial(descent, averaging=True, batching=Poisson(20)),
    "trimmed mean": partial(descent, estimator=TrimmedMean(0.1, -9.0, 9.0)),
    "dp_linear_model, features chosen": partial(
        registered, "dp_linear_model", max_features=2
    ),
    **{
        name: partial(registered, name)
        for name in (
            *("dp_frank_wolfe", "dp_lasso", "dp_linear_model"),
            *("dp_iterative_hard_thresholding", "dp_sparse_linear_regression"),
            "robust_gradient_descent",
        )
    },
}


class KilledError(Exception):
    """Stands for the end of the process."""


def kill_at(step):
    def callback(now, params):
        if now == step:
            raise KilledError

    return callback


def assert_same(solution, expected):
    assert solution.privacy == expected.privacy
    assert jax.tree.structure(solution.stats) == jax.tree.structure(expected.stats)
    chex.assert_trees_all_equal(
        (solution.params, dict(solution.stats)), (expected.params, dict(expected.stats))
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if "linear_model" in name else ())
        for name in RUNS
    ],
)
def test_a_killed_run_goes_on_to_the_same_release(name, tmp_path):
    run = RUNS[name]
    whole = run(checkpoint=Checkpoint(tmp_path / "whole", 2))
    again = Checkpoint(tmp_path / "killed", 2)
    with pytest.raises(KilledError):
        run(checkpoint=again, callback=kill_at(3))
    assert_same(run(checkpoint=again), whole)
    np.testing.assert_allclose(whole.params, run().params, rtol=1e-5, atol=1e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("step", range(1, T + 1))
@pytest.mark.parametrize("every", [1, 2])
def test_killed_at_any_step(step, every, tmp_path):
    seen, of_whole = {}, {}

    def run(name, callback):
        return descent(checkpoint=Checkpoint(tmp_path / name, every), callback=callback)

    whole = run("whole", lambda i, w: of_whole.update({i: w}))
    with pytest.raises(KilledError):
        run("killed", kill_at(step))
    assert_same(run("killed", lambda i, w: seen.update({i: w})), whole)
    # It went on where it was saved. A step is shown before it is saved: the one that
    # the kill came in is shown again, and none is left out.
    saved = (step - 1) - (step - 1) % every
    assert list(seen) == list(range(saved + 1, T + 1))
    for i, params in seen.items():  # drawn once: the same noise, no other
        np.testing.assert_array_equal(params, of_whole[i])


def test_watches_the_same_steps_with_and_without(tmp_path):
    def steps(**options):
        seen = []
        descent(
            callback=lambda step, _: seen.append(int(step)), callback_every=2, **options
        )
        jax.effects_barrier()
        return sorted(seen)

    assert steps() == steps(checkpoint=Checkpoint(tmp_path, 3)) == [2, 4, 5]


def weighted(weights):
    return lambda params, example: losses.squared(params * weights, example)


WEIGHTS = np.ones(D, np.float32)
OTHERS = {
    "data": {"data": make_data(2)},
    "key": {"seed": 2},
    "noise_multiplier": {"epsilon": 2.0},
    "learning_rate": {"learning_rate": 0.2},
    "estimator": {"estimator": Winsorization(2.0)},
    "program, estimator type": {"estimator": SmoothedTruncation(1.0)},
    "program, loss": {"loss_fn": losses.absolute},
    "program, constant of the loss": {"loss_fn": weighted(2 * WEIGHTS)},
    "program, batching": {"batching": Poisson(20)},
    "program, schedule": {"learning_rate": optax.constant_schedule(0.3)},
    "program, averaging": {"averaging": True},
    "program, steps": {"num_steps": T + 1},
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", OTHERS)
def test_refuses_the_state_of_another_run(name, tmp_path):
    run = partial(descent, checkpoint=Checkpoint(tmp_path / "mine", 2))
    run = partial(run, loss_fn=weighted(WEIGHTS))
    with pytest.raises(KilledError):
        run(callback=kill_at(3))
    rule = f"checkpoint must be of the same run .*another {name.split(',')[0]}"
    with pytest.raises(ValueError, match=rule):
        run(**OTHERS[name])
    whole = run(checkpoint=Checkpoint(tmp_path / "whole", 2))
    assert_same(run(), whole)  # what was saved is still whole


def test_one_bit_of_one_record_is_another_run(tmp_path):
    features, targets = make_data()
    checkpoint = Checkpoint(tmp_path, 2)
    descent(data=(features, targets), checkpoint=checkpoint)
    other = features.at[7, 1].set(np.nextafter(np.float32(features[7, 1]), 9))
    with pytest.raises(ValueError, match="another data was saved"):
        descent(data=(other, targets), checkpoint=checkpoint)
    zeros = jnp.zeros_like(targets)
    descent(data=(features, zeros), checkpoint=Checkpoint(tmp_path / "zeros"))
    with pytest.raises(ValueError, match="another data was saved"):
        descent(data=(features, -zeros), checkpoint=Checkpoint(tmp_path / "zeros"))


def test_only_its_owner_may_read_it(tmp_path):
    folder = tmp_path / "states"
    folder.mkdir(mode=0o755)
    descent(checkpoint=Checkpoint(folder))
    assert folder.stat().st_mode & 0o777 == 0o700


def test_one_state_is_kept(tmp_path):
    descent(checkpoint=Checkpoint(tmp_path, 1))
    assert [path.name for path in tmp_path.iterdir()] == [str(T)]


test_refuses_what_is_no_checkpoint = refused(
    lambda checkpoint: descent(checkpoint=checkpoint),
    ("folder", r"checkpoint must be a Checkpoint\(folder, every\), got 'folder'"),
    (Checkpoint(3), "checkpoint must be a Checkpoint"),
    (Checkpoint("folder", 0), "every must be"),
    (
        Checkpoint(__file__),
        "checkpoint must be a folder that can be written to, or made, got",
    ),
)


def test_refuses_a_path_that_can_be_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = sorted(os.listdir(tmp_path))
    for folder in ("file/x", "link", "link/x", "loop"):
        with pytest.raises(ValueError, match="checkpoint must be a folder that can"):
            descent(checkpoint=Checkpoint(tmp_path / folder))
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("year", ["0", "3", "2019"])
def test_refuses_a_folder_of_something_else(year, tmp_path):
    (tmp_path / year).mkdir()
    (tmp_path / year / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="checkpoint must be a folder of one run's"):
        descent(checkpoint=Checkpoint(tmp_path, 1))
    assert [path.name for path in tmp_path.rglob("*")] == [year, "thesis.tex"]


def test_refuses_to_be_traced(tmp_path):
    @jax.jit
    def traced(data):
        return descent(data=data, checkpoint=Checkpoint(tmp_path / "states")).params

    with pytest.raises(ValueError, match="checkpoint must be None under jit"):
        traced(make_data())
    assert not (tmp_path / "states").exists()


PROCESS = """
    import os, resource, signal, sys
    import jax, jax.numpy as jnp
    from dpjax import losses, solvers
    from dpjax.estimators import Winsorization
    from dpjax.solvers import Checkpoint, Execution

    fault, *folders = sys.argv[1:]

    def watch(step, params):
        if fault == "kill" and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "full disk" and step == 3:  # the state of step 4 has no room
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))

    data = jax.random.t(jax.random.key(0), 3.0, (50, 200)), jnp.ones(50)
    for folder in folders:
        solution = solvers.dp_gradient_descent(
            losses.squared, jnp.zeros(200), data, key=jax.random.key(1), epsilon=1.0,
            delta=1e-3, estimator=Winsorization(1.0), learning_rate=0.3, num_steps=6,
            execution=Execution(
                callback=watch, checkpoint=Checkpoint(folder, every=2)))
        print(solution.params.tobytes().hex())
"""


def in_a_process(fault, *folders):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROCESS), fault, *map(str, folders)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONHASHSEED": "random"},
        timeout=300,
    )


@pytest.mark.slow
def test_a_process_that_is_killed_and_a_disk_that_fills(tmp_path):
    for fault, saved in (("kill", "4"), ("full disk", "2")):
        folder = tmp_path / fault
        stopped = in_a_process(fault, folder)
        assert stopped.returncode != 0
        assert not stopped.stdout
        if fault == "full disk":
            assert "File too large" in stopped.stderr or "ENOSPC" in stopped.stderr
        states = [p.name for p in folder.iterdir() if p.name.isdigit()]
        assert states == [saved], (fault, states, stopped.stderr)
    names = "kill", "full disk", "whole"
    resumed = in_a_process("none", *(tmp_path / name for name in names))
    assert resumed.returncode == 0, resumed.stderr
    *found, whole = resumed.stdout.split()
    assert found == [whole, whole]
