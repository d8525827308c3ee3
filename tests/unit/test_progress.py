"""A call says in a notebook what it is at, and nothing anywhere else."""

import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

import dpjax.tables._progress as progress
from dpjax.sklearn import DPLinearRegression, DPMeanRegressor, score_privately

X = np.linspace(-1, 1, 200)[:, None]


@pytest.fixture
def outputs(monkeypatch):
    """What a notebook shows, one content after the other."""
    contents = []

    def display(content, **options):
        assert options == {"raw": True, "display_id": True}
        contents.append(content)
        return SimpleNamespace(update=lambda content, raw: contents.append(content))

    shell, shows = SimpleNamespace(kernel=object()), SimpleNamespace(display=display)
    module = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", shows)
    monkeypatch.setattr(progress, "_INTERVAL", 0.001)
    return contents


def test_stages_of_fits_and_scores_are_told(outputs, monkeypatch):
    stages, say = [], progress.say
    heard = lambda *stage: stages.append(stage) or say(*stage)  # noqa: E731
    monkeypatch.setattr(progress, "say", heard)
    DPLinearRegression(random_state=0).fit(X, X[:, 0])
    first = ["unit of the target", "scales of columns"]
    first += ["training (compiling)", "training"]
    assert [stage for stage, *_ in stages[:4]] == first
    assert max(step for _, step in stages[3:]) >= 50
    stages.clear()
    model = DPMeanRegressor(random_state=0).fit(X, X[:, 0])
    assert outputs[-1] == {"text/plain": "", "text/html": ""}
    assert any("unit of the target" in content["text/plain"] for content in outputs)
    assert not progress.is_shown()
    score_privately(model, X, X[:, 0], random_state=0)
    expected = ["unit of the target", "mean of the target", "predictions", "scores"]
    assert [stage for stage, *_ in stages] == expected


def test_a_call_within_a_call_has_no_line_of_its_own(outputs):
    @progress.shown("first")
    def fail():
        while not outputs:
            time.sleep(0.001)
        with progress.shown("second"):
            progress.say("column <b>", 1, 4)
        while "1 of 4" not in outputs[-1]["text/plain"]:
            time.sleep(0.001)
        raise ZeroDivisionError(outputs[-1]["text/html"])

    with pytest.raises(ZeroDivisionError, match='max="4"></progress> column &lt;b&gt;'):
        fail()
    assert "first" in outputs[0]["text/plain"]
    assert outputs[-1]["text/plain"] == ""


def test_nothing_is_shown_elsewhere(outputs, monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    with progress.shown("first"):
        progress.say("column x", 0, 1)
        assert not progress.is_shown()
    assert outputs == []
