"""Numbers, tables and runs as text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, Record


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a Markdown table; numbers with three digits, None as an empty cell."""
    lines = [list(header), ["---"] * len(header)]
    lines += [["" if cell is None else _cell(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _cell(cell: Any) -> str:
    return number(cell) if isinstance(cell, float) else str(cell)


def number(x: float) -> str:
    """Returns a number with three digits, without exponents where it is not tiny."""
    if abs(x) < 999.5:
        return f"{x:.3g}"
    digits = len(str(int(abs(x))))
    return f"{round(x, 3 - digits):,.0f}"


def duration(seconds: float) -> str:
    """Returns a short time in the unit that suits it."""
    unit, scale = next(
        (pair for pair in (("ms", 1e3), ("µs", 1e6)) if seconds * pair[1] >= 1),
        ("ns", 1e9),
    )
    return f"{number(seconds * scale)} {unit}"


def source(path: Path) -> str:
    """Returns a link to a record, where it lies with the others."""
    is_ours = path.resolve().parent == RESULTS
    return f"[{path.name}](results/{path.name})" if is_ours else f"`{path.name}`"


def machine(record: Record) -> str:
    """Says when and where a record was made."""
    facts_of = record.machine
    memory = facts_of["memory_bytes"]
    facts = [
        f"{facts_of['cores']} cores of {facts_of['processor']}",
        f"{memory / 2**30:.0f} GiB" if memory else "memory unknown",
        facts_of["accelerator"] or "no accelerator",
        f"{facts_of['system']}, Python {facts_of['python']}",
    ]
    packages = [
        f"{name} {version or 'not installed'}"
        for name, version in record.versions.items()
    ]
    text = (
        f"Run of {record.started.replace('T', ' ')}, {record.seconds / 60:.0f} minutes"
        f"{', not all cases' * (not record.is_whole)}: "
        f"{'; '.join(facts)}. {', '.join(packages)}."
    )
    if record.commit:
        text += f" Commit {record.commit}."
    if facts_of.get("load_before") is not None:
        text += (
            f" Load of the machine before the run: {number(facts_of['load_before'])}."
        )
    if record.is_quick:
        text += " **Quick: data are smaller than headings say, and repeats few.**"
    return text + "\n"
