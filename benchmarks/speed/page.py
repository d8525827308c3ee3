"""The pages of speed, README.md and COST.md: no number of a run is typed in here."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import page
from benchmarks.page import duration, number, table
from benchmarks.record import RESULTS, ROOT, read
from benchmarks.speed import floor, plots
from benchmarks.speed.case import Case, Measurement, Target, Verdict
from benchmarks.speed.command import Results, results
from benchmarks.speed.suites import SUITES

QUANTITIES = {
    "seconds": "",
    "temporary_bytes": " in temporary memory, as the compiler states it",
    "peak_bytes": " in peak memory of a process",
    "compile_seconds": " to compile",
    "compilations": " compiled programs",
    "copy_share": " of the bandwidth of a copy",
}
# File, cases, number, label of the axis; without a number, times along the axis.
MILLISECONDS = (lambda one: 1e3 * one.seconds, "ms a call")
MEBIBYTES = (lambda one: (one.peak_bytes or 0) / 2**20, "peak MiB beyond the data")
FIGURES = {
    "gradients": ("gradient-", *MILLISECONDS),
    "memory": ("gradient-", *MEBIBYTES),
    "batch-sizes": ("batch-sizes-", None, ""),
    "estimators-and-solvers": (
        ("estimators", "descent", "selection-", "frank-wolfe", "repetitions"),
        *MILLISECONDS,
    ),
}


def write(output: Path | None = None) -> list[Path]:
    """Writes README.md, COST.md and their plots from the records, returns the files."""
    return write_from({suite: RESULTS / f"{suite}.json" for suite in SUITES}, output)


def write_from(records: Mapping[str, Path], output: Path | None = None) -> list[Path]:
    """Writes the pages of the records of suites, where they exist.

    Raises:
        ValueError: where a record is broken, or there is none of the suite cpu.
    """
    output = ROOT if output is None else output
    found = {
        suite: results(read(path))
        for suite, path in records.items()
        if suite == "cpu" or path.exists()
    }
    path, cpu = records["cpu"], found["cpu"]
    costs = [case for case in SUITES["cpu"] if case.is_cost]
    others = [case for case in SUITES["cpu"] if not case.is_cost]
    (output / "plots").mkdir(parents=True, exist_ok=True)
    head = {"source": page.source(path), "machine": list(_machine(cpu))}
    readme = head | {
        "turns": _turns(cpu),
        "targets": _targets(cpu, SUITES["cpu"]),
        **{case.name: _case(case, cpu.get(case.name)) for case in others},
        "gpu": NO_GPU if "gpu" not in found else _gpu(found["gpu"], records["gpu"]),
    }
    cost = head | {
        "speed": _speed(next(iter(cpu.values())).run["floor"]),
        **{case.name: _cost(case, cpu.get(case.name)) for case in costs},
    }
    _draw(others, cpu, output / "plots")
    plots.curves(output / "plots" / "cost.png", costs, cpu)
    files = [
        page.write("README.md", readme, output / "README.md"),
        page.write("COST.md", cost, output / "COST.md"),
    ]
    return files + sorted((output / "plots").glob("*.png"))


NO_GPU = (
    "`python -m benchmarks run --suite gpu` measures the reduction against the "
    "bandwidth of a copy, and gradients of the models beside jax_privacy and Opacus. "
    "There is no recorded run of it yet: no GPU was at hand."
)


def _gpu(found: Mapping[str, Results], path: Path) -> Iterator[str]:
    yield f"From {page.source(path)}."
    yield from _machine(found)
    yield from _targets(found, SUITES["gpu"])
    for case in SUITES["gpu"]:
        yield f"### {case.title}"
        yield from _case(case, found.get(case.name))


def _machine(found: Mapping[str, Results]) -> Iterator[str]:
    """Says when and where a record was made."""
    runs = {one.run["started"]: one.run for one in found.values()}
    for started, run in sorted(runs.items()):
        text = f"Run of {started.replace('T', ' ')}: {page.machine(run)}."
        if run["memory_bytes"]:
            text += f" {run['memory_bytes'] / 2**30:.0f} GiB."
        if run["commit"]:
            text += f" Commit {run['commit']}."
        if run.get("load_before") is not None:
            load = number(run["load_before"])
            text += f" Load of the machine before the run: {load}."
        if run["is_quick"]:
            text += " **Quick: data are smaller than headings say, and repeats few.**"
        yield text


def _turns(found: Mapping[str, Results]) -> str:
    """Says what taking turns does to a method's time."""
    ratios = [
        base.seconds / of_case.alone_seconds
        for case in SUITES["cpu"]
        if (of_case := found.get(case.name)) and of_case.alone_seconds
        if (base := of_case.find(case.yardstick))
    ]
    if not ratios:
        return ""
    low, middle, high = (number(x) for x in np.quantile(ratios, [0, 0.5, 1]))
    return (
        "As a check, the method that a table divides by is also timed alone, after the "
        f"turns. Over {len(ratios)} tables its time in turns is {low} to {high} times "
        f"that alone, {middle} in the middle."
    )


def _claim(target: Target, verdict: Verdict | None) -> str:
    other = target.against_name or ", ".join(target.against)
    if verdict and target.against_name:
        other += f" ({verdict.other})"
    quantity = QUANTITIES[target.quantity]
    if target.times_faster is not None:
        if target.times_faster == 1:
            return f"{target.method} is faster than {other}"
        factor = f"at least {target.times_faster:g} times"
        return f"{target.method} is {factor} faster than {other}"
    if target.at_least is not None:
        return (
            f"{target.method} reaches at least {_per_cent(target.at_least)}{quantity}"
        )
    if not target.against:
        return f"{target.method} has at most {target.at_most:g}{quantity}"
    return f"{target.method} takes at most {target.at_most:g} times {other}{quantity}"


def _targets(found: Mapping[str, Results], cases: Sequence[Case]) -> list[str]:
    rows, counts = [], {"reached": 0, "missed": 0, "not measured": 0}
    missed: dict[str, list[tuple[str, Target]]] = {}
    for case in cases:
        of_case = found.get(case.name)
        for target in case.targets:
            verdict = of_case and target.judge(of_case.methods, of_case.run["floor"])
            claim = _claim(target, verdict)
            if verdict is None:
                kind, measured, margin = "not measured", "", ""
            else:
                kind = "reached" if verdict.is_reached else "missed"
                share = target.quantity == "copy_share"
                measured = _per_cent(verdict.value) if share else number(verdict.value)
                margin = f"{verdict.factor:.3g} times"
            if kind == "missed":
                missed.setdefault(case.name, []).append((claim, target))
            counts[kind] += 1
            mark = f"**{kind}**" if kind == "missed" else kind
            rows.append([case.name, claim, measured, mark, margin])
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    header = ["case", "what is asked", "measured", "verdict", "within or beyond"]
    parts = [page.capitalized(summary) + ".", table(header, rows)]
    if missed:
        reasons = [
            f"* {case}: {'; '.join(claim for claim, _ in group)}."
            + _least_times(found[case], [target for _, target in group])
            for case, group in missed.items()
        ]
        parts += [
            "Those that are missed; what binds stands with each case:",
            "\n".join(reasons),
        ]
    return parts


def _per_cent(share: float) -> str:
    return f"{100 * share:.0f} per cent"


def _least_times(found: Results, targets: Sequence[Target]) -> str:
    text = ""
    for name in dict.fromkeys(
        target.method for target in targets if target.quantity == "seconds"
    ):
        one = found.find(name)
        if one is None or one.work is None:
            continue
        least = floor.least(found.run["floor"], one.work)
        text += (
            f" The work of {name} takes {number(1e3 * least.seconds)} ms at least, "
            f"where {least.binds} binds ({number(1e3 * least.memory_seconds)} ms of "
            f"memory, {number(1e3 * least.arithmetic_seconds)} ms of arithmetic); "
            f"measured are {number(1e3 * one.seconds)} ms, "
            f"{number(one.seconds / least.seconds)} times that."
        )
    return text


def _case(case: Case, results: Results | None) -> list[str]:
    if results is None:
        return ["Not part of this run."]
    parts = []

    def over_yardstick(one: Measurement) -> float | None:
        bases = (other for other in results.methods if other.x == one.x)
        base = next((b for b in bases if case.yardstick in (b.name, b.series)), None)
        return one.seconds / base.seconds if base else None

    columns: list[tuple[str, Callable[[Measurement], Any]]] = [
        ("method", lambda one: one.name),
        ("ms", lambda one: 1e3 * one.seconds),
        ("quartiles", lambda one: " to ".join(number(1e3 * t) for t in one.quartiles)),
        (f"times {case.yardstick}", over_yardstick),
        (
            f"a {case.unit}",
            lambda one: duration(one.seconds / one.count) if one.count else None,
        ),
        ("temporary MiB", lambda one: _mebibytes(one.temporary_bytes)),
        ("peak MiB", lambda one: _mebibytes(one.peak_bytes)),
        ("compile s", lambda one: one.compile_seconds),
    ]
    if any(target.quantity == "compilations" for target in case.targets):
        columns.append(("compiled programs", lambda one: one.compilations))
    cells = [[read_cell(one) for _, read_cell in columns] for one in results.methods]
    used = [i for i in range(len(columns)) if any(row[i] is not None for row in cells)]
    rows = [[row[i] for i in used] for row in cells]
    if rows:
        parts.append(table([columns[i][0] for i in used], rows))
    else:
        parts.append("Nothing was measured.")
    if results.left_out:
        reasons = "; ".join(f"{name} ({why})" for name, why in results.left_out.items())
        parts.append(f"Left out: {reasons}.")
    return parts


def _mebibytes(count: int | None) -> float | None:
    return None if count is None else count / 2**20


def _draw(cases: Sequence[Case], found: Mapping[str, Results], folder: Path) -> None:
    for name, (prefixes, value, label) in FIGURES.items():
        own = [case for case in cases if case.name.startswith(prefixes)]
        if value is None:
            plots.curves(folder / f"{name}.png", own, found)
        else:
            plots.compare(folder / f"{name}.png", own, found, value, label)


def _speed(speed: Mapping[str, Any]) -> str:
    rows = [
        [
            f"passes over {copy['bytes'] / 2**20:,.0f} MiB",
            f"{number(copy['bytes_per_second'] / 1e9)} GB/s",
        ]
        for copy in speed["copies"]
    ]
    rate = number(speed["operations_per_second"] / 1e9)
    rows.append(["float32 matrix product", f"{rate} billion operations/s"])
    call = number(1e6 * speed["call_seconds"])
    rows.append(["a call that does nothing", f"{call} µs"])
    return table(["the machine's own speed", ""], rows)


def _cost(case: Case, found: Results | None) -> Iterator[str]:
    methods = found.methods if found is not None else ()
    if found is None or not methods:
        yield "Nothing was measured."
        return
    work = methods[0].work or {}
    constants = {one.series: one.work["sizes"].get("c") for one in methods if one.work}
    values = ", ".join(f"{c} for {name}" for name, c in constants.items())
    text = (
        f"Bytes: `{work['bytes_formula']}`. "
        f"Operations: `{work['operations_formula']}`, where c is {values}"
    )
    per_sample = {one.work["sizes"].get("f") for one in methods if one.work} - {None}
    if len(per_sample) == 1:
        text += f", and f is {number(per_sample.pop())}"
    yield text + "."
    rows = []
    for one in methods:
        least = floor.least(found.run["floor"], one.work or {})
        times = 1e3 * one.seconds, 1e3 * least.seconds, least.binds
        rows.append([one.series, f"{one.x:,}", *times, one.seconds / least.seconds])
    rows.sort(key=lambda row: list(constants).index(row[0]))
    header = ["method", case.axis, "ms", "least ms", "what binds", "times the least"]
    yield table(header, rows)
