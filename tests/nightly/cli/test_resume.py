"""`dpjax train --checkpoint`: a process that is killed, and resumed."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.unit.cli.command import done, invoke


def command(output, checkpoint):
    words = ["train", "rand-hie", "--epsilon", "1", "--model", "linear"]
    return [*words, "--output", str(output), "--checkpoint", str(checkpoint)]


@contextlib.contextmanager
def started(output, checkpoint):
    """Yields a process of the command; it does not outlive the test."""
    with subprocess.Popen(
        [sys.executable, "-m", "dpjax", *command(output, checkpoint)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_killed_and_resumed(tmp_path):
    kept, output, other = (tmp_path / name for name in ("kept", "out", "other"))
    with started(output, kept) as process:
        while not any(path.name.isdigit() for path in kept.glob("states/*")):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL, process.stderr.read()
    assert not output.exists()
    assert kept.stat().st_mode & 0o777 == 0o700

    # With the same key from the first step on: what the run would have been.
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(kept / "key.npz", copy)
    with started(output, kept) as resumed, started(other, copy) as untouched:
        for process in (resumed, untouched):
            _, shown = process.communicate()
            assert process.returncode == 0, shown
    models = [(folder / "model.npz").read_bytes() for folder in (output, other)]
    assert models[0] == models[1]  # bit for bit
    reports = [(folder / "report.json").read_text() for folder in (output, other)]
    assert reports[0] == reports[1]
    assert json.loads(reports[0])["privacy"]["epsilon"] == pytest.approx(1.0)
    assert not kept.exists()  # nobody can find the key, and subtract the noise
    assert not copy.exists()


@pytest.mark.parametrize("name", ["key.npz", "paid.npz"])
def test_killed_while_a_file_was_written(tmp_path, name):
    kept, output = tmp_path / "kept", tmp_path / "out"
    kept.mkdir()
    (kept / f".{name}.7.part").write_bytes(b"the first half of")
    done(invoke(*command(output, kept)))
    assert not kept.exists()
