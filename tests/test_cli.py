"""`dpjax train`: runs from end to end, and what it refuses."""

import json
import re
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from dpjax import load_model
from dpjax.cli import _train
from tests.cli.command import done, invoke, refused

pytestmark = pytest.mark.usefixtures("compiled_quickly")

SCHEMA = """
[columns.rooms]
center = 4
scale = 2

[columns.town]
categories = ["Ghent", "Lier"]

[target]
"""
NUMBER = "center = 300\nscale = 100\n"
POSITIVE = 'positive = "yes"\n'
FEATURES = ["rooms", "town=Ghent", "town=Lier", "intercept"]
ODD_LINES = ['nan,"Ghent,1e38,yes', "", "inf,Lier", "1e39,?,abc,maybe,5", "-1e38,,,"]


def run(*arguments):
    """Runs `dpjax train` with these arguments; no file may be left half-written."""
    result = invoke("train", *arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a file of 40 records and its schemas."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rooms = rng.integers(1, 8, 40)
    towns = rng.choice(["Ghent", "Lier", "Mons"], 40)
    prices = 100 + 50 * rooms + 30 * rng.standard_t(2.1, 40)
    rows = zip(rooms, towns, prices, strict=True)
    lines = [f'{r},"{t}",{p:.1f},{"yes" if p > 300 else "no"}' for r, t, p in rows]
    text = "\n".join(["rooms,town,price,sold", *lines]) + "\n"
    (tmp_path / "data.csv").write_text(text)
    (tmp_path / "number.toml").write_text(SCHEMA + NUMBER)
    (tmp_path / "class.toml").write_text(SCHEMA + POSITIVE)
    return tmp_path


def options(**changes):
    """The arguments of a good run on data.csv, some changed or, if None, left out."""
    given = {
        "schema": "number.toml",
        "target": "price",
        "loss": "squared",
        "epsilon": 1,
        "method": "gradient-descent",
        "steps": 3,
        "output": "out",
    } | changes
    pairs = {k.replace("_", "-"): v for k, v in given.items() if v is not None}
    return [text for k, v in pairs.items() for text in (f"--{k}", v)]


def read_report(folder):
    return json.loads((folder / "report.json").read_text())


def params_of(folder):
    with np.load(folder / "out" / "model.npz") as saved:
        return saved["params"]


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
    assert "risk" not in result.stdout.replace("test risks or comparisons", "")
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


NET = {"method": "l1", "loss": None, "steps": None, "candidates": 50, "radius": 2}


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


OPEN = """
[columns.rooms]

[columns.town]
categories = ["Ghent", "Lier"]

[target]
"""


@pytest.fixture
def many(folder):
    """A file of 4,000 records, and a schema without numbers."""
    rng = np.random.default_rng(1)
    rooms = rng.normal(40, 10, 4_000)
    prices = 1e5 + 500 * rooms + 2e3 * rng.standard_t(2.1, 4_000)
    frame = pl.DataFrame({"rooms": rooms, "town": ["Ghent"] * 4_000, "price": prices})
    frame.write_csv(folder / "data.csv")
    (folder / "number.toml").write_text(OPEN)
    return folder


@pytest.mark.slow
def test_private_ranges_count_in_the_guarantee(many):
    result = done(run("data.csv", *options(private_ranges=0.25, delta=1e-4)))
    report = read_report(many / "out")
    total, ranges = report["privacy"], report["ranges"]
    assert (total["epsilon"], total["delta"]) == (1.0, pytest.approx(1e-4))
    part = ranges["privacy"]
    assert (part["epsilon"], part["delta"]) == (0.25, 2.5e-5)
    assert "any one of the 4,000 records" in total["description"]
    assert "e^1 = 2.72" in total["description"]
    shown = " ".join(result.stdout.split())
    assert "epsilon = 1, delta = 0.0001" in shown
    assert "epsilon = 0.25, delta = 2.5e-05 is for the centers and scales of 2" in shown
    assert set(ranges["columns"]) == {"rooms", "price"}
    assert ranges["columns"]["rooms"]["center"] == pytest.approx(40, rel=0.1)
    assert 10 < ranges["columns"]["rooms"]["scale"] < 40
    assert ranges["columns"]["price"]["center"] == pytest.approx(1.2e5, rel=0.1)
    assert ranges["is_informative"]
    scale = ranges["columns"]["price"]["scale"]
    assert report["target_unit"] == f"price / {scale:g}"
    # The training has three quarters, so more noise than with all of it.
    noise = report["stats"]["noise_multiplier"]
    written = "center = 40\nscale = 10\n[columns.town]"
    text = OPEN.replace("[columns.town]", written).rstrip() + "\n" + NUMBER
    (many / "number.toml").write_text(text)
    done(run("data.csv", *options(delta=1e-4)))
    report = read_report(many / "out")
    assert report["stats"]["noise_multiplier"] < 0.8 * noise
    assert "ranges" not in report
    refused(
        run("data.csv", *options(private_ranges=0.25)),
        "--private-ranges must be left out where the schema leaves no center",
    )


@pytest.mark.slow
def test_private_ranges_of_a_pure_method(many):
    changes = NET | {"private_ranges": 0.5}
    arguments = options(**changes)
    done(run("data.csv", *arguments, "--show-unprotected"))
    report = read_report(many / "out")
    assert report["ranges"]["privacy"]["delta"] == report["privacy"]["delta"] == 0
    # All that is private has used the ranges, zero weights in their units too.
    spent = [row["epsilon"] for row in report["unprotected"]]
    assert spent == [0.5, None, None, 1.0, 1.0, 1.0]
    assert report["num_samples"] == 3_200
    assert "any one of the 3,200 records" in report["ranges"]["privacy"]["description"]


@pytest.mark.slow
def test_ranges_of_odd_columns(folder):
    (folder / "number.toml").write_text(OPEN)
    lines = (folder / "data.csv").read_text().splitlines()
    (folder / "data.csv").write_text("\n".join([lines[0], *ODD_LINES * 8]) + "\n")
    changes = {"private_ranges": 0.1, "method": None, "steps": None}
    result = done(run("data.csv", *options(**changes)))
    assert "may be mere noise" in " ".join(result.stderr.split())
    assert np.isfinite(params_of(folder)).all()


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


# Options that change, none of them left empty, and words of what is said then.
BAD_OPTIONS = r"""
epsilon=0 => --epsilon must be positive and finite, got 0
epsilon=-1 => --epsilon must be positive and finite, got -1
epsilon=nan => --epsilon must be positive and finite, got nan
epsilon=abc => '--epsilon': must be a number, got 'abc'
epsilon= => '--epsilon'
delta=1 => --delta must be strictly between 0 and 1, got 1
delta=-0.1 => --delta must be strictly between 0 and 1, got -0.1
delta=0 => --delta must be strictly between 0 and 1, got 0
steps=0 => --steps must be an integer of at least 1, got 0
steps=1.5 => '--steps': must be a whole number, got '1.5'
scale=0 => --scale must be between 1e-18 and 1e+30, got 0
moment_bound=-1 => --moment-bound must be between 1e-30 and 1e+30, got -1
moment_bound=1 scale=1 => --moment-bound must be left out with --scale
learning_rate=0 => --learning-rate must be positive and finite, got 0
l2=-1 => --l2 must be non-negative and finite, got -1
seed=-1 => --seed must be from 0 to 2^32 - 1, got -1
num_groups=3 => --num-groups must be left out with --estimator smoothed-tr
batch_size=3 => --batch-size must be left out with --batching full, got 3
batching=poisson => --batch-size must be given with --batching poisson
estimator=best => '--estimator': .*'best'
loss=best => '--loss': .*'best'
loss= => --loss must be given for a file: logistic, squared, absolute
method= loss= steps= => --loss must be given for a file
method= => --steps must be left out with --method linear-model (for gra
method= steps= loss=absolute =>
  --loss must be logistic or squared or huber or .* with --method linear-model
method= steps= calibration=paper =>
  --calibration must be tight with --method linear-model
max_features=2 => --max-features must be left out with --method gradient-d
model=additive => --model must be left out with .* (for linear-model), got 'additive'
method= steps= model=additive max_features=2 =>
  --max-features must be left out with --model additive
target= => --target must be given for a file: a column of ['rooms',
target=cost => --target must be a column of ['rooms', 'town', 'price', 
target=rooms => --target must be a column that is no feature
schema=none.toml => --schema must be a file that exists, got 'none.toml'
loss=logistic => --schema must be positive, the text or number
output=data.csv => --output must be a folder that can be written to
output=data.csv/x => --output must be a folder that can be written to
estimator=median-of-means num_groups=0 => --num-groups must be an integer of at least 1
estimator=median-of-means num_groups=41 => --num-groups must be at most the 40 records
estimator=median-of-means batching=poisson batch_size=9 => --batching must be full or
batching=poisson batch_size=41 => --batch-size must be at most the num
batching=disjoint steps=41 => --steps must be at most the 40 records
batching=poisson batch_size=9 calibration=paper =>
  --calibration must be tight with --batching poisson, got 'paper'
method=best => '--method': .*'best'
radius=1 => --radius must be left out with --method gradient-descent (for fr
sparsity=2 => --sparsity must be left out with --method gradient-descent
candidates=9 => --candidates must be left out with --method gradient-descent
method=frank-wolfe radius=0 => --radius must be between 1e-12 and 1e+12, got 0
method=frank-wolfe sparsity=2 => --sparsity must be left out with --method frank-w
method=frank-wolfe learning_rate=2 => --learning-rate must be between 0 and 1
method=frank-wolfe steps=41 => --steps must be at most the
method=frank-wolfe batching=full =>
  --batching must be left out with --method frank-wolfe (for gradient-
method=frank-wolfe estimator=median-of-means => --estimator must be another
method=frank-wolfe estimator=truncation =>
  --scale must be given with --method frank-wolfe and --estimator truncation
method=frank-wolfe calibration=paper estimator=clipping =>
  --estimator must be smoothed-truncation with --calibration paper
method=lasso loss=huber => --loss must be squared with --method lasso, got 'hub
method=lasso estimator=clipping => --estimator must be left out with --method la
method=lasso batching=disjoint => --batching must be left out with --method lass
method=lasso l2=0.1 => --l2 must be left out with --method lasso (for gr
method=lasso scale=1e-09 => --scale must be between 1e-08 and 1e+12, got 1e-09
method=lasso calibration=paper delta=0 => --delta must be strictly between
method=sparse => --sparsity must be given with --method sparse and --loss s
method=sparse sparsity=0 => --sparsity must be an integer of at least 1, got 0
method=sparse sparsity=5 => --sparsity must be at most the number of features, 4
method=sparse sparsity=2 delta=0 => --delta must be strictly between 0 and 1, got 0
method=sparse sparsity=2 loss=huber radius=1 =>
  --radius must be left out with --method sparse and --loss
method=l1 loss=squared steps= => --loss must be absolute with --method l1, got 'squared'
method=l1 loss= steps=3 => --steps must be left out with --method l1 (for g
method=l1 loss= steps= delta=0.1 =>
  --delta must be 0 or left out with --method l1, got 0.1
method=l1 loss= steps= candidates=1 =>
  --candidates must be from 2 to 67,108,864 with 4 features
private_ranges=0 => --private-ranges must be strictly between 0 and 1, got 0
private_ranges=1 => --private-ranges must be strictly between 0 and 1, got 1
private_ranges=x => '--private-ranges': must be a number, got 'x'
private_ranges=0.1 => --private-ranges must be left out where the schema
"""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "lasso"}, "--intervals must be left out with --method lasso"),
        ({"model": "additive"}, "--model must be left out with --intervals"),
        ({"max_features": 2}, "--max-features must be left out with --intervals"),
        ({"loss": "tweedie"}, "--loss must be left out with --intervals"),
        ({"unit": "town"}, "--intervals must be left out with --unit"),
    ],
)
def test_what_has_no_intervals_is_refused(folder, changes, message):
    given = options(**{"method": None, "steps": None} | changes)
    refused(run("data.csv", *given, "--intervals"), message)


@pytest.mark.parametrize(
    ("changes", "message"), re.findall(r"^(.+) =>\s+(.+)$", BAD_OPTIONS, re.MULTILINE)
)
def test_static_mistakes(folder, changes, message):
    before = sorted(folder.rglob("*"))
    pairs = (pair.split("=") for pair in changes.split())
    given = options(**{name: value or None for name, value in pairs})
    refused(run("data.csv", *given), *message.split(".*"))
    assert sorted(folder.rglob("*")) == before


def test_mistakes_in_the_data_argument(folder, monkeypatch):
    monkeypatch.delenv("DPJAX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    (folder / "empty.csv").write_text("rooms,town,price\n")
    (folder / "one.csv").write_text("rooms,town,price\n1,2,3\n")
    (folder / "twice.csv").write_text("rooms,town,price,rooms\n1,2,3,4\n")
    np.savez("ragged.npz", rooms=np.ones(3), town=np.ones(2), price=np.ones(3))
    before = sorted(folder.rglob("*"))
    for name, *parts in [
        ("none.csv", "DATA must be a file, or one of adult, rand_hie", "'none.csv'"),
        ("empty.csv", "DATA must be a file with at least one record", "'empty.csv'"),
        ("one.csv", "--delta must be strictly between 0 and 1, got 1.0"),
        ("twice.csv", "DATA must be a file whose columns have distinct names"),
        ("ragged.npz", "DATA must be made of columns of one shape", "(2,)"),
        (".", "DATA must be a folder of files with the same columns"),
    ]:
        refused(run(name, *options()), *parts)
    refused(run("adult", *options()), "--schema must be left out with adult")
    refused(run("adult", *options(schema=None)), "--target must be left out with")
    named = ["--epsilon", 1, "--output", "out"]
    ranges = [*named, "--private-ranges", 0.1]
    refused(run("adult", *ranges), "--private-ranges must be left out with adult")
    refused(run("credit-default", *named), "$DPJAX_DATA/credit/UCI_Credit_Card.csv.gz")
    refused(run("rand_hie", *named, "--loss", "logistic"), "--loss must be squared")
    refused(
        run("one.csv", *options(), "--show-unprotected"),
        "--show-unprotected must be left out below 5 records, got 1",
    )
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("section", "num_records", "rule"),
    [
        ("rooms = {}", 19, "below 20 records, of 19"),
        ('rooms = {categories = ["1"]}', 40, "where no column is one of numbers"),
    ],
)
def test_what_an_additive_model_needs(folder, monkeypatch, section, num_records, rule):
    lines = (folder / "data.csv").read_text().splitlines()[: 1 + num_records]
    (folder / "data.csv").write_text("\n".join(lines))
    (folder / "number.toml").write_text(f"columns.{section}\ntarget = {{}}")
    before = sorted(folder.rglob("*"))
    monkeypatch.setattr(_train, "with_ranges", None)
    changes = {"model": "additive", "method": None, "steps": None, "epsilon": 90}
    result = run("data.csv", *options(private_ranges=0.1, **changes))
    refused(result, f"--model must be linear or left out {rule}, got 'additive'")
    assert sorted(folder.rglob("*")) == before


def test_a_schema_with_an_unknown_column(folder):
    text = SCHEMA.replace("columns.rooms", "columns.floors") + NUMBER
    (folder / "number.toml").write_text(text)
    result = run("data.csv", *options())
    refused(result, "--schema must be made of columns of data.csv", "got ['floors']")


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
