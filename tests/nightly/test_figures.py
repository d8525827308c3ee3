"""The papers' figures: every panel runs and is drawn; the optimum, and laws."""

import dataclasses
import math
import os

import jax
import numpy as np
import polars as pl
import pytest
from scipy import stats

from benchmarks import __main__ as command
from benchmarks.figures import printed
from benchmarks.figures import problems as laws
from benchmarks.figures import run as runner
from benchmarks.figures.catalogue import figures as all_figures
from benchmarks.figures.catalogue import panels
from benchmarks.figures.methods import METHODS
from benchmarks.figures.panel import Panel, Setting, Size
from benchmarks.figures.problems import PROBLEMS, measure, optimum
from dpjax import losses
from tests.unit.datasets.test_datasets import check_law

# That runs resume, and what is written of them, not which numbers they find.
NAMES = list(panels())
BUNDLED = ("adult", "rand_hie")
# Each law with its oracle, and an oracle of a wrong parameter.
FISK = [stats.fisk(5, scale=math.exp(0.2) * factor) for factor in (1, 1.2)]
LAWS = {
    laws.Laplace(location=-1.0, scale=5.0): [stats.laplace(-1, x) for x in (5, 6)],
    laws.Logistic(scale=0.5): [stats.logistic(0, x) for x in (0.5, 0.6)],
    laws.LogLogistic(location=0.2, scale=0.2): FISK,
    laws.LogLogistic(scale=1 / 0.1): [stats.fisk(0.1), stats.fisk(0.12)],
    laws.LogGamma(concentration=0.5): [stats.loggamma(x) for x in (0.5, 0.6)],
}


def run(name, folder, size=Size.SMOKE, seed=0, **changes):
    panel = dataclasses.replace(panels()[name].at(size), **changes)
    dataset, cells = PROBLEMS[panel.problem].dataset, []
    if dataset not in (None, *BUNDLED) and not os.environ.get("DPJAX_DATA"):
        pytest.skip("set DPJAX_DATA to the folder of data sets that are not bundled")
    on_cell = lambda *done: cells.append(done)  # noqa: E731
    try:
        path = runner.run_panel(panel, folder, seed=seed, on_cell=on_cell)
    except FileNotFoundError as why:
        assert dataset not in (None, *BUNDLED)
        pytest.skip(str(why).split(".")[0])
    return panel, pl.read_csv(path), cells


def test_every_figure_of_the_papers_is_there():
    names = {"000-1", "002-1", "003-1", "all-1", "all-2", "new-1", "new-2"}
    names |= {f"001-{i + 1}" for i in range(4)} | {f"004-{i + 1}" for i in range(11)}
    assert set(all_figures()) == names
    assert list(all_figures())[3:6] == ["001-3", "001-4", "002-1"]
    assert [one.name for chosen in all_figures().values() for one in chosen] == NAMES


@pytest.mark.parametrize("size", [Size.SMOKE, Size.QUICK], ids=lambda size: size.name)
@pytest.mark.quick(24)
@pytest.mark.parametrize("name", NAMES)
def test_a_panel_runs(name, size, tmp_path):
    panel, table, _ = run(name, tmp_path, size)
    assert set(table["method"]) == set(panel.methods)
    assert table["value"].is_finite().all()
    assert table["repetition"].n_unique() == panel.repetitions
    assert panel.x in table.columns
    spent = dict(table.select("method", "epsilon_spent").iter_rows())
    for method in panel.methods:
        assert METHODS[method].is_private == (spent[method] < np.inf)
    tight = [spent[name] for name in spent if name.endswith("tight")]
    asked = {setting.epsilon for setting in panel.settings()}
    assert all(min(asked) <= epsilon <= max(asked) * (1 + 1e-9) for epsilon in tight)


def test_a_finished_cell_is_not_run_again(tmp_path, monkeypatch):
    name, solved = "004-1a", runner._solved
    _, expected, cells = run(name, tmp_path / "whole")
    assert cells == [(0, 2), (1, 2), (2, 2)]

    def killed(panel, setting, method, *rest):
        calls.append((setting.epsilon, method))
        if len(calls) == 10:  # in the second cell: clipping is tried four times
            raise KeyboardInterrupt
        return solved(panel, setting, method, *rest)

    calls = []
    monkeypatch.setattr(runner, "_solved", killed)
    with pytest.raises(KeyboardInterrupt):
        run(name, tmp_path / "killed")
    first = calls[0][0]
    assert not list((tmp_path / "killed").glob("*.csv"))
    assert len(list((tmp_path / "killed" / "cells").iterdir())) == 1
    _, resumed, _ = run(name, tmp_path / "killed")
    assert first not in {epsilon for epsilon, _ in calls[10:]}
    assert resumed.equals(expected)
    assert not run(name, tmp_path / "other", seed=1)[1].equals(expected)


def test_clipping_takes_the_candidate_that_ends_best(tmp_path, monkeypatch):
    name, method = "001-1a", "DP-GD, best clipping"
    options = {"methods": (method,), "repetitions": 3}
    _, best, _ = run(name, tmp_path / "best", **options)
    candidates, alone = METHODS[method].candidates, []
    for i, candidate in enumerate(candidates):
        one = dataclasses.replace(METHODS[method], candidates=(candidate,))
        monkeypatch.setitem(METHODS, method, one)
        alone.append(run(name, tmp_path / str(i), **options)[1])
    by_candidate = np.stack([x["value"].to_numpy().reshape(3, -1) for x in alone])
    chosen = by_candidate[:, :, -1].argmin(axis=0)
    assert len(candidates) == 5
    expected = by_candidate[chosen, np.arange(3)]  # all steps of the one that ends best
    assert np.array_equal(best["value"].to_numpy().reshape(3, -1), expected)
    broken = [np.array([[1.0, np.nan]]), np.array([[2.0, 3.0]])]
    assert runner._best(broken).tolist() == [[2.0, 3.0]]


def test_repetitions_side_by_side_have_the_same_values(tmp_path, monkeypatch):
    _, alone, _ = run("004-1b", tmp_path / "alone", repetitions=3)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    _, together, _ = run("004-1b", tmp_path / "together", repetitions=3)
    order = ["num_samples", "method", "repetition"]
    alone, together = alone.sort(order), together.sort(order)
    assert alone.drop("value").equals(together.drop("value"))
    np.testing.assert_allclose(alone["value"], together["value"], rtol=1e-4, atol=1e-6)


def test_the_command_lists_runs_and_draws(tmp_path, monkeypatch, capsys):
    command.main(["figures", "list"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == NAMES
    at = Panel.at
    monkeypatch.setattr(Panel, "at", lambda self, size: at(self, Size.SMOKE))
    command.main(["figures", "run", "004-1b", "--out", str(tmp_path)])
    assert (tmp_path / "004-1b.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "004-1b.csv").exists()


def test_printed_thresholds_and_scales():
    setting = {"num_samples": 10_000, "epsilon": 1.0, "delta": 1e-5}
    single = printed.threshold(2.0, moment_order=2.0, **setting)
    expected = 2.0 * 10_000 / math.log(100) / math.sqrt(math.log(1.25e5))
    np.testing.assert_allclose(single, math.sqrt(expected))
    sizes = {"moment_order": 1.5, "num_coordinates": 9, "num_steps": 16}
    many = printed.threshold(2.0, **sizes, **setting)
    np.testing.assert_allclose(many, (2e4 / (27 * 4)) ** (1 / 1.5))
    # Lemma 3.
    scale = printed.smoothed_truncation(4.0, 1000, failure_prob=0.05).scale
    np.testing.assert_allclose(scale, math.sqrt(1000 * 4.0 / (2 * math.log(20))))


@pytest.mark.parametrize("problem", ["logistic, in the unit ball", "RAND HIE"])
def test_nothing_is_better_than_the_optimum(problem):
    # With a penalty, or with a ball that holds the weights back.
    kind = PROBLEMS[problem]
    sample = kind.draw(jax.random.key(0), Setting(num_samples=2_000, num_features=5))
    best = optimum(kind, sample)
    risk = jax.vmap(kind.penalized, (None, 0))
    directions = jax.random.normal(jax.random.key(1), (30, *best.shape))
    for i, direction in enumerate(directions):
        params = kind.project(best + 0.1 * 0.5**i * direction)
        excess = measure("excess risk", kind, params, best, sample)
        assert excess >= -1e-7
        difference = risk(params, sample.data) - risk(best, sample.data)
        assert excess == pytest.approx(float(difference.mean()), rel=1e-3, abs=1e-7)
    assert measure("excess risk", kind, best, best, sample) == 0


@pytest.mark.parametrize("sign", [1, -1])
def test_labels_have_the_sign_of_each_paper(sign, key):
    """That of paper 004 by default, and of 001."""
    changes = {"feature_law": laws._SKEWED} | ({} if sign == 1 else {"sign": sign})
    problem = laws.logistic_model(key, num_samples=2_000, num_features=7, **changes)
    latent = np.asarray(problem.features) @ np.asarray(problem.true_params)
    assert np.array_equal(problem.targets, np.sign(sign * latent))
    loss_fn = jax.vmap(losses.logistic, in_axes=(None, 0))
    params, data = sign * problem.true_params, problem.data
    assert loss_fn(params, data).mean() < loss_fn(-params, data).mean()


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_samples_follow_the_laws_of_the_figures(law, key):
    check_law(law, *LAWS[law], key, vars(laws))
