"""`dpjax train` from end to end, with private ranges, and resumed."""

import contextlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest

from dpjax import load_model
from tests.unit.cli.command import (
    done,
    invoke,
    options,
    outputs_of,
    params_of,
    read_report,
    run,
    words_of,
)
from tests.unit.cli.test_amounts import SCHEMA as AMOUNTS

OPEN = """
columns.rooms = {}
columns.town = {categories = ["Ghent", "Lier"]}
target = {}
"""
ODD_LINES = ['nan,"Ghent,1e38,yes', "", "inf,Lier", "1e39,?,abc,maybe,5", "-1e38,,,"]


@pytest.mark.parametrize("label", ["yes", "never"])
def test_a_target_with_one_class_is_trained(rooms, label):
    text = (rooms / "data.csv").read_text()
    text = text.replace(",yes", f",{label}").replace(",no", f",{label}")
    (rooms / "data.csv").write_text(text)
    done(run("data.csv", *options(schema="class.toml", target="sold", loss="logistic")))
    assert read_report(rooms / "out")["target_unit"] == "+1 for yes"


def test_columns_without_a_number_leave_finite_weights(rooms):
    frame = {"rooms": [float("nan")] * 9, "town": [None] * 9, "price": [1e308] * 9}
    pl.DataFrame(frame).write_parquet(rooms / "data.parquet")
    done(run("data.parquet", *options()))
    assert np.isfinite(params_of(rooms)).all()


def test_five_classes_are_trained_shown_predicted_and_exported(here):
    rng, names = np.random.default_rng(0), np.array(["a", "b", "c", "d", "=e"])
    x = rng.normal(size=4000)
    scores = np.outer(x, [2, -2, 0, 0, 0]) + rng.gumbel(size=(4000, 5))
    label = np.where(np.arange(4000) % 50, names[np.argmax(scores, axis=1)], "?")
    pl.DataFrame({"x": x, "y": label}).write_csv("data.csv")
    text = "columns.x = {center = 0, scale = 1}\ntarget = {column = 'y', categories = "
    (here / "schema.toml").write_text(f"{text}{names.tolist()}}}")
    given = "data.csv --schema schema.toml --epsilon 8 --holdout 0.2 --output out"
    shown = words_of(done(run(*given.split())).stdout)
    assert shown.index("mean log loss") < shown.index("area under") < shown.index("acc")
    assert "no better" not in shown
    shown = words_of(done(invoke("show", "out")).stdout)
    assert "probabilities of y = a, b, c, d, =e, which" in shown
    for command in ("predict out data.csv", "export out --format sql", "report out"):
        done(invoke(*command.split()))
    predicted = pl.read_csv("predictions.csv")
    assert predicted.columns[1:] == [f"probability_y={name}" for name in names]
    assert (predicted["predicted_y"].str.strip_chars("'") == label).mean() > 0.4


def test_adult_shows_the_comparison(tmp_path):
    out = tmp_path / "out"
    result = done(run("adult", "--epsilon", 1, "--seed", 0, "--output", out))
    names = "constant, not private", "linear model, not private", "DP linear model"
    for text in ("DP additive model", "5 curves", *names, "accuracy"):
        assert text in result.stdout
    assert "any one of the 32,561 records" in words_of(result.stdout)
    assert "150/150" in result.stderr
    assert {path.name for path in out.iterdir()} == {"model.npz", "report.json"}
    report = read_report(out)
    assert report["privacy"]["delta"] == 32_561**-1.1
    rows = report["comparison"]
    assert [row["method"] for row in rows] == [*names, "DP additive model"]
    assert [row["epsilon"] for row in rows] == [None, None, 1.0, 1.0]
    constant, exact, linear, additive = (row["test_risk"] for row in rows)
    # The best constant, and the optimum without privacy, to the digits shown.
    assert constant == pytest.approx(0.5467, abs=2e-4)
    assert exact == pytest.approx(0.3185, abs=5e-4)
    assert additive < 0.315 < exact < linear < 0.33
    assert report["arguments"] == {"power": None, "smooth": [0, 1, 2, 3, 4]}
    assert report["stats"]["num_steps"] == 150
    assert sum(report["stats"]["shares"].values()) == pytest.approx(1)
    with np.load(out / "model.npz") as saved:
        assert (saved["params"].shape, saved["heights"].shape) == ((105,), (5, 11))


@pytest.fixture
def claims(here):
    rng, n = np.random.default_rng(0), 20_000
    age, years = rng.uniform(20, 80, n), rng.uniform(0.05, 1, n)
    counts = rng.poisson(0.3 * years * np.exp(0.02 * (age - 50)))
    cost = np.where(counts > 0, 500 * rng.gamma(2.0 * np.maximum(counts, 1)), 0)
    cells = np.stack([age.round(1), years.round(3), counts, cost.round()], axis=1)
    rows = [",".join(map(str, row)) for row in cells.tolist()]
    (here / "data.csv").write_text("\n".join(["age,years,claims,cost", *rows]))
    text = AMOUNTS.replace("max = 2}", "max = 1}").replace("40", "50")
    (here / "schema.toml").write_text("\n".join(text.splitlines()[:-1]))
    return here


def train_claims(loss, *more):
    words = f"data.csv --schema schema.toml --holdout 0.2 --output out --loss {loss}"
    return words_of(done(run(*words.split(), *more)).stdout)


def test_a_frequency_is_that_of_a_unit_of_exposure(claims):
    more = ["--epsilon", 1, "--seed", 0, "--model", "linear"]
    assert "nine of ten by at most" in train_claims("poisson", *more)
    measures = read_report(claims / "out")["evaluation"]["measures"]
    (name,) = (one for one in measures if "mean poisson deviance" in one)
    # Of the true means it is .58, and of their mean .60: of 4,000 records, less than
    # the noise of one release tells apart.
    for which in ("model", "constant"):
        assert measures[name][which]["value"] == pytest.approx(0.6, abs=0.2)
    model = load_model("out")
    assert model.coefficients()["age"] == pytest.approx(0.02, abs=0.006)
    (claims / "new.csv").write_text("age,years\n50,1\n50,0.5\n50,\n50,3\n")
    code, _, shown = outputs_of("predict", "out", "new.csv")
    assert code == 0
    assert "years: 1 of 4 cells lie above 1: they count as this" in shown
    lines = (claims / "predictions.csv").read_text().split()
    year, half, none, more = map(float, lines[1:])
    assert year == pytest.approx(0.3, rel=0.2)
    assert (half, none, more) == (pytest.approx(year / 2), 0, year)
    (claims / "new.csv").write_text("age\n50\n")
    code, _, shown = outputs_of("predict", "out", "new.csv")
    assert "There is no column years: predictions are for one of it." in shown
    assert float((claims / "predictions.csv").read_text().split()[1]) == year
    factor = np.exp(model.coefficients()["age"])
    assert f"age larger by 1 {factor:.4g}" in outputs_of("show", "out")[1]


def test_costs_with_a_bought_scale_and_a_ledger(claims):
    text = (claims / "schema.toml").read_text().replace("scale = 1}", "}")
    text = text.replace('"claims", }', '"cost"}')
    (claims / "schema.toml").write_text(text)
    done(invoke(*["ledger", "open", "t.toml", "--epsilon", "3", "--delta", "1e-4"]))
    more = "--private-ranges 0.2 --ledger t.toml --epsilon 2 --power 1.6"
    train_claims("tweedie", *more.split())
    report = read_report(claims / "out")
    assert report["ranges"]["columns"]["cost"]["center"] == 0
    assert report["arguments"]["power"] == 1.6
    mean = load_model("out").predict({"age": [50.0], "years": [1.0]})
    assert mean[0] == pytest.approx(300, rel=0.4)  # 1,000 a claim


def test_persons_on_a_list(here):
    x = np.random.default_rng(0).normal(size=900)
    lines = [f"{i % 300},{x[i]},{300 + 100 * x[i]}" for i in range(900)]
    (here / "data.csv").write_text("\n".join(["who,x,y", *lines]))
    text = "columns.x = {center = 0, scale = 1}\n"
    text += "target = {column = 'y', center = 300, scale = 100}"
    (here / "schema.toml").write_text(text)
    (here / "names.txt").write_text("\n".join(map(str, range(300))))
    words = "open t.toml --epsilon 40 --delta 0.05 --unit who"
    done(invoke("ledger", *words.split()))
    words = "data.csv --schema schema.toml --loss squared --epsilon 4 --unit who "
    words += "--records-per-unit 2 --holdout 0.2 --unit-names names.txt --output out"
    shown = words_of(done(run(*words.split(), "--ledger", "t.toml")).stdout)
    words = "groups of records with one who by any others, or none, with the same who,"
    assert "n = 240 values of who, 2 places each" in shown
    assert f"Replacing any one of the 300 {words} changes" in shown
    assert "The list of values of who that was given is public" in shown
    report = read_report(here / "out")
    assert (report["unit"]["num_units"], report["unit"]["records_per_unit"]) == (300, 2)
    assert report["privacy"]["epsilon"] == pytest.approx(4.0)
    description = report["evaluation"]["privacy"]["description"]
    assert f"any one of the 60 {words}" in description


def test_private_ranges_count_in_the_guarantee(rooms):
    rng = np.random.default_rng(1)
    sizes = rng.normal(40, 10, 4_000)
    prices = 1e5 + 500 * sizes + 2e3 * rng.standard_t(2.1, 4_000)
    frame = pl.DataFrame({"rooms": sizes, "town": ["Ghent"] * 4_000, "price": prices})
    frame.write_csv(rooms / "data.csv")
    (rooms / "number.toml").write_text(OPEN)
    result = done(run("data.csv", *options(private_ranges=0.25, delta=1e-4)))
    report = read_report(rooms / "out")
    total, ranges = report["privacy"], report["ranges"]
    assert (total["epsilon"], total["delta"]) == (1.0, pytest.approx(1e-4))
    part, columns = ranges["privacy"], ranges["columns"]
    assert (part["epsilon"], part["delta"]) == (0.25, 2.5e-5)
    assert "any one of the 4,000 records" in total["description"]
    assert "e^1 = 2.72" in total["description"]
    shown = words_of(result.stdout)
    assert "epsilon = 1, delta = 0.0001" in shown
    assert "epsilon = 0.25, delta = 2.5e-05 is for the centers and scales of 2" in shown
    assert set(columns) == {"rooms", "price"}
    assert columns["rooms"]["center"] == pytest.approx(40, rel=0.1)
    assert 10 < columns["rooms"]["scale"] < 40
    assert columns["price"]["center"] == pytest.approx(1.2e5, rel=0.1)
    assert ranges["is_informative"]
    assert report["target_unit"] == f"price / {columns['price']['scale']:g}"


def test_ranges_of_odd_columns_are_told_and_leave_finite_weights(rooms):
    (rooms / "number.toml").write_text(OPEN)
    lines = (rooms / "data.csv").read_text().splitlines()
    (rooms / "data.csv").write_text("\n".join([lines[0], *ODD_LINES * 8]) + "\n")
    result = done(run("data.csv", *options(private_ranges=0.1)))
    assert "may be mere noise" in words_of(result.stderr)
    assert np.isfinite(params_of(rooms)).all()


@pytest.mark.parametrize("target", ["yes", "amount"])
def test_without_ranges_a_model_is_no_worse_than_the_private_mean(here, target):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(4_000, 30))
    if target == "yes":
        values, kind = rng.uniform(size=4_000) < 0.1, "positive = 1"
    else:
        values, kind = 500 + np.exp(2 * rng.normal(size=4_000)), ""
    names = [f"x{i}" for i in range(30)]
    lines = [",".join(f"{x:.6g}" for x in row) for row in np.c_[features, values]]
    (here / "data.csv").write_text("\n".join([",".join([*names, target]), *lines]))
    columns = "".join(f"columns.{name} = {{}}\n" for name in names)
    (here / "schema.toml").write_text(f"{columns}[target]\n{kind}")
    loss = "logistic" if target == "yes" else "squared"
    words = f"data.csv --schema schema.toml --target {target} --loss {loss} "
    words += "--epsilon 0.5 --private-ranges 0.1 --output out --seed 0"
    done(run(*words.split()))
    means = np.float64(load_model("out/model.npz").predict("data.csv"))
    # No feature is worth its noise; the constant is the mean, but for clipped tails.
    assert np.ptp(means) == 0
    np.testing.assert_allclose(means[0], np.mean(values), rtol=0.1)


def command(output, checkpoint):
    words = ["train", "rand-hie", "--epsilon", "1", "--model", "linear"]
    return [*words, "--output", str(output), "--checkpoint", str(checkpoint)]


@contextlib.contextmanager
def started(output, checkpoint):
    """Yields a process of the command; it does not outlive the test."""
    words = [sys.executable, "-m", "dpjax", *command(output, checkpoint)]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_run_that_is_killed_goes_on_to_the_same_files(tmp_path):
    states, output, other = (tmp_path / name for name in ("kept", "out", "other"))
    with started(output, states) as process:
        while not any(path.name.isdigit() for path in states.glob("states/*")):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL, process.stderr.read()
    assert not output.exists()
    assert states.stat().st_mode & 0o777 == 0o700
    # With the same key from the first step on: what the run would have been.
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(states / "key.npz", copy)
    with started(output, states) as resumed, started(other, copy) as untouched:
        for process in (resumed, untouched):
            _, shown = process.communicate()
            assert process.returncode == 0, shown
    for name in ("model.npz", "report.json"):  # bit for bit
        assert (output / name).read_bytes() == (other / name).read_bytes()
    assert read_report(output)["privacy"]["epsilon"] == pytest.approx(1.0)
    assert not states.exists()  # nobody can find the key, and subtract the noise
    assert not copy.exists()


@pytest.mark.parametrize("name", ["key.npz", "paid.npz"])
def test_half_of_a_file_that_a_killed_run_left_is_replaced(tmp_path, name):
    states, output = tmp_path / "kept", tmp_path / "out"
    states.mkdir()
    (states / f".{name}.7.part").write_bytes(b"the first half of")
    done(invoke(*command(output, states)))
    assert not states.exists()
    # The linear model is what was asked for: it is compared with no other private one.
    assert len(read_report(output)["comparison"]) == 3
