"""README: short, its links lead somewhere, its examples run word for word."""

import re
import shlex
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.unit.cli.command import done, invoke, words_of

README = Path(__file__).parents[2] / "README.md"


def run_example(heading):
    section = README.read_text().split(f"## {heading}\n")[1]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)
    names = {}
    # optax itself mixes dtypes: adam's count is an int32.
    with jax.numpy_dtype_promotion("standard"):
        exec(compile(code, "README.md", "exec"), names)
    return names


def test_links_lead_somewhere():
    if not (README.parent / "docs").exists():
        pytest.skip("the pages are not part of what is tested")
    text = README.read_text()
    assert text.count("\n") < 150
    targets = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", text)
    for target in (one or other for one, other in targets):
        file, _, anchor = target.partition("#")
        assert (README.parent / file).exists(), target
        if anchor:
            lines = (README.parent / file).read_text().lower().splitlines()
            assert f"## {anchor.replace('-', ' ')}" in lines, target


def test_the_model_of_a_table_has_little_loss(capsys):
    names = run_example("A table")
    assert "at most e^1 = 2.72" in capsys.readouterr().out.replace("\n", " ")
    features, labels = map(np.asarray, names["data"])
    params = np.asarray(names["solution"].params)
    margins = features @ params * np.where(labels > 0, 1, -1)
    assert np.logaddexp(0, -margins).mean() < 0.33  # 0.32 without privacy


def test_commands_of_a_table_print_what_is_shown(tmp_path, monkeypatch):
    section = README.read_text().split("## A table\n")[1]
    code = re.search(r"```sh\ntable=(\S+)\n(.*?)```", section, re.DOTALL)
    table, lines = README.parent / code[1], code[2].replace("\\\n", " ")
    monkeypatch.chdir(tmp_path)
    printed = ""
    for line in lines.replace("$table", str(table)).splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "dpjax"
        printed += words_of(done(invoke(*arguments)).output) + " "
    for name in ("out/model.npz", "out/report.html", "predictions.csv", "model.sql"):
        assert (tmp_path / name).stat().st_size > 0
    assert words_of(re.search(r"```text\n(.*?)\n│", section, re.DOTALL)[1]) in printed
    for measure in ("median of the absolute", "90th percentile of the"):
        assert measure in printed


def test_the_loop_learns(capsys):
    names = run_example("A loop")
    # It learned: of the distance from zero, less than a tenth is left.
    error = np.asarray(names["params"]) - np.arange(5.0)
    assert np.linalg.norm(error) < np.linalg.norm(np.arange(5.0)) / 10
    printed = capsys.readouterr().out.replace("\n", " ")
    assert "any one of the 10,000 rows" in printed
    assert "at most e^1 = 2.72" in printed
