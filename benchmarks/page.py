"""Writes pages: a template of `pages/`, filled with what is computed from records."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, ROOT, Record, Row
from dpjax._files import check_file, write_whole

Part = str | Iterable[str] | float


def write(name: str, parts: Mapping[str, Part], output: Path | None = None) -> Path:
    """Writes a page whole, by default beside this file, and returns where it lies."""
    output = ROOT / name if output is None else output
    check_file("--output", output, suffix=".md")
    write_whole(output, filled(name, parts).encode(), name="page")
    return output


def filled(name: str, parts: Mapping[str, Part]) -> str:
    """Returns the template of a page with its parts; several stand a line apart."""
    texts: dict[str, Any] = {}
    for key, part in parts.items():
        text = part if isinstance(part, str | int | float) else joined(part)
        texts[key] = text.strip("\n") if isinstance(text, str) else text
    text = (ROOT / "pages" / name).read_text().format(**texts)
    return re.sub(r"\n{3,}", "\n\n", text)


def joined(parts: Iterable[str]) -> str:
    """Returns parts of a page, an empty line between them."""
    return "\n\n".join(part.strip("\n") for part in parts)


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a Markdown table; numbers with three digits, None as an empty cell."""
    lines = [list(header), ["---"] * len(header)]
    for row in rows:
        cells = ["" if cell is None else cell for cell in row]
        lines.append([number(x) if isinstance(x, float) else str(x) for x in cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(x: float) -> str:
    """Returns a number with three digits, without exponents where it is not tiny."""
    if abs(x) < 999.5:
        return f"{x:.3g}"
    digits = len(str(int(abs(x))))
    return f"{round(x, 3 - digits):,.0f}"


def listed(values: Iterable[float]) -> str:
    """Returns "1, 2 and 3"."""
    *most, last = (f"{value:g}" for value in values)
    return f"{', '.join(most)} and {last}"


def capitalized(text: str) -> str:
    """Returns a text whose first letter is large, and the others as they are."""
    return text[:1].upper() + text[1:]


def source(path: Path) -> str:
    """Returns a link to a record, where it lies with the others."""
    is_ours = path.resolve().parent == RESULTS
    return f"[{path.name}](results/{path.name})" if is_ours else f"`{path.name}`"


def machine(run: Mapping[str, Any]) -> str:
    """Says what a run was on."""
    versions = (f"{k} {v or 'not installed'}" for k, v in run["versions"].items())
    return (
        f"{run['cores']} cores of {run['processor']}, "
        f"{run['accelerator'] or 'no accelerator'}; {run['system']}, "
        f"Python {run['python']}; {', '.join(versions)}"
    )


def machines(content: Record) -> str:
    """Says what the rows of repetitions were run on, a line a machine."""
    found: dict[str, list[Row]] = {}
    commits: dict[str, dict[str, None]] = {}
    for row in sorted(content.rows.values(), key=lambda row: row["run"]):
        if row.get("excess"):
            run = content.runs[row["run"]]
            found.setdefault(machine(run), []).append(row)
            commits.setdefault(machine(run), {})[run["commit"]] = None
    lines = []
    for text, rows in found.items():
        counts = [len(row["excess"]) for row in rows]
        ends = " to ".join(map(str, dict.fromkeys((min(counts), max(counts)))))
        minutes = sum(row["seconds"] for row in rows) / 60
        what = f"{len(rows)} rows of {ends} repetitions, {minutes:.0f} minutes"
        known = ", ".join(filter(None, commits[text]))
        lines.append(f"- {what}: {text}" + (f"; commit {known}" if known else "") + ".")
    return "\n".join(lines)
