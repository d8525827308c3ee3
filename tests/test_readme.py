"""The README's examples, run word for word."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

README = Path(__file__).parents[1] / "README.md"


def run_example(heading):
    """Runs the first block under a heading, and returns its names."""
    section = README.read_text().split(f"## {heading}\n")[1]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)
    names = {}
    # optax itself mixes dtypes: adam's count is an int32.
    with jax.numpy_dtype_promotion("standard"):
        exec(compile(code, "README.md", "exec"), names)
    return names


@pytest.mark.slow
def test_five_lines(capsys):
    names = run_example("Five lines")
    assert "a factor e^1 = 2.72" in capsys.readouterr().out.replace("\n", " ")
    features, labels = (np.asarray(x) for x in names["data"])
    margins = (
        features @ np.asarray(names["solution"].params) * np.where(labels > 0, 1, -1)
    )
    assert np.logaddexp(0, -margins).mean() < 0.33  # 0.32 without privacy


@pytest.mark.slow
def test_many_features(capsys):
    names = run_example("Many features")
    assert capsys.readouterr().out == "[3 8]\n"
    assert names["pure"].privacy.delta == 0
    # Of the signal's risk, less than a third is left.
    truth = np.zeros(1000)
    truth[[3, 8]] = 0.6, -0.4
    for name in ("pure", "sparse"):
        error = np.asarray(names[name].params) - truth
        assert np.sum(error**2) < np.sum(truth**2) / 3


@pytest.mark.slow
def test_flax_training_loop():
    pytest.importorskip("flax")
    names = run_example("In your own training loop")
    features, targets = names["data"]
    signal = np.asarray(features[:, 0] * features[:, 1])
    prediction = np.asarray(names["model"](features))[:, 0]
    # It learned: of the signal's variance, 1, less than a third is left. (A model that
    # predicts the mean leaves all of it.)
    assert np.mean((prediction - signal) ** 2) < 1 / 3
    assert names["train_step"]._cache_size() == 1
    # Poisson batches of the stated budget, noise and divisor that belong together.
    assert names["batching"].capacity >= 256
    assert np.isfinite(targets).all()


@pytest.mark.slow
def test_many_devices():
    solution = run_example("Many devices")["solution"]
    error = np.asarray(solution.params) - np.arange(5.0)
    assert np.sum(error**2) < np.sum(np.arange(5.0) ** 2) / 4
