"""The page of costs: times along an axis, beside the least that they could be."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks import floor, plots
from benchmarks.case import Case
from benchmarks.record import Record
from benchmarks.text import machine, number, source, table

INTRODUCTION = """\
How time grows, beside the least that it could be on the machine of the same run:

    least time = max(bytes / bandwidth, operations / rate)

Bytes and operations are those of dpjax's algorithm, by the formulas below. The
bandwidth is that of passes over memory, bytes read plus bytes written, at the size that
the work keeps touching. The rate is that of a float32 matrix product. Both are of all
cores together: a fold that goes from sample to sample on one core of two cannot come
nearer than twice the least time where arithmetic binds. A division, a root or a
comparison counts as one operation, though it takes longer than the half of a
multiplication and addition that the rate counts, so that long influences stay far above
the least time. A call of a compiled program takes time of its own, which is the floor
of small problems.
"""


def cost_page(cases: Sequence[Case], record: Record, path: Path, output: Path) -> str:
    """Returns the page, and draws its plot; cases of other pages are left out."""
    cases = [case for case in cases if is_cost(case)]
    shown = [case for case in cases if case.name in record.cases]
    parts = [
        "# What it costs\n",
        f"Written by `python -m benchmarks report` from {source(path)}.\n",
        machine(record),
        INTRODUCTION,
        table(
            ["the machine's own speed", ""],
            [
                *(
                    [
                        f"passes over {copy['bytes'] / 2**20:,.0f} MiB",
                        f"{number(copy['bytes_per_second'] / 1e9)} GB/s",
                    ]
                    for copy in record.floor["copies"]
                ),
                [
                    "float32 matrix product",
                    f"{number(record.floor['operations_per_second'] / 1e9)} billion "
                    "operations/s",
                ],
                [
                    "a call that does nothing",
                    f"{number(1e6 * record.floor['call_seconds'])} µs",
                ],
            ],
        ),
    ]
    if plots.curves(output / "plots" / "cost.png", record, shown):
        parts.append("![cost](plots/cost.png)\n")
    for case in shown:
        parts += [f"## {case.title}\n", case.text + "\n"]
        parts += _cost_table(case, record)
    return "\n".join(parts)


def is_cost(case: Case) -> bool:
    """Returns whether a case stands on this page."""
    return case.name.startswith("cost-")


def _cost_table(case: Case, record: Record) -> list[str]:
    methods = record.cases[case.name].methods
    if not methods:
        return ["Nothing was measured.\n"]
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
    rows = []
    for one in methods:
        least = floor.least(record.floor, one.work or {})
        rows.append(
            [
                one.series,
                f"{one.x:,}",
                1e3 * one.seconds,
                1e3 * least.seconds,
                least.binds,
                one.seconds / least.seconds,
            ]
        )
    rows.sort(key=lambda row: list(constants).index(row[0]))
    header = ["method", case.axis, "ms", "least ms", "what binds", "times the least"]
    return [text + ".\n", table(header, rows)]
