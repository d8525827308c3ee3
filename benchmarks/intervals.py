"""How often an interval for a coefficient holds it, without privacy and with it.

Linear regression on made data of ten features and an intercept: features follow
Student's t law of 5 degrees, noise that of 3. Three methods give each coefficient an
interval of 95 per cent: least squares with White's standard errors; the private model,
as wide as that, as if its noise were none; and the private model with `intervals=True`.
`python -m benchmarks intervals` runs it in minutes.
"""

import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import record
from dpjax.solvers import dp_linear_model

PATH = record.RESULTS / "intervals.json"
NUM_SAMPLES, NUM_FEATURES = 20_000, 10
EPSILONS = (0.5, 1.0)
REPETITIONS, AT_ONCE = 100, 20
SEED = 38
QUANTILE = 1.959964
PLAIN, NAIVE, OURS = "without privacy", "noise ignored", "intervals=True"
WEIGHTS = np.append(np.linspace(1, -1, NUM_FEATURES), 1.0).astype(np.float32)
SHOWN = 40  # intervals of the first coefficient that the record keeps


def run(out: Path = PATH) -> None:
    """Measures every epsilon that the record lacks."""
    record.fill(out, [(epsilon, OURS) for epsilon in EPSILONS], _cell)


def _cell(place: record.Place) -> record.Found:
    """Runs all methods on the same data, drawn anew in each repetition."""
    epsilon, _ = place
    start = time.perf_counter()
    keys = jax.random.split(jax.random.key(SEED), (-(-REPETITIONS // AT_ONCE), AT_ONCE))
    program = jax.jit(jax.vmap(partial(_methods, epsilon)))
    parts = [jax.tree.map(np.asarray, program(some)) for some in keys]
    found = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    rows = {(epsilon, name): _row(*pair) for name, pair in found.items()}
    print(f"epsilon {epsilon:g}: {time.perf_counter() - start:.0f} s", flush=True)
    return rows, {}


def _row(params: np.ndarray, errors: np.ndarray) -> dict[str, Any]:
    """Returns what is kept of (repetitions, coefficients) estimates and errors."""
    is_finite = np.isfinite(errors)
    is_held = is_finite & (np.abs(params - WEIGHTS) <= QUANTILE * errors)
    widths = np.median(np.where(is_finite, 2 * QUANTILE * errors, np.inf), axis=0)
    shown = np.stack([params, errors])[:, :SHOWN, 0]
    return {
        "finite": is_finite.sum(0).tolist(),
        "held": is_held.sum(0).tolist(),
        "width": [float(x) if math.isfinite(x) else None for x in widths],
        "estimates": shown[0].round(5).tolist(),
        "errors": [round(float(x), 5) if math.isfinite(x) else None for x in shown[1]],
    }


def _methods(epsilon: float, key: jax.Array) -> dict[str, Any]:
    """Returns estimates and standard errors of all coefficients, by the method."""
    data_key, fit_key, key = jax.random.split(key, 3)
    features, targets = _draw(data_key)
    given = {"epsilon": epsilon, "delta": NUM_SAMPLES**-1.1, "intercept": -1}
    fit = partial(dp_linear_model, "squared", (features, targets), **given)
    inverse = jnp.linalg.inv(features.T @ features)
    params = inverse @ (features.T @ targets)
    scores = features * (targets - features @ params)[:, None]
    errors = jnp.sqrt(jnp.diag(inverse @ (scores.T @ scores) @ inverse))
    solution = fit(key=key, intervals=True)
    return {
        PLAIN: (params, errors),
        NAIVE: (fit(key=fit_key).params, errors),
        OURS: (solution.params, solution.standard_errors),
    }


def _draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns correlated features and targets, noise and features of variance one."""
    x_key, noise_key = jax.random.split(key)
    shape = NUM_SAMPLES, NUM_FEATURES
    x = jax.random.t(x_key, 5, shape) * math.sqrt(3 / 5)
    noise = jax.random.t(noise_key, 3, shape[:1]) / math.sqrt(3)
    lags = np.abs(np.subtract.outer(np.arange(NUM_FEATURES), np.arange(NUM_FEATURES)))
    root = np.linalg.cholesky(0.5**lags).astype(np.float32)
    features = jnp.concatenate([x @ root.T, jnp.ones((NUM_SAMPLES, 1))], axis=1)
    return features, features @ WEIGHTS + noise
