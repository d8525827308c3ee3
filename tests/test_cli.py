"""`dpjax train`: runs from end to end."""

import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from dpjax import load_model
from tests.cli.command import done, refused
from tests.cli.rooms import (
    FEATURES,
    NET,
    options,
    params_of,
    read_report,
    run,
    write_rooms,
)

pytestmark = pytest.mark.usefixtures("compiled_quickly")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a file of 40 records and its schemas."""
    monkeypatch.chdir(tmp_path)
    return write_rooms(tmp_path)


@pytest.mark.slow
def test_adult_shows_the_comparison(tmp_path):
    what = "adult", "--epsilon", 1, "--seed", 0, "--quick"
    result = done(run(*what, "--output", tmp_path / "out"))
    rivals = "DP-GD, clipping", "DP-GD, smoothed truncation", "GD", "zero weights"
    for text in (
        "DP additive model",
        "5 curves",
        *rivals,
        "RGD, smoothed truncation",
        "accuracy",
    ):
        assert text in result.stdout
    assert "any one of the 32,561 records" in " ".join(result.stdout.split())
    assert "10/10" in result.stderr
    names = {"model.npz", "report.json", "test_risk.png"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert (tmp_path / "out" / "test_risk.png").read_bytes().startswith(b"\x89PNG")
    report = read_report(tmp_path / "out")
    assert report["privacy"]["delta"] == 32_561**-1.1
    rows = report["comparison"]
    assert [row["epsilon"] for row in rows] == [0.0, None, None, 1.0, 1.0, 1.0]
    assert rows[0]["test_risk"] == pytest.approx(np.log(2))
    assert all(row["test_risk"] < 0.69 for row in rows[1:])
    # Without settings: near what no privacy gives in many more steps than 10.
    assert rows[3]["method"] == "DP additive model"
    assert rows[3]["test_risk"] < 0.315
    expected = {"loss": "logistic", "power": None, "max_features": None}
    assert report["arguments"] == expected | {"smooth": [0, 1, 2, 3, 4]}
    assert report["stats"]["num_steps"] == 150
    assert sum(report["stats"]["shares"].values()) == pytest.approx(1)
    with np.load(tmp_path / "out" / "model.npz") as saved:
        assert (saved["params"].shape, saved["heights"].shape) == ((105,), (5, 11))


@pytest.mark.slow
def test_dashes_in_a_name(folder):
    clipping = ["--method", "gradient-descent", "--estimator", "clipping"]
    done(run("rand-hie", "--epsilon", 1, "--steps", 2, *clipping))
    assert len(read_report(folder / "dpjax-output" / "rand_hie")["comparison"]) == 4


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
        *("num_features", "feature_names", "target_unit", "method", "loss", "l2"),
        *("arguments", "stats", "privacy"),
    }
    assert report["num_samples"] == 40
    assert report["feature_names"] == FEATURES
    assert report["target_unit"] == "price / 100"
    assert set(report["privacy"]) == {
        *("epsilon", "delta", "relation", "description", "noise_key")
    }
    assert set(report["arguments"]) == {
        *("estimator", "learning_rate", "num_steps", "batching", "epsilon")
    }
    assert {"noise_multiplier", "l2_sensitivity", "stddev"} <= set(report["stats"])
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
def test_unprotected_numbers_are_asked_for_and_labelled(folder):
    result = done(run("data.csv", *options(), "--show-unprotected"))
    assert "UNPROTECTED" in result.stdout
    assert "mean absolute error" in result.stdout
    report = read_report(folder / "out")
    assert len(report["unprotected"]) == 5
    assert "comparison" not in report
    assert (report["num_samples"], report["num_test_samples"]) == (32, 8)
    assert (folder / "out" / "test_risk.png").exists()
    # A protected run takes the folder over: no unprotected plot stays beside it.
    done(run("data.csv", *options()))
    assert not (folder / "out" / "test_risk.png").exists()
    assert "unprotected" not in read_report(folder / "out")


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "extra",
    [
        ["--estimator", "median-of-means", "--num-groups", 5],
        ["--estimator", "truncation", "--calibration", "paper", "--show-unprotected"],
        ["--batching", "poisson", "--batch-size", 10],
        ["--batching", "without-replacement", "--batch-size", 10],
        ["--batching", "disjoint", "--estimator", "winsorization"],
        ["--loss", "huber", "--l2", 0.1, "--delta", 1e-3, "--learning-rate", 0.5],
        ["--loss", "biweight", "--scale", 2],
    ],
)
def test_every_method(folder, extra):
    done(run("data.csv", *options(), *extra))
    assert np.isfinite(params_of(folder)).all()


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("data", "arguments", "titles"),
    [
        ("adult", {"method": "frank-wolfe"}, ["DP-FW", "logistic loss, 10 steps"]),
        (
            "adult",
            {"method": "sparse", "sparsity": 3},
            ["DP-IHT, smoothed", "3 weights"],
        ),
        ("rand-hie", {"method": "lasso", "radius": 2}, ["DP-LASSO", "radius 2"]),
        ("rand-hie", {"method": "l1"}, ["DP l1 regression", "1,000 candidates"]),
    ],
)
def test_every_method_is_compared(tmp_path, data, arguments, titles):
    given = {"epsilon": 2, "output": tmp_path / "out"} | arguments
    pairs = [text for name, value in given.items() for text in (f"--{name}", value)]
    result = done(run(data, *pairs, "--quick"))
    shown = " ".join(result.stdout.split())
    for text in (*titles, "zero weights", "GD", "DP-GD, clipping"):
        assert text in shown
    report = read_report(tmp_path / "out")
    rows = report["comparison"]
    is_pure = arguments["method"] == "l1"
    assert [row["epsilon"] for row in rows] == [0.0, None, None, 2.0, 2.0, 2.0]
    assert (rows[3]["delta"] == 0) == is_pure
    assert 0 < rows[4]["delta"] < 1e-3
    assert all(row["test_risk"] is not None for row in rows)
    assert (tmp_path / "out" / "test_risk.png").read_bytes().startswith(b"\x89PNG")
    # The one method whose candidates are sure to hold it is no worse than zero weights.
    assert not is_pure or rows[3]["test_risk"] < 1.1 * rows[0]["test_risk"]


@pytest.mark.slow
def test_many_features_make_a_thin_net(folder):
    names = [f"x{i}" for i in range(12)]
    frame = pl.DataFrame({name: np.arange(30.0) for name in [*names, "price"]})
    frame.write_csv(folder / "wide.csv")
    schema = "".join(f"columns.{x} = {{center = 15, scale = 9}}\n" for x in names)
    (folder / "wide.toml").write_text(schema + "target = {center = 15, scale = 9}")
    changes = NET | {"schema": "wide.toml"}
    result = done(run("wide.csv", *options(**changes)))
    assert "any net of candidates is thin" in " ".join(result.stderr.split())
    changes |= {"candidates": 10**8}
    message = "--candidates must be from 2 to 20,648,881 with 13 features"
    refused(run("wide.csv", *options(**changes)), message)


@pytest.mark.slow
def test_names_are_taken_as_they_are(folder):
    # None is markup of the terminal or of the plot.
    odd = "[/b] $x :smile: $\\"
    text = (folder / "data.csv").read_text().replace("price", odd)
    (folder / "[b]a.csv").write_text(text)
    result = done(run("[b]a.csv", *options(target=odd), "--show-unprotected"))
    assert "[b]a.csv: n = 32" in result.stdout
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
    result = done(run("data.csv", *options(**asked), "--show-unprotected"))
    shown = " ".join(result.stdout.split())
    assert "epsilon = 10.005, delta = 1.23457e-05." in shown
    assert "(10.01," in shown  # in a cell of two lines
    assert "1.3e-05)-DP" in shown
    assert "at most e^10.01 = 22300 times what it was, plus 1.23457e-05." in shown
    report = read_report(folder / "out")["privacy"]
    assert report["epsilon"] == asked["epsilon"]  # every digit
    assert report["delta"] == asked["delta"]
