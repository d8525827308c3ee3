"""`dpjax tune`: the grid, the price, what is released, and what must not show."""

import dataclasses
import datetime
import json
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.accounting import tuning_budget
from dpjax.cli import _tune
from dpjax.cli._terminal import terminal
from dpjax.cli._tune_plan import Search, apart, plan_search
from dpjax.cli._tune_settings import TuneSettings
from dpjax.datasets import Dataset
from dpjax.models import load_model
from dpjax.tuning import _search, _select
from tests.cli.command import done, invoke
from tests.refusals import refused


def asked(*over, **options):
    given = {"epsilon": 1.0, "trials": 5.0, "loss": "squared"} | options
    return TuneSettings(source="d.csv", over=[*over], **given)


def blank(n=300, d=3, task="regression"):
    """A data set of some shape without anything in it."""
    return Dataset(
        name="blank",
        task=task,
        feature_names=("a", "b", "intercept"),
        features=np.zeros((n, d), np.float32),
        targets=np.zeros(n, np.float32),
        test_features=np.zeros((0, d), np.float32),
        test_targets=np.zeros(0, np.float32),
        target_unit="y",
        licence="none",
        source="none",
    )


def tune(*options, source="data.csv", epsilon=4.0, **kinds):
    given = {"estimator": "clipping", "steps": 5, "trials": 3} | kinds
    what = [source, "--epsilon", epsilon, "--delta", "1e-6", "--output", "out"]
    for name, value in given.items():
        what += [f"--{name}", value]
    if source == "data.csv":
        what += ["--schema", "schema.toml", "--loss", "squared"]
    return invoke("tune", *what, "--over", "learning_rate=0.1,1", *options)


def test_a_grid_is_every_combination():
    settings = asked("learning-rate=0.1, 1e0", "estimator=clipping,truncation")
    assert settings.grid() == {
        "learning_rate": [0.1, 1.0],
        "estimator": ["clipping", "truncation"],
    }
    first, *others = settings.choices()
    assert first == {"learning_rate": 0.1, "estimator": "clipping"}
    assert len(others) == 3
    one = settings.candidate(first, epsilon=0.25)
    assert (one.learning_rate, one.estimator, one.epsilon) == (0.1, "clipping", 0.25)
    assert one.holdout is None
    assert asked("steps=10,20").grid() == {"steps": [10, 20]}


test_what_cannot_be_searched_over_is_named = refused(
    lambda over: asked(*over),
    (["speed=1,2"], "--over must be NAME=VALUE,VALUE, NAME one of model, max_f"),
    (["epsilon=1,2"], "--over must be NAME=VALUE,VALUE, NAME one of"),
    (["loss=squared"], "--over must be NAME=VALUE,VALUE, NAME one of"),
    (["scale"], "--over must be scale=VALUE,VALUE, with one value or more"),
    (["scale=,"], "--over must be scale=VALUE,VALUE, with one value or more"),
    (["scale=1,x"], "--over must be scale and numbers, got 'scale=1,x'"),
    (["steps=1,2.5"], "--over must be steps and whole numbers"),
    (["scale=1,1.0"], "--over must be of different values of scale"),
    (["estimator=mean"], "--over must be of values of estimator, which are"),
    (["scale=1", "scale=2"], "--over must be given once for each option"),
    (["scale=nan"], "--scale must be .* got nan"),
    (["learning_rate=0.1,-1"], "--learning-rate must be .* got -1"),
    ([f"steps={','.join(map(str, range(1, 102)))}"], "at most 100 candidates"),
)


test_wrong_options_of_a_search_are_named = refused(
    lambda options: asked("scale=1,2", **options),
    ({"trials": 0.5}, "--trials must be .* got 0.5"),
    ({"trials": float("nan")}, "--trials must be .* got nan"),
    ({"epsilon": 0.0}, "--epsilon must be positive"),
    ({"holdout": 1.0}, "--holdout must be"),
    ({"score_limit": 0.0}, "--score-limit must be"),
    ({"scale": 3.0}, "--scale must be left out where --over has its values"),
    ({"batching": "poisson"}, "--batch-size must be given"),
)


def test_an_option_of_another_method_is_refused():
    settings = asked("learning_rate=1", method="linear-model")
    with pytest.raises(ValueError, match="--learning-rate must be left out with"):
        plan_search(settings, blank(), is_named=False)


def test_no_record_is_trained_on_and_scores():
    features = np.arange(300, dtype=np.float32)[:, None]
    data = dataclasses.replace(blank(), features=features)
    trained, (scored, _) = apart(data, 0.2)
    assert (len(trained.features), len(scored)) == (240, 60)
    together = np.concatenate([trained.features, scored])
    assert sorted(together[:, 0]) == list(range(300))
    assert apart(data, None)[1][0] is data.features
    with pytest.raises(ValueError, match="--holdout must be a share that holds out"):
        apart(data, 0.01)


@pytest.mark.parametrize("holdout", [0.2, None])
def test_the_search_spends_what_is_asked_and_no_more(holdout):
    settings = asked("learning_rate=0.1,1", holdout=holdout, steps=3)
    search = plan_search(settings, blank(), is_named=False)
    price = search.price(*apart(blank(), holdout))
    assert 0.99 < price < 1.0
    assert search.scored_on == ("training" if holdout is None else "holdout")
    assert [plan.arguments["learning_rate"] for plan in search.plans] == [0.1, 1.0]
    run, score = search.each_run, search.each_score
    if holdout is None:
        assert score.epsilon < run.epsilon / 2
    else:
        assert run == score


def test_a_pure_method_is_searched_with_a_pure_budget():
    options = {"loss": "absolute", "method": "l1", "candidates": 20, "holdout": 0.2}
    settings = asked("radius=1,2", **options)
    search = plan_search(settings, blank(), is_named=False)
    each = tuning_budget(1.0, 0.0, mean_trials=5.0)
    assert search.total == (1.0, 0.0)
    assert search.each_run == search.each_score == (pytest.approx(each, rel=2e-3), 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("holdout", [0.2, None])
@pytest.mark.parametrize(
    ("method", "over", "options"),
    [
        ("linear-model", "max_features=1,2", {}),
        ("lasso", "radius=1,2", {}),
        ("objective-perturbation", "l2=0.01,0.1", {"loss": "logistic"}),
    ],
)
def test_other_noise_gets_what_the_search_affords(method, over, options, holdout):
    task = "classification" if options else "regression"
    settings = asked(over, method=method, holdout=holdout, **options)
    data = blank(n=2_000, task=task)
    search = plan_search(settings, data, is_named=False)
    assert 0.85 < search.price(*apart(data, holdout)) < 1.0
    assert search.each_run.delta < search.total.delta


def test_the_command_says_what_is_wrong():
    shown = invoke("tune", "data.csv", "--epsilon", 4, "--trials", 2, "--over", "a=1")
    assert shown.exit_code == 2
    assert "Error: --over must be NAME=VALUE" in shown.stderr


def test_what_a_run_may_spend_is_rounded_up(capsys):
    said = {"chosen": {}, "mean_trials": 3.0, "score": None, "score_limit": 1.0}
    said |= {"scored_on": "training", "each_run": {"epsilon": 0.12341, "delta": 1e-9}}
    _tune._show(terminal(), said, 2)
    shown = " ".join(capsys.readouterr().out.split())
    assert "of epsilon = 0.1235, delta = 1e-09 each" in shown


@pytest.mark.slow
def test_the_best_model_is_written_like_one_of_train(folder):
    invoke("ledger", "open", "t.toml", "--epsilon", 9, "--delta", "1e-4")
    done(tune("--holdout", 0.2, "--ledger", "t.toml"))
    report = json.loads(Path("out/report.json").read_text())
    tuning = report["tuning"]
    assert tuning["over"] == {"learning_rate": [0.1, 1.0]}
    assert tuning["chosen"]["learning_rate"] == report["arguments"]["learning_rate"]
    assert (tuning["scored_on"], tuning["num_scored"]) == ("holdout", 80)
    assert report["num_samples"] == 320
    assert set(report["stats"]).isdisjoint({"candidate", "score"})
    assert 3.9 < report["privacy"]["epsilon"] <= 4.0
    assert "the choice among about 3 private runs" in report["privacy"]["description"]
    (entry,) = tomllib.loads(Path("t.toml").read_text())["runs"]
    assert entry["parts"] == ["tuning, epsilon = 4, delta = 1e-06"]
    # How long it took is told by no time: there are days alone.
    for path in (Path("t.toml"), Path("out"), *Path("out").iterdir()):
        assert path.stat().st_mtime % 86_400 == 0
    assert type(entry["at"]) is datetime.date
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "model.npz",
        "report.json",
    ]
    done(invoke("predict", "out/model.npz", "data.csv", "--output", "p.csv"))
    assert len(Path("p.csv").read_text().splitlines()) == 401


@pytest.mark.slow
def test_runs_after_the_first_compile_nothing(folder, monkeypatch):
    compiled, before = [], []
    with_run = _search.Progress.with_run

    def counted(self, *run):
        before.append(len(compiled))
        return with_run(self, *run)

    def listen(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(seconds)

    monkeypatch.setattr(_search.Progress, "with_run", counted)
    monkeypatch.setattr(_select, "draw_count", lambda *law: 6)
    jax.clear_caches()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        done(tune("--over", "scale=1,2", "--method", "gradient-descent"))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert 0 < before[0] == before[-1]
    assert len(before) == 6


@pytest.mark.slow
def test_how_many_runs_there_were_is_in_no_output(folder, monkeypatch):
    # All runs tie, and the first is kept: so that all that may differ is their number.
    score = Search.score
    monkeypatch.setattr(
        Search,
        "score",
        lambda self, scored: dataclasses.replace(
            score(self, scored), fn=lambda params, key: jnp.float32(-1.0)
        ),
    )
    seen, counts = [], iter([1, 7])
    monkeypatch.setattr(_select, "draw_count", lambda law, key: next(counts))
    for _ in range(2):
        found = done(tune("--seed", 3))
        files = [Path("out") / name for name in ("model.npz", "report.json")]
        times = [path.stat().st_mtime for path in (*files, Path("out"))]
        texts = found.stdout, found.stderr, times
        seen.append([*texts, *(path.read_bytes() for path in files)])
    assert next(counts, None) is None
    assert seen[0] == seen[1]


@pytest.mark.slow
def test_a_search_that_was_stopped_goes_on_and_pays_once(folder, monkeypatch):
    invoke("ledger", "open", "t.toml", "--epsilon", 90, "--delta", "1e-4")
    drawn, done_runs = [], []
    with_run = _search.Progress.with_run
    monkeypatch.setattr(_select, "draw_count", lambda *law: drawn.append(law) or 3)

    def stop_at_the_second(self, *run):
        if done_runs and not resumed:
            raise KeyboardInterrupt
        done_runs.append(run)
        return with_run(self, *run)

    resumed = False
    monkeypatch.setattr(_search.Progress, "with_run", stop_at_the_second)
    options = "--ledger", "t.toml", "--checkpoint", "kept"
    stopped = tune(*options)
    assert stopped.exit_code != 0
    assert "The same command goes on from here" in stopped.stderr
    assert Path("kept/states/1").exists()
    assert not Path("out").exists()
    resumed = True
    # One of other options cannot go on, and is not charged for it.
    assert tune(*options, steps=4).exit_code == 2
    done(tune(*options))
    assert len(tomllib.loads(Path("t.toml").read_text())["runs"]) == 1
    assert (len(drawn), len(done_runs)) == (1, 3)
    assert not Path("kept").exists()
    assert load_model(Path("out/model.npz")).privacy.epsilon <= 4.0


@pytest.mark.slow
def test_a_public_set_and_private_ranges(folder):
    done(tune("--holdout", 0.1, source="rand_hie", steps=3))
    report = json.loads(Path("out/report.json").read_text())
    (row,) = report["comparison"]
    assert np.isfinite(row["test_risk"])
    (folder / "schema.toml").write_text("columns.x = {}\ntarget = {column = 'y'}")
    done(tune("--private-ranges", 0.2))
    report = json.loads(Path("out/report.json").read_text())
    total = report["privacy"]["epsilon"]
    assert 3.8 < total <= 4.0
    assert report["ranges"]["privacy"]["epsilon"] < 0.81
    assert report["tuning"]["scored_on"] == "training"
