"""The README's training loop, run word for word."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("flax")
README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
def test_flax_training_loop():
    section = README.read_text().split("## In your own training loop")[1]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)
    names = {}
    # optax itself mixes dtypes: adam's count is an int32.
    with jax.numpy_dtype_promotion("standard"):
        exec(compile(code, "README.md", "exec"), names)
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
