"""The command `python -m benchmarks run`: measures a suite into its record."""

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax

from benchmarks import record
from benchmarks.record import RESULTS, Record
from benchmarks.speed import measure
from benchmarks.speed.case import Measurement
from benchmarks.speed.suites import CASES, SUITES
from dpjax._files import check_file

PACKAGES = [
    *("dpjax", "jax", "jaxlib", "numpy", "scipy", "optax", "dp-accounting"),
    *("jax_privacy", "opacus", "torch"),
]


def add_arguments(parser):
    parser.add_argument("--suite", choices=SUITES, default="cpu")
    parser.add_argument("--case", action="append", help="this case only; repeatable")
    parser.add_argument("--out", type=Path, help="the record")


def main(suite: str, case: Sequence[str] | None, out: Path | None) -> None:
    """Measures, and merges each case into the record as it comes."""
    names = [one.name for one in SUITES[suite]]
    for name in case or ():
        if name not in names:
            raise ValueError(f"case = {name!r}: must be one of {', '.join(names)}")
    if suite == "gpu" and jax.default_backend() == "cpu":
        raise ValueError("suite = gpu: must run on a GPU")
    out = out or RESULTS / f"{suite}.json"
    check_file("--out", out, suffix=".json")
    if suite == "cpu":
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)

    def run(place: record.Place) -> record.Found:
        start = time.perf_counter()
        rows, facts = measure.run_case(CASES[place[0]])
        print(f"{place[0]}: {time.perf_counter() - start:.0f} s", flush=True)
        for (_, name), row in rows.items():
            if "left_out" in row:
                print(f"  left out: {name}: {row['left_out']}", flush=True)
        return rows, facts

    about = record.about_run(PACKAGES) | {
        "started": datetime.now().isoformat(timespec="seconds"),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "floor": measure.floor(),
    }
    places = [(name,) for name in case or names]
    record.fill(out, places, run, again=True, about=about)
    print(out)


def peak(case: str, method: str) -> None:
    """Prints the peak memory of one method."""
    jax.config.update("jax_platforms", "cpu")
    (found,) = (one for one in CASES[case].build() if one.name == method)
    print(json.dumps(measure.peak_bytes(found)))


class Results(NamedTuple):
    """The measurements of one case, in the order of the table.

    `alone_seconds` is of the yardstick, without other methods between its calls.
    """

    run: Mapping[str, Any]
    methods: list[Measurement]
    left_out: dict[str, str]
    alone_seconds: float | None = None

    def find(self, name: str) -> Measurement | None:
        """Returns the measurement of a method; None where there is none."""
        return next((method for method in self.methods if method.name == name), None)


def results(content: Record) -> dict[str, Results]:
    """Returns the measurements of a record by case; raises where it is of no suite."""
    found: dict[str, Results] = {}
    for (case, name), row in content.rows.items():
        run = content.runs[row["run"]]
        try:
            datetime.fromisoformat(run["started"])
            run["floor"]["copies"]  # which targets of bandwidth take
            alone = content.facts[case]["alone_seconds"]
            of_case = found.setdefault(case, Results(run, [], {}, alone))
            if "left_out" in row:
                of_case.left_out[name] = row["left_out"]
                continue
            one = Measurement(name, **{x: y for x, y in row.items() if x != "run"})
            times = [one.seconds, *one.quartiles]
            if len(times) != 3 or not all(math.isfinite(t) and t >= 0 for t in times):
                raise ValueError(f"times are {times}")
            of_case.methods.append(one)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{case}, {name}: not of a suite: {error!r}") from error
    return found
