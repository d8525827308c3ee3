"""How time grows with n, d, the batch and the steps, beside the least it could be."""

from functools import partial

from benchmarks.speed import frank_wolfe
from benchmarks.speed.case import Case, Method
from benchmarks.speed.estimators import (
    OPERATIONS,
    TRIMMED,
    coordinatewise,
    mean_of,
    one_pass,
)
from benchmarks.speed.gradients import gradient_work, robust
from benchmarks.speed.solvers import descent, steps_work

TRUNCATION, SMOOTHED = "Truncation", "SmoothedTruncation, beta 1"


def _points(series, x, make, work):
    name = f"{series}, {x:,}"
    return Method(name, make, work=work, series=series, x=x)


def _grid(points, series, quick):
    """All points of all series; a quick run takes the first point of the first one."""
    if quick:
        points, series = points[:1], series[:1]
    return [(x, name) for x in points for name in series]


def _gradient(model_at, points, series, threshold, quick):
    """`model_at(x)` is a setting of `gradients`: model, batch size, width."""
    estimators = coordinatewise(threshold)
    return [
        _points(
            name,
            x,
            partial(robust, estimators[name], *model_at(x)),
            partial(gradient_work, OPERATIONS[name], *model_at(x)),
        )
        for x, name in _grid(points, series, quick)
    ]


def _estimator(shape_at, points, quick):
    estimators = coordinatewise(1.0) | {"TrimmedMean": TRIMMED}
    operations = OPERATIONS | {"TrimmedMean": 1}
    return [
        _points(
            name,
            x,
            partial(mean_of, estimators[name], *shape_at(x)),
            partial(one_pass, *shape_at(x), operations[name]),
        )
        for x, name in _grid(points, ("Winsorization", SMOOTHED, "TrimmedMean"), quick)
    ]


def _descent(sizes_at, points, quick):
    """`sizes_at(x)` is n, d and the number of steps."""
    estimators = coordinatewise(1.0)
    return [
        _points(
            name,
            x,
            partial(descent, *sizes_at(x), estimators[name]),
            partial(steps_work, *sizes_at(x), OPERATIONS[name]),
        )
        for x, name in _grid(points, (TRUNCATION, SMOOTHED), quick)
    ]


def _frank_wolfe(points, quick):
    n = 10_000

    def make(d):
        return lambda x, y: frank_wolfe.fit(x, y).params, frank_wolfe.log_normal_data(
            n, d
        )

    return [
        _points(name, d, partial(make, d), partial(frank_wolfe.least_work, n, d))
        for d, name in _grid(points, ("dp_frank_wolfe",), quick)
    ]


GRADIENTS = (TRUNCATION, SMOOTHED, "Clipping")
FOUR, THREE = (16, 64, 256, 1024), (10, 100, 1_000)
RECORDS = (1_000, 10_000, 100_000, 1_000_000)
# Name, title, label of the axis, and what `build` calls.
_COSTS = [
    (
        *("gradient-batch", "robust_grad, MLP 784-256-10", "batch B"),
        partial(_gradient, lambda b: ("mlp", b), FOUR, GRADIENTS, 0.01),
    ),
    (
        *("gradient-width", "robust_grad, MLP 784-width-10, batch 64"),
        "hidden width (d = 795 width + 10)",
        partial(_gradient, lambda h: ("mlp", 64, h), FOUR, GRADIENTS, 0.01),
    ),
    (
        *("gradient-records", "robust_grad, linear regression, d = 50", "records B"),
        partial(_gradient, lambda n: ("linear", n), RECORDS, GRADIENTS, 1.0),
    ),
    (
        *("estimator-records", "Estimators in memory, d = 50", "records n"),
        partial(_estimator, lambda n: (n, 50), RECORDS),
    ),
    (
        *("estimator-coordinates", "Estimators in memory, n = 10,000", "coordinates d"),
        partial(_estimator, lambda d: (10_000, d), THREE),
    ),
    (
        *("descent-steps", "dp_gradient_descent, n = 20,000, d = 50", "steps T"),
        partial(_descent, lambda t: (20_000, 50, t), (10, 40, 160)),
    ),
    (
        *("descent-records", "dp_gradient_descent, d = 50, 10 steps", "records n"),
        partial(_descent, lambda n: (n, 50, 10), RECORDS),
    ),
    (
        *("frank-wolfe", "dp_frank_wolfe, n = 10,000, its default number of steps"),
        "features d",
        partial(_frank_wolfe, (100, 1_000, 5_000)),
    ),
]
COSTS = [
    Case(f"cost-{name}", title, build, has_peak=False, axis=axis)
    for name, title, axis, build in _COSTS
]
