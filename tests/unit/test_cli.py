"""`dpjax train`: runs from end to end."""

import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from dpjax import load_model
from tests.unit.cli.command import done, refused
from tests.unit.cli.rooms import (
    FEATURES,
    options,
    params_of,
    read_report,
    run,
    write_rooms,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a file of 40 records and its schemas."""
    monkeypatch.chdir(tmp_path)
    return write_rooms(tmp_path)


@pytest.mark.slow
def test_dashes_in_a_name(folder):
    done(run("rand-hie", "--epsilon", 1, "--model", "linear"))
    # The linear model is what was asked for: it is compared with no other private one.
    assert len(read_report(folder / "dpjax-output" / "rand_hie")["comparison"]) == 3


def as_parquet(folder):
    frame = pl.read_csv(folder / "data.csv")
    frame.write_parquet(folder / "data.parquet")
    return "data.parquet"


def as_npz(folder):
    frame = pl.read_csv(folder / "data.csv")
    columns = {name: np.array(frame[name].to_list()) for name in frame.columns}
    np.savez(folder / "data.npz", **columns)
    return "data.npz"


@pytest.mark.slow
def test_every_kind_of_file_gives_the_same_model(folder):
    models = []
    for name in ("data.csv", as_parquet(folder), as_npz(folder)):
        done(run(name, *options(seed=1)))
        models.append(params_of(folder))
    assert np.array_equal(models[0], models[1])
    assert np.array_equal(models[0], models[2])


def test_a_file_shows_protected_numbers_only(folder):
    result = done(run("data.csv", *options()))
    assert {path.name for path in (folder / "out").iterdir()} == {
        "model.npz",
        "report.json",
    }
    report = read_report(folder / "out")
    assert set(report) == {
        *("dpjax", "data", "is_public", "num_samples", "num_test_samples"),
        *("num_features", "feature_names", "target_unit", "method", "loss"),
        *("arguments", "stats", "privacy"),
    }
    assert report["num_samples"] == 40
    assert report["feature_names"] == FEATURES
    assert report["target_unit"] == "price / 100"
    assert set(report["privacy"]) == {
        *("epsilon", "delta", "relation", "description", "noise_key")
    }
    assert report["arguments"] == {"power": None}
    assert {"noise_multiplier", "num_steps"} <= set(report["stats"])
    assert "risk" not in result.stdout.replace("Test risks and comparisons", "")
    with np.load(folder / "out" / "model.npz") as saved:
        assert set(saved) == {"params", "heights", "model"}
        assert json.loads(str(saved["model"]))["feature_names"] == FEATURES
    model = load_model(folder / "out")
    weights = np.asarray(model.params, float)
    expected = 300 + 100 * (weights @ [1.5, 0, 1, 1])
    table = {"rooms": ["7", "?"], "town": ["Lier", "Lier"]}
    assert model.predict(table)[0] == pytest.approx(expected)
    assert model.privacy.description == report["privacy"]["description"]


@pytest.mark.slow
def test_names_are_taken_as_they_are(folder):
    # None is markup of the terminal.
    odd = "[/b] $x :smile: $\\"
    text = (folder / "data.csv").read_text().replace("price", odd)
    (folder / "[b]a.csv").write_text(text)
    result = done(run("[b]a.csv", *options(target=odd)))
    assert "[b]a.csv: n = 40" in result.stdout
    assert read_report(folder / "out")["target_unit"] == f"{odd} / 100"
    refused(run("[b]a.csv", *options(target="[x]")), "got '[x]'", "[/b] $x :smile:")


@pytest.mark.slow
@pytest.mark.parametrize("label", ["yes", "never"])
def test_a_target_with_one_class(folder, label):
    text = (folder / "data.csv").read_text()
    text = text.replace(",yes", f",{label}").replace(",no", f",{label}")
    (folder / "data.csv").write_text(text)
    arguments = options(schema="class.toml", target="sold", loss="logistic")
    done(run("data.csv", *arguments))
    assert read_report(folder / "out")["target_unit"] == "+1 for yes"


@pytest.mark.slow
def test_columns_of_nan_and_of_nothing(folder):
    frame = {"rooms": [float("nan")] * 9, "town": [None] * 9, "price": [1e308] * 9}
    pl.DataFrame(frame).write_parquet(folder / "data.parquet")
    done(run("data.parquet", *options()))
    assert np.isfinite(params_of(folder)).all()


@pytest.mark.slow
def test_the_noise_is_fresh_unless_seeded(folder):
    def params(**changes):
        result = run("data.csv", *options(**changes))
        return params_of(folder), result, read_report(folder / "out")

    first, quiet, report = params()
    assert not np.array_equal(first, params()[0])
    assert "Warning" not in quiet.stderr
    assert report["privacy"]["noise_key"] == "from the operating system"
    seeded, warned, report = params(seed=7)
    assert np.array_equal(seeded, params(seed=7)[0])
    assert "subtract the noise" in warned.stderr
    assert "7" not in report["privacy"]["noise_key"]


def test_without_a_schema_a_template_is_printed(folder):
    result = run("data.csv", *options(schema=None))
    refused(result, "--schema must be given for a file", "data.csv")
    assert not (folder / "out").exists()
    # It is refused as it is printed, and can be used once categories are listed.
    (folder / "new.toml").write_text(result.stdout)
    empty = "--schema must be filled in: the categories of these", "FILL IN, got ['t"
    refused(run("data.csv", *options(schema="new.toml")), *empty)
    text = result.stdout.replace("FILL IN", "Lier")
    (folder / "new.toml").write_text(text)
    done(run("data.csv", *options(schema="new.toml")))


BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"typer", "rich", "matplotlib", "polars"}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Blocker())
import dpjax
import dpjax.cli
dpjax.cli.main()
"""


def test_without_the_extra():
    command = [sys.executable, "-c", BLOCKED]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert 'install with pip install "dpjax[experiments]"' in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.slow
def test_a_guarantee_is_never_rounded_down(folder):
    asked = {"epsilon": 10.00490001, "delta": 1.2345612e-5}
    result = done(run("data.csv", *options(**asked)))
    shown = " ".join(result.stdout.split())
    assert "epsilon = 10.005, delta = 1.23457e-05." in shown
    assert "at most e^10.01 = 22300 times what it was, plus 1.23457e-05." in shown
    report = read_report(folder / "out")["privacy"]
    assert report["epsilon"] == asked["epsilon"]  # every digit
    assert report["delta"] == asked["delta"]
