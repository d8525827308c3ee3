"""`dpjax audit`: what it prints, its plot, its exit codes."""

import dataclasses
import re

import jax
import pytest
from typer.testing import CliRunner

from dpjax.audit import _mechanisms, _private_scores, _solvers, _transforms
from dpjax.audit._shared import Case, cases
from dpjax.cli import _audit
from dpjax.cli._app import app

PNG = b"\x89PNG"


def run(*arguments):
    result = CliRunner().invoke(app, ["audit", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def words(text):
    return " ".join(text.split())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refuse_claims(monkeypatch):
    """Makes the case of Laplace noise move twice as far as it claims."""
    case = cases()["laplace"]

    def release(key, value):
        return case.release(key, jax.tree.map(lambda x: 2 * x, value))

    faulty = dataclasses.replace(case, release=release)
    monkeypatch.setattr(_audit, "cases", lambda: {"laplace": faulty})


def test_every_layer_has_its_cases():
    parts = _mechanisms, _transforms, _solvers, _private_scores
    layers = [part.BUILDERS for part in parts]
    assert len(cases()) == sum(map(len, layers))  # no name hides another
    assert "laplace" in cases()
    assert "nothing" not in cases()
    assert cases()["laplace"].name == "laplace"


@pytest.mark.parametrize("arguments", [(), ("list",)])
def test_names(arguments, folder):
    result = run(*arguments)
    assert result.exit_code == 0
    assert result.stdout.split() == list(cases())
    assert not list(folder.iterdir())


def test_a_claim_that_stands(folder):
    result = run("laplace", "--releases", 20_000)
    assert result.exit_code == 0
    text = words(result.stdout)
    assert "laplace: claims epsilon = 1 at delta = 0, replace_one" in text
    assert re.search(r"An attack proves epsilon >= 0\.[6-9]", text)
    assert "with confidence 1 - 1e-06, from 20,000 releases" in text
    assert "REFUTED" not in text
    path = folder / "dpjax-output" / "laplace-audit.png"
    assert path.read_bytes().startswith(PNG)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_claim_that_is_refuted(folder, monkeypatch):
    refuse_claims(monkeypatch)
    (folder / "plot.png").write_text("of an earlier run")
    result = run("laplace", "--releases", 20_000, "--output", "plot.png")
    assert result.exit_code == 1
    assert "REFUTED" in result.stdout
    assert (folder / "plot.png").read_bytes().startswith(PNG)
    assert [p.name for p in folder.iterdir()] == ["plot.png"]


def test_gaussian_claims_are_a_curve(folder):
    first = run("gaussian", "--releases", 20_000, "--seed", 1)
    other = run("gaussian", "--releases", 20_000, "--seed", 2)
    assert first.stdout != other.stdout
    assert "claims epsilon = 1 at delta = 1e-05" in words(first.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "METHOD must be list, or one of gaussian, laplace,"),
        (("laplace", "--releases", 99), "--releases must be at least 100, got 99"),
        (("laplace", "--releases", "x"), "must be a whole number, got 'x'"),
        (("laplace", "--seed", -1), "--seed must be from 0 to 2^32 - 1, got -1"),
        (("laplace", "--output", "plot.pdf"), "--output must be a file that ends in"),
        (("laplace", "--output", "file/plot.png"), "--output must be a file that"),
    ],
)
def test_bad_arguments(arguments, message, folder):
    (folder / "file").write_text("")
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in words(result.stderr.replace("│", " "))
    assert [p.name for p in folder.iterdir()] == ["file"]


def test_a_plot_that_cannot_be_written_leaves_nothing(folder, monkeypatch):
    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr("os.replace", fail)
    (folder / "plot.png").write_text("of an earlier run")
    result = run("laplace", "--releases", 1000, "--output", "plot.png")
    assert result.exit_code == 2
    assert "--output plot.png could not be written to: no space" in result.stderr
    assert (folder / "plot.png").read_text() == "of an earlier run"
    assert [p.name for p in folder.iterdir()] == ["plot.png"]


def test_a_claim_is_rounded_up_and_a_bound_down(folder, monkeypatch):
    class Rounded(Case):
        def audit(self, **options):
            found = super().audit(**options)
            return dataclasses.replace(found, epsilon=0.69997, confidence=0.9984)

    case = cases()["laplace"]
    fields = {one.name: getattr(case, one.name) for one in dataclasses.fields(case)}
    privacy = dataclasses.replace(case.privacy, epsilon=1.00001, delta=1.2345612e-5)
    case = Rounded(**fields | {"privacy": privacy})
    monkeypatch.setattr(_audit, "cases", lambda: {"laplace": case})
    result = run("laplace", "--releases", 1000)
    text = words(result.stdout)
    assert "claims epsilon = 1.001 at delta = 1.23457e-05," in text
    assert "epsilon >= 0.6999, with confidence 1 - 0.002, from 1,000" in text
