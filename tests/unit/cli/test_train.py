"""`dpjax train`: its runs, the files that they leave, and what it refuses."""

import dataclasses
import functools
import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest

from dpjax import datasets, load_model, losses, read_guarantee
from dpjax.solvers import dp_additive_model
from dpjax.tables.cli._fit import compare, train_private
from dpjax.tables.cli._outputs import Trained
from dpjax.tables.cli._release import Release, _system_key
from dpjax.tables.cli._run import plan_training
from dpjax.tables.cli._settings import Settings, chosen_loss
from tests.unit.cli import command
from tests.unit.cli.command import done, options, refusals, refused, run
from tests.unit.test_statement import PRIVACY, fits

KNOTS = [({}, 11), ({"epsilon": 1}, 3), ({"epsilon": 0.05}, 0)]
KNOTS += [({"max_features": 2}, None)]
CONTENTS = {"report.json": b"new", "model.npz": b"new"}


def plan_of(data, **changes):
    settings = Settings(**{"source": "x", "epsilon": 8.0} | changes)
    return plan_training(settings, data).plan


def dataset(n=400, task="classification"):
    rng = np.random.default_rng(0)
    features = np.hstack([rng.normal(size=(n, 2)), np.ones((n, 1))]).astype("float32")
    targets = np.sign(features[:, 0]) if task == "classification" else features[:, 0]
    return datasets.Dataset(
        **dict.fromkeys(["name", "target_unit", "licence", "source"], "made up"),
        **{"task": task, "features": features, "targets": targets},
        feature_names=("a", "b", "intercept"),
        test_features=features[:10],
        test_targets=targets[:10],
        schema={"a": datasets.Numeric(), "b": datasets.Numeric()},
    )


def test_defaults_follow_from_the_task_and_the_sizes():
    for task in ("classification", "regression"):
        loss = losses.logistic if task == "classification" else losses.squared
        plan = plan_of(dataset(50, task), epsilon=2.0)
        assert (plan.loss_fn, plan.budget) == (loss, (2.0, 50**-1.1))
    with pytest.raises(ValueError, match="--loss must be given for a target with a"):
        chosen_loss(Settings(source="x", epsilon=1.0), "log")


@pytest.mark.parametrize(("changes", "num_knots"), KNOTS)
def test_the_plan_has_as_many_curves_as_the_solver_makes(changes, num_knots):
    data = dataset(1_500)
    plan = plan_of(data, **changes)
    assert plan.method == f"DP {'additive' if num_knots else 'linear'} model"
    if num_knots is not None:
        options = {"smooth": [0, 1], "intercept": -1, "delta": 1_500**-1.1}
        fit = functools.partial(dp_additive_model, "logistic", data.train, **options)
        epsilon = changes.get("epsilon", 8.0)
        solution = jax.eval_shape(lambda: fit(key=jax.random.key(0), epsilon=epsilon))
        assert len(solution.params.knots) == num_knots


def test_baselines_without_privacy_are_exact():
    data = dataset(task="regression")
    run = plan_training(Settings(source="x", epsilon=100.0), data)
    keys = map(jax.random.key, (1, 2))
    ignore = {"on_step": lambda *_: None}
    solution = train_private(run.plan, data, key=next(keys), **ignore)
    scores = compare(run.plan, data, solution, key=next(keys), **ignore)
    assert [score.privacy.epsilon for score in scores] == [np.inf, np.inf, 100.0, 100.0]
    # Without privacy the target, which is the first feature, is found.
    constant, linear, private, _ = scores
    assert linear.risk < 1e-3 < constant.risk
    assert linear.score < 0.03 < constant.score
    assert private.risk < constant.risk
    spread = np.mean((data.test_targets - data.targets.mean()) ** 2) / 2
    assert constant.risk == pytest.approx(spread, rel=0.1)
    # JSON has no NaN: a number that is none is null.
    trained = Trained(run, data, solution)
    assert "comparison" not in trained.report("")
    odd = dataclasses.replace(trained, scores=[private._replace(risk=np.nan)])
    assert odd.report("")["comparison"][0]["test_risk"] is None


@pytest.mark.parametrize(("generator", "size"), [("threefry", 2), ("chacha20", 8)])
def test_the_system_key_is_fresh(generator, size):
    keys = [jax.random.key_data(_system_key(generator)).tolist() for _ in range(3)]
    assert len(set(map(tuple, keys))) == 3
    assert all(len(key) == size for key in keys)
    assert all(any(word > 2**8 for word in key) for key in keys)


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_run_is_written_as_one_or_not_at_all(tmp_path, monkeypatch, step, is_new):
    """Parameters are the last to appear, once the report is there."""
    folder = tmp_path / "a" if is_new else tmp_path
    if not is_new:
        (folder / "report.json").write_bytes(b"old")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    release = Release(folder, jax.random.key(0), "", True, None)
    calls, make = [], getattr(os, step)

    def fail(*paths):
        calls.append(Path(paths[-1]).name if step == "replace" else "")
        if calls[-1] == "report.json" or calls == ["", ""]:
            raise OSError(28, "No space left on device")
        make(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(f"os.{step}", fail)
        with pytest.raises(OSError, match=r"--output .* could not be written to: .*28"):
            release.write(CONTENTS)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "other").write_bytes(b"kept")
    release.write(CONTENTS)
    assert {path.name: path.read_bytes() for path in folder.glob("*.*")} == CONTENTS
    assert (tmp_path / "other").read_bytes() == b"kept"


def test_a_file_shows_protected_numbers_only(rooms):
    # Names are taken as they are: none is markup of the terminal.
    odd = "[/b] $x :smile: $\\"
    text = (rooms / "data.csv").read_text().replace("price", odd)
    (rooms / "[b]a.csv").write_text(text)
    # A guarantee is never rounded down.
    budget = {"epsilon": 10.00490001, "delta": 1.2345612e-5}
    result = done(run("[b]a.csv", *options(target=odd, **budget)))
    shown = command.words_of(result.stdout)
    for part in (
        "[b]a.csv: n = 40",
        "epsilon = 10.005, delta = 1.23457e-05.",
        "at most e^10.01 = 22300 times what it was, plus 1.23457e-05.",
    ):
        assert part in shown
    assert "risk" not in result.stdout.replace("Test risks and comparisons", "")
    assert {path.name for path in (rooms / "out").iterdir()} == {*CONTENTS}
    report = command.read_report(rooms / "out")
    assert set(report) == {
        *("dpjax", "data", "is_public", "num_samples", "num_test_samples"),
        *("num_features", "feature_names", "target_unit", "method", "loss"),
        *("arguments", "stats", "privacy"),
    }
    assert report["num_samples"] == 40
    names = ["rooms", "town=Lier", "intercept"]
    assert (report["feature_names"], report["target_unit"]) == (names, f"{odd} / 100")
    privacy = report["privacy"]
    assert privacy.items() >= budget.items()  # every digit
    assert privacy.keys() == {*PRIVACY, "noise_key"}
    assert privacy["unit"] == "record"
    assert "GaussianDpEvent(noise_multiplier=" in privacy["mechanism"]
    assert report["arguments"] == {"power": None}
    assert {"noise_multiplier", "num_steps"} <= set(report["stats"])
    with np.load(rooms / "out" / "model.npz") as saved:
        assert set(saved) == {"params", "heights", "model"}
        content = json.loads(str(saved["model"]))
    assert content["feature_names"] == names
    assert fits(report)
    assert fits(content)
    paths = (rooms / "out" / name for name in CONTENTS)
    of_report, of_model = map(read_guarantee, paths)
    assert of_report == of_model
    assert str(of_model) == privacy["description"]
    model = load_model(rooms / "out")
    expected = 300 + 100 * (np.asarray(model.params, float) @ [1.5, 1, 1])
    table = {"rooms": ["7", "?"], "town": ["Lier", "Lier"]}
    assert model.predict(table)[0] == pytest.approx(expected)
    assert model.privacy == of_model
    refused(run("[b]a.csv", *options(target="[x]")), "got '[x]'", "[/b] $x :smile:")


def test_the_noise_is_fresh_unless_seeded(rooms):
    def params(**changes):
        result = done(run("data.csv", *options(**changes)))
        return command.params_of(rooms), result, command.read_report(rooms / "out")

    first, quiet, report = params()
    assert not np.array_equal(first, params()[0])
    assert "Warning" not in quiet.stderr
    assert report["privacy"]["noise_key"] == "from the operating system"
    seeded, warned, report = params(seed=7)
    assert np.array_equal(seeded, params(seed=7)[0])
    assert "subtract the noise" in warned.stderr
    assert "7" not in report["privacy"]["noise_key"]


def test_without_a_schema_a_template_is_printed(rooms):
    result = run("data.csv", *options(schema=None))
    refused(result, "--schema must be given for a file", "data.csv")
    assert not (rooms / "out").exists()
    # It is refused as it is printed, and can be used once categories are listed.
    (rooms / "new.toml").write_text(result.stdout)
    empty = "--schema must be filled in: the categories of these", "FILL IN, got ['t"
    refused(run("data.csv", *options(schema="new.toml")), *empty)
    text = result.stdout.replace('"FILL IN"', '"Lier", "Mons"')
    (rooms / "new.toml").write_text(text)
    done(run("data.csv", *options(schema="new.toml")))


# -- What is refused, with nothing written ---------------------------------------------
# What changes, a value of none left empty, and words of the message then.
BAD_OPTIONS = r"""
data=none.csv => DATA must be a file, or one of adult, rand_hie, got 'none.csv'
data=one.csv => --delta must be given for a single record, because the default
data=. => or a folder of such alone, without class.toml, number.toml
data=adult target= loss= => --schema must be left out with adult
data=adult schema= loss= => --target must be left out with
data=adult schema= target= loss= private_ranges=0.1 => --private-ranges must be left out
data=adult schema= target= loss= quoted=yes => --quoted must be left out with adult
data=adult schema= target= loss= row_names=yes => --row-names must be left out with
data=adult schema= target= loss=gamma => must be one of logistic, squared, huber for ad
data=rand_hie schema= target= loss=logistic => --loss must be one of squared
epsilon=0 => --epsilon must be positive and finite, got 0
epsilon=abc => '--epsilon': must be a number, got 'abc'
delta=1 => --delta must be strictly between 0 and 1, got 1
max_features=0 => --max-features must be an integer of at least 1, got 0
seed=-1 => --seed must be from 0 to 2^32 - 1, got -1
loss=best => 'best' is not one of
model=additive max_features=2 => --max-features must be left out with --model additive
target= => --target must be given for a file: a column of ['rooms',
target=cost => --target must be a column of ['rooms', 'town', 'price', 
target=rooms => --target must be a column that is no feature
schema=none.toml => --schema must be a file that exists, got 'none.toml'
loss=logistic => --schema must be a file with positive, the text or number
output=data.csv/x => --output must be a folder that can be written to
private_ranges=0 => --private-ranges must be strictly between 0 and 1, got 0
private_ranges=0.1 => --private-ranges must be left out where the schema
power=1.5 => --power must be left out without --loss tweedie
loss=tweedie power=2 => --power must be strictly between 1 and 2
unit=price => --unit must be a column of ['rooms', 'town', 'price', 'sold'] that is nei
unit=sold records_per_unit=0 => --records-per-unit must be
records_per_unit=3 => --records-per-unit must be left out without
unit_names=x => --unit-names must be left out without --unit
unit=sold unit_names=none.txt => --unit-names must be a
max_records=20 delta=0.5 => --delta must be below sample_size
data=. output=. => another file than DATA
intervals=yes model=additive => --model must be left out with --intervals
intervals=yes max_features=2 => --max-features must be left out with --intervals
intervals=yes loss=tweedie => --loss must be left out with --intervals
"""


def run_changed(*changes):
    given = dict(pair.split("=") for pair in changes)
    source = given.pop("data", "data.csv")
    flags = [x for x in ("intervals", "quoted", "row_names") if given.pop(x, None)]
    pairs = options(**{name: value or None for name, value in given.items()})
    return run(source, *pairs, *(f"--{flag.replace('_', '-')}" for flag in flags))


test_bad_options_are_refused_and_write_nothing = refusals(
    BAD_OPTIONS, run_changed, "rooms"
)


@pytest.mark.parametrize("content", [b" \n", b"\xff"])
def test_a_list_of_units_without_names_is_refused(rooms, content):
    (rooms / "names.txt").write_bytes(content)
    given = options(unit="sold", unit_names="names.txt")
    refused(run("data.csv", *given), "--unit-names must be a ")


@pytest.mark.parametrize(
    ("section", "num_records", "rule"),
    [
        ("rooms = {}", 19, "below 20 records, of 19"),
        ("rooms = {categories = [1, 2]}", 40, "where no column is one of numbers"),
    ],
)
def test_an_additive_model_needs_20_records_and_a_number(
    rooms, monkeypatch, section, num_records, rule
):
    lines = (rooms / "data.csv").read_text().splitlines()[: 1 + num_records]
    (rooms / "data.csv").write_text("\n".join(lines))
    (rooms / "number.toml").write_text(f"columns.{section}\ntarget = {{}}")
    before = command.tree(rooms)
    monkeypatch.setattr("dpjax.tables.cli._train.plan_training", None)
    given = options(private_ranges=0.1, model="additive", epsilon=90)
    message = f"--model must be linear or left out {rule}, got 'additive'"
    refused(run("data.csv", *given), message)
    assert command.tree(rooms) == before
