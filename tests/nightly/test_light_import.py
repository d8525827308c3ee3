"""An import takes what is needed, and nothing else."""

import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from tests.unit.models import test_model

EXTRAS = {"typer", "rich", "matplotlib", "polars", "flax", "onnx", "orbax", "pytest"}
EXTRAS |= {"cryptography", "grain", "jax_privacy", "pandas", "pyarrow", "sklearn"}
# Before what runs without the extras of the wing for tables.
MISSING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("matplotlib", "polars", "rich", "typer"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
"""


def run(script):
    command = [sys.executable, "-W", "error", "-c", script]
    return subprocess.run(command, capture_output=True, text=True)


def loaded_by(script):
    script += "\nimport sys\nprint(*{name.split('.')[0] for name in sys.modules})"
    result = run(script)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.splitlines()[-1].split())


def test_import_needs_no_extras():
    loaded = loaded_by("""
import dpjax
read = [getattr(dpjax, name) for name in dpjax.__all__]
for one in read:
    read += [getattr(one, name) for name in getattr(one, "__all__", ())]
""")
    assert not loaded & EXTRAS
    assert {"jax", "optax", "dp_accounting"} <= loaded


def test_the_library_needs_no_packages_of_the_wing_for_tables(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4.0))
    result = run(f"{MISSING}\nimport dpjax.tables.cli\ndpjax.tables.cli.main()")
    assert (result.returncode, result.stdout) == (2, "")
    assert 'install with pip install "dpjax[experiments]"' in result.stderr
    assert "Traceback" not in result.stderr
    loaded_by(f"""{MISSING}
import jax
import dpjax
for name in dpjax.__all__:
    module = getattr(dpjax, name)
    assert all(hasattr(module, name) for name in getattr(module, "__all__", ()))
source = dpjax.loading.MemoryMapped({str(tmp_path / "x.npy")!r})
assert source[1:3].tolist() == [1.0, 2.0]
features, targets = dpjax.datasets.load("adult").train
solution = dpjax.solvers.dp_linear_model(
    dpjax.losses.logistic, (features[:500], targets[:500]), key=jax.random.key(0),
    epsilon=1.0, delta=1e-5, intercept=-1,
)
assert solution.params.shape == (105,)
""")


@pytest.mark.parametrize("arguments", ["--help", "train --help", "train x --epsilon 0"])
def test_what_runs_nothing_does_not_wait_for_jax(arguments):
    loaded = loaded_by(f"""
import contextlib, sys
from dpjax.tables.cli import main
sys.argv = ["dpjax", *{arguments.split()}]
with contextlib.suppress(SystemExit):
    main()
""")
    heavy = {"jax", "optax", "dp_accounting", "scipy", "matplotlib", "polars"}
    assert "typer" in loaded
    assert not loaded & heavy


def test_a_model_is_served_by_numpy_alone(tmp_path, monkeypatch):
    content = test_model.model_file(test_model.model(params=test_model.BENT))
    path = test_model.save(tmp_path, content)
    monkeypatch.chdir(tmp_path)
    pl.DataFrame(test_model.TABLE).write_csv("new.csv")
    loaded_by(f"""
import sys
import numpy as np
import dpjax
from dpjax.tables.cli import main

slow = {{"jax", "dp_accounting", "scipy", "optax"}}
table = {{"rooms": np.array([6.0, np.nan]), "town": np.array(["Ghent", "x"])}}
made = dpjax.load_model({str(path)!r})
assert made.predict(table).tolist() == [700, 350], made.predict(table)
assert not slow & {{*sys.modules}}, "predict"
sys.argv = ["dpjax", "predict", {str(path)!r}, "new.csv"]
try:
    main()
except SystemExit as stop:
    assert not stop.code
assert not slow & {{*sys.modules}}, "dpjax predict"
assert type(made.params).__name__ == "Curves"  # for which JAX is needed
assert made.privacy.relation is dpjax.REPLACE_ONE
""")
    lines = (tmp_path / "predictions.csv").read_text().splitlines()
    assert lines[1:3] == ["700", "350"]
