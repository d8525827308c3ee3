"""States that are taken up by another process, or in another environment."""

import os
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import losses, solvers
from dpjax.estimators import Winsorization
from dpjax.solvers import Checkpoint, Execution
from tests.unit.solvers.test_checkpoint import KilledError, kill_at

T = 6


def descent(
    folder,
    *,
    every=2,
    sign=1.0,
    implementation="threefry2x32",
    callback=None,
    **options,
):
    features = np.random.default_rng(0).standard_t(3, (40, 3)).astype(np.float32)
    settings = {"num_steps": T, "epsilon": 1.0}
    return solvers.dp_gradient_descent(
        losses.squared,
        jnp.zeros(3, jnp.float32),
        (jnp.asarray(features), jnp.asarray(sign * features[:, 0])),
        key=jax.random.key(1, impl=implementation),
        delta=1e-3,
        estimator=Winsorization(1.0),
        learning_rate=0.3,
        execution=Execution(callback=callback, checkpoint=Checkpoint(folder, every)),
        **(settings | options),
    ).params


def test_a_folder_belongs_to_its_run_before_the_first_save(tmp_path):
    # Steps 1 to 3 have been shown. On other data the same noise would be drawn, and
    # the difference of both would have none.
    with pytest.raises(KilledError):
        descent(tmp_path, every=5, callback=kill_at(3))
    for other in ({"sign": -1.0}, {"epsilon": 2.0}, {"num_steps": T + 1}):
        with pytest.raises(ValueError, match="checkpoint must be of the same run"):
            descent(tmp_path, every=5, **other)
    whole = descent(tmp_path / "whole")
    np.testing.assert_array_equal(descent(tmp_path, every=5), whole)


def test_one_process_at_a_time(tmp_path):
    refused = []

    def second(step, params):
        del params
        with pytest.raises(ValueError, match="that no other process has open"):
            descent(tmp_path / "states", sign=-1.0)
        refused.append(step)

    first = descent(tmp_path / "states", callback=second)
    assert refused == list(range(1, T + 1))
    # Once it has ended, whoever asks for the same gets it.
    np.testing.assert_array_equal(descent(tmp_path / "states"), first)


def with_flags(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")


def with_another_processor(monkeypatch):
    read = Path.read_text

    def read_text(path, *args, **options):
        found = read(path, *args, **options)
        return found + "flags\t: avx1024\n" if str(path) == "/proc/cpuinfo" else found

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr("platform.processor", lambda: "avx1024")


@pytest.mark.parametrize("change", [with_flags, with_another_processor])
def test_another_compiler_or_processor_rounds_otherwise(change, tmp_path, monkeypatch):
    with pytest.raises(KilledError):
        descent(tmp_path, callback=kill_at(4))
    with monkeypatch.context() as context:
        change(context)
        with pytest.raises(ValueError, match="another compiler or device was saved"):
            descent(tmp_path)
    np.testing.assert_array_equal(descent(tmp_path), descent(tmp_path / "whole"))


@pytest.mark.parametrize(
    "setting",
    [
        partial(jax.enable_x64, True),
        partial(jax.threefry_partitionable, False),
        partial(jax.default_matmul_precision, "highest"),
    ],
    ids=["float64", "bits that do not split", "precision"],
)
def test_another_setting_of_jax_is_another_run(setting, tmp_path):
    with pytest.raises(KilledError):
        descent(tmp_path, callback=kill_at(4))
    with setting(), pytest.raises(ValueError, match="another program"):
        descent(tmp_path)


def test_another_generator_is_another_run(tmp_path):
    # The words of both keys are the same.
    with pytest.raises(KilledError):
        descent(tmp_path, implementation="rbg", callback=kill_at(4))
    with pytest.raises(ValueError, match="another program was saved"):
        descent(tmp_path, implementation="unsafe_rbg")


def test_other_intervals_draw_the_same_noise(tmp_path):
    with pytest.raises(KilledError):
        descent(tmp_path, callback=kill_at(4))
    whole = descent(tmp_path / "whole")
    np.testing.assert_array_equal(descent(tmp_path, every=1), whole)


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
    names = "kill", "full disk", "to the end"
    resumed = in_a_process("none", *(tmp_path / name for name in names))
    assert resumed.returncode == 0, resumed.stderr
    *after_faults, expected = resumed.stdout.split()
    assert after_faults == [expected, expected]
