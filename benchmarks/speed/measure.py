"""Measures cases: all methods of a case take turns, and each in the same way.

A turn is one call that is not timed and then timed ones: the call before fills the
caches that the last method has emptied, and takes back from the system the memory that
a method with large intermediate values has returned to it. Every second round goes
backwards.
"""

import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from benchmarks.record import ROOT, Found
from benchmarks.speed.case import Case, Method

LEAST_TURN = 5e-3  # seconds that are timed in a turn, so that the clock is fine enough
# Large blocks come from the system and go back when they are freed (glibc), so that a
# call cannot live unseen on what compiling has left.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536"}
LONG = 1.0  # seconds from which on a call needs none before it


class Effort(NamedTuple):
    """How long a case may take, and how many rounds at least and at most."""

    seconds: float
    least: int
    most: int


FULL, QUICK = Effort(12.0, 5, 25), Effort(0.5, 3, 15)


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
    jax.block_until_ready(
        [x for x in jax.tree.leaves(arguments) if hasattr(x, "shape")]
    )
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


def take_turns(methods: Sequence[Prepared], effort: Effort) -> dict[str, list[float]]:
    """Returns the seconds of a call, by method and round."""
    counts = {
        one.method.name: min(max(round(LEAST_TURN / max(one.seconds, 1e-7)), 1), 100)
        for one in methods
    }
    cost = sum(
        one.seconds * (counts[one.method.name] + (one.seconds < LONG))
        for one in methods
    )
    rounds = min(max(int(effort.seconds / max(cost, 1e-9)), effort.least), effort.most)
    times: dict[str, list[float]] = {one.method.name: [] for one in methods}
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


def run_case(case: Case, *, quick: bool, effort: Effort | None = None) -> Found:
    """Measures all methods of a case; those that fail are left out, and named."""
    prepared, rows = [], {}
    for method in case.build(quick):
        try:
            prepared.append(prepare(method))
        except Exception as error:
            reason = str(error).strip().splitlines() or [""]
            why = f"{type(error).__name__}: {reason[0][:200]}"
            rows[case.name, method.name] = {"left_out": why}
    times = take_turns(prepared, effort or (QUICK if quick else FULL))
    rows |= {
        (case.name, one.method.name): _row(one, times[one.method.name])
        for one in prepared
    }
    if case.has_peak and not quick:
        _add_peaks(case.name, [one.method.name for one in prepared], rows, quick)
    alone = [one for one in prepared if one.method.name == case.yardstick]
    seconds = None
    if alone:
        seconds = statistics.median(take_turns(alone, QUICK)[case.yardstick])
    return rows, {case.name: {"alone_seconds": seconds}}


def _row(one: Prepared, times: Sequence[float]) -> dict[str, Any]:
    method = one.method
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    row = {
        "package": method.package,
        "seconds": statistics.median(times),
        "quartiles": [low, high],
        "repeats": len(times),
        "compile_seconds": one.compile_seconds,
        "temporary_bytes": one.temporary_bytes,
        "moved_bytes": method.moved_bytes,
    }
    return {name: value for name, value in row.items() if value is not None}


def _add_peaks(case: str, names: list[str], rows: dict[Any, Any], quick: bool) -> None:
    """Adds the peak memory of each method, measured in a process of its own."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        peaks = list(pool.map(lambda name: _peak_apart(case, name, quick), names))
    for name, (peak, why) in zip(names, peaks, strict=True):
        if peak is not None:
            rows[case, name]["peak_bytes"] = peak
        if why:
            rows[case, f"peak memory of {name}"] = {"left_out": why}


def _peak_apart(case: str, method: str, quick: bool) -> tuple[int | None, str]:
    command = [sys.executable, "-m", "benchmarks", "peak", case, method]
    try:
        result = subprocess.run(
            command + ["--quick"] * quick,
            cwd=ROOT.parent,
            env=os.environ | ALLOCATOR,
            capture_output=True,
            text=True,
            timeout=600,
        )
    except subprocess.TimeoutExpired:
        return None, "took more than ten minutes"
    if result.returncode != 0:
        last = result.stderr.strip().splitlines() or ["no message"]
        return None, f"exit status {result.returncode}: {last[-1][:200]}"
    return json.loads(result.stdout.splitlines()[-1]), ""


def peak_bytes(method: Method) -> int | None:
    """Returns by how much resident memory rises in a call; None where it is not told.

    The high-water mark of the process (`ru_maxrss`) is set back before the call, since
    compiling, and on Linux the process that started this one, leave a higher mark than
    the call.
    """
    function, arguments = method.make()
    jax.block_until_ready(function(*arguments))  # compiles, and touches its code
    gc.collect()
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return None
    reset.write_text("5")
    before = _high_water(status)
    jax.block_until_ready(function(*arguments))
    return _high_water(status) - before


def _high_water(status: Path) -> int:
    lines = status.read_text().splitlines()
    (kibibytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return 1024 * int(kibibytes)
