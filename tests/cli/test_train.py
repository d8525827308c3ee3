"""The runs and the files that they leave."""

import dataclasses
import json
import os
from typing import get_args

import jax
import numpy as np
import pytest

from dpjax import losses
from dpjax.cli import _plot, _report
from dpjax.cli._plan import make_plan
from dpjax.cli._plot import plot_test_risk
from dpjax.cli._runs import (
    ZERO,
    Scores,
    name_of,
    score_run,
    system_key,
    train_baselines,
    train_private,
)
from dpjax.cli._settings import EstimatorName, Settings
from dpjax.datasets import Dataset, Numeric
from dpjax.estimators import Clipping, MedianOfMeans, SmoothedTruncation, Truncation
from dpjax.solvers import dp_additive_model


def asked(**options):
    return Settings(source="made up", **{"method": "gradient-descent"} | options)


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
    ("task", "loss", "learning_rate"),
    [("classification", losses.logistic, 1.0), ("regression", losses.squared, 0.1)],
)
def test_defaults_follow_from_the_task_and_the_sizes(task, loss, learning_rate):
    plan = make_plan(asked(epsilon=2.0), dataset(task=task), is_named=False)
    assert (plan.loss_fn, plan.descent.learning_rate) == (loss, learning_rate)
    assert plan.facts.delta == 50**-1.1
    assert plan.descent.num_steps == 40  # ceil(10 log 50)
    named = make_plan(asked(epsilon=2.0), dataset(), is_named=True)
    assert named.descent.num_steps == named.arguments["num_steps"] == 300


@pytest.mark.parametrize(
    ("options", "num_knots"),
    [({}, 11), ({"epsilon": 1}, 3), ({"epsilon": 0.1}, 0), ({"max_features": 2}, None)],
)
def test_the_plan_has_as_many_curves_as_the_solver_makes(options, num_knots):
    data = dataset(n=400, task="classification")
    settings = Settings(**{"source": "x", "epsilon": 8.0} | options)
    plan = make_plan(settings, data, is_named=False)
    assert name_of(plan) == f"DP {'additive' if num_knots else 'linear'} model"
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
    plan, shown = make_plan(settings, data, is_named=False), []
    run = train_private(
        plan, data, key=jax.random.key(0), on_step=lambda *x: shown.append(x)
    )
    name = "DP linear model" if model else "DP additive model"
    assert run.method == name
    assert (shown[0][1], shown[-1]) == (0, (name, 50, 50))
    assert run.solution.privacy.epsilon == 8.0
    # One model; where its steps take place, no iterate is one.
    assert run.steps.tolist() == [0]
    scores = score_run(plan, data, run)
    assert (scores.risks[0] < 0.6, scores.scores[0] > 0.7) == (True, True)
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
    plan = make_plan(Settings(source="x", epsilon=8.0), alone, is_named=False)
    run = train_private(plan, alone, key=jax.random.key(0), on_step=ignore)
    assert np.isfinite(run.solution.params).all()


@pytest.mark.parametrize("name", get_args(EstimatorName))
def test_a_scale_is_taken_as_it_is(name):
    settings = asked(epsilon=1.0, estimator=name, scale=3.0)
    estimator = make_plan(settings, dataset(), is_named=False).descent.estimator
    assert float(estimator.limit) == pytest.approx(
        SmoothedTruncation(3.0).limit if "smoothed" in name else 3.0
    )


def test_groups_fit_the_batch():
    settings = asked(epsilon=1.0, estimator="median-of-means")
    plan = make_plan(settings, dataset(n=7), is_named=False)
    assert isinstance(plan.descent.estimator, MedianOfMeans)
    assert isinstance(plan.descent.estimator.inner, Truncation)
    assert plan.descent.estimator.num_groups == 7


def test_clipping_has_a_robust_baseline():
    settings = asked(epsilon=1.0, estimator="clipping")
    plan = make_plan(settings, dataset(), is_named=False)
    assert plan.descent.estimator == Clipping(1.0)
    assert isinstance(plan.descent.robust_baseline, SmoothedTruncation)


def test_disjoint_batches_allow_a_larger_scale():
    full, disjoint = (
        make_plan(
            asked(epsilon=1.0, steps=5, batching=name, estimator="winsorization"),
            dataset(n=10_000),
            is_named=False,
        ).descent
        for name in ("full", "disjoint")
    )
    assert full.batching != disjoint.batching
    assert full.estimator != disjoint.estimator


def test_runs_are_watched_in_order():
    data = dataset()
    plan = make_plan(asked(epsilon=1.0, steps=7), data, is_named=False)
    shown = []
    key = jax.random.key(0)
    run = train_private(plan, data, key=key, on_step=lambda *x: shown.append(x))
    assert run.steps.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert np.array_equal(run.iterates[-1], run.solution.params)
    steps = [0, *run.steps, 7]
    assert shown == [("DP-GD, smoothed truncation", step, 7) for step in steps]
    assert run.solution.privacy.epsilon == 1.0


@pytest.mark.slow
def test_the_report_files_unprotected_numbers_apart(tmp_path):
    data = dataset()
    settings = asked(epsilon=1.0, steps=150, loss="huber")
    plan = make_plan(settings, data, is_named=False)
    private = train_private(plan, data, key=jax.random.key(0), on_step=ignore)
    assert len(private.steps) == 75
    runs = train_baselines(plan, data, key=jax.random.key(1), on_step=ignore)
    assert [run.is_private for run in runs] == [True, False, False, True]
    assert runs[0].method == ZERO
    assert not runs[0].solution.params.any()
    scored = [(run, score_run(plan, data, run)) for run in [*runs, private]]
    # Without privacy the target, which is the first feature, is found.
    assert scored[1][1].risks[-1] < 1e-3
    assert scored[1][1].scores[-1] < 0.03
    for is_public, name in ((True, "comparison"), (False, "unprotected")):
        args = dict(is_public=is_public, noise_key="")
        content = _report.report(plan, data, private, scored, **args)
        assert name in content
        assert len({"comparison", "unprotected"} & set(content)) == 1
        assert name not in _report.report(plan, data, private, **args)
        png = plot_test_risk(plan, data, scored, is_public=is_public)
        assert png.startswith(b"\x89PNG")
    # JSON has no NaN: a number that is none is null.
    odd = [(private, Scores(np.array([np.nan]), np.array([np.inf])))]
    content = _report.report(plan, data, private, odd, **args)
    model = _report.model_of(
        data, private.solution, method=private.method, link="identity"
    )
    files = _report.files(model, content)
    assert json.loads(files["report.json"])["unprotected"][0]["test_risk"] is None


@pytest.mark.parametrize(("generator", "size"), [("threefry", 2), ("chacha20", 8)])
def test_the_system_key_is_fresh(generator, size):
    keys = [jax.random.key_data(system_key(generator)).tolist() for _ in range(3)]
    assert len(set(map(tuple, keys))) == 3
    assert all(len(key) == size for key in keys)
    assert all(any(word > 2**8 for word in key) for key in keys)


CONTENTS = {"model.npz": b"new", "report.json": b"new"}


def test_writing_replaces_and_clears_an_older_plot(tmp_path):
    (tmp_path / "test_risk.png").write_bytes(b"old")
    (tmp_path / "report.json").write_bytes(b"old")
    (tmp_path / "other").write_bytes(b"kept")
    _report.write(tmp_path, CONTENTS)
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
            _report.write(folder, CONTENTS)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_that_cannot_be_used_is_refused_early(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "taken" / "report.json").mkdir(parents=True)
    _report.check_folder(tmp_path / "new" / "newer")
    for folder in (tmp_path / "file", tmp_path / "file" / "x", tmp_path / "taken"):
        with pytest.raises(ValueError, match="--output must be a folder"):
            _report.check_folder(folder)
    assert sorted(os.listdir(tmp_path)) == ["file", "taken"]


def test_the_plot_rounds_a_guarantee_up():
    data = dataset()
    plan = make_plan(asked(epsilon=1.001, delta=1.01e-5, steps=2), data, is_named=False)
    run = train_private(plan, data, key=jax.random.key(0), on_step=ignore)
    label = _plot._label(run, score_run(plan, data, run))
    assert label.endswith("(ε = 1.01, δ = 1.1e-05)")


@pytest.mark.slow
def test_baselines_of_long_rows_do_not_diverge():
    data = dataset()
    long = dataclasses.replace(data, features=30 * data.features)
    plan = make_plan(asked(epsilon=1.0), long, is_named=True)
    runs = train_baselines(plan, long, key=jax.random.key(1), on_step=ignore)
    zero, without_privacy = runs[0], runs[1:3]
    risk = score_run(plan, long, zero).risks[-1]
    for run in without_privacy:
        assert np.isfinite(run.iterates).all()
    assert score_run(plan, long, runs[1]).risks[-1] < risk
