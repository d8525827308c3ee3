"""How often an interval for a coefficient holds it, without privacy and with it.

Least squares with White's errors; the private model, as wide as that; `intervals=True`.
"""

import math
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import record
from benchmarks.coverage import LAWS, WEIGHTS, D, best_fit
from dpjax.solvers import dp_linear_model

PATH = record.RESULTS / "intervals.json"
NUM_SAMPLES = 20_000
EPSILONS = (0.5, 1.0)
REPETITIONS, AT_ONCE = 400, 20
SEED = 38
QUANTILE = 1.959964
PLAIN, NAIVE, OURS = "without privacy", "noise ignored", "intervals=True"
SHOWN = 40  # intervals of the first coefficient that the record keeps


def run(out: Path = PATH) -> None:
    """Measures every epsilon that the record lacks."""
    record.fill(out, [(epsilon, OURS) for epsilon in EPSILONS], _cell)


def _cell(place: record.Place) -> record.Found:
    """Runs all methods on the same data, drawn anew in each repetition."""
    epsilon, _ = place
    found = record.repeated(partial(_methods, epsilon), REPETITIONS, AT_ONCE, SEED)
    return {(epsilon, name): _row(*pair) for name, pair in found.items()}, {}


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
    loss, truth, draw = LAWS["heavy tails"]
    data = draw(data_key, NUM_SAMPLES)
    given = {"epsilon": epsilon, "delta": NUM_SAMPLES**-1.1, "intercept": D}
    fit = partial(dp_linear_model, loss, data[:2], **given)
    params, errors = best_fit(loss, truth, *data)
    solution = fit(key=key, intervals=True)
    return {
        PLAIN: (params, errors),
        NAIVE: (fit(key=fit_key).params, errors),
        OURS: (solution.params, solution.standard_errors),
    }
