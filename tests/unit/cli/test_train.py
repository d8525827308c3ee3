"""The runs and the files that they leave."""

import dataclasses
import os

import jax
import numpy as np
import pytest

from dpjax import losses
from dpjax.cli import _report
from dpjax.cli._plan import make_plan
from dpjax.cli._runs import (
    Scores,
    score_run,
    system_key,
    train_baselines,
    train_private,
)
from dpjax.cli._settings import Settings
from dpjax.datasets import Dataset, Numeric
from dpjax.solvers import dp_additive_model
from tests.unit.cli.command import done
from tests.unit.cli.rooms import read_report, run


def asked(**options):
    return Settings(source="made up", **options)


def dataset(n=50, task="regression", names="ab"):
    rng = np.random.default_rng(0)
    features = np.hstack([rng.normal(size=(n, len(names))), np.ones((n, 1))]).astype(
        np.float32
    )
    targets = np.sign(features[:, 0]) if task == "classification" else features[:, 0]
    return Dataset(
        name="made up",
        task=task,
        feature_names=(*names, "intercept"),
        features=features,
        targets=targets,
        test_features=features[:10],
        test_targets=targets[:10],
        target_unit="metres",
        licence="none",
        source="none",
        schema=dict.fromkeys(names, Numeric()),
    )


def ignore(method, step, total):
    del method, step, total


@pytest.mark.parametrize(
    ("task", "loss"),
    [("classification", losses.logistic), ("regression", losses.squared)],
)
def test_defaults_follow_from_the_task_and_the_sizes(task, loss):
    plan = make_plan(asked(epsilon=2.0), dataset(task=task))
    assert plan.loss_fn == loss
    assert plan.budget == (2.0, 50**-1.1)
    left = make_plan(asked(epsilon=1.0, private_ranges=0.25, delta=0.1), dataset())
    assert left.budget == (0.75, pytest.approx(0.075))


@pytest.mark.parametrize(
    ("options", "num_knots"),
    [({}, 11), ({"epsilon": 1}, 3), ({"epsilon": 0.1}, 0), ({"max_features": 2}, None)],
)
def test_the_plan_has_as_many_curves_as_the_solver_makes(options, num_knots):
    data = dataset(n=400, task="classification")
    settings = Settings(**{"source": "x", "epsilon": 8.0} | options)
    plan = make_plan(settings, data)
    assert plan.method == f"DP {'additive' if num_knots else 'linear'} model"
    assert settings.may_bend == (num_knots is not None)
    if settings.may_bend:
        solution = jax.eval_shape(
            lambda: dp_additive_model(
                *("logistic", data.train),
                **{"key": jax.random.key(0), "smooth": [0, 1], "intercept": -1},
                **{"epsilon": settings.epsilon, "delta": 400**-1.1},
            )
        )
        assert len(solution.params.knots) == num_knots


@pytest.mark.parametrize("model", [None, "linear"])
def test_without_settings_a_model_is_trained(model):
    data = dataset(n=400, task="classification")
    settings = Settings(source="x", epsilon=8.0, model=model)
    plan, shown = make_plan(settings, data), []
    run = train_private(
        plan, data, key=jax.random.key(0), on_step=lambda *x: shown.append(x)
    )
    name = "DP linear model" if model else "DP additive model"
    assert run.method == name
    assert (shown[0][1], shown[-1]) == (0, (name, 50, 50))
    assert run.solution.privacy.epsilon == 8.0
    scores = score_run(plan, data, run)
    assert (scores.risk < 0.6, scores.score > 0.7) == (True, True)
    weights = run.solution.params
    if model is None:
        assert run.solution.stats["num_curves"] == 2
        assert (weights.heights.shape, weights.smooth) == ((2, 11), (0, 1))
        weights = weights.predict(np.eye(3)) - weights.slopes[2]
    assert weights[0] > 3 * max(abs(weights[1]), abs(weights[2]))


@pytest.mark.slow
def test_the_linear_model_of_an_intercept_alone():
    data = dataset(n=400, task="classification")
    alone = dataclasses.replace(
        data,
        feature_names=("intercept",),
        schema={},
        features=data.features[:, 2:],
        test_features=data.test_features[:, 2:],
    )
    plan = make_plan(Settings(source="x", epsilon=8.0), alone)
    run = train_private(plan, alone, key=jax.random.key(0), on_step=ignore)
    assert np.isfinite(run.solution.params).all()


def test_baselines_are_exact_but_for_the_private_one():
    data = dataset(n=400)
    plan = make_plan(asked(epsilon=100.0), data)
    runs = train_baselines(plan, data, key=jax.random.key(1), on_step=ignore)
    assert [run.is_private for run in runs] == [False, False, True]
    assert runs[2].solution.privacy.epsilon == 100.0
    # Without privacy the target, which is the first feature, is found.
    constant, linear, private = (score_run(plan, data, run) for run in runs)
    assert linear.risk < 1e-3 < constant.risk
    assert linear.score < 0.03 < constant.score
    assert private.risk < constant.risk
    level = np.asarray(runs[0].solution.params)
    assert level[:-1].tolist() == [0, 0]
    assert level[-1] == pytest.approx(data.targets.mean(), abs=0.05)
    # JSON has no NaN: a number that is none is null.
    args = dict(is_public=True, noise_key="")
    assert "comparison" not in _report.report(plan, data, runs[2], **args)
    odd = [(runs[2], Scores(np.nan, 1.0))]
    content = _report.report(plan, data, runs[2], odd, **args)
    assert content["comparison"][0]["test_risk"] is None


@pytest.mark.parametrize(("generator", "size"), [("threefry", 2), ("chacha20", 8)])
def test_the_system_key_is_fresh(generator, size):
    keys = [jax.random.key_data(system_key(generator)).tolist() for _ in range(3)]
    assert len(set(map(tuple, keys))) == 3
    assert all(len(key) == size for key in keys)
    assert all(any(word > 2**8 for word in key) for key in keys)


CONTENTS = {"model.npz": b"new", "report.json": b"new"}


def test_writing_replaces_what_is_of_its_names(tmp_path):
    (tmp_path / "report.json").write_bytes(b"old")
    (tmp_path / "other").write_bytes(b"kept")
    _report.write(tmp_path, CONTENTS, lambda: None)
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert found == CONTENTS | {"other": b"kept"}


@pytest.mark.parametrize("is_new", [True, False])
def test_a_disk_that_is_full_leaves_the_folder_as_it_was(tmp_path, monkeypatch, is_new):
    folder = tmp_path / "a" if is_new else tmp_path
    if not is_new:
        (folder / "report.json").write_bytes(b"old")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    fsync, done = os.fsync, []

    def fail(descriptor):
        done.append(descriptor)
        if len(done) == 2:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(OSError, match=r"--output .* could not be written to: .*28"):
            _report.write(folder, CONTENTS, lambda: None)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_that_cannot_be_used_is_refused_early(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "taken" / "report.json").mkdir(parents=True)
    _report.check_folder(tmp_path / "new" / "newer")
    for folder in (tmp_path / "file", tmp_path / "file" / "x", tmp_path / "taken"):
        with pytest.raises(ValueError, match="--output must be a folder"):
            _report.check_folder(folder)
    assert sorted(os.listdir(tmp_path)) == ["file", "taken"]


@pytest.mark.slow
def test_adult_shows_the_comparison(tmp_path):
    out = tmp_path / "out"
    result = done(run("adult", "--epsilon", 1, "--seed", 0, "--output", out))
    names = "constant, not private", "linear model, not private", "DP linear model"
    for text in ("DP additive model", "5 curves", *names, "accuracy"):
        assert text in result.stdout
    assert "any one of the 32,561 records" in " ".join(result.stdout.split())
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
