"""Faults that were there, or might have been, planted again: the replay sees each."""

import dataclasses
import types
import warnings
from functools import partial
from pathlib import Path

import jax
import numpy as np
import optax
import polars as pl
import pytest

from dpjax import batching, estimators, losses, mechanisms
from dpjax.sklearn import _labels
from dpjax.solvers import papers
from dpjax.solvers.linear import _columns, _intervals, _kind, _model
from dpjax.tables.cli import _units
from dpjax.tables.io import _csv
from dpjax.transforms import _privatize
from tests.privacy.replay import (
    _replay,
    test_commands,
    test_parties,
    test_sklearn,
    test_solvers,
)
from tests.privacy.replay.test_commands import commands  # noqa: F401  # a fixture


@pytest.fixture(autouse=True)
def programs_of_faults():
    """No program of a fault is used without it, nor one without it with it."""
    jax.clear_caches()
    yield
    jax.clear_caches()


def refused(hooks, release, why, *names):
    neighbours = {name: test_solvers.NEIGHBOURS[name] for name in names}
    with pytest.raises(AssertionError, match=why):
        test_solvers.refuse_interference(hooks, release, 20, neighbours)


def refused_of_parties(hooks, why, name, owner=0):
    with pytest.raises(AssertionError, match=why):
        test_parties.refuse_interference(hooks, test_parties.CASES[name], owner)


def test_values_behind_the_order_of_features(hooks, monkeypatch):
    def peeling(*args, **options):
        options["release_stddev"] = options["selection_scale"] / 10
        return mechanisms.peeling(*args, **options)

    monkeypatch.setattr(_model, "peeling", peeling)
    refused(hooks, test_solvers.linear(max_features=1), "moves", "opposite", "huge")


def test_a_number_that_is_not_released(hooks, monkeypatch):
    fit = _columns.fit

    def leaking(kind, examples, **options):
        params, stats = fit(kind, examples, **options)
        return params, stats | {"largest": examples.features.max()}

    monkeypatch.setattr(_columns, "fit", leaking)
    refused(hooks, test_solvers.linear("logistic"), "shows", "opposite")


def test_a_warning_of_one_number(hooks, monkeypatch):
    monkeypatch.setattr(papers._gradient_descent, "arrays", lambda tree: tree)
    refused(hooks, test_solvers.descent(), "RuntimeWarning", "huge")


def test_too_little_noise(hooks, monkeypatch):
    def gaussian(key, value, *, stddev):
        return mechanisms.gaussian(key, value, stddev=stddev / 4)

    monkeypatch.setattr(_privatize, "gaussian", gaussian)
    refused(hooks, test_solvers.descent(), "moves", "opposite", "zeros")


def test_too_little_noise_of_scores_of_users(hooks, monkeypatch):
    multipliers = {"score_lengths": 1e-3, "score_tails": 1e-3, "scores": 1e6}
    multipliers["score_moments"] = 0.03  # for a row, so that 0.01 is for a user of 3
    price = 0.5 / 0.01**2
    kind = _kind.ModelKind(losses.squared, False, False, None, user_size=3)

    def release(axis):
        rows = np.zeros((24, 2), np.float32)
        rows[:3, axis], rows[3:, 0] = 0.999, 0.1
        norms = {"weights": np.linalg.norm(rows, axis=1)}
        args = {"weights": rows}, norms, 0.5, list(jax.random.split(jax.random.key(0)))
        return _intervals.released_scores(kind, *args, multipliers)

    hooks.compare(release, 0, [1], price)
    moments = _intervals.noisy_second_moments

    def quieter(key, rows, radius, multiplier, axis_name):
        return moments(key, rows, radius, multiplier / 2, axis_name)

    monkeypatch.setattr(_intervals, "noisy_second_moments", quieter)
    with pytest.raises(AssertionError, match="moves"):
        hooks.compare(release, 0, [1], price)


def correlated():  # anew for each test: a run keeps its program
    options = {"batching": batching.Full()}
    options |= {"noise": mechanisms.BandedToeplitz.square_root(4, 3)}
    options |= {"estimator": test_solvers.CLIPPING, "optimizer": optax.sgd(0.1)}
    return test_solvers.training(**options)


def test_correlated_noise_for_one_step_of_four(hooks, monkeypatch):
    sensitivity = mechanisms.BandedToeplitz.sensitivity

    def of_one(self, **_):
        return sensitivity(self, max_participations=1, min_separation=1)

    monkeypatch.setattr(mechanisms.BandedToeplitz, "sensitivity", of_one)
    refused(hooks, correlated(), "moves", "opposite")


def test_a_mean_beside_the_one_with_correlated_noise(hooks, monkeypatch):
    add = _privatize.add_correlated_noise

    def leaking(strategy, state, value, **options):
        released, following = add(strategy, state, value, **options)
        leaked = jax.tree.map(lambda x, y: x + 1e-3 * y, released, value.high)
        return leaked, following

    monkeypatch.setattr(_privatize, "add_correlated_noise", leaking)
    refused(hooks, correlated(), "shows", "opposite")


def test_a_party_that_replaces_a_record_and_counts_one_added(hooks, monkeypatch):
    sensitivity = estimators.Clipping.sensitivity

    def halved(self, *sizes, **how):
        stated = sensitivity(self, *sizes, **how)
        return stated._replace(l2=stated.l2 / 2)

    monkeypatch.setattr(estimators.Clipping, "sensitivity", halved)
    refused_of_parties(hooks, "moves", "clipped", owner=1)


def test_a_party_that_tells_the_norm_of_its_mean(hooks, monkeypatch):
    to_vector = papers._gradient_descent._to_vector

    def telling(mean):
        vector = to_vector(mean)
        warnings.warn(f"{np.linalg.norm(vector)}", stacklevel=2)
        return vector

    monkeypatch.setattr(papers._gradient_descent, "_to_vector", telling)
    refused_of_parties(hooks, "shows", "clipped")


def test_the_first_slope_of_an_objective_of_parties(hooks, monkeypatch):
    slopes, solution = [], papers._multiparty_objective.Solution
    add = papers._multiparty_objective._Party._sum_gradients

    def summed(self, points):
        slopes.append(add(self, points))
        return slopes[-1]

    def telling(params, privacy, stats):
        return solution(params, privacy, stats | {"first": slopes[-1][0, 0]})

    monkeypatch.setattr(papers._multiparty_objective._Party, "_sum_gradients", summed)
    monkeypatch.setattr(papers._multiparty_objective, "Solution", telling)
    refused_of_parties(hooks, "shows", "objective")


@pytest.mark.parametrize("container", ["array", "list"])
def test_labels_in_the_form_of_their_first_record(hooks, monkeypatch, container):
    def first_form(label):
        is_plain = isinstance(label, int | float | str | np.generic)
        return label if is_plain and label == label else None

    monkeypatch.setattr(_labels, "canonical", first_form)
    fit = hooks, test_sklearn.labelled, 1_000
    with pytest.raises(AssertionError, match="shows"):
        test_sklearn.refuse_interference(*fit, container=container)


def test_places_of_persons_that_others_move(commands, monkeypatch):  # noqa: F811
    placed = _units.Units.placed

    def moved(self, rows, is_chosen, size):
        return placed(self, rows, np.roll(is_chosen, len(rows)), size)

    monkeypatch.setattr(_units.Units, "placed", moved)
    lines, options = test_commands.plain(), test_commands.OF_UNITS["held out"]
    with pytest.raises(AssertionError, match="moves"):
        commands.compare(options, lines, [lines[1:]], test_commands.as_csv)


@pytest.mark.parametrize("fault", ["bytes", "quotes", "rows"])
def test_a_file_in_which_a_cell_takes_its_neighbors(commands, monkeypatch, fault):  # noqa: F811
    lines, name = test_commands.plain(), "linear model"
    if fault == "rows":  # as most readers have it, a sheet has no blank rows
        rows = _csv._rows

        def some(path, decimal):
            return (x.filter(x != "") for x in rows(path, decimal))

        monkeypatch.setattr(_csv, "_rows", some)
        odd, encode, name = "", test_commands.as_sheet, "sheet"
    elif fault == "bytes":  # a line end of UTF-16 is found in halves of two characters

        def lines_of(path, encoding, *, is_quoted):
            parts = path.read_bytes()[2:].split(b"\n\0")
            yield pl.Series([part.decode("utf-16-le", "replace") for part in parts])

        monkeypatch.setattr(_csv, "_lines", lines_of)
        odd, encode = "1,2,\u0a05\u0100,1", test_commands.as_utf16
    else:  # as most readers have it, a quote goes on up to the next one
        begin = _csv._begin

        def quoted(path, text_format):
            return begin(path, dataclasses.replace(text_format, quoted=True))

        monkeypatch.setattr(_csv, "_begin", quoted)
        odd, encode = '1,"2,cook,1', test_commands.as_csv
    odd_lines = [lines[0], odd, *lines[2:]]
    options = test_commands.CASES[name]
    with pytest.raises(AssertionError, match=r"n = (2|59|61) records|59 records"):
        commands.compare(options, lines, [odd_lines], encode)


def test_entry_of_the_guide_to_a_mechanism(monkeypatch):
    def hook(module, name, around):
        monkeypatch.setattr(module, name, partial(around, getattr(module, name)))

    page = Path(__file__).parents[3] / "docs" / "contribute" / "mechanism.md"
    skeleton, entry, lines = (
        part.partition("```\n")[0]
        for part in page.read_text().split("```{code-block} python\n")[1:]
    )
    mechanism, replay = types.ModuleType("mechanism"), _replay.Replay()
    exec(skeleton, vars(mechanism))
    monkeypatch.setitem(_replay._COSTS, "logistic", _replay._laplace)
    names = {"replay": replay, "_my_mechanism": mechanism, "hook": hook}
    names |= {"jax": jax, "jnp": jax.numpy}
    exec(entry, names)
    *fine, moved = lines.strip().splitlines()
    exec("\n".join(fine), names)
    with pytest.raises(AssertionError, match=r"it moves 0\.18"):
        exec(moved, names)
