"""Every notebook runs from top to bottom; what it shows was made by the same code."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# What a notebook takes as a sign to do little of each thing.
QUICK = "DPJAX_NOTEBOOK_QUICK"
UNOPTIMIZED = "JAX_DISABLE_MOST_OPTIMIZATIONS"
# The folders in which a user's or a machine's own files lie.
MACHINE_PATH = re.compile(
    r"(?<![\w.])/(home|root|Users|tmp|work|mnt|opt|usr|var|private)/|[A-Z]:\\\\?Users"
)


def code_cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def texts(output):
    """What an output shows in words; pictures aside."""
    data, shown = output.get("data", {}), [output.get("text", "")]
    shown += [data[kind] for kind in data if kind.startswith("text/")]
    return [one if isinstance(one, str) else "".join(one) for one in shown]


@each_notebook
def test_what_a_notebook_shows_was_made_from_top_to_bottom(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    heading, *text = "".join(notebook["cells"][0]["source"]).splitlines()
    assert notebook["cells"][0]["cell_type"] == "markdown"
    assert heading.startswith("# ")
    assert "".join(text).startswith("You will be able to ")
    cells = code_cells(path)
    counts = [cell["execution_count"] for cell in cells]
    assert counts == list(range(1, len(counts) + 1)), "commit notebooks executed"
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs
    for output in outputs:
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr"
    shown = [text for output in outputs for text in texts(output)]
    assert [text for text in shown if MACHINE_PATH.search(text)] == []
    assert {*notebook["metadata"]} <= {"kernelspec", "language_info"}
    assert [cell["metadata"] for cell in notebook["cells"] if cell["metadata"]] == []


def test_notebooks_are_small_and_a_machine_path_is_seen():
    assert 0 < sum(path.stat().st_size for path in NOTEBOOKS) < 700_000
    seen = "File /home/ann/x.py", "at /tmp/ipykernel_1/2.py:3", "C:\\Users\\ann"
    for text in (*seen, "1/2", "a/home/b", "see dpjax/GUARANTEES.md"):
        assert bool(MACHINE_PATH.search(text)) == (text in seen)


def lines_of(text):
    """The lines that a text has, whatever their numbers."""
    masked = re.sub(r"-?\b(\d[\d,.e+-]*|nan|inf)\b", "#", text)
    masked = re.sub(r"[\[# \]]*#[\[# \]]*", " # ", masked)
    return {" ".join(line.split()) for line in masked.splitlines()} - {""}


@each_notebook
def test_notebook_runs_and_prints_what_is_kept(path):
    sources = ["".join(cell["source"]) for cell in code_cells(path)]
    assert f'quick = "{QUICK}" in os.environ' in sources[0]
    # A reader's settings of JAX; not optimized, since no numbers are compared.
    script = "import matplotlib; matplotlib.use('Agg')\n" + "\n".join(sources)
    command = [sys.executable, "-c", script]
    env = os.environ | {QUICK: "1", "XLA_FLAGS": "", UNOPTIMIZED: "1"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert run.returncode == 0, run.stderr
    outputs = [output for cell in code_cells(path) for output in cell["outputs"]]
    shown = "".join(one for out in outputs if "name" in out for one in texts(out))
    assert set() < lines_of(run.stdout) <= lines_of(shown)
