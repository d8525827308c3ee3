"""Writes the pages from a record: no number of a run is typed in here."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import floor, plots
from benchmarks.case import Case, Target
from benchmarks.cost_page import cost_page, is_cost
from benchmarks.record import RESULTS, ROOT, Measurement, Record, latest, read
from benchmarks.suites import SUITES
from benchmarks.text import duration, machine, number, source, table
from benchmarks.verdict import Verdict, judge
from dpjax._files import write_whole

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

INTRODUCTION = """\
All methods of a case run in one process and take turns; the ratios are what carries
over to other machines. A turn is one call that is not timed, then calls that are: the
first one fills the caches which the last method has emptied, and takes back from the
system the memory which a method with large intermediate values has returned to it.
Every second round goes backwards. Times are medians of the rounds, with lower and upper
quartiles; a call ends when its result is there. Python's garbage collector rests
meanwhile.

Compile time is tracing, lowering and compiling, apart from the calls; where a function
compiles inside, it is the first call less a later one. Temporary memory is what the
compiler states. Peak memory is measured in a process of its own for each method: how
far resident memory rises in a call, its result included, above what the process held
before that call, parameters, data and the compiled program among it. What does not
apply is left empty.

All methods of a gradient get the same parameters, the same batch and the same loss for
each sample, and return the mean over the batch. None adds noise; optax draws some of
standard deviation zero, which is part of its time. The peers clip to norm 1, as
`Clipping` does, and `tests/test_benchmarks.py` compares what they return. JAX and torch
take as many threads as they choose.
"""
COMMANDS = """\
    python -m pip install -e ".[bench]"         # jax_privacy, plots
    python -m pip install -e ".[bench-torch]"   # Opacus; torch is large
    python -m benchmarks run                    # writes one record (--quick: a glance)
    python -m benchmarks run --suite gpu
    python -m benchmarks report                 # writes these pages from the last ones
"""


def write_pages(paths: Sequence[Path] = (), output: Path | None = None) -> list[Path]:
    """Writes README.md, COST.md and their plots, and returns the files.

    Args:
        paths: records; by default the latest of each suite.
        output: folder of the pages; by default this one.

    Raises:
        ValueError: where a record is broken, or there is none of the suite cpu.
    """
    chosen = list(paths) or [path for suite in SUITES if (path := latest(suite))]
    records: dict[str, tuple[Record, Path]] = {}
    for path in chosen:
        record = read(Path(path))
        records[record.suite] = (record, Path(path))
    if "cpu" not in records:
        raise ValueError(f"record: there is none of the suite cpu in {RESULTS}")
    output = ROOT if output is None else output
    pages = {
        "README.md": _readme(records, output),
        "COST.md": cost_page(SUITES["cpu"], *records["cpu"], output=output),
    }
    for name, text in pages.items():
        write_whole(output / name, text.encode())
    return [output / name for name in pages] + sorted((output / "plots").glob("*.png"))


def _readme(records: dict[str, tuple[Record, Path]], output: Path) -> str:
    record, path = records["cpu"]
    parts = [
        "# Benchmarks\n",
        f"Written by `python -m benchmarks report` from {source(path)}. How time "
        "grows, and what the machine allows, stands in [COST.md](COST.md); recorded "
        "experiments that are no timings in [EXPERIMENTS.md](EXPERIMENTS.md).\n",
        machine(record),
        COMMANDS,
        "## How it is measured\n",
        INTRODUCTION,
        *_turns(record),
        "## Targets\n",
        *_targets(record, SUITES["cpu"]),
    ]
    figures = _figures(record, output)
    drawn = set()
    for case in SUITES["cpu"]:
        if is_cost(case):
            continue
        for name in figures:
            if name not in drawn and _is_in(case, FIGURES[name][0]):
                parts.append(f"![{name}](plots/{name}.png)\n")
                drawn.add(name)
        parts += _case(case, record)
    parts.append("## GPU\n")
    if "gpu" in records:
        record, path = records["gpu"]
        parts += [f"From {source(path)}.\n", machine(record)]
        parts += _targets(record, SUITES["gpu"])
        for case in SUITES["gpu"]:
            parts += _case(case, record)
    else:
        parts.append(
            "`python -m benchmarks run --suite gpu` measures the reduction against the "
            "bandwidth of a copy, and gradients of the models beside jax_privacy and "
            "Opacus. There is no recorded run of it yet: no GPU was at hand.\n"
        )
    return "\n".join(parts)


def _turns(record: Record) -> list[str]:
    """Says what taking turns does to a method's time."""
    ratios = [
        base.seconds / results.alone_seconds
        for case in SUITES[record.suite]
        if (results := record.cases.get(case.name)) and results.alone_seconds
        if (base := results.find(case.yardstick))
    ]
    if not ratios:
        return []
    low, middle, high = (number(x) for x in np.quantile(ratios, [0, 0.5, 1]))
    return [
        "As a check, the method that a table divides by is also timed alone, after the "
        f"turns. Over {len(ratios)} tables its time in turns is {low} to {high} times "
        f"that alone, {middle} in the middle.\n"
    ]


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


def _targets(record: Record, cases: Sequence[Case]) -> list[str]:
    rows, counts = [], {"reached": 0, "missed": 0, "not measured": 0}
    missed: dict[tuple[str, str], list[tuple[str, Target]]] = {}
    for case in cases:
        for target in case.targets:
            verdict = judge(target, record.cases.get(case.name), record.floor)
            claim = _claim(target, verdict)
            if verdict is None:
                kind, measured, margin = "not measured", "", ""
            else:
                kind = "reached" if verdict.is_reached else "missed"
                share = target.quantity == "copy_share"
                measured = _per_cent(verdict.value) if share else number(verdict.value)
                margin = f"{verdict.factor:.3g} times"
            if kind == "missed":
                missed.setdefault((case.name, target.binds), []).append((claim, target))
            counts[kind] += 1
            mark = f"**{kind}**" if kind == "missed" else kind
            rows.append([case.name, claim, measured, mark, margin])
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    header = ["case", "what is asked", "measured", "verdict", "within or beyond"]
    parts = [f"{summary[:1].upper()}{summary[1:]}.\n", table(header, rows)]
    if missed:
        reasons = [
            f"* {case}: {'; '.join(claim for claim, _ in group)}. {binds}"
            + _least_times(record, case, [target for _, target in group])
            for (case, binds), group in missed.items()
        ]
        parts += ["What binds in those that are missed:\n", "\n".join(reasons) + "\n"]
    return parts


def _per_cent(share: float) -> str:
    return f"{100 * share:.0f} per cent"


def _least_times(record: Record, case: str, targets: Sequence[Target]) -> str:
    text = ""
    for name in dict.fromkeys(
        target.method for target in targets if target.quantity == "seconds"
    ):
        one = record.cases[case].find(name)
        if one is None or one.work is None:
            continue
        least = floor.least(record.floor, one.work)
        text += (
            f" The work of {name} takes {number(1e3 * least.seconds)} ms at least, "
            f"where {least.binds} binds ({number(1e3 * least.memory_seconds)} ms of "
            f"memory, {number(1e3 * least.arithmetic_seconds)} ms of arithmetic); "
            f"measured are {number(1e3 * one.seconds)} ms, "
            f"{number(one.seconds / least.seconds)} times that."
        )
    return text


def _case(case: Case, record: Record) -> list[str]:
    parts = [f"## {case.title}\n", case.text + "\n"]
    results = record.cases.get(case.name)
    if results is None:
        return [*parts, "Not part of this run.\n"]

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
        parts.append("Nothing was measured.\n")
    if results.left_out:
        reasons = "; ".join(f"{name} ({why})" for name, why in results.left_out.items())
        parts.append(f"Left out: {reasons}.\n")
    return parts


def _mebibytes(count: int | None) -> float | None:
    return None if count is None else count / 2**20


def _is_in(case: Case, prefixes: str | tuple[str, ...]) -> bool:
    return case.name.startswith(prefixes)


def _figures(record: Record, output: Path) -> list[str]:
    """Draws the figures, and returns the names of those that have something to show."""
    return [name for name in FIGURES if _is_drawn(name, record, output)]


def _is_drawn(name: str, record: Record, output: Path) -> bool:
    prefixes, value, label = FIGURES[name]
    cases = [case for case in SUITES[record.suite] if _is_in(case, prefixes)]
    path = output / "plots" / f"{name}.png"
    if value is None:
        return plots.curves(path, record, cases)
    return plots.compare(path, record, cases, value, label)
