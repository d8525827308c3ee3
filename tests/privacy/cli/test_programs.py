"""Compiled programs that the command keeps between runs hold no record and no key."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from jax._src import compilation_cache

from dpjax.tables.cli._app import main
from tests.unit.cli.conftest import SCHEMA

CELL, SEED = 7654321.25, 1234567891
CLOSED_OVER = f"""
import jax, numpy as np
jax.jit(lambda x: (x + {CELL}, x.astype("uint32") ^ {SEED}))(np.ones(64, "float32"))
"""


def holds(folder):
    """Returns whether programs of a folder hold the cell, and the seed's key."""
    entries = [path.read_bytes() for path in folder.rglob("*-cache")]
    assert entries
    programs = b"".join(map(compilation_cache.decompress_executable, entries))
    wanted = np.float32(CELL), np.float64(CELL), np.uint32(SEED)
    single, double, key = (x.tobytes() in programs for x in wanted)
    return single or double, key


@pytest.mark.parametrize("is_kept", [True, False])
def test_programs_are_kept_unless_the_user_says_no(monkeypatch, is_kept):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    main(cache=is_kept)
    assert os.environ.get("JAX_COMPILATION_CACHE_DIR", "").endswith("dpjax") == is_kept


def test_programs_hold_no_record_and_no_key(tmp_path):
    (tmp_path / "s.toml").write_text(SCHEMA)
    environment = {k: x for k, x in os.environ.items() if not k.startswith("JAX_")}
    kept = environment["XDG_CACHE_HOME"] = tmp_path / "kept"  # names depend on it
    rows, programs = [f"{x},{2 * x}" for x in np.linspace(-1, 1, 500)], []
    for name, cells in {"data": f"{CELL},{CELL}", "neighbor": "-0.5,"}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "t.csv").write_text("\n".join(["x,y", cells, *rows]))
        line = f"train {folder}/t.csv --schema {tmp_path}/s.toml --loss squared"
        line += f" --epsilon 1 --seed {SEED} --output {folder}/out"
        run = [sys.executable, "-m", "dpjax", *line.split()]
        subprocess.run(run, env=environment, check=True, capture_output=True)
        assert holds(kept) == (False, False)
        programs.append({path.name for path in kept.rglob("*-cache")})
        shutil.rmtree(kept)
    assert programs[0] == programs[1]  # their names are of public facts alone, too


def test_a_program_that_closes_over_them_is_seen(tmp_path):
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", CLOSED_OVER], env=environment, check=True)
    assert holds(tmp_path) == (True, True)
