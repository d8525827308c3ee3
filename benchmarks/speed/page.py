"""The page of speed, README.md: no number of a run is typed in here."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import page
from benchmarks.page import number, table
from benchmarks.record import RESULTS, ROOT, read
from benchmarks.speed.case import Case, Target, Verdict
from benchmarks.speed.measure import Results, results
from benchmarks.speed.suites import SUITES

QUANTITIES = {
    "seconds": "",
    "temporary_bytes": " in temporary memory, as the compiler states it",
    "peak_bytes": " in peak memory of a process",
    "compile_seconds": " to compile",
    "copy_share": " of the bandwidth of a copy",
}


def write(output: Path | None = None) -> list[Path]:
    """Writes README.md from the records, and returns it."""
    return write_from({suite: RESULTS / f"{suite}.json" for suite in SUITES}, output)


def write_from(records: Mapping[str, Path], output: Path | None = None) -> list[Path]:
    """Writes the page of the records of suites; raises where one is broken."""
    output = ROOT if output is None else output
    found = {suite: results(read(path)) for suite, path in records.items()}
    output.mkdir(parents=True, exist_ok=True)
    cpu, gpu = found["cpu"], ()
    if "gpu" in found:
        gpu = list(_gpu(found["gpu"], records["gpu"]))
    readme = {
        "source": page.source(records["cpu"]),
        "machine": list(_machine(cpu)),
        "turns": _turns(cpu),
        "targets": _targets(cpu, SUITES["cpu"]),
        **{case.name: _case(case, cpu.get(case.name)) for case in SUITES["cpu"]},
        "gpu": gpu,
    }
    return [page.write("README.md", readme, output / "README.md")]


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
    return f"{target.method} takes at most {target.at_most:g} times {other}{quantity}"


def _targets(found: Mapping[str, Results], cases: Sequence[Case]) -> list[str]:
    rows, counts = [], {"reached": 0, "missed": 0, "not measured": 0}
    for case in cases:
        of_case = found.get(case.name)
        for target in case.targets:
            verdict = of_case and target.judge(of_case.methods, of_case.run["floor"])
            if verdict is None:
                kind, measured, margin = "not measured", "", ""
            else:
                kind = "reached" if verdict.is_reached else "missed"
                share = target.quantity == "copy_share"
                measured = _per_cent(verdict.value) if share else number(verdict.value)
                margin = f"{verdict.factor:.3g} times"
            counts[kind] += 1
            mark = f"**{kind}**" if kind == "missed" else kind
            claim = _claim(target, verdict)
            rows.append([case.name, claim, measured, mark, margin])
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    header = ["case", "what is asked", "measured", "verdict", "within or beyond"]
    return [page.capitalized(summary) + ".", table(header, rows)]


def _per_cent(share: float) -> str:
    return f"{100 * share:.0f} per cent"


def _case(case: Case, results: Results | None) -> list[str]:
    if results is None:
        return ["Not part of this run."]
    base = results.find(case.yardstick)
    rows = [
        [
            one.name,
            1e3 * one.seconds,
            " to ".join(number(1e3 * t) for t in one.quartiles),
            one.seconds / base.seconds if base else None,
            _mebibytes(one.temporary_bytes),
            _mebibytes(one.peak_bytes),
            one.compile_seconds,
        ]
        for one in results.methods
    ]
    header = ["method", "ms", "quartiles", f"times {case.yardstick}"]
    header += ["temporary MiB", "peak MiB", "compile s"]
    used = [i for i in range(len(header)) if any(row[i] is not None for row in rows)]
    parts = ["Nothing was measured."]
    if rows:
        cells = ([row[i] for i in used] for row in rows)
        parts = [table([header[i] for i in used], cells)]
    if results.left_out:
        reasons = "; ".join(f"{name} ({why})" for name, why in results.left_out.items())
        parts.append(f"Left out: {reasons}.")
    return parts


def _mebibytes(count: int | None) -> float | None:
    return None if count is None else count / 2**20
