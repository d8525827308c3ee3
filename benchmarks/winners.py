"""Who has the least excess risk, over features a record and the weight of the tails.

Features and noise of linear regressions follow Student's law, scaled to variance one;
weights fall like 1/j and have norm one, so that zero has an excess risk of 1/2.
"""

import math
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import record
from benchmarks.figures.methods import METHODS, Task
from benchmarks.figures.panel import Setting
from benchmarks.figures.problems import ProblemKind, Sample
from dpjax import losses, solvers

PATH = record.RESULTS / "winners.json"
NUM_SAMPLES = 4_000
NUM_FEATURES = (4, 12, 40, 120, 400)
TAIL_INDICES = (2.2, 3.0, 5.0, 10.0, 100.0)
EPSILON = 1.0
REPETITIONS = 5
SEED = 24
NOTHING_TO_SET, SELECTION = "dp_linear_model", "dp_linear_model, 10 features"
CLIPPING, TRUNCATION = "DP-GD, best clipping", "DP-GD, best smoothed truncation"
ZERO = "zero"


def run(out: Path = PATH) -> None:
    """Measures every cell that the record lacks."""
    pairs = product(NUM_FEATURES, TAIL_INDICES)  # programs are of a shape
    record.fill(out, [(tail, size, ZERO) for size, tail in pairs], _cell)


def _cell(place: record.Place) -> record.Found:
    """Runs all methods on the data of a cell."""
    tail_index, num_features, _ = place
    start = time.perf_counter()
    root = jax.random.fold_in(jax.random.key(SEED), num_features)
    root = jax.random.fold_in(root, round(10 * tail_index))
    pairs = [jax.random.split(k) for k in jax.random.split(root, REPETITIONS)]
    runs = [(_draw(one, tail_index, num_features), key) for one, key in pairs]
    rows = {}
    for method, fits in _methods(tail_index, num_features).items():
        excess = [[_excess(fit(*one), one[0]) for one in runs] for fit in fits]
        # The best in hindsight, where there are several settings.
        best = excess[np.argmin(np.mean(excess, axis=1))]
        row = {"settings": len(fits), "excess": best}
        rows[tail_index, num_features, method] = row
    seconds = time.perf_counter() - start
    print(f"d {num_features}, tail {tail_index:g}: {seconds:.0f} s", flush=True)
    return rows, {}


def _draw(key: jax.Array, tail_index: float, num_features: int) -> Sample:
    first, second, third = jax.random.split(key, 3)
    scale = 1 / math.sqrt(tail_index / (tail_index - 2))
    features = scale * jax.random.t(first, tail_index, (NUM_SAMPLES, num_features))
    noise = scale * jax.random.t(second, tail_index, (NUM_SAMPLES,))
    signs = jax.random.rademacher(third, (num_features,), jnp.float32)
    params = signs / jnp.arange(1.0, num_features + 1)
    params /= jnp.linalg.norm(params)
    data = features, features @ params + noise
    return Sample(data, data, params)


def _excess(params: jax.Array, sample: Sample) -> float:
    value = float(jnp.sum((params - sample.true_params) ** 2) / 2)
    return value if math.isfinite(value) and value < 1e9 else 1e9  # as JSON has it


def _methods(tail_index, num_features):
    """Returns each method at all of its settings."""
    setting = Setting(NUM_SAMPLES, num_features, epsilon=EPSILON)
    draw = lambda key, _: _draw(key, tail_index, num_features)  # noqa: E731
    problem = ProblemKind(draw, losses.squared)

    def untuned(sample: Sample, key: jax.Array, **options: Any) -> jax.Array:
        budget = {"epsilon": setting.epsilon, "delta": setting.delta}
        solve = partial(solvers.dp_linear_model, **budget, **options)
        return solve("squared", sample.data, key=key).params

    def descent(name: str, options: Any, sample: Sample, key: jax.Array) -> jax.Array:
        task = Task(problem, setting, sample, jax.random.clone(key))
        return METHODS[name].solve(task, **options).params

    zero = lambda sample, key: jnp.zeros(num_features)  # noqa: E731
    found: dict[str, list[Any]] = {ZERO: [zero], NOTHING_TO_SET: [untuned]}
    if num_features > 10:
        found[SELECTION] = [partial(untuned, max_features=10)]
    for name in (CLIPPING, TRUNCATION):
        found[name] = [partial(descent, name, x) for x in METHODS[name].candidates]
    return found
