"""A model is served by NumPy alone."""

import subprocess
import sys

import polars as pl

from dpjax.tables.models._model import model_file
from tests.unit.models.test_model import BENT, TABLE, model, save


def test_serving_imports_no_jax(tmp_path):
    path = save(tmp_path, model_file(model(params=BENT)))
    pl.DataFrame(TABLE).write_csv(tmp_path / "new.csv")
    script = f"""
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
"""
    command = [sys.executable, "-W", "error", "-c", script]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    lines = (tmp_path / "predictions.csv").read_text().splitlines()
    assert lines[1:3] == ["700", "350"]
