"""The command `python -m benchmarks utility`: runs methods."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import comparison
from benchmarks.comparison import key_of, keys_of
from benchmarks.record import RESULTS, Row, rounded
from benchmarks.utility import predictions, problems, sklearn, tuning
from benchmarks.utility.methods import METHODS, Method
from benchmarks.utility.peers import LeftOut
from benchmarks.utility.problems import Problem

PATH = RESULTS / "utility.json"
EPSILONS = (0.1, 0.5, 1.0, 2.0, 8.0)
SEED = 19
# Parts of the page: methods, problems, epsilons, repetitions, record, packages.
PARTS: dict[str, tuple[dict[str, Method], Any, Any, int, Path, tuple[str, ...]]] = {
    "run": (METHODS, problems.NAMES, EPSILONS, 10, PATH, ()),
    "predictions": (
        *(predictions.METHODS, problems.NAMES, predictions.EPSILONS, 5),
        *(predictions.PATH, ("interpret-core", "scikit-learn")),
    ),
    "sklearn": (
        *(sklearn.METHODS, sklearn.PROBLEMS, (1.0,), 5, sklearn.PATH),
        ("diffprivlib", "scikit-learn"),
    ),
    "tuning": (tuning.METHODS, tuning.PROBLEMS, (1.0,), 10, tuning.PATH, ()),
}
Judge = Callable[[Method, Problem, np.ndarray], dict[str, list[float]]]


def add_arguments(parser):
    """Adds the commands below `utility`."""
    commands = parser.add_subparsers(dest="part", required=True)
    for part, (*settings, _) in PARTS.items():
        one = commands.add_parser(part, help="run what the record lacks")
        comparison.add_run_arguments(one, *settings)


def main(part, **options):
    """Runs the command."""
    methods, *_, packages = PARTS[part]
    known = {"method": methods, "problem": problems.NAMES}
    judge = predictions.judged if part == "predictions" else judged
    one = partial(run_named, methods, judge)
    comparison.run(one, known, packages=packages, **options)


def run_named(
    methods: dict[str, Method], judge: Judge, problem: str, method: str, *how: Any
) -> tuple[Row, dict[str, Any]] | None:
    """Returns the row and the problem's facts; None where it is not served."""
    data = problems.problem(problem)
    if not methods[method].serves(data):
        return None
    return run_one(methods[method], data, *how, judge), facts(data)


def judged(method: Method, data: Problem, params: np.ndarray) -> dict[str, list[float]]:
    """Returns the excess of each column of weights."""
    excess = data.excess(params, row_norm=method.row_norm)
    return {"excess": [rounded(x) for x in excess]}


def run_one(
    method: Method,
    data: Problem,
    epsilon: float,
    repetitions: int,
    judge: Judge = judged,
) -> Row:
    """Runs a method's repetitions, with keys that depend on all that is run."""
    keys = keys_of(key_of(SEED, data.name, method.name, epsilon), repetitions)
    start = time.perf_counter()
    try:
        found, taken = method.fit(data, keys, epsilon)
    except LeftOut as reason:
        return {"excess": [], "seconds": 0.0, "facts": {}, "left_out": str(reason)}
    seconds = time.perf_counter() - start
    return {
        **judge(method, data, np.asarray(found)),
        "seconds": round(seconds, 3),
        "facts": {name: rounded(value) for name, value in taken.items()},
    }


def facts(data: Problem) -> dict[str, Any]:
    """What the page says of a problem."""
    names = "title loss delta is_real max_features zero_excess intercept_excess"
    return {name: getattr(data, name) for name in names.split()} | {
        "n": data.shape[0],
        "d": data.shape[1],
        "num_test": len(data.test_targets),
        "has_intercept": data.intercept is not None,
        "reference_risk": data.reference_risk,
    }
