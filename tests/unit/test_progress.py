"""A call says in a notebook what it is at, and nothing anywhere else."""

import sys
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import dpjax
from dpjax import _progress
from dpjax.sklearn import DPLinearRegression, DPMeanRegressor, score_privately

X = np.linspace(-1, 1, 200)[:, None]


@pytest.fixture
def outputs(monkeypatch):
    """What a notebook shows, one content after the other."""
    found = []

    def display(content, **options):
        assert options == {"raw": True, "display_id": True}
        found.append(content)
        return SimpleNamespace(update=lambda content, raw: found.append(content))

    shell, shows = SimpleNamespace(kernel=object()), SimpleNamespace(display=display)
    module = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", shows)
    monkeypatch.setattr(_progress, "_INTERVAL", 0.001)
    return found


@pytest.fixture
def said(monkeypatch):
    """What is said, shown or not."""
    found, say = [], _progress.say

    def heard(*words):
        found.append(words)
        say(*words)

    monkeypatch.setattr(_progress, "say", heard)
    return found


def test_stages_of_a_fit_are_shown_and_go(outputs, said):
    DPLinearRegression(random_state=0).fit(X, X[:, 0])
    stages = [stage for stage, *_ in said]
    assert stages[:2] == ["unit of the target", "scales of columns"]
    assert stages[2:4] == ["training (compiling)", "training"]
    assert max(step for _, step in said[3:]) >= 50
    assert any("training (compiling)" in one["text/plain"] for one in outputs)
    assert outputs[-1] == {"text/plain": "", "text/html": ""}
    assert not _progress.is_shown()


def test_a_mean_and_scores_are_shown(outputs, said):
    model = DPMeanRegressor(random_state=0).fit(X, X[:, 0])
    assert any("unit of the target" in one["text/plain"] for one in outputs)
    assert outputs.pop()["text/plain"] == ""
    outputs.clear()
    score_privately(model, X, X[:, 0], random_state=0)
    assert any("scores" in one["text/plain"] for one in outputs)
    assert outputs[-1]["text/plain"] == ""
    stages = [stage for stage, *_ in said]
    expected = ["unit of the target", "mean of the target", "predictions", "scores"]
    assert stages == expected


def test_a_call_within_a_call_has_no_line_of_its_own(outputs):
    @_progress.shown("first")
    def fail():
        while not outputs:
            time.sleep(0.001)
        with _progress.shown("second"):
            _progress.say("column <b>", 1, 4)
        while "1 of 4" not in outputs[-1]["text/plain"]:
            time.sleep(0.001)
        raise ZeroDivisionError(outputs[-1]["text/html"])

    with pytest.raises(ZeroDivisionError, match='max="4"></progress> column &lt;b&gt;'):
        fail()
    assert "first" in outputs[0]["text/plain"]
    assert outputs[-1]["text/plain"] == ""


def test_nothing_is_shown_elsewhere(outputs, said, monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    frame = {"x": X[:, 0]}
    dpjax.describe(frame, {"x": None}, key=jax.random.key(0), epsilon=1.0)
    assert said == [("column x", 0, 1)]
    assert outputs == []
