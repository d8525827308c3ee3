"""`python -m benchmarks audit`: what it prints, its plot, its exit codes."""

import dataclasses
import re

import jax
import pytest

from benchmarks.__main__ import main
from benchmarks.audits import command
from benchmarks.audits.catalogue import cases

PNG = b"\x89PNG"


@pytest.fixture
def run(capsys):
    def of(*arguments):
        code = None
        try:
            main(["audit", *map(str, arguments)])
        except SystemExit as end:
            code = end.code
        printed = capsys.readouterr()
        return " ".join(printed.out.split()), code

    return of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_claim_that_stands(folder, run):
    assert run("list")[0].split() == list(cases())
    assert not list(folder.iterdir())
    text, code = run("laplace", "--releases", 20_000)
    assert code is None
    assert "laplace: claims epsilon = 1 at delta = 0, replace_one" in text
    assert re.search(r"An attack proves epsilon >= 0\.[6-9]", text)
    assert "with confidence 1 - 1e-06, from 20,000 releases" in text
    assert "REFUTED" not in text
    path = folder / "dpjax-output" / "laplace-audit.png"
    assert path.read_bytes().startswith(PNG)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_claim_that_is_refuted(folder, run, monkeypatch):
    case = cases()["laplace"]
    privacy = dataclasses.replace(case.privacy, epsilon=1.00001, delta=1.2345612e-5)

    def release(key, value):
        return case.release(key, jax.tree.map(lambda x: 2 * x, value))

    faulty = dataclasses.replace(case, release=release, privacy=privacy)
    monkeypatch.setattr(command, "cases", lambda: {"laplace": faulty})
    (folder / "plot.png").write_text("of an earlier run")
    text, code = run("laplace", "--releases", 20_000, "--output", "plot.png")
    assert code == 1
    assert "REFUTED" in text
    # A claim is rounded up, and a bound down.
    assert "claims epsilon = 1.001 at delta = 1.23457e-05," in text
    assert (folder / "plot.png").read_bytes().startswith(PNG)
    assert [p.name for p in folder.iterdir()] == ["plot.png"]
