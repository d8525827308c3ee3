"""The estimators of `dpjax.sklearn`, given nothing but epsilon, beside diffprivlib's.

diffprivlib's are given good bounds, of the records themselves, and pay nothing for it.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from benchmarks.record import RESULTS
from benchmarks.text import number, source, table
from benchmarks.utility_methods import METHODS, Method, each
from benchmarks.utility_problems import Problem
from benchmarks.utility_record import Place, Record, Row, read
from benchmarks.utility_verdict import short, summary

PATH = RESULTS / "utility_sklearn.json"
PROBLEMS = ("adult", "rand_hie", "belgian_motor")
EPSILON = 1.0
TEXT = """\
## The estimators for scikit-learn, given nothing but epsilon

Excess test risk at epsilon = 1 of `dpjax.sklearn` at its defaults, which buy the scales
of all columns, the unit of the target and the labels from that epsilon, and of
diffprivlib, whose estimators are given the records' own bounds and pay nothing for
them. diffprivlib's epsilon is pure, dpjax's comes with delta = n^-1.1. From
{source}, by `python -m benchmarks utility sklearn`.
"""


def _weights(data: Problem, key: jax.Array, epsilon: float) -> np.ndarray:
    """Fits an estimator at its defaults, and returns weights as of the problem."""
    from dpjax.sklearn import DPLinearRegression, DPLogisticRegression

    columns = np.arange(data.shape[1]) != data.intercept
    seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
    kind = DPLinearRegression if data.loss == "squared" else DPLogisticRegression
    model = kind(epsilon=epsilon, random_state=seed)
    model.fit(data.features[:, columns], data.targets)
    params = np.zeros(data.shape[1])
    params[columns] = np.ravel(model.coef_)
    params[data.intercept] = np.ravel(model.intercept_)[0]
    return params


OURS = Method(
    "sklearn",
    "dpjax.sklearn",
    "scales, unit and labels are bought, the rest is for the model",
    each(_weights),
    needs="intercept",
)
RIVALS = tuple(METHODS[name] for name in METHODS if name.startswith("diffprivlib"))


def run(repetitions: int, out: Path = PATH) -> None:
    """Runs what the record lacks: see `utility.run_missing`."""
    from benchmarks.utility import run_missing

    packages = ("diffprivlib", "scikit-learn")
    methods = (OURS, *RIVALS)
    run_missing(methods, PROBLEMS, (EPSILON,), repetitions, out, packages=packages)


def section(path: Path = PATH) -> Iterator[str]:
    """Yields the section of the page."""
    content = read(path)
    yield TEXT.format(source=source(path))
    rows = []
    for name in PROBLEMS:
        facts = content.problems[name]
        ours, *rivals = (
            content.rows.get(Place(name, method.name, EPSILON))
            for method in (OURS, *RIVALS)
        )
        said = map(_said, (ours, *rivals))
        zero = number(facts["zero_excess"])
        rows.append((facts["title"], *said, zero, _verdict(ours, rivals)))
    header = OURS.title, *(rival.title for rival in RIVALS)
    yield table(("data", *header, "zero weights", "dpjax is better"), rows)
    yield _machine(content)


def _said(row: Row | None) -> str:
    found = summary(row)
    return "" if found is None else f"{short(found.mean)} ± {short(found.error)}"


def _verdict(ours: Row | None, rivals: Iterable[Row | None]) -> str:
    """Says in how many pairs of keys dpjax is better than every rival."""
    found = [row.excess for row in rivals if row is not None]
    if ours is None or not found:
        return "not run"
    best = min(found, key=np.median)
    wins = np.mean([[one < other for other in best] for one in ours.excess])
    return {1.0: "yes, whatever the keys", 0.0: "**no**"}.get(
        float(wins), f"in {wins:.0%} of pairs of keys"
    )


def _machine(content: Record) -> str:
    counts = sorted({len(row.excess) for row in content.rows.values() if row.excess})
    texts: Sequence[str] = [
        f"{one['cores']} cores of {one['processor']}; "
        + ", ".join(f"{name} {version}" for name, version in one["versions"].items())
        for one in content.machines
    ]
    return f"Means and standard errors of {counts[0]} keys. {'; '.join(texts)}.\n"
