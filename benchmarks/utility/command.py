"""What `python -m benchmarks utility` runs: methods of models of tables."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.comparison import Suite, key_of, keys_of
from benchmarks.record import RESULTS, Row, rounded
from benchmarks.utility import predictions, problems, sklearn, tuning
from benchmarks.utility.methods import METHODS, Method
from benchmarks.utility.peers import LeftOut
from benchmarks.utility.problems import Problem

PATH = RESULTS / "utility.json"
EPSILONS = (0.1, 0.5, 1.0, 2.0, 8.0)
SEED = 19
Judge = Callable[[Method, Problem, np.ndarray], dict[str, list[float]]]


def run_named(methods, judge, problem, method, *how):
    """Returns the row and the problem's facts; None where it is not served."""
    data = problems.problem(problem)
    if not methods[method].serves(data):
        return None
    return run_one(methods[method], data, *how, judge), facts(data)


def judged(method: Method, data: Problem, params: np.ndarray) -> dict[str, list[float]]:
    """Returns the excess of each column of weights."""
    excess = data.excess(params, row_norm=method.row_norm)
    return {"excess": [rounded(x) for x in excess]}


def run_one(method, data, epsilon, repetitions, judge=judged) -> Row:
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
    known = {name: getattr(data, name) for name in names.split()}
    known |= dict(zip(("n", "d"), data.shape, strict=True))
    known |= {"num_test": len(data.test_targets)}
    known |= {"has_intercept": data.intercept is not None}
    return known | {"reference_risk": data.reference_risk}


def _suite(methods, names, epsilons, repetitions, path, packages=(), judge=judged):
    others = [name for name in problems.NAMES if name not in names]
    settings = methods, names, epsilons, repetitions, path, packages, others
    return Suite(partial(run_named, methods, judge), *settings)


PARTS = {
    "run": _suite(METHODS, problems.NAMES, EPSILONS, 10, PATH),
    "predictions": _suite(
        *(predictions.METHODS, problems.NAMES, predictions.EPSILONS, 5),
        *(predictions.PATH, ("interpret-core", "scikit-learn"), predictions.judged),
    ),
    "sklearn": _suite(
        *(sklearn.METHODS, sklearn.PROBLEMS, (1.0,), 5, sklearn.PATH),
        ("diffprivlib", "scikit-learn"),
    ),
    "tuning": _suite(tuning.METHODS, tuning.PROBLEMS, (1.0,), 10, tuning.PATH),
}
