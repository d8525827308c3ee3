"""Who has the least excess risk, over features a record and the weight of the tails.

Features and noise of linear regressions follow Student's law, scaled to variance one;
weights fall like 1/j and have norm one, so that zero has an excess risk of 1/2.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

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
    setting = Setting(NUM_SAMPLES, num_features, epsilon=EPSILON)
    draw = partial(_draw, tail_index=tail_index)
    problem = ProblemKind(draw, losses.squared)
    pairs = [jax.random.split(k) for k in jax.random.split(root, REPETITIONS)]
    tasks = [Task(problem, setting, draw(one, setting), key) for one, key in pairs]
    rows = {}
    for method, fits in _methods(num_features).items():
        excess = [[_excess(fit, task) for task in tasks] for fit in fits]
        # The best in hindsight, where there are several settings.
        best = excess[np.argmin(np.mean(excess, axis=1))]
        row = {"settings": len(fits), "excess": best}
        rows[tail_index, num_features, method] = row
    seconds = time.perf_counter() - start
    print(f"d {num_features}, tail {tail_index:g}: {seconds:.0f} s", flush=True)
    return rows, {}


def _draw(key: jax.Array, setting: Setting, tail_index: float) -> Sample:
    first, second, third = jax.random.split(key, 3)
    scale = 1 / math.sqrt(tail_index / (tail_index - 2))
    num_features = setting.num_features
    features = scale * jax.random.t(first, tail_index, (NUM_SAMPLES, num_features))
    noise = scale * jax.random.t(second, tail_index, (NUM_SAMPLES,))
    signs = jax.random.rademacher(third, (num_features,), jnp.float32)
    params = signs / jnp.arange(1.0, num_features + 1)
    params /= jnp.linalg.norm(params)
    data = features, features @ params + noise
    return Sample(data, data, params)


def _excess(fit: Callable[[Task], solvers.Solution], task: Task) -> float:
    params = fit(task._replace(key=jax.random.clone(task.key))).params
    value = float(jnp.sum((params - task.sample.true_params) ** 2) / 2)
    return value if math.isfinite(value) and value < 1e9 else 1e9  # as JSON has it


def _methods(num_features: int) -> dict[str, list[Callable[[Task], solvers.Solution]]]:
    """Returns each method at all of its settings."""
    names = {ZERO: ZERO, NOTHING_TO_SET: "nothing to set"}
    names |= {name: name for name in (CLIPPING, TRUNCATION)}
    found = {
        name: [partial(METHODS[one].solve, **x) for x in METHODS[one].candidates]
        for name, one in names.items()
    }
    if num_features > 10:
        found[SELECTION] = [partial(METHODS["nothing to set"].solve, max_features=10)]
    return found
