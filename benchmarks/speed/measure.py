"""Measures cases: all methods of a case take turns, and each in the same way.

A turn is one call that is not timed, which fills the caches and takes back memory, and
then timed ones. Every second round goes backwards.
"""

import gc
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import record
from benchmarks.record import RESULTS, ROOT, Found, Place, Record
from benchmarks.speed.case import Case, Measurement, Method
from benchmarks.speed.suites import CASES, SUITES
from dpjax._files import check_file

LEAST_TURN = 5e-3  # seconds that are timed in a turn, so that the clock is fine enough
# Large blocks come from the system and go back when they are freed (glibc), so that a
# call cannot live unseen on what compiling has left.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536"}
LONG = 1.0  # seconds from which on a call needs none before it
# How many seconds a case may take, and how many rounds at least and at most.
FULL, ALONE = (12.0, 5, 25), (0.5, 3, 15)
# Bytes of memory that the machine's bandwidth is measured on, by platform: within a
# core's cache, within the chip's caches, and beyond.
SIZES = {"cpu": (2**20, 2**24, 2**29), "gpu": (2**22, 2**26, 2**32)}


def floor() -> dict[str, Any]:
    """Measures the machine's bandwidth, of passes `x <- x/2 + 1` over memory.

    Bytes read plus bytes written in a second, the most of several timings by size.
    """

    @partial(jax.jit, static_argnums=1, donate_argnums=0)
    def passes(x, count):
        return jax.lax.fori_loop(0, count, lambda _, x: x * 0.5 + 1, x)

    copies = []
    for size in SIZES["cpu" if jax.default_backend() == "cpu" else "gpu"]:
        count = max(2**32 // (2 * size), 2)
        x, times = jnp.ones(size // 4), []
        for _ in range(8):
            jax.block_until_ready(x)
            start = time.perf_counter()
            x = jax.block_until_ready(passes(x, count))
            times.append(time.perf_counter() - start)
        speed = 2 * size * count / min(times[1:])  # the first compiles
        copies.append({"bytes": size, "bytes_per_second": speed})
    return {"copies": copies}


class Prepared(NamedTuple):
    """A method that has been compiled and called twice."""

    method: Method
    call: Callable[[], Any]
    seconds: float
    compile_seconds: float | None = None
    temporary_bytes: int | None = None


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def prepare(method: Method) -> Prepared:
    """Makes the method, compiles it, and calls it twice."""
    if importlib.util.find_spec(method.package) is None:
        raise ModuleNotFoundError(f"{method.package} is not installed")
    function, arguments = method.make()
    leaves = jax.tree.leaves(arguments)
    jax.block_until_ready([x for x in leaves if hasattr(x, "shape")])
    compile_seconds = temporary = None
    if isinstance(function, jax.stages.Wrapped):
        start = time.perf_counter()
        compiled = function.lower(*arguments).compile()
        compile_seconds = time.perf_counter() - start
        analysis = compiled.memory_analysis()
        temporary = None if analysis is None else int(analysis.temp_size_in_bytes)
    call = partial(function, *arguments)
    first = _timed(call)
    seconds = _timed(call) if first < 5 * LONG else first
    return Prepared(method, call, seconds, compile_seconds, temporary)


def take_turns(methods: Sequence[Prepared], effort) -> dict[str, list[float]]:
    """Returns the seconds of a call, by method and round."""
    counts, cost = {}, 1e-9
    for one in methods:
        count = round(LEAST_TURN / max(one.seconds, 1e-7))
        counts[one.method.name] = count = min(max(count, 1), 100)
        cost += one.seconds * (count + (one.seconds < LONG))
    seconds, least, most = effort
    rounds = min(max(int(seconds / cost), least), most)
    times: dict[str, list[float]] = {name: [] for name in counts}
    gc.collect()
    gc.disable()  # a collection walks all of JAX's and torch's objects
    try:
        for index in range(rounds):
            for one in methods if index % 2 == 0 else reversed(methods):
                if one.seconds < LONG:
                    jax.block_until_ready(one.call())
                count = counts[one.method.name]
                start = time.perf_counter()
                for _ in range(count):
                    jax.block_until_ready(one.call())
                seconds = (time.perf_counter() - start) / count
                times[one.method.name].append(seconds)
    finally:
        gc.enable()
    return times


def run_case(case: Case, effort=FULL) -> Found:
    """Measures all methods of a case; those that fail are left out, and named."""
    prepared, rows = [], {}
    for method in case.build():
        try:
            prepared.append(prepare(method))
        except Exception as error:
            reason = str(error).strip().splitlines() or [""]
            why = f"{type(error).__name__}: {reason[0][:200]}"
            rows[case.name, method.name] = {"left_out": why}
    times = take_turns(prepared, effort)
    for one in prepared:
        name = one.method.name
        low, _, high = statistics.quantiles(times[name], n=4, method="inclusive")
        row = {"package": one.method.package, "seconds": statistics.median(times[name])}
        row |= {"quartiles": [low, high], "repeats": len(times[name])}
        row |= {"compile_seconds": one.compile_seconds}
        row |= {"temporary_bytes": one.temporary_bytes}
        row |= {"moved_bytes": one.method.moved_bytes}
        rows[case.name, name] = {x: y for x, y in row.items() if y is not None}
    if case.has_peak:
        names = [one.method.name for one in prepared]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            peaks = list(pool.map(partial(_peak_apart, case.name), names))
        for name, (peak, why) in zip(names, peaks, strict=True):
            if peak is not None:
                rows[case.name, name]["peak_bytes"] = peak
            if why:
                rows[case.name, f"peak memory of {name}"] = {"left_out": why}
    seconds = None
    if alone := [one for one in prepared if one.method.name == case.yardstick]:
        seconds = statistics.median(take_turns(alone, ALONE)[case.yardstick])
    return rows, {case.name: {"alone_seconds": seconds}}


def _peak_apart(case: str, method: str) -> tuple[int | None, str]:
    """Returns the peak memory of a method, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks", "peak", case, method]
    given = {"cwd": ROOT.parent, "env": os.environ | ALLOCATOR, "timeout": 600}
    try:
        result = subprocess.run(command, capture_output=True, text=True, **given)
    except subprocess.TimeoutExpired:
        return None, "took more than ten minutes"
    if result.returncode != 0:
        last = result.stderr.strip().splitlines() or ["no message"]
        return None, f"exit status {result.returncode}: {last[-1][:200]}"
    return json.loads(result.stdout.splitlines()[-1]), ""


def peak_bytes(method: Method) -> int | None:
    """Returns by how much resident memory rises in a call; None where it is not told.

    The process's high-water mark is set back before: compiling leaves a higher one.
    """
    function, arguments = method.make()
    jax.block_until_ready(function(*arguments))  # compiles, and touches its code
    gc.collect()
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return None

    def high_water() -> int:
        lines = status.read_text().splitlines()
        (kibibytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
        return 1024 * int(kibibytes)

    reset.write_text("5")
    before = high_water()
    jax.block_until_ready(function(*arguments))
    return high_water() - before


# -- The command `python -m benchmarks run` --------------------------------------------

PACKAGES = [
    *("dpjax", "jax", "jaxlib", "numpy", "scipy", "optax", "dp-accounting"),
    *("jax_privacy", "opacus", "torch"),
]


def add_arguments(parser):
    parser.add_argument("--suite", choices=SUITES, default="cpu")
    parser.add_argument("--case", action="append", help="this case only; repeatable")
    parser.add_argument("--out", type=Path, help="the record")


def main(suite: str, case: Sequence[str] | None, out: Path | None) -> None:
    """Measures what this state of the machine and the code lacks, case by case."""
    names = [one.name for one in SUITES[suite]]
    for name in {*(case or ())} - {*names}:
        raise ValueError(f"case = {name!r}: must be one of {', '.join(names)}")
    if suite == "gpu" and jax.default_backend() == "cpu":
        raise ValueError("suite = gpu: must run on a GPU")
    out = out or RESULTS / f"{suite}.json"
    check_file("--out", out, suffix=".json")
    if suite == "cpu":
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)

    def run(place: Place) -> Found:
        start = time.perf_counter()
        rows, facts = run_case(CASES[place[0]])
        print(f"{place[0]}: {time.perf_counter() - start:.0f} s", flush=True)
        for (_, name), row in rows.items():
            if "left_out" in row:
                print(f"  left out: {name}: {row['left_out']}", flush=True)
        return rows, facts

    about = record.about_run(PACKAGES) | {
        "started": datetime.now().isoformat(timespec="seconds"),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "floor": floor(),
    }
    known = record.read(out) if out.exists() else Record()
    same = [all(one[x] == about[x] for x in record.FACTS) for one in known.runs]
    done = {place[0] for place, row in known.rows.items() if same[row["run"]]}
    places = [(name,) for name in case or names if case or name not in done]
    record.fill(out, places, run, about=about)
    print(out)


def peak(case: str, method: str) -> None:
    """Prints the peak memory of one method."""
    jax.config.update("jax_platforms", "cpu")
    (found,) = (one for one in CASES[case].build() if one.name == method)
    print(json.dumps(peak_bytes(found)))


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
