"""States that are taken up by another process, or in another environment."""

import textwrap
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from dpjax.solvers import Checkpoint
from tests.parties import run_processes
from tests.unit.solvers import test_checkpoint
from tests.unit.solvers.test_checkpoint import KilledError, T, kill_at, make_data


def descent(folder, *, every=2, sign=1.0, **options):
    features, targets = make_data()
    options["checkpoint"] = Checkpoint(folder, every)
    return test_checkpoint.descent(data=(features, sign * targets), **options).params


def test_a_folder_belongs_to_its_run_before_the_first_save(tmp_path):
    # Steps 1 to 3 have been shown. On other data the same noise would be drawn, and
    # the difference of both would have none.
    with pytest.raises(KilledError):
        descent(tmp_path, every=5, callback=kill_at(3))
    for other in ({"sign": -1.0}, {"epsilon": 2.0}, {"num_steps": T + 1}):
        with pytest.raises(ValueError, match="checkpoint must be of the same run"):
            descent(tmp_path, every=5, **other)
    # Another interval draws the same noise.
    expected = descent(tmp_path / "to the end")
    np.testing.assert_array_equal(descent(tmp_path, every=1), expected)


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


def test_another_environment_rounds_otherwise(tmp_path, monkeypatch):
    with pytest.raises(KilledError):
        descent(tmp_path, callback=kill_at(4))
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
            with pytest.raises(ValueError, match="another compiler or device was sav"):
                descent(tmp_path)
    for setting in (
        partial(jax.enable_x64, True),
        partial(jax.threefry_partitionable, False),
        partial(jax.default_matmul_precision, "highest"),
    ):
        with setting(), pytest.raises(ValueError, match="another program"):
            descent(tmp_path)
    np.testing.assert_array_equal(descent(tmp_path), descent(tmp_path / "to the end"))


def test_another_generator_is_another_run(tmp_path):
    # The words of both keys are the same.
    with pytest.raises(KilledError):
        descent(tmp_path, impl="rbg", callback=kill_at(4))
    with pytest.raises(ValueError, match="another program was saved"):
        descent(tmp_path, impl="unsafe_rbg")


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


def test_a_process_that_is_killed_and_a_disk_that_fills(tmp_path):
    command = ["-c", textwrap.dedent(PROCESS)]
    run = partial(run_processes, environments=[{"PYTHONHASHSEED": "random"}])
    for fault, saved in (("kill", "4"), ("full disk", "2")):
        folder = tmp_path / fault
        (code,), _, (out,), err = run([[*command, fault, folder]])
        assert code != 0
        assert not out
        if fault == "full disk":
            assert "File too large" in err or "ENOSPC" in err
        states = [p.name for p in folder.iterdir() if p.name.isdigit()]
        assert states == [saved], (fault, states, err)
    names = "kill", "full disk", "to the end"
    (code,), _, (out,), err = run([[*command, "none", *(tmp_path / x for x in names)]])
    assert code == 0, err
    *after_faults, expected = out.split()
    assert after_faults == [expected, expected]
