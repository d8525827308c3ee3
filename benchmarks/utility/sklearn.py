"""The estimators of `dpjax.sklearn`, given only epsilon, beside diffprivlib's."""

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from benchmarks.comparison import shown, summary, wins
from benchmarks.page import machines, number, source, table
from benchmarks.record import RESULTS, Row, read
from benchmarks.utility import methods
from benchmarks.utility.methods import Method, each
from benchmarks.utility.problems import Problem

PATH = RESULTS / "sklearn.json"
PROBLEMS = ("adult", "rand_hie", "belgian_motor")


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


OURS = Method("sklearn", "dpjax.sklearn", each(_weights), needs="intercept")
METHODS = {"sklearn": OURS} | {
    name: one for name, one in methods.METHODS.items() if name.startswith("diffprivlib")
}


def parts(path: Path = PATH) -> dict[str, str]:
    """Returns the parts of the page."""
    content = read(path)
    rows = []
    for name in PROBLEMS:
        facts = content.facts[name]
        found = [content.rows.get((name, method, 1.0)) for method in METHODS]
        zero = number(facts["zero_excess"])
        rows.append(
            [facts["title"], *map(shown, map(summary, found)), zero, _verdict(*found)]
        )
    titles = (method.title for method in METHODS.values())
    header = ["data", *titles, "zero weights", "dpjax is better"]
    return {
        "sklearn_source": source(path),
        "sklearn": table(header, rows),
        "sklearn_machines": machines(content),
    }


def _verdict(ours: Row | None, *rivals: Row | None) -> str:
    """Says in how many pairs of keys dpjax is better than the best rival."""
    found: Sequence[Row] = [row for row in rivals if row is not None]
    if ours is None or not found:
        return "not run"
    share = wins(ours, min(found, key=lambda row: np.median(row["excess"])))
    words = {1.0: "yes, whatever the keys", 0.0: "**no**"}
    return words.get(share, f"in {share:.0%} of pairs of keys")
