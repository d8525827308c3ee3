"""The page of speed, README.md: no number of a run is typed in here."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import page
from benchmarks.page import number, table
from benchmarks.record import RESULTS, ROOT, read
from benchmarks.speed.case import Case, Target, Verdict
from benchmarks.speed.layers import LAYERS
from benchmarks.speed.measure import Results, results
from benchmarks.speed.suites import SUITES
from dpjax.gradients import check_model

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
    cpu = found["cpu"]
    readme = {
        "source": page.source(records["cpu"]),
        "machine": list(_machine(cpu)),
        "turns": _turns(cpu),
        "targets": _targets(cpu, SUITES["cpu"]),
        **{case.name: _case(case, cpu.get(case.name)) for case in SUITES["cpu"]},
        "layers": _layers(cpu),
        "gpu": list(_gpu(found["gpu"], records["gpu"])) if "gpu" in found else (),
    }
    return [page.write("README.md", readme, output / "README.md")]


def _layers(found: Mapping[str, Results]) -> str:
    """Returns a row for each layer: how gradients are stored, and times in ms."""
    rows = []
    for case in SUITES["cpu"]:
        name = case.name.removeprefix("layer-")
        if name not in LAYERS or case.name not in found:
            continue
        stored = check_model(*LAYERS[name][1](8)).rows
        ways = ", ".join(sorted({row.way for row in stored}))
        times = {one.name: 1e3 * one.seconds for one in found[case.name].methods}
        best = min(time for name, time in times.items() if name.startswith("jax_p"))
        ours, plain = times["Clipping"], times[case.yardstick]
        rows.append([case.title, ways, plain, ours, best, ours / plain, ours / best])
    header = ["layer", "gradients", "plain", "Clipping", "jax_privacy's best"]
    return table([*header, "times plain", "times jax_privacy"], rows)


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
        base.seconds / found[case.name].alone_seconds
        for case in SUITES["cpu"]
        if case.name in found and found[case.name].alone_seconds
        if (base := found[case.name].find(case.yardstick))
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
    if target.at_most is not None:
        claim = f"takes at most {target.at_most:g} times {other}{quantity}"
    elif target.at_least is not None:
        claim = f"reaches at least {_per_cent(target.at_least)}{quantity}"
    elif target.times_faster == 1:
        claim = f"is faster than {other}"
    else:
        claim = f"is at least {target.times_faster:g} times faster than {other}"
    return f"{target.method} {claim}"


def _targets(found: Mapping[str, Results], cases: Sequence[Case]) -> list[str]:
    rows, counts = [], {"reached": 0, "missed": 0, "not measured": 0}
    for case in cases:
        of_case = found.get(case.name)
        for target in case.targets:
            verdict = of_case and target.judge(of_case.methods, of_case.run["floor"])
            kind, measured, margin = "not measured", "", ""
            if verdict:
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
    return f"{100 * share:.0f} percent"


def _case(case: Case, results: Results | None) -> list[str]:
    if results is None:
        return ["Not part of this run."]
    base = results.find(case.yardstick)
    rows = []
    for one in results.methods:
        quartiles = " to ".join(number(1e3 * t) for t in one.quartiles)
        ratio = one.seconds / base.seconds if base else None
        sizes = one.temporary_bytes, one.peak_bytes
        mebibytes = (None if size is None else size / 2**20 for size in sizes)
        times = one.name, 1e3 * one.seconds, quartiles, ratio
        rows.append([*times, *mebibytes, one.compile_seconds])
    header = ["method", "ms", "quartiles", f"times {case.yardstick}"]
    header += ["temporary MiB", "peak MiB", "compile s"]
    used = [i for i in range(len(header)) if any(row[i] is not None for row in rows)]
    cells = ([row[i] for i in used] for row in rows)
    parts = ["Nothing was measured."]
    if rows:
        parts = [table([header[i] for i in used], cells)]
    if results.left_out:
        reasons = "; ".join(f"{name} ({why})" for name, why in results.left_out.items())
        parts.append(f"Left out: {reasons}.")
    return parts
